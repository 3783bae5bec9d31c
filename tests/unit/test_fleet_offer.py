"""What a host may send: every name that is taken is one of its own results, whatever the host lists."""

from __future__ import annotations

import dataclasses
import json
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import IncompleteError
from core.untrusted import file_name
from downloader.execution.snapshot import SCHEMA as SNAPSHOT_SCHEMA
from tests.cells import examples
from vantage.fleet.offer import CAPTURES, JOURNAL, SCHEMA, SHARED, STATUS, Needs, allowed_bytes, judged

HOST, SHA = "MUC", "ab" * 32
NEEDS = Needs(
    plan_sha256="cd" * 32,
    iterations=3,
    runs=30,
    captures=90,
    capture_bytes=1_000_000,
    journal_bytes=60_000_000,
    disk_bytes=80_000_000,
)
OWN = f"vantage/{HOST}/{CAPTURES}/2-007-www.a.example.pcap.zst"


def entry(path: object, size: object = 10, digest: object = SHA) -> dict[str, Any]:
    return {"path": path, "bytes": size, "sha256": digest, "modified_ns": 1}


def listing(*entries: Any, **changes: Any) -> dict[str, Any]:
    journal = entry(f"snapshot/vantage/{HOST}/{JOURNAL}")
    return {"schema": SCHEMA, "plan_sha256": NEEDS.plan_sha256, "files": [journal, *entries], **changes}


def test_what_a_snapshot_has_is_taken_and_what_is_shared_is_not() -> None:
    assert SCHEMA == SNAPSHOT_SCHEMA
    plain = f"vantage/{HOST}/{CAPTURES}/1-000-{file_name('WWW.B.example')}-a2.pcap"
    shared = [entry(path) for path in sorted(SHARED)]
    status = entry(f"snapshot/vantage/{HOST}/{STATUS}")
    offer = judged(listing(status, *shared, entry(OWN), entry(plain)), HOST, NEEDS)
    assert [file.path for file in offer.small] == [JOURNAL, STATUS]
    assert [f"vantage/{HOST}/{file.path}" for file in offer.captures] == [OWN, plain]
    assert offer.bytes == 40


HOSTILE = st.one_of(
    st.text(),
    st.lists(
        st.sampled_from(
            [
                *("..", ".", "", "vantage", HOST, "SFO", "snapshot", CAPTURES, JOURNAL, STATUS, "campaign.json", "etc"),
                *(
                    "/",
                    "~",
                    "-rf",
                    "\n",
                    "\0",
                    "\u202e",
                    "1-000-a.pcap",
                    "1-000-a.pcap\n",
                    "1-٠٠٠-a.pcap",
                    "*",
                    "C:\\x",
                ),
            ]
        )
    ).map("/".join),
    st.builds(lambda at, char: OWN[:at] + char + OWN[at:], st.integers(0, len(OWN)), st.characters()),
    st.from_regex(r"[0-9]{1,12}-[0-9]{1,12}-[a-z./_-]{1,90}(-a[0-9]{1,8})?\.pcap(\.zst)?", fullmatch=True).map(
        f"vantage/{HOST}/{CAPTURES}/".__add__
    ),
)


@settings(max_examples=examples(60))
@given(path=HOSTILE)
def test_a_name_that_is_taken_is_one_of_its_own_results(path: str) -> None:
    try:
        offer = judged(listing(entry(path)), HOST, NEEDS)
    except IncompleteError as error:
        assert error.sentence().isprintable() and error.sentence().startswith(f"{HOST}: ")
        return
    taken = [*offer.small, *offer.captures]
    assert path in SHARED or len(taken) == 2
    for file in taken:
        parts = PurePosixPath(file.path).parts
        assert parts in ((JOURNAL,), (STATUS,)) or (len(parts) == 2 and parts[0] == CAPTURES)
        assert "/".join(parts) == file.path and ".." not in parts and not PurePosixPath(file.path).is_absolute()
        assert file.path.isascii() and file.path.isprintable() and not set(file.path) & set(" *?[]\\'\"$`;|&<>#~")
        assert not parts[-1].startswith(("-", "."))


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=examples(12))
@given(files=st.lists(st.builds(entry, ANY | st.just(OWN), ANY, ANY) | ANY, min_size=1), rest=ANY)
def test_any_document_is_judged(files: list[Any], rest: Any) -> None:
    for document in (listing(*files), listing(files=rest), listing(schema=rest, plan_sha256=rest), {"files": files}):
        try:
            offer = judged(document, HOST, NEEDS)
        except IncompleteError as error:
            assert len(error.sentence()) < 600 and error.sentence().isprintable()
        else:
            assert 0 <= offer.bytes <= NEEDS.all_bytes


@settings(max_examples=examples(60))
@given(size=st.integers() | st.sampled_from([-1, 0, 10**6, 10**6 + 1, 10**12, 2**63, 2**70]))
def test_sizes_are_bounded(size: int) -> None:
    document = listing(entry(OWN, size))
    if 0 <= size <= NEEDS.capture_bytes:
        assert judged(document, HOST, NEEDS).captures[0].bytes == size
    else:
        with pytest.raises(IncompleteError, match="bytes, and it has at most 1,000,000;"):
            judged(document, HOST, NEEDS)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (listing(entry(OWN), entry(OWN)), "twice"),
        (listing(entry(f"snapshot/vantage/{HOST}/{JOURNAL}")), "twice"),
        (listing(files=[entry(OWN)]), "no journal"),
        (listing(plan_sha256="ef" * 32), "another plan"),
        (listing(plan_sha256=None), "another plan"),
        (listing(entry(OWN.replace("2-007", "4-007"))), "none of its results"),
        (listing(entry(OWN.replace("2-007", "2-030"))), "none of its results"),
        (listing(entry(OWN.replace(HOST, "SFO"))), "none of its results"),
        (listing(entry(f"snapshot/vantage/SFO/{JOURNAL}")), "none of its results"),
        (listing(entry(OWN, True)), "what is no file"),
        (listing(entry(OWN, digest="AB" * 32)), "what is no file"),
        (listing(schema=2), "not one that this Upshift can read"),
        (
            listing(*(entry(OWN.replace("www", f"w{n}"), 10**6) for n in range(82))),
            "it offers 82 MB, and its results take at most 81 MB",
        ),
        (listing(*(entry(OWN.replace("www", f"w{n}")) for n in range(91))), "91 captures, and the plan has 90"),
    ],
)
def test_what_is_refused_is_one_sentence(document: dict[str, Any], said: str) -> None:
    with pytest.raises(IncompleteError, match=said) as caught:
        judged(document, HOST, NEEDS)
    assert caught.value.sentence().startswith(f"{HOST}: ") and caught.value.exit_code == 1


def test_a_list_of_all_captures_fits() -> None:
    """With the longest names, as `upshift snapshot` writes it."""
    name = f"vantage/{HOST}/{CAPTURES}/999999999-999999999-{'a' * 80}-a999999.pcap.zst"
    needs = dataclasses.replace(NEEDS, iterations=10**9, runs=10**9)
    assert allowed_bytes(name, HOST, needs) == needs.capture_bytes
    text = json.dumps({"files": [{**entry(name, 10**12), "modified_ns": 10**19}] * 1000}, indent=2)
    assert len(text) < dataclasses.replace(NEEDS, captures=1000).list_bytes
    assert len(text) / 1000 < 500
