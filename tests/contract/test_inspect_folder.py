"""A campaign folder is inspected again and again, and nothing is lost that cannot be made again."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from analysis.captures import scan
from analysis.captures.connection import Connection
from analysis.evidence import Inspection, inspect_campaign, link_together, rows, sources
from core.domain import Download
from core.errors import PlaceError, UsageError
from core.files import store
from core.files.disk import folder_lock
from downloader.execution.journal import Journal
from downloader.factors import ALL as FACTORS
from tests.campaigns import Silent
from tests.inspected import CONFIGURATIONS, START, TABLES, TCP, captures, contents, inspect_elsewhere, make_campaign
from tests.unit.pcap_writer import SYN, Segment, ipv4, pcap
from upshift.cli import app

REPOSITORY = Path(__file__).resolve().parents[2]


def inspected(folder: Path, **options: Any) -> Inspection:
    return inspect_campaign(folder, factors=FACTORS, progress=Silent(), **options)


def downloads(folder: Path) -> list[Download]:
    return store.read_rows(folder / "downloads.parquet", "downloads", Download)


def kpis(folder: Path) -> list[dict[str, Any]]:
    """The rows with KPIs."""
    table = store.read_table(folder / "downloads.parquet", "downloads").to_pylist()
    return [row for row in table if row["kpi_engine"] is not None]


@pytest.fixture
def campaign(tmp_path: Path) -> Path:
    return make_campaign(tmp_path / "c")


def test_a_folder_that_is_in_use_is_not_inspected(campaign: Path) -> None:
    with folder_lock(campaign), pytest.raises(PlaceError, match="wait for it, or inspect a copy"):
        inspected(campaign)


def test_a_folder_is_inspected(campaign: Path) -> None:
    found = inspected(campaign)
    assert (found.downloads, found.proven, found.refuted, found.unproven) == (20, 16, 4, 0)
    assert (found.kpis, found.kept, found.lost, found.void) == (16, 0, (), 0)
    rows_ = downloads(campaign)
    assert [d.configuration for d in rows_] == list(CONFIGURATIONS) * 4
    assert {d.configuration for d in rows_ if not d.treatment_ok} == {"WS"}
    assert {d.engine for d in rows_} == {row["engine"] for row in kpis(campaign)} == {rows.ENGINE}
    assert Counter(row["configuration"] for row in kpis(campaign)) == dict.fromkeys(TCP, 4)
    assert all(row["packets_from_server"] > 40 for row in kpis(campaign))
    assert json.loads((campaign / "environment.json").read_text())["vantage_points"] == {"MUC": {"host": "MUC"}}


@pytest.mark.parametrize("clock_s", [3600.0, -3600.0])
def test_a_clock_that_is_an_hour_off_changes_nothing(tmp_path: Path, clock_s: float) -> None:
    """As reported: 17 of 52 downloads were unproven."""
    found = inspected(make_campaign(tmp_path, clock_s=clock_s))
    assert (found.proven, found.refuted, found.unproven, found.kpis) == (16, 4, 0, 16)


@pytest.mark.parametrize("jobs", [1, 3, None])
def test_again_and_elsewhere_gives_the_same_bytes(campaign: Path, tmp_path: Path, jobs: int | None) -> None:
    inspected(campaign)
    first = contents(campaign)
    copy = tmp_path / "elsewhere" / "copy"
    shutil.copytree(campaign, copy, ignore=shutil.ignore_patterns("*.parquet"))
    inspected(copy, jobs=jobs)
    inspected(campaign, jobs=jobs)
    assert contents(campaign) == first == contents(copy)


def test_three_of_four_captures_are_removed(campaign: Path) -> None:
    """As reported: 52 rows of KPIs became 13, 50 proven downloads 17, with exit code 0."""
    inspected(campaign)
    before = contents(campaign)
    gone = captures(campaign)[1:]
    for path in gone:
        path.unlink()
    done = CliRunner().invoke(app, ["inspect", str(campaign)])
    assert contents(campaign) == before
    assert done.exit_code == 1
    for path in gone:
        assert f"{path}: the capture is missing" in done.stderr
    assert "3 captures or journals are missing or damaged; 15 downloads keep" in str(done.exception)
    assert "treatment of 16 proven" in done.stdout and "KPIs of 16; 15 of them stay" in done.stdout


def test_what_the_journal_has_needs_no_capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bytes from journals alone; another code has to read the captures, and names those that are missing."""
    campaign = make_campaign(tmp_path / "c", looked_at=True)
    inspected(campaign, again=True)
    read = contents(campaign)
    (campaign / "vantage/MUC/captures").rename(tmp_path / "away")
    (campaign / "downloads.parquet").unlink()
    assert inspected(campaign).lost == ()
    assert contents(campaign) == read
    monkeypatch.setattr(sources, "ENGINE", "another")
    done = CliRunner().invoke(app, ["inspect", str(campaign)])
    assert done.exit_code == 1 and done.stderr.count("the capture is missing") == 4
    assert contents(campaign) == read, "rows that cannot be made again stay"


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:700])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def only_a_header(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:24])


