"""A journal from a host may hold anything: inspection names it and stops, and makes no table of it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard

from analysis.evidence import inspect_campaign
from core.errors import UsageError
from downloader.execution.journal import Journal
from downloader.factors import ALL as FACTORS
from downloader.limits.captures import Settled
from tests.campaigns import Silent
from tests.unit.test_downloader_journal import download, runs

CAPTURE = "vantage/A/captures/1-000-x.pcap"


def packed(text: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(text)


@pytest.mark.parametrize(
    ("change", "value", "said"),
    [
        ("captures SET findings", packed(b"{}"), "KeyError"),
        ("captures SET findings", packed(b"["), "JSONDecodeError"),
        ("captures SET findings", packed(b'[{"proof": 1, "kpis": 1}]'), "AttributeError"),
        ("captures SET findings", b"no frame", "ZstdError"),
        ("captures SET findings", packed(bytes(64 << 20)), "findings of more than 32 MiB"),
        ("downloads SET record", "{}", "KeyError"),
        ("downloads SET record", "[]", "TypeError"),
        ("meta SET value", "[1", "not valid JSON"),
    ],
)
def test_a_journal_without_sense_is_named(tmp_path: Path, change: str, value: bytes | str, said: str) -> None:
    home = tmp_path / "vantage" / "A"
    run, *_ = plan = runs()
    with closing(Journal.open(home, plan, plan_hash="a" * 64)) as journal:
        journal.begin(run.number)
        rows = [replace(download(run, at), capture=CAPTURE) for at in range(len(run.configurations))]
        settled = Settled(path=CAPTURE, size_bytes=1, clean=True, dropped=True, findings="[]")
        journal.accept(run.number, rows, capture=settled)
    path = home / "journal.sqlite"
    with closing(sqlite3.connect(path)) as db:
        db.execute("INSERT OR REPLACE INTO meta VALUES ('environment', '{}')")
        db.execute(f"UPDATE {change} = ?", (value,))
        db.commit()
    with pytest.raises(UsageError, match=said) as caught:
        inspect_campaign(tmp_path, factors=FACTORS, progress=Silent())
    assert caught.value.where == str(path) and caught.value.sentence().isprintable()
    assert not (tmp_path / "downloads.parquet").exists()
