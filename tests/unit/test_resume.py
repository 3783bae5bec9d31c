"""Results in a folder, and the campaign that is to go on there: what makes it another one, and what extends it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import pytest

from analysis.measures.ceilings import ceiling
from core.domain.download import Counts
from core.errors import PlaceError, UsageError
from core.files.journal import JournalReader, environment
from core.system import process
from core.system.process import Completed
from downloader.campaign.campaign import load
from downloader.campaign.limits import Stopping
from downloader.control import stop_pause
from downloader.control.reporter import Reporter
from downloader.control.status import Status
from downloader.execution import run
from downloader.execution.engine import Session
from downloader.execution.journal import Journal, check_folder, earlier_iterations
from downloader.execution.run import _left_of, _open_journals
from downloader.schedule.schedule import State
from downloader.schedule.slots import SharedPlan
from tests.campaigns import Silent
from upshift import campaign
from upshift.commands.status import stop
from upshift.shared_plan import shared_plan
from vantage.lab.topology_file import SHIPPED

LAB = (SHIPPED / "small.toml").read_text()


class NoPlace:
    """A place of which only its environment is asked, and how programs are confined there."""

    ca_file = Path("/etc/ssl/certs/ca-certificates.crt")

    kernel = "6.1"

    def __init__(self, name: str = "") -> None:
        self.name = name

    def environment(self) -> dict[str, object]:
        return {"kernel": self.kernel, "sysctls": {"net.core.optmem_max": self.kernel, "net.core.somaxconn": "4096"}}

    def run(self, argv: Sequence[str]) -> Completed:
        return process.run(argv)


def planned(folder: Path, *, lab: str = LAB, **fields: Any) -> SharedPlan:
    """The plan of a campaign file, in a lab with the topology of that text."""
    (folder / "own.toml").write_text(lab)
    known = {"iterations": 2, "seed": 1, "max_bytes": 20_000_000, "permute": '["ecn"]'} | fields
    text = "\n".join(f"{name} = {value}" for name, value in known.items())
    (folder / "c.toml").write_text(f'name = "c"\nlab = "./own.toml"\ntargets = "lab"\n{text}\n')
    return shared_plan(load(folder / "c.toml"))


def opened(plan: SharedPlan, out: Path, *, beside: Sequence[str] = (), **own: Any) -> dict[str, Journal]:
    """Its journals, as a campaign opens them, and leaves them before it records a run."""
    journals: dict[str, Journal] = {}
    earlier = {name: earlier_iterations(out / "vantage" / name, plan) for name in plan.vantage_points}
    runs = {name: plan.runs(name, earlier[name]) for name in plan.vantage_points}
    places = {name: NoPlace() for name in plan.vantage_points}
    reporter = Reporter(out, campaign="c", others=lambda: beside)
    session = Session(plan=plan, out=out, progress=None, reporter=reporter, **own)  # type: ignore[arg-type]
    for one in _open_journals(session, runs, earlier, places, journals).values():  # type: ignore[arg-type]
        one.explain()
    return journals


def test_data_keeps_the_environment_in_which_it_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where runs are left, it is that of the process that makes them; a finished campaign's stays."""
    plan = planned(tmp_path, iterations=1)
    for kernel, recorded, expected in (("6.1", False, "6.1"), ("6.12", True, "6.12"), ("6.18", True, "6.12")):
        monkeypatch.setattr(NoPlace, "kernel", kernel)
        journals = opened(plan, tmp_path / "out")
        for journal in journals.values():
            assert journal.document("environment")["kernel"] == expected
            if recorded:
                journal.db.execute("UPDATE runs SET state = 'done'")
                journal.db.commit()
            journal.close()


def calibrated(mbit_s: float) -> dict[str, Any]:
    return {"clients": {"curl-h1": {"ceiling_mbit_s": mbit_s}}}


