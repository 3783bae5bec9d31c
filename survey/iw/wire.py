"""What is asked of the prober `iwprobe`, and what it answers: messages over pipes (docs/design/iw.md).

A request is a header and four texts; a reply has a fixed size, which depends on how many arrivals were asked for at
the start. All numbers are little-endian. `rust/iwprobe/src/wire.rs` is the other side.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum, IntFlag, StrEnum
from typing import Any

SMALLEST_MSS = 48
"""Linux segments no finer, whatever is announced (TCP_MIN_SND_MSS, net/ipv4/tcp_output.c) [bytes]."""

LARGEST_MSS = 65_495
LONGEST_MS = 15_000
"""Most time of a probe [ms]."""

LONGEST_ACK_DELAY_MS = 900
"""A handshake's ACK that is later would meet the server's second SYN-ACK (after 1 s, RFC 6298) [ms]."""

MOST_BYTES = 600_000
"""Most payload that a probe of a window receives [bytes]."""

MOST_FETCHED_BYTES = 64_000_000
"""Most payload that a download (`Mode.FETCH`) receives [bytes]."""

HOST_BYTES, PATH_BYTES, COOKIE_BYTES, AGENT_BYTES = 255, 2_048, 1_024, 512
"""Longest texts of a request [bytes]."""

LOCATION_BYTES, SET_COOKIE_BYTES = 512, 256
"""Longest texts of a reply [bytes]."""

MOST_ARRIVALS = 4_096
"""Most segments of a flight whose arrival a reply can have."""

MOST_PIPELINED = 16
UNKNOWN = 0xFFFFFFFF
"""The value of a time or size with 32 bits that is not there."""

REQUEST = struct.Struct("<IBBBB16sHHHHHHIHHHH")
"""Number, IP version, mode, scheme, pipeline count, address (IPv4: the first 4 bytes), port, MSS, delay of the
handshake's ACK [ms], time limit [ms], segments per ACK, idle time [ms], most bytes, lengths of the four texts."""

REPLY = struct.Struct(f"<IBBHHHHIIIHBBB3xIIIIIIIIIHHH{LOCATION_BYTES}s{SET_COOKIE_BYTES}s")
"""Number, verdict, TLS version, notes, largest payload, holes, HTTP status, bytes, segments, content length, MSS,
scale, SYNs, requests, five times (RTT, handshake, retransmission, span, total), bytes received, packets in and out,
bytes of the TLS handshake, number of arrivals, lengths of the two texts, the texts."""

ARRIVAL = struct.Struct("<II")
"""Time [us], offset of the segment's end [bytes]."""


class Mode(IntEnum):
    """What to do with a connection."""

    IW = 0
    """Withhold the ACKs of the first answer."""
    FETCH = 1
    """A whole download, with an ACK every so many segments and no timer for ACKs."""
    AGAIN = 2
    """A whole download, an idle time, then a second request on the same connection, whose ACKs are withheld."""


class Scheme(IntEnum):
    HTTP = 0
    HTTPS = 1


class ProbeVerdict(StrEnum):
    """How a probe ended. The vocabulary is closed; the last four are the options survey's."""

    LIMITED = "limited"
    """The window was the limit: a retransmission, then new data after our ACK."""
    LOWER_BOUND = "lower_bound"
    """The data was the limit: FIN within the flight, or nothing new after our ACK."""
    WINDOW_BOUND = "window_bound"
    """Our own receive window was the limit: a server without window scaling."""
    LATE = "late"
    """The server's retransmission timer fired before its answer had begun (TLS): no number."""
    NO_DATA = "no_data"
    """No payload: silence, or closed at once."""
    RESET = "reset"
    """RST by the server after the handshake."""
    COMPLETE = "complete"
    """`Mode.FETCH`: the whole answer was received."""
    CONNECTION_REFUSED = "connection_refused"
    CONNECT_TIMEOUT = "connect_timeout"
    UNREACHABLE = "unreachable"
    """A router or the host says so (ICMP)."""
    ADDRESS_REFUSED = "address_refused"
    """Outside the allowed prefixes, or not of the family of the prober's address; no packet was sent."""