def garbage(path: Path) -> None:
    path.write_bytes(b"this is not a capture" * 50)


@pytest.mark.parametrize("damage", [cut, empty, only_a_header, garbage, Path.unlink])
def test_damaged_captures_take_nothing_away(campaign: Path, damage: Any) -> None:
    inspected(campaign)
    before = contents(campaign)
    for path in captures(campaign):
        damage(path)
    for _ in range(2):
        found = inspected(campaign)
        assert contents(campaign) == before
        assert (found.proven, found.kpis, found.kept, len(found.lost)) == (16, 16, 20, 4)


@pytest.mark.parametrize("damage", [empty, Path.unlink])
def test_captures_that_were_gone_before_prove_nothing(campaign: Path, damage: Any) -> None:
    for path in captures(campaign)[:3]:
        damage(path)
    found = inspected(campaign)
    assert (found.proven, found.refuted, found.unproven, found.kpis, found.kept) == (7, 1, 12, 4, 0)
    assert all("capture" in (d.treatment_detail or "") for d in downloads(campaign) if d.treatment_ok is None)
    assert len(found.lost) == 3 and found.lost[0].path == "vantage/MUC/captures/1-00000-d0.example.pcap"


def test_connections_of_others_are_not_kept(campaign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inspected(campaign)
    before = contents(campaign)
    syns = [
        Segment(time_ns=START * 10**9, from_client=True, seq=1, ack=0, flags=SYN, client_port=n) for n in range(5000)
    ]
    packets = pcap((s.time_ns, ipv4(s)) for s in syns)[24:]
    for path in captures(campaign):
        path.write_bytes(path.read_bytes() + packets)
    kept: list[int] = []

    def counting(run: Sequence[Download], connections: Sequence[Connection], *known: Any, lost: str | None) -> Any:
        kept.append(len(connections))
        return rows.inspect_run(run, connections, *known, lost=lost)

    monkeypatch.setattr(sources, "inspect_run", counting)
    inspected(campaign)
    assert contents(campaign) == before
    assert kept == [4] * 4


def test_a_capture_that_comes_back_is_read_again(campaign: Path, tmp_path: Path) -> None:
    path = captures(campaign)[0]
    path.rename(tmp_path / "away")
    assert inspected(campaign).unproven == 4
    (tmp_path / "away").rename(path)
    found = inspected(campaign)
    assert (found.unproven, found.kept, found.lost) == (0, 0, ())


def test_rows_keep_the_version_that_made_them(campaign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as past:
        past.setattr(rows, "ENGINE", "upshift 0.0")
        inspected(campaign)
    captures(campaign)[0].unlink()
    inspected(campaign)
    first = [(d.domain, d.engine) for d in downloads(campaign)]
    assert first == [(f"d{n}.example", "upshift 0.0" if n == 0 else rows.ENGINE) for n in range(4) for _ in range(5)]
    assert [row["engine"] for row in kpis(campaign)] == ["upshift 0.0"] * 4 + [rows.ENGINE] * 12


def looked_at_by_older_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A campaign whose findings are of Upshift 0.0."""
    with monkeypatch.context() as past:
        past.setattr(rows, "ENGINE", "upshift 0.0")
        return make_campaign(folder, looked_at=True)


def test_what_older_code_found_in_dropped_captures_replaces_no_later_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `archive` and `snapshot --free` drop them, after an update of Upshift and an inspection by it."""
    campaign = looked_at_by_older_code(tmp_path, monkeypatch)
    inspected(campaign)
    before = contents(campaign)
    with closing(Journal(campaign / "vantage/MUC/journal.sqlite")) as journal:
        journal.captures.drop_all()
    for path in captures(campaign):
        path.unlink()
    found = inspected(campaign)
    assert (found.kept, found.lost, found.newer_kpis) == (20, (), ())
    assert contents(campaign) == before
    (campaign / "downloads.parquet").unlink()
    assert inspected(campaign).kept == 0
    assert {d.engine for d in downloads(campaign)} == {"upshift 0.0"}, "where there is nothing else"


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (Path.unlink, "the capture is missing"),
        (cut, "the capture is cut or damaged"),
        (empty, "the capture cannot be read: this file is empty"),
        (only_a_header, "the capture is empty"),
    ],
)
@pytest.mark.parametrize("again", [False, True])
def test_what_older_code_found_counts_where_a_capture_is_missing_or_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool, damage: Any, why: str
) -> None:
    """As after a power cut that undid the mark of a dropped capture, not its removal, and an update of Upshift; or in a
    copy of a folder that was cut off."""
    campaign = looked_at_by_older_code(tmp_path, monkeypatch)
    gone = captures(campaign)[0]
    damage(gone)
    done = CliRunner().invoke(app, ["inspect", str(campaign), *["--again"] * again])
    assert "0 downloads keep their earlier rows, 5 have what the journal found; restore" in str(done.exception)
    (campaign / "downloads.parquet").unlink()
    found = inspected(campaign, again=again)
    assert (found.proven, found.refuted, found.unproven, found.kpis) == (16, 4, 0, 16)
    assert (found.kept, found.recorded) == (0, 5)
    assert [(campaign / lost.path, lost.why) for lost in found.lost] == [(gone, why)]
    made_by = [(d.domain, d.engine) for d in downloads(campaign)]
    assert made_by == [(f"d{n}.example", "upshift 0.0" if n == 0 else rows.ENGINE) for n in range(4) for _ in range(5)]


