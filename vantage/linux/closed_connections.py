"""What the kernel says of each TCP connection of this network namespace when it is destroyed. Nothing is captured.

sock_diag(7) multicasts an `inet_diag_msg` with the connection's `tcp_info` to the groups SKNLGRP_INET_TCP_DESTROY and
SKNLGRP_INET6_TCP_DESTROY (net/core/sock_diag.c, `sock_diag_broadcast_destroy_work`). Any user may listen.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from typing import NamedTuple

from core.errors import PlaceError
from core.outreach.sockets import socket_drops

_SOCK_DIAG = 4
_SOL_NETLINK, _ADD_MEMBERSHIP = 270, 1
_GROUPS = (1, 3)
_BY_FAMILY, _DUMP = 20, 0x301
_REQUEST = struct.pack("=IHHIIBBBBI48x", 72, _BY_FAMILY, _DUMP, 1, 0, socket.AF_INET, socket.IPPROTO_TCP, 0, 0, 0)
"""For sockets in no state at all: `nlmsghdr`, `inet_diag_req_v2`."""
_ERROR = 2
_SO_RCVBUFFORCE = 33
_INFO = 2
"""INET_DIAG_INFO (linux/inet_diag.h)."""
_INFO_BYTES = 216
"""`struct tcp_info` up to `tcpi_bytes_retrans`, which Linux 4.19 added."""

BUFFER = 32 << 20
"""Receive buffer [bytes]: those of some seconds at 5,000 connections a second, as an event takes a page or so."""

_HEAD = struct.Struct("=16xB3x2xH16x16s")
"""`nlmsghdr`; of `inet_diag_msg` the family, the remote port (0: never connected) and the remote address."""
_ATTRIBUTE = struct.Struct("=HH")
_FIRST_ATTRIBUTE = 88
_TCP_INFO = struct.Struct("=16xI176xIQQ")
"""tcpi_snd_mss, tcpi_delivered_ce, tcpi_bytes_sent, tcpi_bytes_retrans (linux/tcp.h)."""
_MAPPED = bytes(10) + b"\xff\xff"
"""IPv4 at a socket of both families (RFC 4291, section 2.5.5.2)."""
_LOOPBACK6 = bytes(15) + b"\x01"


class ClosedConnection(NamedTuple):
    """One connection that is gone, as this end saw it."""

    address: bytes
    """Of the other end: 4 bytes, or 16."""
    mss: int
    ce: int
    """Packets of ours whose CE mark the other end reported."""
    sent_bytes: int
    """Payload, without what was sent again."""
    again_bytes: int
    """Payload that was sent again; a SYN-ACK or FIN has none."""


class ClosedConnections:
    """An open subscription. Use as a context manager.

    Attributes:
        lost: events that the kernel dropped, as they came faster than they were read.

    Raises:
        PlaceError: this kernel does not tell.
    """

    def __init__(self) -> None:
        self.lost = 0
        try:
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG)
            self._socket.bind((0, 0))
            # The kernel loads tcp_diag for a request, and says ENOENT if there is none; events would just not come.
            self._socket.send(_REQUEST)
            answer = self._socket.recv(8192)
            if struct.unpack_from("=H", answer, 4)[0] == _ERROR:
                code = -struct.unpack_from("=i", answer, 16)[0]
                raise OSError(code, os.strerror(code))
            for group in _GROUPS:
                self._socket.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, group)
        except OSError as error:
            raise PlaceError(
                f"this kernel does not report closed TCP connections ({(error.strerror or str(error)).lower()})",
                remedy="use Linux 4.19 or newer with CONFIG_INET_TCP_DIAG and CONFIG_INET_DIAG",
            ) from None
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, BUFFER)
        except PermissionError:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        self._socket.setblocking(False)

    def __enter__(self) -> ClosedConnections:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def fileno(self) -> int:
        """For select(2): readable when there are events."""
        return self._socket.fileno()

    def read(self, most: int = 10_000) -> list[ClosedConnection]:
        """The events that are there, `most` of them, of connections to other hosts.

        Raises:
            PlaceError: the kernel is too old.
        """
        closed = []
        receive = self._socket.recv
        for _ in range(most):
            try:
                data = receive(4096)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                continue
            if (connection := parse(data)) is not None:
                closed.append(connection)
        # Until the queue is empty the kernel drops without ENOBUFS (net/netlink/af_netlink.c, netlink_overrun).
        self.lost = max(self.lost, socket_drops(self._socket) or 0)
        return closed


def parse(data: bytes) -> ClosedConnection | None:
    """One message; None for a socket that was never connected, or to this host's loopback.

    Raises:
        PlaceError: the kernel's `tcp_info` is too short.
    """
    family, port, address = _HEAD.unpack_from(data)
    if family == socket.AF_INET:
        address = address[:4]
    elif address.startswith(_MAPPED):
        address = address[12:]
    if port == 0 or address == _LOOPBACK6 or (address[0] == 127 and len(address) == 4):
        return None
    at = _FIRST_ATTRIBUTE
    while at + 4 <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if kind == _INFO and length >= 4 + _INFO_BYTES:
            mss, ce, sent, again = _TCP_INFO.unpack_from(data, at + 4)
            return ClosedConnection(address, mss, ce, sent - again, again)
        at += max(4, (length + 3) & ~3)
    raise PlaceError("this kernel does not count the bytes sent again", remedy="use Linux 4.19 or newer")