def test_an_environment_that_changes_is_kept_for_the_runs_that_it_explains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last one stood for all rows: a kernel's update, or a new host, said of earlier rows what did not hold."""
    plan = planned(tmp_path, iterations=1)
    for kernel, mbit_s, day in (("6.1", 900.0, 1), ("6.1", 800.0, 2), ("6.12", 3500.0, 3), ("6.12", 3500.0, 4)):
        monkeypatch.setattr(NoPlace, "kernel", kernel)
        now = {"client_ceilings": calibrated(mbit_s), "clock": lambda day=day: day * 86_400.0}
        for journal in opened(plan, tmp_path / "out", beside=[f"beside {day}"], **now).values():
            journal.db.execute("UPDATE runs SET state = 'done' WHERE number < 1")
            journal.db.commit()
            document = environment({"MUC": journal})
            journal.close()
    found = document["vantage_points"]["MUC"]
    assert found["kernel"] == "6.12" and found["campaigns_beside"] == [f"beside {day}" for day in (1, 2, 3, 4)]
    changed = {"kernel": "6.1", "sysctls": {"net.core.optmem_max": "6.1"}, "client_ceilings": calibrated(800.0)}
    assert found["earlier"] == {"until 1970-01-04T00:00:00Z": changed}
    assert ceiling(document, vantage="MUC", client="curl-h1").mbit_s == 800.0, "the lowest"
    found["earlier"]["until 1970-01-04T00:00:00Z"]["client_ceilings"] = None
    assert ceiling(document, vantage="MUC", client="curl-h1").mbit_s is None


def on_host(mbit_s: float, *stale: str, host: str = "a", **more: object) -> dict[str, Any]:
    """The environment of a host, with a calibration that may be stale."""
    client = {"ceiling_mbit_s": mbit_s, "stale": list(stale)}
    calibration = {"circumstances": {"host": host, "kernel": "6.1"}, "clients": {"curl-h1": client}}
    return {"kernel": "6.1", "python": "3.11", "client_ceilings": calibration} | more


@pytest.mark.parametrize(
    ("before", "kept", "lowest"),
    [
        (on_host(90.0, python="3.10"), {"python": "3.10"}, 90.0),
        (on_host(90.0, devices=[{"name": "eth0", "offloads": ["rx-gro"]}]), {"devices": [ANY]}, 90.0),
        (on_host(90.0, host="b"), {}, 90.0),
        (on_host(90.0, "host b -> a", host="b"), None, 220.0),  # it was calibrated again where it had run
        (on_host(90.0, memory_kib=1, steal_s=1.0, qdisc=["fq_codel 8001:"], emulator="/old/pathem"), None, 220.0),
    ],
)
def test_a_change_of_host_or_software_keeps_the_ceilings_of_before(
    before: dict[str, Any], kept: dict[str, Any] | None, lowest: float
) -> None:
    now = on_host(220.0, devices=[], memory_kib=2, steal_s=2.0, qdisc=["fq_codel 8002:"], emulator="/new/pathem")
    left = _left_of(before, now, 0.0)
    expected = kept if kept is None else {**kept, "client_ceilings": before["client_ceilings"]}
    assert left.get("earlier", {}).get("until 1970-01-01T00:00:00Z") == expected
    assert ceiling({"vantage_points": {"MUC": {**now, **left}}}, vantage="MUC", client="curl-h1").mbit_s == lowest


@pytest.mark.parametrize(
    ("starts", "lowest"),
    [
        ([on_host(90.0, devices="A"), on_host(220.0, devices="B")], 90.0),
        ([on_host(90.0, devices="A"), on_host(90.0, devices="B"), on_host(220.0, devices="B")], 90.0),
        ([{"kernel": "6.1"}, on_host(220.0) | {"kernel": "6.12"}], None),
        ([{"kernel": "6.1"}, {"kernel": "6.12"}, on_host(220.0) | {"kernel": "6.12"}], None),
        ([on_host(90.0, host="a"), on_host(220.0, host="b")], 90.0),
        ([on_host(90.0), {"kernel": "6.1", "python": "3.11"}, on_host(220.0, host="b")], 90.0),
        ([on_host(90.0), on_host(220.0)], 220.0),
    ],
)
def test_a_calibration_after_a_change_says_nothing_of_the_runs_before(
    starts: list[dict[str, Any]], lowest: float | None
) -> None:
    """However many starts lie between."""
    first, *later = starts
    environment = first
    for hour, start in enumerate(later):
        environment = {**start, **_left_of(environment, start, 3600.0 * hour)}
    assert ceiling({"vantage_points": {"MUC": environment}}, vantage="MUC", client="curl-h1").mbit_s == lowest


