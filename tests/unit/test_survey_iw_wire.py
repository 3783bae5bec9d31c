"""Messages of `iwprobe`: requests that it would refuse, and replies as they are laid out."""

from __future__ import annotations

import ipaddress
import json
import struct
import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import PlaceError
from survey.iw import wire
from survey.iw.probers import Attachment, prober

BASE = wire.ProbeRequest(address="198.18.0.1", port=80, mss=64, host="a.test", user_agent="upshift/1 (+me@example.net)")
WORDS = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=200)
U32 = st.integers(0, wire.UNKNOWN)
U16 = st.integers(0, 0xFFFF)
KNOWN = st.one_of(st.none(), st.integers(0, wire.UNKNOWN - 1))

REQUESTS = st.builds(
    wire.ProbeRequest,
    address=st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).map(str),
    port=st.integers(1, 65_535),
    mss=st.integers(wire.SMALLEST_MSS, wire.LARGEST_MSS),
    host=WORDS.map(lambda text: f"h{text}"),
    scheme=st.sampled_from(wire.Scheme),
    path=WORDS.map(lambda text: f"/{text}"),
    user_agent=WORDS,
    cookie=WORDS,
    mode=st.just(wire.Mode.IW),
    pipeline=st.integers(1, wire.MOST_PIPELINED),
    ack_delay_ms=st.integers(0, wire.LONGEST_ACK_DELAY_MS),
    limit_ms=st.integers(1, wire.LONGEST_MS),
    ack_every=st.integers(1, 1_000),
    idle_ms=st.integers(0, 60_000),
    most_bytes=st.integers(1, wire.MOST_BYTES),
)

REPLIES = st.builds(
    wire.ProbeReply,
    verdict=st.sampled_from(wire.ProbeVerdict),
    notes=st.integers(0, 127).map(wire.Note),
    **dict.fromkeys(
        (
            "flight_bytes",
            "flight_segments",
            "span_us",
            "total_us",
            "received_bytes",
            "packets_in",
            "packets_out",
            "handshake_bytes",
        ),
        U32,
    ),
    **dict.fromkeys(("largest_bytes", "holes", "http_status"), U16),
    **dict.fromkeys(("rtt_us", "handshake_us", "retransmission_us", "content_length"), KNOWN),
    server_mss=st.one_of(st.none(), st.integers(1, 0xFFFF)),
    server_scale=st.one_of(st.none(), st.integers(0, 254)),
    syns=st.integers(0, 255),
    requests=st.integers(0, 255),
    tls_version=st.sampled_from((0, 12, 13)),
    location=WORDS,
    set_cookie=WORDS,
    arrivals=st.lists(st.builds(wire.Arrival, U32, U32), max_size=12).map(tuple),
)


@given(U32, REQUESTS)
def test_a_request_says_how_long_it_is(number: int, request: wire.ProbeRequest) -> None:
    data = wire.encode(number, request)
    fields = wire.REQUEST.unpack_from(data)
    lengths = fields[-4:]
    assert len(data) == wire.REQUEST.size + sum(lengths)
    assert fields[0] == number and fields[6:13] == (
        request.port,
        request.mss,
        request.ack_delay_ms,
        request.limit_ms,
        request.ack_every,
        request.idle_ms,
        request.most_bytes,
    )
    packed = fields[5][: 4 if fields[1] == 4 else 16]
    assert ipaddress.ip_address(packed) == ipaddress.ip_address(request.address)
    assert data[wire.REQUEST.size :].decode() == request.host + request.path + request.cookie + request.user_agent


def _laid_out(number: int, reply: wire.ProbeReply, room: int) -> bytes:
    """A reply, written down field by field from docs/design/iw.md."""

    def known(value: int | None) -> int:
        return wire.UNKNOWN if value is None else value

    data = struct.pack("<IBBH", number, list(wire.ProbeVerdict).index(reply.verdict), reply.tls_version, reply.notes)
    data += struct.pack("<HHH", reply.largest_bytes, reply.holes, reply.http_status)
    data += struct.pack("<III", reply.flight_bytes, reply.flight_segments, known(reply.content_length))
    scale = 255 if reply.server_scale is None else reply.server_scale
    data += struct.pack("<HBBBxxx", reply.server_mss or 0, scale, reply.syns, reply.requests)
    data += struct.pack("<III", known(reply.rtt_us), known(reply.handshake_us), known(reply.retransmission_us))
    data += struct.pack("<II", reply.span_us, reply.total_us)
    data += struct.pack("<IIII", reply.received_bytes, reply.packets_in, reply.packets_out, reply.handshake_bytes)
    data += struct.pack("<HHH", len(reply.arrivals), len(reply.location), len(reply.set_cookie))
    data += reply.location.encode().ljust(512, b"\0") + reply.set_cookie.encode().ljust(256, b"\0")
    times = b"".join(struct.pack("<II", arrival.at_us, arrival.end) for arrival in reply.arrivals)
    return data + times.ljust(8 * room, b"\xee")


@given(st.lists(st.tuples(U32, REPLIES), max_size=3))
def test_replies_are_read_as_they_are_laid_out(replies: list[tuple[int, wire.ProbeReply]]) -> None:
    data = b"".join(_laid_out(number, reply, 12) for number, reply in replies)
    assert len(data) == len(replies) * wire.reply_bytes(12)
    assert list(wire.decode(data, 12)) == replies


@pytest.mark.parametrize(
    "changed",
    [
        {"port": 0},
        {"mss": 47},
        {"mss": 65_536},
        {"pipeline": 0},
        {"ack_delay_ms": 901},
        {"limit_ms": 15_001},
        {"most_bytes": 600_001},
        {"host": ""},
        {"host": "a\r\nb"},
        {"host": "a" * 256},
        {"path": "a"},
        {"path": "/a b"},
        {"cookie": "a\n"},
        {"user_agent": "ü"},
        {"mode": wire.Mode.FETCH, "most_bytes": 64_000_001},
    ],
)
def test_what_the_prober_would_refuse_is_not_sent(changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(changed)).replace("mode", "most_bytes")):
        replace(BASE, **changed)


def test_the_command_line_and_the_greeting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPSHIFT_IWPROBE", sys.executable)
    attachment = Attachment(
        device="tun0", addresses=("198.18.1.250", "fd00:198:18:1::250"), next_hop="02:00:00:00:00:01"
    )
    program = prober(attachment, packet_rate=100, arrivals=12)
    assert " ".join(program.argv[1:]) == (
        "--device tun0 --ports 32768-60999 --address 198.18.1.250 --address fd00:198:18:1::250 "
        "--next-hop 02:00:00:00:00:01 --packet-rate 100 --arrivals 12"
    )
    assert program.reply_bytes == wire.REPLY.size + 96
    program.greeted(json.dumps({"fault": None, "remedy": None}).encode())
    with pytest.raises(PlaceError, match="no right to raw sockets"):
        program.greeted(json.dumps({"fault": "no right to raw sockets", "remedy": "run it as root"}).encode())
    for broken in (b"", b"[]", b"{}", b"ready\n"):
        with pytest.raises(PlaceError, match="could not be started"):
            program.greeted(broken)


def test_a_prober_that_is_not_installed_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UPSHIFT_IWPROBE", raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(PlaceError, match="iwprobe is not installed"):
        prober(Attachment(device="tun0", addresses=()))
