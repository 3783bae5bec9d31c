"""Top lists."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import crawler.run
from core.errors import UsageError
from core.outreach.lists import TopList, domain_of
from survey.engine import plan_of
from survey.surveys import ALL, SurveyOptions
from survey.surveys.iw import IW
from survey.surveys.quic import QUIC

RANKED = "1,google.com\r\n2,Example.ORG\r\n3,b.example\r\n"
WANT = [(1, "google.com"), (2, "example.org"), (3, "b.example")]
CRUX = "origin,rank\nhttps://google.com,1000\nhttps://www.example.org:8443,1000\nhttp://b.example,5000\n"
MAJESTIC = (
    "GlobalRank,TldRank,Domain,TLD,RefSubNets,RefIPs,IDN_Domain,IDN_TLD\n"
    "1,1,google.com,com,1,1,google.com,com\n2,1,example.org,org,1,1,example.org,org\n3,1,b.example,example,1,1,b,example\n"
)


def zipped(data: bytes, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        archive.writestr("top-1m.csv", data)
    return buffer.getvalue()


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zipped])
@pytest.mark.parametrize(
    ("text", "form", "want"),
    [
        (RANKED, "ranked", WANT),
        ("\ufeff" + RANKED.replace("\r\n", "\n"), "ranked", WANT),
        (CRUX, "crux", [(1000, "google.com"), (1000, "www.example.org"), (5000, "b.example")]),
        (MAJESTIC, "majestic", WANT),
        ("google.com\nExample.ORG.\n\n# words\nb.example", "bare", WANT),
        ("rank,domain\n1,google.com\n", "ranked", WANT[:1]),
        ('1,"google.com"\n', "ranked", WANT[:1]),
        ("bücher.example\n", "bare", [(1, "xn--bcher-kva.example")]),
    ],
)
def test_every_form_is_read(tmp_path: Path, pack, text: str, form: str, want: list[tuple[int, str]]) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "list"
    path.write_bytes(pack(text.encode()))
    found = TopList(path)
    assert [(row.rank, row.domain) for row in found] == want
    assert found.form == form
    assert not found.broken


def test_broken_rows_are_counted_and_named(tmp_path: Path) -> None:
    path = tmp_path / "list"
    rows = ["1,a.example", ",", "x,b.example", "3,com", "4,192.0.2.1", "5", "6,-bad-.example", "0,c.example", "7,d e.f"]
    rows += ["99999999999999999999,f.example"]  # more than SQLite can hold
    path.write_text("\n".join([*rows, "8," + "a" * 5000 + ".example", "9,z.example"]))
    found = TopList(path)
    assert [row.domain for row in found] == ["a.example", "z.example"]
    assert found.broken["the rank is not a number"] == 2
    assert found.broken["the rank is too large"] == 1
    assert found.broken["a bare top-level name"] == 1
    assert found.broken["an IP address"] == 1
    assert found.broken["empty fields"] == 1
    assert found.broken["too few fields"] == 1
    assert found.broken["line too long"] == 1
    assert [(fault.line, fault.text, fault.reason) for fault in found.faults][:2] == [
        (2, ",", "empty fields"),
        (3, "x,b.example", "the rank is not a number"),
    ]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "the list is empty"),
        (b"\n\n", "the list is empty"),
        (b"a.example;b\tc,d.example,5\n", "matches no known list format; give Tranco"),
        (gzip.compress(b"1,a.example\n" * 1000, mtime=0)[:-12], "damaged or truncated after line"),
        (zipped(b"1,a.example\n")[:-30], "the zip file is damaged or truncated"),
    ],
)
def test_malformed_files_are_one_sentence(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "list"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=said) as caught:
        list(TopList(path))
    assert str(path) in caught.value.sentence()
    assert caught.value.remedy


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_that_is_damaged_anywhere_is_no_traceback(tmp_path: Path, method: int) -> None:
    whole, path = zipped(RANKED.encode() * 20, method), tmp_path / "list.zip"
    for at in range(4, len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        with contextlib.suppress(UsageError):
            list(TopList(path))


def test_a_zip_with_two_files_and_a_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "list.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", "x")
        archive.writestr("b", "x")
    with pytest.raises(UsageError, match="holds 2 files"):
        list(TopList(path))
    with pytest.raises(UsageError, match="file not found"):
        list(TopList(tmp_path / "none"))
    path.write_bytes(b"no domain\n,,,\n")
    with pytest.raises(UsageError, match=r"no row has a domain \(2 rows, line 1: "):
        list(TopList(path))


@given(st.binary(max_size=300))
def test_noise_never_crashes(tmp_path_factory: pytest.TempPathFactory, noise: bytes) -> None:
    path = tmp_path_factory.mktemp("noise") / "list"
    for data in (noise, b"1,a.example\n" + noise, b"origin,rank\n" + noise):
        path.write_bytes(data)
        try:
            for row in TopList(path):
                assert domain_of(row.domain) == row.domain
        except UsageError as error:
            assert str(path) in error.sentence()


def test_another_list_of_the_same_name_and_length_is_another_list(tmp_path: Path) -> None:
    """A crawl or survey that goes on from its ledger would mix two lists."""
    source, out, ledger = tmp_path / "list", tmp_path / "out", tmp_path / "ledger"

    def plans() -> list[dict[str, Any]]:
        return [
            crawler.run.CrawlOptions(source=source, out=out, ledger=ledger, contact="me").plan(),
            *(plan_of(each, SurveyOptions(source=source, out=out), each.settings(), source) for each in ALL.values()),
        ]

    source.write_text("a.example\n")
    before = plans()
    assert plans() == before
    source.write_text("b.example\n")
    assert all(earlier != later for earlier, later in zip(before, plans(), strict=True))


def test_another_file_of_names_or_certificates_is_another_plan(tmp_path: Path) -> None:
    """Else some rows would be by the one, and the rest by the other."""
    options = SurveyOptions(source=tmp_path / "list", out=tmp_path / "out")
    options.source.write_text("a.example\n")
    for survey, name in ((IW, "cdn_names"), (QUIC, "ca")):
        plans = [plan_of(survey, options, survey.settings(), options.source)]
        for text in ("one", "two"):
            (tmp_path / "file").write_text(text)
            settings = survey.settings(**{name: tmp_path / "file"})
            plans.append(plan_of(survey, options, settings, options.source))
        assert plans[0][name] is None and len({json.dumps(plan) for plan in plans}) == 3
