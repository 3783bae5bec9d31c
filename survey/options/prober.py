"""The program that makes TCP handshakes: addresses on standard input, what the kernel negotiated on standard output.

    python -m survey.options.prober TIMEOUT_S

It runs where the kernel's settings are correct (in its own namespace), and reports that first: one line of JSON, then
records of fixed size. One process, one epoll(7): a handshake is a dozen system calls, and no handshake blocks another.
A connection is closed by RST (SO_LINGER 0): no TIME_WAIT here, no open connection at the server.

What was negotiated is the kernel's state of a connection: `struct tcp_info` (linux/include/uapi/linux/tcp.h;
`getsockopt` TCP_INFO).
"""

from __future__ import annotations

import errno
import json
import os
import select
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from core.errors import ReachError
from core.reach import check_address


def wrong_settings(wanted: Mapping[str, str]) -> dict[str, str]:
    """Settings of this network namespace that differ from the required ones: sysctl name -> value here.

    Args:
        wanted: setting, relative to /proc/sys -> value.
    """
    wrong = {}
    for name, value in wanted.items():
        try:
            here = Path("/proc/sys", name).read_text(encoding="ascii").strip()
        except OSError as error:
            here = str(error.strerror)
        if here != value:
            wrong[name.replace("/", ".")] = here
    return wrong


TCP_INFO_BYTES = 104
"""Bytes up to and including `tcpi_total_retrans`; later kernels only append."""

TIMESTAMPS, SACK, WSCALE, ECN = 1, 2, 4, 8
"""TCPI_OPT_*: bits of `tcpi_options`. ECN is set where SYN and SYN-ACK negotiated it (RFC 3168, section 6.1.1)."""

# state, ca_state, retransmits, probes, backoff, options, wscales (sender's in the low 4 bits), flags; then 24 numbers:
# rto ato snd_mss rcv_mss | unacked sacked lost retrans fackets | four ages | pmtu rcv_ssthresh rtt rttvar snd_ssthresh
# snd_cwnd advmss reordering | rcv_rtt rcv_space | total_retrans
_LAYOUT = struct.Struct("=8B24I")
_SND_MSS, _RTT, _TOTAL_RETRANS = 10, 23, 31


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpInfo:
    """The fields that are known after a handshake."""

    timestamps: bool
    sack: bool
    window_scaling: bool
    ecn: bool
    peer_window_scale: int | None
    """The server's shift count, None without the option."""
    snd_mss_bytes: int
    """Largest segment that we may send: the server's MSS minus our options, at most what our MTU allows."""
    rtt_s: float | None
    """Round-trip time of the handshake; None if the kernel took no sample (a retransmitted SYN without timestamps:
    RFC 6298, section 3)."""
    retransmissions: int
    """Retransmitted SYNs, if nothing but the handshake was sent (net/ipv4/tcp_output.c, `__tcp_retransmit_skb`)."""


def parse_tcp_info(data: bytes) -> TcpInfo:
    """Parses the result of `getsockopt(IPPROTO_TCP, TCP_INFO, SIZE)`. Raises ValueError if it is shorter than SIZE."""
    if len(data) < TCP_INFO_BYTES:
        raise ValueError(f"tcp_info of {len(data)} bytes, {TCP_INFO_BYTES} needed: the kernel is older than 2.6.10")
    fields = _LAYOUT.unpack_from(data)
    options, scales = fields[5], fields[6]
    scaled = bool(options & WSCALE)
    return TcpInfo(
        timestamps=bool(options & TIMESTAMPS),
        sack=bool(options & SACK),
        window_scaling=scaled,
        ecn=bool(options & ECN),
        # C bit fields: the first one has the low bits on little-endian machines, the high ones on others.
        peer_window_scale=_low(scales) if scaled else None,
        snd_mss_bytes=fields[_SND_MSS],
        rtt_s=fields[_RTT] / 1e6 if fields[_RTT] else None,
        retransmissions=fields[_TOTAL_RETRANS],
    )


_LITTLE = struct.pack("=H", 1) == b"\x01\x00"


def _low(scales: int) -> int:
    return scales & 0xF if _LITTLE else scales >> 4


REQUEST = struct.Struct("=IB16sHx")
"""Number, IP version, address (IPv4: the first 4 bytes), port."""

REPLY = struct.Struct(f"=IH2x{TCP_INFO_BYTES}s")
"""Number, errno (0: established), tcp_info at the end of the attempt (zeros if it is unknown)."""