def test_rows_of_another_attempt_are_not_kept(campaign: Path) -> None:
    assert inspected(campaign).proven == 16
    path = campaign / "downloads.parquet"
    table = store.read_table(path, "downloads")
    place = table.column_names.index("attempts")
    table = table.set_column(place, table.field(place), pa.array([7] * len(table), table.field(place).type))
    store.write_table(path, "downloads", table)
    captures(campaign)[0].unlink()
    found = inspected(campaign)
    assert (found.kept, found.kpis) == (0, 12)


def without(folder: Path, *columns: str) -> None:
    """Takes columns away: KPIs that an older Upshift did not have."""
    path = folder / "downloads.parquet"
    store.write_table(path, "downloads", store.read_table(path, "downloads").drop_columns(list(columns)))


def test_kept_rows_lack_newer_kpis(campaign: Path) -> None:
    inspected(campaign)
    without(campaign, "mean_throughput")
    captures(campaign)[0].unlink()
    inspected(campaign)
    assert [row["mean_throughput"] is None for row in kpis(campaign)] == [True] * 4 + [False] * 12
    assert [row["kpi_engine"] for row in kpis(campaign)] == [rows.ENGINE] * 16


def test_kpis_of_a_newer_version_are_not_thrown_away(campaign: Path) -> None:
    inspected(campaign)
    path = campaign / "downloads.parquet"
    table = store.read_table(path, "downloads")
    store.write_table(path, "downloads", table.append_column("newer", pa.array([1.0] * len(table))))
    before = contents(campaign)
    captures(campaign)[0].unlink()
    with pytest.raises(UsageError, match=r"this Upshift does not know newer; use the newer Upshift"):
        inspected(campaign)
    assert contents(campaign) == before


def test_a_campaign_that_goes_on(tmp_path: Path) -> None:
    make_campaign(tmp_path, recorded=2)
    assert inspected(tmp_path).downloads == 10
    make_campaign(tmp_path)
    captures(tmp_path)[0].unlink()
    found = inspected(tmp_path)
    assert (found.downloads, found.proven, found.kpis, found.kept) == (20, 16, 16, 5)


def test_a_journal_that_is_gone(tmp_path: Path) -> None:
    folder = make_campaign(tmp_path, vantages=("A", "B", "C"), runs=2)
    inspected(folder)
    before = contents(folder)
    for name in ("B", "C"):
        shutil.rmtree(folder / "vantage" / name)
        found = inspected(folder)
        assert contents(folder) == before
    assert [(lost.path, lost.why) for lost in found.lost] == [
        ("vantage/B", "the journal is missing"),
        ("vantage/C", "the journal is missing"),
    ]
    assert (found.downloads, found.kept) == (30, 20)


