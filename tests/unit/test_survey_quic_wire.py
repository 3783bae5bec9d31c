"""Forced version negotiation on the wire, and transport parameters as they are sent."""

from __future__ import annotations

import json

import pytest
from aioquic._buffer import Buffer
from aioquic.quic.packet import (
    QuicTransportParameters,
    encode_quic_version_negotiation,
    pull_quic_header,
    push_quic_transport_parameters,
)
from hypothesis import given
from hypothesis import strategies as st

from survey.quic import wire

VERSIONS = st.lists(st.integers(1, 0xFFFF_FFFF), min_size=1, max_size=80)


def _answer(probe: wire.Probe, versions: list[int], *, first: int = 0x80) -> bytes:
    """A Version Negotiation packet, written down from RFC 9000, section 17.2.1."""
    packet = bytes([first, 0, 0, 0, 0, len(probe.source_id)]) + probe.source_id
    packet += bytes([len(probe.destination_id)]) + probe.destination_id
    return packet + b"".join(version.to_bytes(4, "big") for version in versions)


def _flaw(answer: bytes, probe: wire.Probe) -> wire.Flaw:
    with pytest.raises(wire.FlawedError) as caught:
        wire.read_offer(answer, probe)
    return caught.value.flaw


def test_a_probe_is_what_other_stacks_read_as_a_long_header() -> None:
    probe = wire.new_probe()
    data = wire.datagram(probe)
    assert len(data) == 1_200
    header = pull_quic_header(Buffer(data=data), host_cid_length=8)
    assert header.version == probe.version
    assert wire.is_reserved(probe.version)
    assert (header.destination_cid, header.source_cid) == (probe.destination_id, probe.source_id)
    assert len(wire.datagram(probe, 0)) == 1 + 4 + 9 + 9


def test_probes_differ() -> None:
    probes = [wire.new_probe() for _ in range(200)]
    assert len({probe.source_id for probe in probes}) == 200
    assert len({probe.version for probe in probes}) > 50
    assert all(probe.version & 0x0F0F0F0F == 0x0A0A0A0A for probe in probes)


def test_reads_what_aioquic_writes() -> None:
    probe = wire.new_probe()
    answer = encode_quic_version_negotiation(
        source_cid=probe.destination_id, destination_cid=probe.source_id, supported_versions=[1, 0x6B3343CF]
    )
    assert wire.read_offer(answer, probe).versions == (wire.VERSION_1, wire.VERSION_2)


@given(VERSIONS, st.integers(0, 127))
def test_keeps_the_servers_order_each_version_once(versions: list[int], first_bits: int) -> None:
    probe = wire.new_probe()
    answer = _answer(probe, versions, first=0x80 | first_bits)  # 7 bits are the server's to choose (RFC 8999)
    real = list(dict.fromkeys(v for v in versions if not wire.is_reserved(v)))
    if probe.version in versions:
        assert _flaw(answer, probe) is wire.Flaw.ECHOED_VERSION
    elif not real:
        assert _flaw(answer, probe) is wire.Flaw.NO_VERSION
    else:
        offer = wire.read_offer(answer, probe)
        assert list(offer.versions) == real[: wire.MOST_VERSIONS]
        assert offer.greased == any(map(wire.is_reserved, versions))
        assert offer.duplicates == (len(set(versions)) < len(versions))


@given(VERSIONS, st.data())
def test_a_cut_answer_is_never_an_offer_of_other_versions(versions: list[int], data: st.DataObject) -> None:
    probe = wire.new_probe()
    answer = _answer(probe, versions)
    cut = answer[: data.draw(st.integers(0, len(answer) - 1))]
    try:
        offer = wire.read_offer(cut, probe)
    except wire.FlawedError:
        return
    assert (len(cut) - len(_answer(probe, []))) % 4 == 0
    assert set(offer.versions) <= set(versions)


@given(st.binary(max_size=80))
def test_garbage_is_a_flaw(data: bytes) -> None:
    assert _flaw(data, wire.new_probe()) in wire.Flaw