WANTED = {
    "net/ipv4/tcp_ecn": "1",  # request ECN; 2, the default, only accepts it
    "net/ipv4/tcp_ecn_fallback": "0",  # else a retransmitted SYN does not request it (RFC 3168, section 6.1.1.1)
    "net/ipv4/tcp_sack": "1",
    "net/ipv4/tcp_window_scaling": "1",
    "net/ipv4/tcp_timestamps": "1",
}
"""Kernel settings of this network namespace that make the SYN request every option (relative to /proc/sys)."""

_LINGER = struct.pack("ii", 1, 0)
_NOTHING = bytes(TCP_INFO_BYTES)
_READ_BYTES = 1 << 16
_EVENTS_PER_TURN = 256


class HandshakeLoop:
    """Makes handshakes until standard input is closed and the last attempt has ended."""

    def __init__(self, source: int, sink: int, timeout_s: float) -> None:
        self._source = source
        self._sink = sink
        self._timeout_s = timeout_s
        self._epoll = select.epoll()
        self._open: dict[int, tuple[int, socket.socket]] = {}
        self._deadlines: deque[tuple[float, int, int]] = deque()
        self._rest = b""
        self._replies: list[bytes] = []
        self._ended = False

    def run(self) -> None:
        """The loop."""
        self._epoll.register(self._source, select.EPOLLIN)
        while not self._ended or self._open:
            now = time.monotonic()
            wait = max(0.0, self._deadlines[0][0] - now) if self._deadlines else -1
            events = self._epoll.poll(wait, _EVENTS_PER_TURN)
            for descriptor, _ in events:
                if descriptor == self._source:
                    self._read()
                else:
                    self._finish(descriptor)
            if len(events) < _EVENTS_PER_TURN:  # else servers that answered in time, before we were stopped, may wait
                self._expire(now)
            if self._replies:
                _write(self._sink, b"".join(self._replies))
                self._replies.clear()

    def _read(self) -> None:
        data = os.read(self._source, _READ_BYTES)
        if not data:
            self._ended = True
            self._epoll.unregister(self._source)
            return
        data = self._rest + data
        whole = len(data) - len(data) % REQUEST.size
        self._rest = data[whole:]
        deadline = time.monotonic() + self._timeout_s
        for number, version, packed, port in REQUEST.iter_unpack(data[:whole]):
            self._begin(number, version, packed, port, deadline)

    def _begin(self, number: int, version: int, packed: bytes, port: int, deadline: float) -> None:
        family, length = (socket.AF_INET, 4) if version == 4 else (socket.AF_INET6, 16)
        address = socket.inet_ntop(family, packed[:length])
        try:
            check_address(address)
            sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        except ReachError:
            return self._reply(number, errno.EACCES, _NOTHING)
        except OSError as error:
            return self._reply(number, error.errno or errno.EIO, _NOTHING)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
        code = sock.connect_ex((address, port))
        if code not in (0, errno.EINPROGRESS):
            sock.close()
            return self._reply(number, code, _NOTHING)
        descriptor = sock.fileno()
        self._open[descriptor] = (number, sock)
        self._epoll.register(descriptor, select.EPOLLOUT)
        self._deadlines.append((deadline, descriptor, number))
        return None

    def _finish(self, descriptor: int, code: int | None = None) -> None:
        number, sock = self._open.pop(descriptor)
        if code is None:
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
        sock.close()  # epoll forgets a closed descriptor
        self._reply(number, code, info)

    def _expire(self, now: float) -> None:
        """Ends the handshakes that had no event by their deadline; `now` is a time before events were looked for."""
        while self._deadlines and (
            self._deadlines[0][0] <= now or self._open.get(self._deadlines[0][1], (-1,))[0] != self._deadlines[0][2]
        ):
            _, descriptor, number = self._deadlines.popleft()
            if self._open.get(descriptor, (-1,))[0] == number:
                self._finish(descriptor, errno.ETIMEDOUT)

    def _reply(self, number: int, code: int, info: bytes) -> None:
        self._replies.append(REPLY.pack(number, code, info))


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def main() -> None:
    """Reports whether the settings are correct, then makes handshakes."""
    wrong = wrong_settings(WANTED)
    _write(1, json.dumps({"wrong": wrong}).encode() + b"\n")
    if wrong:
        raise SystemExit(3)
    HandshakeLoop(0, 1, float(sys.argv[1])).run()


if __name__ == "__main__":
    main()
