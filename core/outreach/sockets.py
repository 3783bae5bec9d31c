"""Linux's options of sockets that Python has no names for."""

from __future__ import annotations

import contextlib
import socket
import struct

IP_RECVERR, IPV6_RECVERR = 11, 25
"""include/uapi/linux/in.h and in6.h: ICMP errors are kept for us with the address that they are about."""

_SO_MEMINFO, _DROPS = 55, 8
"""include/uapi/asm-generic/socket.h; SK_MEMINFO_DROPS of include/uapi/linux/sock_diag.h."""


def socket_drops(sock: socket.socket) -> int | None:
    """Datagrams or messages that the kernel dropped as the socket's buffer was full; None if it does not say."""
    with contextlib.suppress(OSError, struct.error):
        drops: int = struct.unpack_from("=9I", sock.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, 64))[_DROPS]
        return drops
    return None
