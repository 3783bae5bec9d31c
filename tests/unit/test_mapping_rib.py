"""The MRT reader, against an encoder written independently of it (`_mrt`), and against bgpdump."""

from __future__ import annotations

import bz2
import gzip
import math
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from cdn_mapping import as_path, sources
from cdn_mapping.rib import RibReader
from cdn_mapping.votes import Ballot
from core.errors import UsageError
from tests.cells import examples
from tests.unit._mrt import (
    SAMPLES,
    SOME,
    Reports,
    Route,
    attributes,
    expected,
    nlri,
    peer_table,
    record,
    records_of_routes,
    rib_v1,
    rib_v2,
    segments_strategy,
)


@given(records_of_routes(), st.sampled_from(("plain", "gz", "bz2", "zst", "two members")))
@settings(max_examples=examples(30), deadline=None)
def test_what_was_encoded_comes_back(
    tmp_path_factory: pytest.TempPathFactory, found: list[list[Route]], form: str
) -> None:
    data = peer_table() + b"".join(rib_v2(routes) for routes in found)
    packed = {
        "plain": lambda d: d,
        "gz": gzip.compress,
        "bz2": bz2.compress,
        "zst": zstandard.compress,
        "two members": lambda d: bz2.compress(d[:33]) + bz2.compress(d[33:]),
    }[form](data)
    path = tmp_path_factory.mktemp("rib") / "rib"
    path.write_bytes(packed)
    reader = RibReader(path)
    assert [tuple(entry) for entry in reader] == [expected(route) for routes in found for route in routes]
    assert not reader.truncated


@given(segments_strategy)
def test_the_quick_way_to_the_origin_equals_the_long_one(path: tuple[tuple[int, tuple[int, ...]], ...]) -> None:
    for long_form in (False, True):
        blob = attributes(path, long_form=long_form)
        parsed = as_path.segments(blob, as_bytes=4)
        assert as_path.quick_public_origin(blob) == as_path.public_origin(parsed)
        assert as_path.public_origin_of_text(as_path.text(parsed)) == as_path.public_origin(parsed)


def test_truncated_at_every_byte_it_never_crashes_and_says_so(tmp_path: Path) -> None:
    pieces = [peer_table(), *(rib_v2([route]) for route in SOME)]
    data = b"".join(pieces)
    ends = {sum(map(len, pieces[:n])): n - 1 for n in range(1, len(pieces) + 1)}
    path = tmp_path / "rib"
    for size in range(len(data)):
        path.write_bytes(data[:size])
        reader = RibReader(path)
        entries = list(reader)
        whole = max((n for end, n in ends.items() if end <= size), default=0)
        assert len(entries) == whole
        assert reader.truncated is (size not in ends), size  # a cut between two records shows no sign
        if size not in ends:
            assert reader.truncated_at == max((end for end in ends if end <= size), default=0)


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, zstandard.compress])
def test_truncated_at_every_byte_when_compressed(tmp_path: Path, pack) -> None:  # type: ignore[no-untyped-def]
    data = pack(peer_table() + b"".join(rib_v2([route]) for route in SOME))
    path = tmp_path / "rib"
    for size in range(len(data)):
        path.write_bytes(data[:size])
        reader = RibReader(path)
        entries = list(reader)
        assert len(entries) <= len(SOME)
        assert reader.truncated, size


@given(st.binary(max_size=400))
def test_noise_is_refused_or_flagged_never_a_crash(tmp_path_factory: pytest.TempPathFactory, noise: bytes) -> None:
    path = tmp_path_factory.mktemp("noise") / "rib"
    for data in (noise, peer_table() + noise, peer_table() + record(13, 2, noise), record(12, 1, noise)):
        path.write_bytes(data)
        try:
            for _ in RibReader(path):
                pass
        except UsageError as error:
            assert "byte" in error.sentence()
            assert str(path) in error.sentence()