VERDICTS = tuple(ProbeVerdict)
"""The verdicts in the order of their codes."""


class Note(IntFlag):
    """What else was seen."""

    MSS_IGNORED = 1
    """A payload above the announced MSS."""
    MERGED = 2
    """Segments were merged on their way (TSO, GRO), so their count is unknown: the kernel says so (Linux 6.0), or a
    payload is above this device's MTU."""
    FIN = 4
    """The server closed."""
    LOCATION_CUT = 8
    """The redirect's target is longer than a reply can hold; it is left out."""
    TLS_FAILED = 16
    """The TLS handshake failed; the bytes are still counted."""
    HELD_UP = 32
    """Lost or late packets: SYN or request were sent again, or the SYN-ACK came more than once."""
    ARRIVALS_CUT = 64
    """The flight has more segments than arrivals were asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRequest:
    """One probe. Texts are ASCII without spaces and control characters (the user agent may have spaces).

    Raises ValueError for values that the prober would refuse.
    """

    address: str
    port: int
    mss: int
    """MSS option of the SYN [bytes]."""
    host: str
    """`Host` header, and SNI unless it is an address."""
    scheme: Scheme = Scheme.HTTP
    path: str = "/"
    user_agent: str
    cookie: str = ""
    """`Cookie` header; empty: none."""
    mode: Mode = Mode.IW
    pipeline: int = 1
    """How often the request is sent, all of them at once."""
    ack_delay_ms: int = 0
    """How long the handshake's ACK waits."""
    limit_ms: int = LONGEST_MS
    """Ends with an RST after this time from the first SYN."""
    ack_every: int = 2
    """`Mode.FETCH`, `Mode.AGAIN`: segments per ACK."""
    idle_ms: int = 0
    """`Mode.AGAIN`: time between the first answer and the second request."""
    most_bytes: int = MOST_BYTES
    """Ends with an RST after so much payload."""

    def __post_init__(self) -> None:
        for name, value, low, high in (
            ("port", self.port, 1, 65_535),
            ("mss", self.mss, SMALLEST_MSS, LARGEST_MSS),
            ("pipeline", self.pipeline, 1, MOST_PIPELINED),
            ("ack_delay_ms", self.ack_delay_ms, 0, LONGEST_ACK_DELAY_MS),
            ("limit_ms", self.limit_ms, 1, LONGEST_MS if self.mode is Mode.IW else 65_535),
            ("ack_every", self.ack_every, 1, 1_000),
            ("idle_ms", self.idle_ms, 0, 60_000),
            ("most_bytes", self.most_bytes, 1, MOST_BYTES if self.mode is Mode.IW else MOST_FETCHED_BYTES),
        ):
            if not low <= value <= high:
                raise ValueError(f"{name} {value} is outside {low} to {high}")
        for name, text, longest, least in (
            ("host", self.host, HOST_BYTES, "!"),
            ("path", self.path, PATH_BYTES, "!"),
            ("cookie", self.cookie, COOKIE_BYTES, " "),
            ("user_agent", self.user_agent, AGENT_BYTES, " "),
        ):
            if len(text) > longest or not all(least <= letter <= "~" for letter in text):
                raise ValueError(f"{name} is longer than {longest} bytes, or not printable ASCII")
        if not self.host or not self.path.startswith("/"):
            raise ValueError("host is empty, or path does not begin with /")