@pytest.mark.parametrize("left_out", ["", "counted_runs"], ids=["today", "older Upshift"])
@pytest.mark.parametrize("until_ci", ["0.05", "0.1"], ids=["the same rule", "a looser rule"])
def test_data_of_a_campaign_that_meets_its_rule_keeps_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left_out: str, until_ci: str
) -> None:
    """It has open runs, but makes none: whether it does shows only after its journal was read."""
    out, plan = tmp_path / "out", planned(tmp_path, until_ci="0.05")
    state = Stopping(plan.campaign.stop_when, plan.campaign.comparisons, ()).state() | {"reached": True}
    state.pop(left_out, None)
    for journal in opened(plan, out).values():
        journal.db.execute("UPDATE runs SET state = 'done' WHERE number < 1")
        journal.db.commit()
        journal.set_meta("stopping", json.dumps(state))
        journal.close()
    monkeypatch.setattr(NoPlace, "kernel", "6.12")
    monkeypatch.setattr(Stopping, "reached", True)
    plan = planned(tmp_path, until_ci=until_ci)
    places = {name: NoPlace(name) for name in plan.vantage_points}
    with Reporter(out, campaign="c", others=lambda: ["another"]) as reporter:
        session = Session(plan=plan, out=out, progress=Silent(), reporter=reporter)
        assert set(run.run_campaign(session, places).enough) == set(places)  # type: ignore[arg-type]
    for name in places:
        with closing(JournalReader(out / "vantage" / name / "journal.sqlite")) as read:
            found = read.document("environment")
        assert found["kernel"] == "6.1" and not found.keys() & {"earlier", "campaigns_beside"}


@pytest.mark.parametrize("while_", ["places", "journals"])
def test_a_stop_that_is_asked_for_while_a_campaign_is_prepared_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, while_: str
) -> None:
    """`upshift stop` said that no campaign is running, and it ran; what was asked of an earlier process is gone."""
    out = tmp_path / "out"
    plan = planned(tmp_path, iterations=1)
    for journal in opened(plan, out).values():
        journal.close()
    stop_pause.request_stop(out, 1.0)
    asked = []

    def ask() -> None:
        asked.append(stop_pause.stop_requested(out))
        stop(out)

    def open_places(*_: Any) -> dict[str, Any]:
        if while_ == "places":
            ask()
        return {"MUC": NoPlace()}

    def open_journals(*arguments: Any) -> Any:
        if while_ == "journals":
            ask()
        return _open_journals(*arguments)

    def work(*_: Any) -> None:
        asked.append(stop_pause.stop_requested(out))

    lab = SimpleNamespace(truth=dict)
    monkeypatch.setattr("vantage.lab.lab.open_lab", lambda *_, **__: nullcontext(lab))
    monkeypatch.setattr(campaign, "_lab_places", open_places)
    monkeypatch.setattr(run, "_open_journals", open_journals)
    monkeypatch.setattr(run, "_work", work)
    with Reporter(out, campaign="c") as reporter:
        session = Session(plan=plan, out=out, progress=Silent(), reporter=reporter)
        assert campaign._run(session, None, let_cpus_sleep=True)[0].ended_by == stop_pause.STOP
    assert asked == [False, True]