def test_a_journal_that_is_gone_leaves_how_its_campaign_stopped(tmp_path: Path) -> None:
    folder = make_campaign(tmp_path, vantages=("A", "B", "C"), runs=2)
    for name in ("A", "B"):
        with closing(Journal(folder / "vantage" / name / "journal.sqlite")) as journal:
            journal.set_meta("stopping", json.dumps({"rule": {"median": 0.05}, "reached": True}))
    inspected(folder)
    before = contents(folder)
    stopping = json.loads(before["environment.json"])["stopping"]
    assert {name: one["recorded_runs"] for name, one in stopping.items()} == {"A": 2, "B": 2}
    for name in ("A", "B"):
        shutil.rmtree(folder / "vantage" / name)
        inspected(folder)
        assert contents(folder) == before
    with closing(Journal(folder / "vantage/C/journal.sqlite")) as journal:
        journal.set_meta("stopping", json.dumps({"rule": {"share": 0.2}}))
    inspected(folder)
    assert json.loads((folder / "environment.json").read_text())["stopping"].keys() == {"A", "B", "C"}


def test_rows_that_no_journal_has_are_not_thrown_away(campaign: Path) -> None:
    inspected(campaign)
    path = campaign / "downloads.parquet"
    whole = store.read_table(path, "downloads")
    store.write_table(path, "downloads", pa.concat_tables([whole.slice(3), whole.slice(0, 3)]))
    before = contents(campaign)
    with pytest.raises(UsageError, match="that are not in the journals"):
        inspected(campaign)
    assert contents(campaign) == before


def test_a_folder_of_another_name_is_refused(campaign: Path) -> None:
    (campaign / "vantage" / "MUC").rename(campaign / "vantage" / "SFO")
    with pytest.raises(UsageError, match="vantage point MUC"):
        inspected(campaign)
    assert not (campaign / "downloads.parquet").exists()


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.contract.test_inspect_folder import inspected
replace = Path.replace
for when, folder in enumerate(sys.argv[1:]):
    if (child := os.fork()) == 0:
        step = 0
        def counted(self, target):
            global step
            if step == when:
                os.kill(os.getpid(), signal.SIGKILL)
            step += 1
            return replace(self, target)
        Path.replace = counted
        inspected(Path(folder))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
"""


@pytest.mark.parametrize("earlier", [False, True])
def test_a_kill_leaves_nothing_that_counts_as_proven(tmp_path: Path, earlier: bool) -> None:
    """Killed before the n-th file gets its name: `downloads.parquet` comes last."""
    folders = [make_campaign(tmp_path / str(when), recorded=2) for when in range(len(TABLES))]
    before: dict[str, bytes] = {}
    for folder in folders:
        if earlier:
            inspected(folder)
            before = contents(folder)
        make_campaign(folder)
    subprocess.run([sys.executable, "-c", KILLED, *map(str, folders)], cwd=REPOSITORY, check=True)
    for folder in folders:
        assert (folder / "downloads.parquet").exists() == earlier
        if earlier:
            assert (folder / "downloads.parquet").read_bytes() == before["downloads.parquet"]
            proven = {(d.domain, d.configuration) for d in downloads(folder) if d.treatment_ok and d.transport == "tcp"}
            assert proven and proven <= {(row["domain"], row["configuration"]) for row in kpis(folder)}
        assert inspected(folder).proven == 16
        assert not list(folder.glob(".*.part"))


def test_memory_does_not_grow_with_the_campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "ROWS_AT_ONCE", 50)
    monkeypatch.setattr(store, "ROWS_READ_AT_ONCE", 50)
    # How many captures wait, already read, depends on the host's load: on a slow one few, at most those given ahead.
    monkeypatch.setattr(scan, "_FILES_AHEAD", 1)

    class Weighing:
        most = 0

        def update(self, task: str, *, done: int, total: int, failed: int = 0, note: str = "") -> None:
            assert task == "captures" and done <= total
            self.most = max(self.most, tracemalloc.get_traced_memory()[0])

    def most_bytes(runs: int) -> int:
        """Python's own memory after any capture, in a first and in a later inspection."""
        folder = make_campaign(tmp_path / str(runs), runs=runs, packets=2, alike=True)
        weighing = Weighing()
        tracemalloc.start()
        for _ in range(2):
            assert inspect_campaign(folder, factors=FACTORS, progress=weighing, jobs=2).kpis == 4 * runs
        tracemalloc.stop()
        return weighing.most

    most_bytes(10)  # what is made once
    few, many = most_bytes(40), most_bytes(120)
    print(f"{few} bytes for 40 measurement runs, {many} for 120")
    assert many < 1.5 * few  # 2.9 times, were all rows held


def cli(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, ["inspect", *map(str, arguments)])