@dataclass(frozen=True, slots=True)
class Arrival:
    """One segment of the flight."""

    at_us: int
    """Kernel's time of arrival, from the flight's first segment."""
    end: int
    """Offset of its last byte, plus one, in the flight [bytes]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReply:
    """How a probe ended. The flight is what the server sent from its first payload until its first retransmission."""

    verdict: ProbeVerdict
    notes: Note
    flight_bytes: int
    """The flight's extent: from its first byte to the highest seen."""
    flight_segments: int
    """Segments of the flight, those missing in holes included."""
    largest_bytes: int
    """Largest payload [bytes]."""
    holes: int
    """Segments missing at the end of the flight."""
    http_status: int
    """Status of the answer; 0 if its head was not received whole."""
    rtt_us: int | None
    """SYN to SYN-ACK, measured from the last SYN; None if there was no SYN-ACK."""
    handshake_us: int | None
    """First SYN to first SYN-ACK; more than 2.5 s: the server may have lost a SYN-ACK, and starts with less."""
    retransmission_us: int | None
    """The flight's first segment to the retransmission; None if there was none."""
    span_us: int
    """The flight's first segment to its last."""
    total_us: int
    """First SYN to the end."""
    content_length: int | None
    """`Content-Length` of the answer [bytes]."""
    received_bytes: int
    """All payload received, duplicates included."""
    packets_in: int
    packets_out: int
    server_mss: int | None
    """MSS option of the SYN-ACK [bytes]."""
    server_scale: int | None
    """Its window scale option (RFC 7323); None: without."""
    syns: int
    requests: int
    """How often SYN and request were sent."""
    tls_version: int
    """12 or 13; 0: no TLS."""
    handshake_bytes: int
    """TLS: bytes of the flight before the request was sent; they and the answer share the window."""
    location: str
    """`Location` of a redirect."""
    set_cookie: str
    """Names and values of the answer's `Set-Cookie`, as a `Cookie` header has them."""
    arrivals: tuple[Arrival, ...] = ()
    """The flight's first segments, in the order of arrival."""


def encode(number: int, request: ProbeRequest) -> bytes:
    """A request with its number."""
    address = ipaddress.ip_address(request.address)
    texts = [text.encode("ascii") for text in (request.host, request.path, request.cookie, request.user_agent)]
    header = REQUEST.pack(
        number,
        address.version,
        request.mode,
        request.scheme,
        request.pipeline,
        address.packed,
        request.port,
        request.mss,
        request.ack_delay_ms,
        request.limit_ms,
        request.ack_every,
        request.idle_ms,
        request.most_bytes,
        *map(len, texts),
    )
    return header + b"".join(texts)


def reply_bytes(arrivals: int) -> int:
    """Size of a reply of a prober that was asked for so many arrivals."""
    return REPLY.size + arrivals * ARRIVAL.size


def decode(data: bytes, arrivals: int) -> Iterator[tuple[int, ProbeReply]]:
    """Complete replies: their numbers and contents."""
    size = reply_bytes(arrivals)
    for start in range(0, len(data), size):
        yield _reply(data[start : start + size])


_REPLY_FIELDS = (
    "number", "verdict", "tls_version", "notes", "largest_bytes", "holes", "http_status", "flight_bytes",
    "flight_segments", "content_length", "server_mss", "server_scale", "syns", "requests", "rtt_us", "handshake_us",
    "retransmission_us", "span_us", "total_us", "received_bytes", "packets_in", "packets_out", "handshake_bytes",
    "arrivals", "location_bytes", "cookie_bytes", "location", "set_cookie",
)  # fmt: skip
"""The fields of `REPLY`, in order, as `ProbeReply` names them."""


def _reply(data: bytes) -> tuple[int, ProbeReply]:
    fields: dict[str, Any] = dict(zip(_REPLY_FIELDS, REPLY.unpack_from(data), strict=True))
    arrived = data[REPLY.size : REPLY.size + fields["arrivals"] * ARRIVAL.size]
    fields |= {
        "verdict": VERDICTS[fields["verdict"]],
        "notes": Note(fields["notes"]),
        "server_mss": fields["server_mss"] or None,
        "server_scale": None if fields["server_scale"] == 255 else fields["server_scale"],
        "location": fields["location"][: fields.pop("location_bytes")].decode("latin-1"),
        "set_cookie": fields["set_cookie"][: fields.pop("cookie_bytes")].decode("latin-1"),
        "arrivals": tuple(Arrival(at, end) for at, end in ARRIVAL.iter_unpack(arrived)),
    }
    for name in ("rtt_us", "handshake_us", "retransmission_us", "content_length"):
        fields[name] = None if fields[name] == UNKNOWN else fields[name]
    return fields.pop("number"), ProbeReply(**fields)
