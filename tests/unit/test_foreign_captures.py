"""A journal from a host that names files of others: nothing outside its own folder is read or removed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from contextlib import closing
from pathlib import Path

import pytest

from analysis.evidence.sources import OnDisk, from_capture
from analysis.measures import dataset
from analysis.report import series
from core.files.journal import JournalReader, is_own
from downloader.execution import snapshot
from downloader.execution.journal import Journal
from downloader.factors import ALL as FACTORS
from downloader.limits.captures import Settled
from tests.unit import pcap_writer
from tests.unit.analysis_factory import make_download, write_campaign
from tests.unit.test_downloader_journal import download, runs
from tests.unit.test_snapshot import PLAN

FOREIGN = ("../victim.pcap", "vantage/A/../../../victim.pcap", "vantage/B/captures/1-000-a.pcap", "/etc/passwd", "x\0y")


@pytest.mark.parametrize("name", [*FOREIGN, "", "vantage", "vantage/A/..", "vantage//A/x", "./vantage/A/x"])
def test_what_is_not_below_its_folder_is_not_its_own(name: str) -> None:
    assert not is_own(name, "A")
    assert is_own("vantage/A/captures/1-000-a.pcap.zst", "A")


@pytest.mark.parametrize("name", FOREIGN)
def test_no_file_of_others_is_read_or_removed(tmp_path: Path, name: str) -> None:
    folder, victim = tmp_path / "campaign", tmp_path / "victim.pcap"
    victim.write_bytes(b"of the user")
    plan = runs(1)
    rows = [dataclasses.replace(download(plan[0], position), capture=name) for position in range(3)]
    with closing(Journal.open(folder / "vantage" / "A", plan, plan_hash=PLAN)) as journal:
        journal.begin(0)
        found = Settled(path=name, size_bytes=1, clean=True, dropped=False, findings="{}")
        journal.accept(0, rows, capture=found)
    with closing(JournalReader(folder / "vantage" / "A" / "journal.sqlite")) as journal:
        assert journal.capture_paths() == []
    assert snapshot.take(folder).captures == ()
    state = victim.stat()
    entry = {
        "path": name,
        "bytes": state.st_size,
        "sha256": hashlib.sha256(b"of the user").hexdigest(),
        "modified_ns": state.st_mtime_ns,
    }
    (tmp_path / "list.json").write_text(json.dumps({"schema": 1, "plan_sha256": PLAN, "files": [entry]}))
    assert snapshot.free(folder, tmp_path / "list.json").captures == 0
    assert victim.read_bytes() == b"of the user"
    assert from_capture(OnDisk(folder), rows, FACTORS).lost == "the capture is not in the vantage point's folder"


OWN = "vantage/MUC/captures/run.pcap"


@pytest.mark.parametrize(("name", "is_drawn"), [(OWN, True), *((one, False) for one in FOREIGN)])
def test_no_capture_of_others_is_drawn(tmp_path: Path, name: str, is_drawn: bool) -> None:
    named = make_download(server_ip="198.18.0.2", local_port=40000, capture=name.replace("/A/", "/MUC/"))
    data = dataset.load([write_campaign(tmp_path / "campaign", [named])])
    frames = [(one.time_ns, pcap_writer.ipv4(one)) for one in pcap_writer.download(packets=20)]
    for there in ("victim.pcap", f"campaign/{OWN}", "campaign/vantage/B/captures/1-000-a.pcap"):
        path = tmp_path / there
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pcap_writer.pcap(frames))
    assert bool(series.of_run(data.records, tmp_path / "campaign")) is is_drawn