def test_the_folders_of_several_hosts_are_one_campaign(tmp_path: Path) -> None:
    names = ("AMS", "MUC", "SFO")
    whole, together = make_campaign(tmp_path / "whole", vantages=names), tmp_path / "together"
    inspected(whole)
    parts = [make_campaign(tmp_path / name, vantages=(name,)) for name in reversed(names)]
    assert cli(*parts[:2], "--out", together).exit_code == 0
    assert {row.vantage for row in downloads(together)} == {"MUC", "SFO"}
    assert cli(*parts, "--out", together).exit_code == 0, "one that comes later is added"
    assert contents(together) == contents(whole)
    assert not (parts[0] / "downloads.parquet").exists()
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for path in (*parts, together):
        path.rename(moved / path.name)
    assert cli(moved / "together").exit_code == 0 and contents(moved / "together") == contents(whole)


def test_what_the_first_folder_says_of_the_campaign_is_said_anew(tmp_path: Path) -> None:
    """`campaign.json` of the first inspection stayed for ever."""
    one, out = make_campaign(tmp_path / "one"), tmp_path / "out"
    for text in ("before", "after"):
        (one / "campaign.json").write_text(text)
        link_together([one], out)
        assert (out / "campaign.json").read_text() == text


def test_folders_that_are_not_one_campaign_are_refused(tmp_path: Path) -> None:
    one, same = make_campaign(tmp_path / "one"), make_campaign(tmp_path / "same")
    other = make_campaign(tmp_path / "other", vantages=("SFO",))
    with closing(sqlite3.connect(other / "vantage/SFO/journal.sqlite")) as journal, journal:
        journal.execute("UPDATE meta SET value = 'g' WHERE key = 'plan_hash'")
    out = tmp_path / "out"
    with pytest.raises(UsageError, match=rf"{same}: the vantage point MUC is in {one}, too; name one of them"):
        link_together([one, same], out)
    with pytest.raises(UsageError, match=rf"{other}: it holds another plan than {one}; name folders of one campaign"):
        link_together([one, other], out)
    assert not out.exists(), "nothing was changed"
    (tmp_path / "killed" / "vantage" / "SGP").mkdir(parents=True)
    (tmp_path / "killed" / "vantage" / "SGP" / "journal.sqlite").touch()  # before its plan was in it
    link_together([one, tmp_path / "killed"], tmp_path / "both")
    with pytest.raises(UsageError, match=rf"{one}: it holds another plan than {other}; name folders of one campaign"):
        link_together([one], other)
    assert not (other / "vantage/MUC").exists(), "nothing was changed"
    with pytest.raises(UsageError, match=rf"{same}/vantage/MUC: this is already there; use another --out"):
        link_together([one], same)
    shutil.move(other / "vantage/SFO", one / "vantage/SFO")
    with pytest.raises(UsageError, match=rf"{one}: its vantage points have different plans; keep one campaign per"):
        inspected(one)


def test_sentences(tmp_path: Path, campaign: Path) -> None:
    with pytest.raises(UsageError, match="folder not found"):
        inspected(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / "other").mkdir()
    with pytest.raises(UsageError, match="holds no campaign"):
        inspected(tmp_path / "other")
    (campaign / "environment.json").write_text("[" * 100_000)
    with pytest.raises(UsageError, match=r"environment\.json: its lists or objects are nested too deeply"):
        inspected(campaign)
    (campaign / "environment.json").unlink()
    (campaign / "downloads.parquet").write_text("no")
    with pytest.raises(UsageError, match="not a readable Parquet"):
        inspected(campaign)


def test_json_has_one_result_per_folder(tmp_path: Path) -> None:
    folders = [make_campaign(tmp_path / name, runs=2) for name in ("a", "b")]
    captures(folders[1])[0].unlink()
    done = CliRunner().invoke(app, ["inspect", "--json", "--jobs", "1", *map(str, folders)])
    assert done.exit_code == 1
    one, two = map(json.loads, done.stdout.splitlines())
    assert (one["folder"], one["proven"], one["lost"]) == (str(folders[0]), 8, [])
    assert two["lost"] == [{"path": "vantage/MUC/captures/1-00000-d0.example.pcap", "why": "the capture is missing"}]
    assert '"task": "captures"' in done.stderr


def test_without_root_network_or_the_other_extras(campaign: Path, tmp_path: Path) -> None:
    """On a copied folder, where only the extra `analysis` is installed: the same bytes."""
    inspected(campaign)
    copy = tmp_path / "copy"
    shutil.copytree(campaign, copy, ignore=shutil.ignore_patterns("*.parquet", "*.json"))
    done = inspect_elsewhere(copy)
    assert done.returncode == 0, done.stderr
    assert "treatment of 16 proven, 4 not as asked, 0 unproven" in done.stdout
    assert contents(copy) == contents(campaign)