@given(st.data())
@settings(max_examples=examples(40))
def test_a_flipped_byte_is_refused_or_read_never_a_crash(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    plain = bytearray(peer_table() + b"".join(rib_v2([route]) for route in SOME))
    plain[data.draw(st.integers(0, len(plain) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("flip") / "rib"
    path.write_bytes(plain)
    ballot = Ballot()
    for read in (lambda: list(RibReader(path)), lambda: ballot.add_rib(RibReader(path))):
        try:
            read()
        except UsageError as error:
            assert "byte" in error.sentence()


def test_table_dump_v1_with_as4_path(tmp_path: Path) -> None:
    path = tmp_path / "rib"
    old = attributes(((2, (64500, 23456, 23456)),), width=2)
    newer = b"\xc0\x11" + bytes((2 + 8,)) + b"\x02\x02" + (200_000).to_bytes(4, "big") + (300_000).to_bytes(4, "big")
    path.write_bytes(
        rib_v1("192.0.2.0/24", "198.51.100.1", 64500, old + newer)
        + rib_v1("2001:db8::/32", "2001:db8::9", 64501, attributes(((2, (64501, 3)),), width=2))
        + rib_v1("192.0.2.0/24", "198.51.100.1", 64500, attributes(((2, (64500, 7)),), width=2))
    )
    got = [(e.prefix, e.origin, e.as_path, e.peer_asn, e.peer_address) for e in RibReader(path)]
    assert got == [
        ("192.0.2.0/24", 300_000, "64500 200000 300000", 64500, "198.51.100.1"),
        ("2001:db8::/32", 3, "64501 3", 64501, "2001:db8::9"),
        ("192.0.2.0/24", 7, "64500 7", 64500, "198.51.100.1"),
    ]


def test_other_records_are_passed_over_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "rib"
    path.write_bytes(peer_table() + record(16, 4, b"update") + record(13, 3, b"multicast") + rib_v2([SOME[1]]))
    reader = RibReader(path)
    assert len(list(reader)) == 1
    assert dict(reader.skipped) == {"type 16, subtype 4": 1, "type 13, subtype 3": 1}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"54204 | 167.173.47.0/24\n", "at byte 0 of the inflated data: record type"),
        (rib_v2([SOME[0]]), "byte 0 .* no PEER_INDEX_TABLE comes before it"),
        (peer_table() + record(13, 2, bytes(4) + b"\x21" + bytes(7)), r"prefix length of 33 bits"),
        (peer_table() + rib_v2([Route("10.0.0.0/8", 9, ())]), "it names peer 9, the index table has 3 peers"),
        (peer_table() + rib_v2([SOME[1]])[:-1] + b"", None),
        (
            peer_table() + record(13, 2, bytes(4) + b"\x08\x0a\x00\x01\x00\x00" + bytes(4) + b"\xff\xff"),
            "1 routes take",
        ),
        (bz2.compress(peer_table())[:20] + b"x" * 30, "damaged before byte"),
    ],
)
def test_malformed_files_give_offset_and_remedy(tmp_path: Path, data: bytes, said: str | None) -> None:
    path = tmp_path / "rib"
    path.write_bytes(data)
    if said is None:
        reader = RibReader(path)
        assert list(reader) == []
        assert reader.truncated_at == len(peer_table())
        return
    with pytest.raises(UsageError, match=said) as caught:
        list(RibReader(path))
    assert str(path) in caught.value.sentence()
    assert caught.value.remedy


def test_a_bad_attribute_gives_the_offset_of_its_record(tmp_path: Path) -> None:
    path = tmp_path / "rib"
    blob = b"\x40\x02\x09\x02\x01"
    body = bytes(4) + nlri("10.0.0.0/8") + b"\x00\x01" + bytes(6) + len(blob).to_bytes(2, "big") + blob
    path.write_bytes(peer_table() + record(13, 2, body))
    said = f"byte {len(peer_table())} .* path attribute 2 claims 9 bytes, 2 are left"
    with pytest.raises(UsageError, match=said):
        list(RibReader(path))
    with pytest.raises(UsageError, match=said):
        Ballot().add_rib(RibReader(path))


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="file not found"):
        RibReader(tmp_path / "none")


@pytest.mark.thorough
@pytest.mark.parametrize("name", SAMPLES)
def test_every_entry_equals_bgpdumps(shared_data: Path, name: str) -> None:
    program = shutil.which("bgpdump")
    if program is None:
        pytest.skip("bgpdump is not installed (apt-get install bgpdump)")
    path = shared_data / "bgp" / name
    done = subprocess.run([program, "-m", str(path)], capture_output=True, check=False, timeout=300)
    theirs = []
    for line in done.stdout.decode("latin-1").splitlines():
        fields = line.split("|")
        if fields[0] == "TABLE_DUMP2_AP":
            theirs.append((fields[5], fields[7], int(fields[4]), fields[3], int(fields[6])))
        else:
            theirs.append((fields[5], fields[6], int(fields[4]), fields[3], None))
    reader = RibReader(path)
    ours = [(e.prefix, e.as_path, e.peer_asn, e.peer_address, e.path_id) for e in reader]
    assert ours == theirs
    assert ours
    assert reader.truncated is ("firstMB" in name)


@pytest.mark.thorough
@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress])
@pytest.mark.parametrize("routes", [1, 20_000])
def test_progress_ends_at_its_end_and_says_so_once(tmp_path: Path, pack: Callable[[bytes], bytes], routes: int) -> None:
    path = tmp_path / "rib"
    path.write_bytes(pack(peer_table() + rib_v2([SOME[1]]) * routes))
    reports = Reports()
    sources.build_table([path], reports)
    kilobytes = math.ceil(path.stat().st_size / 1000)
    assert reports.said[-1] == (kilobytes, kilobytes)
    assert sum(done == total for done, total in reports.said) == 1
