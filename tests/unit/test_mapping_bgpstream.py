"""pybgpstream as a backend: entry by entry as our own reader, and none of its silent failures."""

from __future__ import annotations

import gzip
import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdn_mapping import sources
from cdn_mapping.rib import RibReader
from core.errors import UsageError
from tests.cells import examples
from tests.command import upshift
from tests.unit._mrt import SAMPLES, SOME, Reports, Route, nlri, peer_table, record, records_of_routes, rib_v2

MISSING = "pybgpstream is not installed (docs/design/cdn-mapping.md)"


def test_without_pybgpstream_the_backend_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pybgpstream", None)  # as import finds it where it is not installed
    with pytest.raises(UsageError, match=r"pybgpstream cannot be imported .*leave the option out"):
        sources.read_file(tmp_path / "rib")


@pytest.mark.parametrize("text", ["0001-01-01T00:00+14:00", "9999-12-31T23:59-12:00", "soon"])
def test_a_time_that_utc_does_not_have_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pybgpstream", None)
    answer = upshift("map", "table", "--backend", "bgpstream", "--collector", "rrc00", "--time", text)
    assert answer.returncode == 2 and f"--time: '{text}' is not a valid time" in answer.stderr


@pytest.fixture
def pybgpstream() -> ModuleType:
    return pytest.importorskip("pybgpstream", reason=MISSING)


@pytest.mark.parametrize("name", SAMPLES)
def test_every_entry_equals_pybgpstreams(pybgpstream: ModuleType, shared_data: Path, name: str) -> None:
    path = shared_data / "bgp" / name
    ours = list(RibReader(path))
    if any(entry.path_id is not None for entry in ours):
        with pytest.raises(UsageError, match=r"ADD-PATH \(.* is the first\), .* leave out --backend bgpstream"):
            sources.read_file(path)
        return
    stream = sources.read_file(path)
    assert list(stream) == ours
    assert stream.entries == len(ours) > 0
    assert stream.truncated is ("firstMB" in name)


def test_the_table_by_pybgpstream_is_the_same(pybgpstream: ModuleType, shared_data: Path) -> None:
    path = shared_data / "bgp" / "bview.20020722.2337.gz"
    ours, theirs = (sources.build_table([path], Reports(), backend=backend) for backend in sources.BACKENDS)
    for column in ("low", "length", "origin", "moas"):
        assert np.array_equal(getattr(ours.v4, column), getattr(theirs.v4, column)), column
    assert ours.about["dropped"] == theirs.about["dropped"]
    assert ours.about["routes"] == theirs.about["routes"] == 115_521


@given(records_of_routes(with_id=st.just(False)))
@settings(max_examples=examples(12), deadline=None)
def test_pybgpstream_reads_what_we_read(tmp_path_factory: pytest.TempPathFactory, found: list[list[Route]]) -> None:
    pytest.importorskip("pybgpstream", reason=MISSING)
    path = tmp_path_factory.mktemp("rib") / "rib"
    path.write_bytes(peer_table() + b"".join(rib_v2(routes) for routes in found))
    assert list(sources.read_file(path)) == list(RibReader(path))


BAD_ATTRIBUTE = record(13, 2, bytes(4) + nlri("10.0.0.0/8") + b"\x00\x01" + bytes(6) + b"\x00\x05\x40\x02\x09\x02\x01")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        # Each of these BGPStream would take without a word, but for the first two.
        (rib_v2([SOME[1]])[:-1], None),
        (record(13, 2, bytes(4) + b"\x21" + bytes(7)), "a prefix length of 33 bits"),  # a segmentation fault
        (BAD_ATTRIBUTE, "path attribute 2 claims 9 bytes"),
        (rib_v2([Route("10.0.0.0/8", 0, (), 7)]), "ADD-PATH"),
    ],
)
def test_what_pybgpstream_keeps_quiet_about(
    pybgpstream: ModuleType, tmp_path: Path, data: bytes, said: str | None
) -> None:
    path = tmp_path / "rib"
    path.write_bytes(peer_table() + rib_v2([SOME[1]]) + data)
    if said is None:
        stream = sources.read_file(path)
        assert len(list(stream)) == 1
        assert stream.truncated
        return
    with pytest.raises(UsageError, match=said) as caught:
        list(sources.read_file(path))
    assert str(path) in caught.value.sentence()


def test_pybgpstream_and_files_that_are_cut_or_missing(
    pybgpstream: ModuleType, tmp_path: Path, shared_data: Path
) -> None:
    with pytest.raises(UsageError, match="file not found"):
        sources.read_file(tmp_path / "none")
    small = tmp_path / "small.gz"
    small.write_bytes(gzip.compress(peer_table() + rib_v2([SOME[1]]))[:-4])
    with pytest.raises(UsageError, match="BGPStream gave 0 of 1 routes; leave out --backend bgpstream"):
        list(sources.read_file(small))
    large = tmp_path / "large.gz"
    large.write_bytes((shared_data / "bgp" / "bview.20020722.2337.gz").read_bytes()[:300_000])
    (warning,) = sources.warnings(sources.build_table([large], Reports(), backend="bgpstream"))
    assert re.search(r"truncated at byte \d+ .*; BGPStream gave [\d,]+ of [\d,]+ routes", warning)


def test_a_stream_that_nothing_is_known_of(pybgpstream: ModuleType, tmp_path: Path, shared_data: Path) -> None:
    peerless = tmp_path / "peerless"
    peerless.write_bytes(rib_v2([SOME[1]]))
    for path, said in (
        (shared_data / "bgp" / "mrtparse_bird-mrtdump_rib", "silently skipped 8 records"),
        (shared_data / "bgp" / "bview.ipv4_unicast_add_path.gz", "no RIB entry .record status: valid"),
        (peerless, "BGPStream stopped after 0 routes"),
    ):
        stream = pybgpstream.BGPStream(data_interface="singlefile")
        stream.set_data_interface_option("singlefile", "rib-file", str(path))
        with pytest.raises(UsageError, match=said):
            list(sources.StreamReader(stream, where="rrc00", remedy="x"))