@given(st.binary(max_size=255), st.binary(max_size=255))
def test_connection_ids_of_any_length_are_read_and_only_ours_believed(destination: bytes, source: bytes) -> None:
    packet = b"\xff\0\0\0\0" + bytes([len(destination)]) + destination + bytes([len(source)]) + source + b"\0\0\0\x01"
    assert wire.peek(packet) == (0, destination, source, b"\0\0\0\x01")
    assert _flaw(packet, wire.new_probe()) is wire.Flaw.WRONG_CONNECTION_ID


def test_each_flaw_has_its_word() -> None:
    probe = wire.new_probe()
    good = _answer(probe, [1])
    swapped = wire.Probe(version=probe.version, destination_id=probe.source_id, source_id=probe.destination_id)
    assert _flaw(b"\x40" + good[1:], probe) is wire.Flaw.NOT_LONG
    assert _flaw(b"", probe) is wire.Flaw.NOT_LONG
    assert _flaw(good[:1] + b"\0\0\0\x01" + good[5:], probe) is wire.Flaw.NOT_NEGOTIATION
    assert _flaw(good[:-1], probe) is wire.Flaw.TRUNCATED
    assert _flaw(good[:20], probe) is wire.Flaw.TRUNCATED
    assert _flaw(good[:-4], probe) is wire.Flaw.EMPTY
    assert _flaw(_answer(swapped, [1]), probe) is wire.Flaw.WRONG_CONNECTION_ID
    assert _flaw(_answer(probe, [1, probe.version]), probe) is wire.Flaw.ECHOED_VERSION
    others = [version for version in (0x1A2A3A4A, 0x0A0A0A0A) if version != probe.version]
    assert _flaw(_answer(probe, [0, *others]), probe) is wire.Flaw.NO_VERSION


def test_transport_parameters_as_aioquic_writes_them() -> None:
    buffer = Buffer(capacity=512)
    push_quic_transport_parameters(
        buffer,
        QuicTransportParameters(
            max_idle_timeout=30_000,
            stateless_reset_token=bytes(range(16)),
            initial_max_data=1 << 40,
            ack_delay_exponent=3,
            disable_active_migration=True,
            initial_source_connection_id=b"abcd",
        ),
    )
    read = wire.read_parameters(buffer.data)
    assert read.number(0x01) == 30_000
    assert read.number(0x04) == 1 << 40
    assert read.number(0x03) is None
    assert read.has(wire.DISABLE_ACTIVE_MIGRATION)
    document = json.loads(read.as_json())
    assert document["initial_source_connection_id"] == "61626364"
    assert document["stateless_reset_token"] == "", "a token that ends connections is not published"


def test_unknown_parameters_are_kept_in_order() -> None:
    read = wire.read_parameters(bytes.fromhex("401b02abcd" + "010467890000" + "0100"))
    assert read.entries == ((0x1B, b"\xab\xcd"), (0x01, bytes.fromhex("67890000")), (0x01, b""))
    assert list(json.loads(read.as_json())) == ["0x1b", "max_idle_timeout_ms"]
    assert read.number(0x01) is None, "a number of 2 bytes in a field of 4 is none"


@given(st.lists(st.tuples(st.integers(0, (1 << 62) - 1), st.binary(max_size=70)), max_size=8))
def test_parameters_survive_the_way_through_the_wire(entries: list[tuple[int, bytes]]) -> None:
    buffer = Buffer(capacity=2_000)
    for identifier, value in entries:
        buffer.push_uint_var(identifier)
        buffer.push_uint_var(len(value))
        buffer.push_bytes(value)
    assert wire.read_parameters(buffer.data).entries == tuple(entries)
    json.loads(wire.read_parameters(buffer.data).as_json())


@given(st.binary(max_size=60))
def test_hostile_parameters_are_read_or_refused(data: bytes) -> None:
    try:
        read = wire.read_parameters(data)
    except ValueError:
        return
    json.loads(read.as_json())
