"""Captures read by Dask's workers and from S3: the same bytes as by threads from disk, whoever is killed meanwhile."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from analysis.evidence import Inspection, cluster, inspect_campaign
from analysis.evidence.cluster import Cluster
from analysis.evidence.rows import ENGINE
from analysis.evidence.s3 import InS3
from analysis.evidence.sources import OnDisk
from core.errors import PlaceError, ReachError, UsageError
from downloader.factors import ALL as FACTORS
from tests import cluster as programs
from tests.campaigns import Silent
from tests.cells import cells
from tests.cluster import S3, Dask
from tests.contract._package_copy import copy_packages
from tests.inspected import TABLES, captures, contents, make_campaign
from tests.ports import free_port
from upshift.cli import app


class At:
    """Does something when so many measurement runs are done."""

    def __init__(self, acts: dict[int, Callable[[], object]]) -> None:
        self._acts = acts

    def update(self, task: str, *, done: int, total: int, failed: int = 0, note: str = "") -> None:
        for number in [number for number in self._acts if number <= done]:
            self._acts.pop(number)()


def inspected(folder: Path, **options: Any) -> Inspection:
    return inspect_campaign(folder, **{"factors": FACTORS, "progress": Silent(), "again": True, **options})


def without_tables(folder: Path) -> Path:
    for name in TABLES:
        (folder / name).unlink(missing_ok=True)
    return folder


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with programs.s3(tmp_path_factory.mktemp("s3")) as made:
        yield made


@pytest.fixture(scope="module")
def dask(tmp_path_factory: pytest.TempPathFactory, s3: S3) -> Iterator[Dask]:
    folder = tmp_path_factory.mktemp("dask")
    with programs.dask(folder, TMPDIR=str(folder)) as made:
        yield made


@pytest.fixture
def found(s3: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    """The S3 server, found by this process."""
    for name, value in s3.environ.items():
        monkeypatch.setenv(name, value)
    return s3


def spoil(folder: Path) -> None:
    """One capture is missing, one is cut."""
    first, second, *_ = captures(folder)
    first.unlink()
    content = second.read_bytes()
    second.unlink()  # it may be linked to the others
    second.write_bytes(content[: len(content) // 2])


def joined(dask: Dask, count: int) -> Cluster:
    """The cluster with so many workers."""
    while len(dask.alive) < count:
        dask.work()
    made = Cluster(dask.address)
    made._client.wait_for_workers(count, timeout=programs.PATIENCE_S)
    return made


@cells("runs,workers", every=[(96, 2), (10_000, 3)], quick=[(96, 2)])
def test_workers_are_killed_and_join(
    dask: Dask, found: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: int, workers: int
) -> None:
    """All workers but one are killed, one after the other, and another one joins."""
    monkeypatch.setattr(cluster, "RUNS", min(cluster.RUNS, runs // 20))
    monkeypatch.setattr(cluster, "_LEAST_AHEAD", workers)  # so that few captures are read before anybody is killed
    folder = make_campaign(tmp_path / "c", runs=runs, packets=8, alike=True)
    spoil(folder)
    lost = inspected(folder).lost
    assert [one.why for one in lost] == ["the capture is missing", "the capture is cut or damaged"]
    by_threads = contents(folder)
    number = random.Random(runs)

    def by_workers(**options: Any) -> None:
        *kills, joins = sorted(number.sample(range(1, runs // 3), workers))
        acts: dict[int, Callable[[], object]] = {
            moment: lambda: dask.end(number.choice(dask.alive)) for moment in kills
        }
        if not options or runs > 1000:
            acts[joins] = dask.work
        with joined(dask, workers) as there:
            made = inspected(without_tables(folder), cluster=there, progress=At(acts), **options)
        assert contents(folder) == by_threads and made.lost == lost

    by_workers()
    place = InS3.of(found.upload(folder))
    (folder / "vantage" / "MUC" / "captures").rename(tmp_path / "elsewhere")
    by_workers(captures=place)
    assert not list(dask.folder.glob("upshift-*")), "copies of captures"


def test_a_worker_with_another_engine_is_refused(dask: Dask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_packages(tmp_path, {"analysis/evidence/more.py": ""})
    folder = make_campaign(tmp_path / "c", runs=20, packets=8)
    inspected(folder)
    before = contents(folder)
    strange = dask.work(at=tmp_path)
    differs = rf"the worker tcp://127.0.0.1:\d+ has another engine \(upshift .*; here it is {re.escape(ENGINE)}\)"
    with monkeypatch.context() as patched:  # one that joins later is not asked before it gets a task
        patched.setattr(Cluster, "_require_engine", lambda self: None)
        patched.setattr(cluster, "RUNS", 1)
        with joined(dask, len(dask.alive)) as workers, pytest.raises(PlaceError, match=differs):
            inspected(folder, cluster=workers)
    with pytest.raises(PlaceError, match=differs):
        Cluster(dask.address)
    dask.end(strange)
    assert contents(folder) == before


def cli(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["inspect", *map(str, arguments)])


def test_what_is_not_in_s3_is_said(found: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_campaign(tmp_path / "c")
    inspected(folder)
    before = contents(folder)
    url = found.upload(folder, bucket="others", prefix="a")
    assert cli(without_tables(folder), "--again", "--captures", url).exit_code == 0
    assert contents(folder) == before
    found.files.delete_file(f"others/a/{captures(folder)[0].relative_to(folder)}")
    lost = cli(folder, "--again", "--captures", url)
    assert lost.exit_code == 1 and "the capture is missing" in lost.stderr
    assert contents(folder) == before, "rows of what is lost stay"

    def refused(url: str) -> str:
        done = cli(folder, "--again", "--captures", url)
        assert done.exit_code == 1 and isinstance(done.exception, PlaceError) and contents(folder) == before
        return str(done.exception)

    at = f"at {found.environ['AWS_ENDPOINT_URL']}"
    assert refused("s3://nobodys/a").startswith(f"s3://nobodys/a {at}: there is no such bucket")
    assert refused("s3://others/b").startswith(f"s3://others/b {at}: there are no captures")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    assert "the service does not answer" in refused(url)
    monkeypatch.setenv("AWS_ENDPOINT_URL", found.environ["AWS_ENDPOINT_URL"])
    with found.denying():
        assert f"{url} {at}: access is denied; check the credentials" in refused(url)
    assert cli(folder, "--again", "--captures", url).exit_code == 1, "but for the one that is lost it works again"


def test_nothing_else_is_contacted_while_a_lab_is_active(tmp_path: Path) -> None:
    folder = make_campaign(tmp_path / "c", runs=1)
    for endpoint in ("https://192.0.2.1", "https://s3.example", ""):
        environ = {"AWS_ENDPOINT_URL": endpoint}
        with pytest.raises(ReachError):
            inspected(folder, captures=InS3.of("s3://bucket/prefix", environ))
    for address in ("tcp://192.0.2.1:8786", "tcp://scheduler.example:8786"):
        with pytest.raises(ReachError):
            Cluster(address)


def test_wrong_options_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("localhost:8786", "tcp://localhost", "http://localhost:8786", "tcp://localhost:x"):
        with pytest.raises(UsageError, match="write tcp://HOST:8786"):
            Cluster(wrong)
    for wrong in ("/captures", "s3://", "s3:///a", "gs://bucket/a"):
        with pytest.raises(UsageError, match="write s3://BUCKET/PREFIX"):
            InS3.of(wrong)
    assert "inspect one DIR at a time" in str(cli(tmp_path, tmp_path, "--captures", "s3://bucket").exception)
    assert "leave it out with --scheduler" in str(cli(tmp_path, "--jobs", 2, "--scheduler", "tcp://h:1").exception)
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UsageError, match=r"distributed is not installed here.*--extra scale"):
        Cluster("tcp://127.0.0.1:8786")


def test_who_cannot_go_on_says_so_and_earlier_tables_stay(
    dask: Dask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last test of this file: it ends the scheduler."""
    monkeypatch.setattr(cluster, "RUNS", 1)
    monkeypatch.setattr(cluster, "_LOOK_S", 0.2)
    folder, link = make_campaign(tmp_path / "c", runs=60, packets=8, alike=True), tmp_path / "mounted"
    link.symlink_to(folder)
    inspected(folder)
    before = contents(folder)
    with joined(dask, 1) as workers:
        lost_folder = r"mounted: there is no such folder \(seen by the worker tcp://127.0.0.1:\d+\)"
        with pytest.raises(PlaceError, match=lost_folder):
            inspected(folder, cluster=workers, captures=OnDisk(link), progress=At({1: link.unlink}))
        with monkeypatch.context() as patched, pytest.raises(PlaceError, match="none of its workers has been alive"):
            patched.setattr(cluster, "WORKERS_S", 1.0)
            inspected(folder, cluster=workers, progress=At({1: dask.end_workers}))
    with monkeypatch.context() as patched, pytest.raises(PlaceError, match="none of its workers has been alive"):
        patched.setattr(cluster, "WORKERS_S", 0.3)
        Cluster(dask.address)
    with joined(dask, 1) as workers, pytest.raises(PlaceError, match="the connection to the scheduler is lost"):
        inspected(folder, cluster=workers, progress=At({1: lambda: dask.end(dask.scheduler)}))
    assert contents(folder) == before and not list(folder.glob(".*part*"))
    monkeypatch.setattr(cluster, "CONNECT_S", 0.5)
    with pytest.raises(PlaceError, match="no Dask scheduler answers"):
        Cluster(dask.address)
