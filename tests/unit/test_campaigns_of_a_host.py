"""Two campaigns on one host: the second is refused with the name of the first, unless one of them was forced."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.domain import Target
from core.domain.download import Counts
from core.errors import PlaceError
from core.files.journal import environment
from downloader.campaign.plan import PlannedRun
from downloader.control import running
from downloader.control.reporter import Reporter
from downloader.control.status import read_status
from downloader.execution.journal import Journal
from downloader.execution.run import _Environment
from downloader.schedule.schedule import State
from upshift.commands.fleet_hosts import beside

CAMPAIGN = """
import sys
from pathlib import Path
from downloader.control import running
running._KIND = sys.argv[4]
with running.announced(sys.argv[1], Path(sys.argv[2]), force=sys.argv[3] == "force"):
    print("runs", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture(params=["alone", "force"])
def first(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[subprocess.Popen[str], bool]]:
    """A campaign of another process, and whether it was forced."""
    kind = f"upshift-{os.getpid()}"  # so that campaigns of others do not count
    monkeypatch.setattr(running, "_KIND", kind)
    argv = [sys.executable, "-c", CAMPAIGN, "wéek/1", "/var/lib/upshift/wéek 1/results", request.param, kind]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.readline() == "runs\n"
        yield process, request.param == "force"
        process.kill()


def mine() -> list[running.RunningCampaign]:
    """Those of this test: other tests run beside it."""
    return [other for other in running.others() if other.name == "wéek/1"]


def test_the_second_is_refused_with_the_name_of_the_first(
    first: tuple[subprocess.Popen[str], bool], tmp_path: Path
) -> None:
    process, forced = first
    assert [other.force for other in mine()] == [forced]
    if forced:
        with running.announced("second", tmp_path, force=False):
            pass
    else:
        with (
            pytest.raises(PlaceError, match="the campaign wéek/1 runs on this host"),
            running.announced("second", tmp_path, force=False),
        ):
            pass
    with running.announced("second", tmp_path, force=True):
        assert len(mine()) == 1
    document = {"campaigns": [{"name": other.name, "folder": other.folder} for other in mine()]}
    assert beside(document, "week") == ["wéek/1"] and beside(document, "wéek 1") == []
    process.kill()
    process.wait()
    assert mine() == []


@pytest.mark.parametrize("name", ["week1", "w" * 31, "w" * 32, "w" * 100, "wéek" * 8, "é" * 5, "é" * 100])
@pytest.mark.parametrize("root", ["/var/lib/upshift", "/ä/öü"])
def test_a_hosts_own_campaign_is_not_another_however_long_its_name(
    monkeypatch: pytest.MonkeyPatch, name: str, root: str
) -> None:
    """Hosts tell 40 characters of the folder, so a host that ran a campaign with a long name was left out of it."""
    monkeypatch.setattr(running, "_KIND", f"upshift-{os.getpid()}")
    with running.announced(name, Path(root, name, "results"), force=False):
        monkeypatch.setattr(os, "getpid", lambda: 1)  # as another process sees it
        [other] = running.others()
        document = {"campaigns": [{"name": other.name, "folder": other.folder}]}
        assert beside(document, name) == []
        assert len(beside(document, f"{name}b")) == 1
        monkeypatch.undo()


def test_status_and_environment_say_who_ran_beside_it(tmp_path: Path) -> None:
    campaigns = ["week"]
    with Reporter(tmp_path, campaign="month", others=lambda: campaigns) as reporter:
        reporter.begin(plan_sha256="", versions={}, counts={"A": Counts(planned=1)})
        assert reporter.status().beside == ("week",)
        campaigns[:] = ["year"]
        assert reporter.status().beside == ("week", "year"), "also those that have ended"
        reporter.end(State.STOPPED, "SIGTERM")
    assert read_status(tmp_path).beside == ("week", "year")
    later = Reporter(tmp_path, campaign="month")
    assert later.beside == ("week", "year"), "and those of earlier processes"
    assert Reporter(tmp_path, campaign="other").beside == ()

    target = Target(domain="a.example", url="https://a.example/f", provider="other")
    run = PlannedRun(number=0, iteration=1, target=target, configurations=("W", "A"))
    with contextlib.closing(Journal.open(tmp_path / "vantage" / "A", [run], plan_hash="h")) as journal:
        _Environment(journal, {"kernel": "6.1"}, 0.0, Reporter(tmp_path, campaign="other")).explain()
        assert environment({"A": journal})["vantage_points"]["A"] == {"kernel": "6.1"}
        _Environment(journal, {"kernel": "6.1"}, 0.0, later).explain()
        found = environment({"A": journal})["vantage_points"]["A"]
    assert found == {"kernel": "6.1", "campaigns_beside": ["week", "year"]}