def test_a_vantage_point_that_has_ended_leaves_the_word_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is done, one has failed and says so at once, the third is paused: so the campaign is."""
    seen: list[Status] = []

    class Stub:
        ended_by = None

        def __init__(self, session: Session, place: str, *_: object, **__: object) -> None:
            self._name, self._reporter = place, session.reporter

        def work(self) -> None:
            report = self._reporter.vantage_point(self._name)
            report.does(State.RUNNING, "www.near.example")
            if self._name == "lost":
                raise PlaceError("tcpdump ended")
            if self._name == "waits":
                report.does(State.PAUSED, "upshift pause")
                for _ in range(300):
                    seen.append(self._reporter.status())
                    others = [seen[-1].vantage_points[name].activity.state for name in ("done", "lost")]
                    if State.RUNNING not in others:
                        break
                    time.sleep(0.01)

    monkeypatch.setattr(run, "Worker", Stub)
    names = ("done", "lost", "waits")
    with Reporter(tmp_path, campaign="c") as reporter:
        reporter.begin(plan_sha256="x", versions={}, counts=dict.fromkeys(names, Counts()))
        session = Session(plan=planned(tmp_path), out=tmp_path, progress=None, reporter=reporter)  # type: ignore[arg-type]
        with pytest.raises(PlaceError, match="tcpdump ended"):
            run._work(session, dict.fromkeys(names, ()), dict.fromkeys(names), dict(zip(names, names, strict=True)), {})  # type: ignore[arg-type]
        last = reporter.status()
    told = {name: part.activity.state for name, part in seen[-1].vantage_points.items()}
    assert told == {"done": State.DONE, "lost": State.FAILED, "waits": State.PAUSED}
    assert seen[-1].activity.state is State.PAUSED and not seen[-1].ended
    assert seen[-1].last_error is not None and seen[-1].last_error.what == "lost: tcpdump ended"
    assert last.activity.state is State.RUNNING, "the process has not ended yet"


def test_the_size_of_a_folder_is_told_where_a_fault_ended_its_campaign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stub:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        def work(self) -> None:
            (tmp_path / "capture").write_bytes(bytes(100_000))
            raise PlaceError("tcpdump ended")

    monkeypatch.setattr(run, "Worker", Stub)
    with Reporter(tmp_path, campaign="c") as reporter:
        reporter.begin(plan_sha256="x", versions={}, counts={"A": Counts()})
        session = Session(plan=planned(tmp_path), out=tmp_path, progress=None, reporter=reporter)  # type: ignore[arg-type]
        with pytest.raises(PlaceError):
            run._work(session, {"A": ()}, {"A": None}, {"A": None}, {})  # type: ignore[dict-item]
        disk = reporter.status().disk
    assert disk is not None and (disk.used_bytes or 0) >= 100_000


def order(journals: dict[str, Journal]) -> list[tuple[int, int, str, str]]:
    """Iteration, run, domain and configuration of each planned download."""
    query = "SELECT iteration, run, domain, configuration FROM plan JOIN runs ON number = run ORDER BY id"
    return [row for journal in journals.values() for row in journal.db.execute(query)]


def close(journals: dict[str, Journal]) -> None:
    for journal in journals.values():
        journal.close()


@pytest.mark.thorough
def test_more_iterations_extend_a_plan_and_leave_its_runs_as_they_were(tmp_path: Path) -> None:
    out = tmp_path / "out"
    rows = []
    for iterations in (2, 3, 3, 7):
        plan = planned(tmp_path, iterations=iterations)
        check_folder(plan, out)
        journals = opened(plan, out)
        rows.append(order(journals))
        runs = plan.runs("MUC", earlier_iterations(out / "vantage" / "MUC", plan))
        assert [(r.iteration, r.number, r.target.domain, n) for r in runs for n in r.configurations] == rows[-1]
        close(journals)
    first, second, same, last = rows
    assert second[: len(first)] == first and same == second and last[: len(second)] == second
    assert [len(part) / len(first) for part in rows] == [1, 1.5, 1.5, 3.5]
    assert {iteration for iteration, *_ in last} == set(range(1, 8))
    assert planned(tmp_path, iterations=2).digest == planned(tmp_path, iterations=7).digest
    with pytest.raises(UsageError, match=re.escape("another plan; changed since: iterations (7, now 6)")):
        check_folder(planned(tmp_path, iterations=6), out)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"seed": 2}, "seed (1, now 2)"),
        ({"seed": 2, "max_bytes": 1_000_000}, "max_bytes (20000000, now 1000000), seed (1, now 2)"),
        ({"permute": '["sack"]'}, "configuration ECN, configuration SACK"),
        ({"budget": 5}, "budget_s (null, now 5.0)"),
    ],
)
def test_a_changed_campaign_names_its_fields(tmp_path: Path, fields: dict[str, object], named: str) -> None:
    close(opened(planned(tmp_path), tmp_path / "out"))
    with pytest.raises(UsageError) as error:
        check_folder(planned(tmp_path, **fields), tmp_path / "out")
    assert error.value.what == f"this folder holds another plan; changed since: {named}"


def test_a_lab_that_was_changed_is_another_plan(tmp_path: Path) -> None:
    out = tmp_path / "out"
    close(opened(planned(tmp_path, lab=LAB), out))
    check_folder(planned(tmp_path, lab=LAB), out)
    with pytest.raises(UsageError, match=re.escape("the lab's rtt_ms (30.0, now 120.0) from MUC to www.plain.example")):
        check_folder(planned(tmp_path, lab=LAB.replace("rtt_ms = 30, rate", "rtt_ms = 120, rate")), out)
    with pytest.raises(UsageError, match=re.escape("targets (1 new, 1 gone)")):
        check_folder(planned(tmp_path, lab=LAB.replace("www.plain", "www.other")), out)
    close(opened(planned(tmp_path, lab=LAB, iterations=4), out))  # a longer campaign in the same lab goes on


def test_a_damaged_journal_is_one_sentence(tmp_path: Path) -> None:
    plan, out = planned(tmp_path), tmp_path / "out"
    close(opened(plan, out))
    path = out / "vantage" / "MUC" / "journal.sqlite"
    data = path.read_bytes()
    path.write_bytes(data[:8192] + b"x" * (len(data) - 8192))
    with pytest.raises(UsageError, match=rf"{out}: a journal cannot be read \(database disk image is malformed"):
        check_folder(plan, out)
    path.write_bytes(b"")  # killed before its plan was in it
    check_folder(plan, out)
