"""Runs a campaign, or resumes one: a thread per vantage point, a journal each, one lock for the folder."""

from __future__ import annotations

import contextlib
import gc
import json
import sqlite3
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from core.domain.download import Counts, total
from core.errors import FREE_SPACE, PlaceError, UsageError
from core.files import campaign_json
from core.system import signals
from core.system.place import Place
from downloader.campaign.campaign import Campaign
from downloader.campaign.configurations import client_with
from downloader.campaign.plan import PlannedRun
from downloader.campaign.targets import check_trust, describe_trust, trusted
from downloader.client import Client, version
from downloader.control import stop_pause
from downloader.control.reporter import Reporter
from downloader.execution.calls import StoppedError, describe_confinement
from downloader.execution.engine import Session, Worker
from downloader.execution.journal import Journal, as_recorded, check_folder, earlier_iterations
from downloader.limits.budget import check_budgets
from downloader.limits.disk import FolderDisk, check_disk
from downloader.limits.opt_out import block_lists
from downloader.schedule.schedule import State, Turns
from downloader.schedule.slots import SharedPlan

_PACKAGES = ("upshift", "dnspython")
"""Packages whose version is stored with the data, besides those of the campaign's clients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary(Counts):
    """The state of a campaign after a run: the counts of all its journals, and why it ended."""

    stopped: bool
    """Whether it was interrupted."""
    rule: Mapping[str, float]
    """When to stop before the end of the plan (`core.sequential.Rule`); empty: never."""
    enough: Sequence[str]
    """Vantage points that met the rule."""
    wide: Mapping[str, Sequence[str]]
    """Vantage point -> comparisons with an interval that is wider than the rule says, of the others."""
    void: Mapping[str, int]
    """Void reason -> measurement runs that are recorded with it, most frequent first."""
    runs: int
    """Recorded measurement runs, void ones included."""
    complete: bool
    """Whether every planned download is recorded, save those of the vantage points in `enough`."""
    ended_by: str | None = None
    """What ended it before its plan, e.g. `upshift stop`; None: nothing."""

    def sentence(self, out: Path) -> str:
        """The summary in one line."""
        causes = ", ".join(f"{cause} {count}" for cause, count in self.causes.items())
        void = f"; {self.void_runs} attempts of measurement runs were void" if self.void_runs else ""
        return (
            f"{out}: {self.recorded} of {self.planned} downloads recorded: {self.ok} ok, {self.failed} failed, "
            f"{self.censored} censored{f' ({causes})' if causes else ''}{void}{self._stopping()}"
        )

    @property
    def not_usable(self) -> str:
        """How many measurement runs cannot be used, and why; empty if all can."""
        causes = ", ".join(reason.replace("_", " ") for reason in self.void)
        return (
            f"{sum(self.void.values())} of {self.runs} measurement runs are not usable: {causes}" if self.void else ""
        )

    def _stopping(self) -> str:
        """What became of the rule."""
        if not self.rule:
            return ""
        rule = " and ".join(f"{quantity} {width:g}" for quantity, width in self.rule.items())
        outcome = f"; all intervals within {rule}: {', '.join(self.enough)}" if self.enough else ""
        for vantage, names in self.wide.items():
            outcome += f"; {vantage}: wider than {rule}: {', '.join(names)}"
        return outcome

    def document(self) -> dict[str, Any]:
        """The summary as plain data."""
        return {**asdict(self), "recorded": self.recorded}


def check_plan(plan: SharedPlan, out: Path, *, in_folder: int) -> None:
    """Checks all that can be checked before a lab is built or anything is sent.

    Args:
        in_folder: vantage points that write to the folder.

    Raises:
        UsageError: a client, a list or the bundle of certificates is missing, a limit has no room for one measurement
            run, or the folder has another plan.
    """
    check_clients(plan.campaign)
    check_trust(plan.campaign)
    block_lists(plan.campaign)
    check_limits(plan, in_folder=in_folder)
    check_folder(plan, out)


def run_campaign(session: Session, places: Mapping[str, Place]) -> RunSummary:
    """Runs the rest of a plan (checked by `check_plan`) in its locked folder, at all places in parallel.

    Args:
        places: vantage point -> place; the plan's other vantage points run on other hosts.

    Raises:
        UsageError: another plan is in the folder.
        PlaceError: a place cannot do what was asked. Other vantage points finish first.
        KeyboardInterrupt: after everything has been stopped cleanly.
    """
    session = replace(session, out=session.out.resolve())  # a place may have another working directory
    plan, out, reporter = session.plan, session.out, session.reporter
    journals: dict[str, Journal] = {}
    environments: dict[str, _Environment] = {}
    check_folder(plan, out)
    earlier = {name: earlier_iterations(out / "vantage" / name, plan) for name in places}
    runs = {name: plan.runs(name, earlier[name]) for name in places}
    try:
        environments = _open_journals(session, runs, earlier, places, journals)
        # Written each time: comparisons may have been added to a finished campaign.
        campaign_json.write(out, plan.campaign.for_analysis(plan.without_http3))
        reporter.begin(
            plan_sha256=plan.digest,
            versions=_versions(plan.campaign),
            counts={name: journal.counts() for name, journal in journals.items()},
            times={name: journal.times() for name, journal in journals.items()},
            limit_bytes=plan.campaign.disk.limit,
            reserve_bytes=plan.campaign.disk.reserve,
        )
        ended_by = _work(session, runs, journals, places, environments)
        if stop_pause.stop_requested(out):  # perhaps in the last run of the plan
            ended_by = ended_by or stop_pause.STOP
            stop_pause.clear_stop(out)
        return _summary(journals, stopped=session.stop.is_set(), ended_by=ended_by)
    except sqlite3.OperationalError as error:
        raise PlaceError(
            f"the journal cannot be written ({error})",
            where=str(out),
            remedy=f"{FREE_SPACE}; what is recorded stays",
        ) from None
    finally:
        with contextlib.suppress(sqlite3.Error):  # told above; the next process has it from the status
            for environment in environments.values():
                environment.note_beside()
        for journal in journals.values():
            journal.close()


@dataclass(slots=True)
class _Environment:
    """That of this process at a vantage point: in the journal before the first run that it explains."""

    journal: Journal
    now: Mapping[str, Any]
    since: float
    """Unix time."""
    reporter: Reporter
    explains: bool = False
    """Whether this process has recorded a run."""

    def explain(self) -> None:
        """To be called before a run is recorded. What was measured before keeps what other values it had."""
        if not self.explains:
            before = self.journal.document("environment") if self.journal.recorded_runs() else {}
            left = _left_of(before, self.now, self.since)
            self.journal.set_meta("environment", json.dumps({**self.now, **left}))
            self.explains = True
            self.note_beside()

    def note_beside(self) -> None:
        """Other campaigns of this host had slots and budgets of their own: the data says so."""
        if self.explains and (beside := self.reporter.beside):
            known = self.journal.document("environment")
            names = list(dict.fromkeys((*known.get("campaigns_beside", ()), *beside)))
            self.journal.set_meta("environment", json.dumps({**known, "campaigns_beside": names}))


def check_clients(campaign: Campaign) -> None:
    """Raises UsageError if a client that the campaign names cannot run here."""
    for client in _clients(campaign):
        if (fault := client.missing()) is not None:
            raise UsageError(fault, where=str(campaign.path), remedy="or remove its configurations from the campaign")


def _clients(campaign: Campaign) -> list[Client]:
    named = {configuration.client for configuration in campaign.every}
    return [client_with(campaign.published_quirks, name) for name in sorted(named)]


def _open_journals(
    session: Session,
    runs: Mapping[str, Sequence[PlannedRun]],
    earlier: Mapping[str, Sequence[int]],
    places: Mapping[str, Place],
    journals: dict[str, Journal],
) -> dict[str, _Environment]:
    """Adds the journals, created or resumed, to `journals`, which the caller closes. Nothing is downloaded before.

    Returns the environments of vantage points with open runs. Whether these are made shows later: a rule may be met.
    """
    plan, campaign, environments = session.plan, session.plan.campaign, dict[str, _Environment]()
    for name, place in places.items():
        trust = describe_trust(trusted(campaign, place))
        meta = {"campaign": json.dumps(as_recorded(plan)), "extended_from": json.dumps(earlier[name])}
        if plan.truth is not None:
            meta["lab"] = json.dumps({"paths": plan.truth["paths"]})
        folder = session.out / "vantage" / name
        journal = journals[name] = Journal.open(folder, runs[name], plan_hash=plan.digest, meta=meta)
        if journal.meta("environment") and not journal.open_runs():
            continue  # what was measured is explained by the environment that it had
        environment = {
            **place.environment(),
            "python_packages": _versions(campaign),
            "trust": trust,
            "client_ceilings": session.client_ceilings,
            "confinement": describe_confinement(place, session.run_as),
        }
        environment = json.loads(json.dumps(environment, default=str))
        environments[name] = _Environment(journal, environment, session.clock(), session.reporter)
        if not journal.meta("environment"):
            journal.set_meta("environment", json.dumps(environment))
    return environments


_PASSING = ("links", "load_1m", "memory_kib", "notes", "qdisc", "routes", "routes_ipv6", "steal_s", "timing")
"""Fields of an environment that may differ between two starts on one host that nobody changed."""

_BESIDES = ("campaigns_beside", "client_ceilings", "confinement", "earlier", "emulator", "trust")
"""Fields that do not describe the host or its software."""


def _left_of(before: Mapping[str, Any], now: Mapping[str, Any], at: float) -> dict[str, Any]:
    """What a campaign that goes on keeps of its environment before, under which its first runs were measured.

    `earlier`: until when [UTC] -> what had other values until then. Ceilings that were measured since then on the same
    host, with the same software, are those of all its runs.
    """
    ceilings = before.get("client_ceilings")
    earlier = dict(before.get("earlier", {}))
    if ceilings != now.get("client_ceilings"):  # parts without any had those that are replaced now
        earlier = {until: {"client_ceilings": ceilings, **part} for until, part in earlier.items()}
    changed = _others({name: value for name, value in before.items() if name not in (*_PASSING, *_BESIDES)}, now)
    then, here = _calibrated(before), _calibrated(now)
    if changed or (then and then != here):  # without any here: another host may be calibrated later
        changed |= _others({"client_ceilings": ceilings}, now, whole=True)
        earlier[f"until {datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ}"] = changed
    kept = {"earlier": earlier, "campaigns_beside": before.get("campaigns_beside")}
    return {name: value for name, value in kept.items() if value}


def _calibrated(environment: Mapping[str, Any]) -> Any:
    """The circumstances of its calibration (a host's name, for one); None if its runs had others: all is stale."""
    known = environment.get("client_ceilings") or {}
    is_stale = all(client.get("stale") for client in known.get("clients", {}).values())
    return None if is_stale else known.get("circumstances")


def _others(before: Mapping[str, Any], now: Mapping[str, Any], *, whole: bool = False) -> dict[str, Any]:
    """The values of `before` that are others in `now`; within objects, too, unless these stay whole."""
    others: dict[str, Any] = {}
    for name, value in before.items():
        if not whole and isinstance(value, Mapping) and isinstance(now.get(name), Mapping):
            others |= {name: part} if (part := _others(value, now[name])) else {}
        elif value != now.get(name):
            others[name] = value
    return others


def check_limits(plan: SharedPlan, *, in_folder: int) -> None:
    """Raises UsageError if a budget, or the limit of the folder, has no room.

    Args:
        in_folder: vantage points that write to the folder.
    """
    check_budgets(plan.campaign, plan.targets, vantage_points=len(plan.vantage_points))
    check_disk(plan.campaign, plan.targets, vantage_points=in_folder)


def _work(
    session: Session,
    runs: Mapping[str, Sequence[PlannedRun]],
    journals: Mapping[str, Journal],
    places: Mapping[str, Place],
    environments: Mapping[str, _Environment],
) -> str | None:
    """A thread per vantage point. If one fails, the others finish. Returns what ended it before its plan."""
    turns, errors = Turns(), list[BaseException]()
    ended_by: dict[str, str | None] = {}
    reporter = session.reporter
    disk = FolderDisk(session.out, session.plan.campaign.disk, tell=reporter.takes)

    def one(name: str) -> None:
        # Children are started by this thread, so they die when it does (see core.system.process).
        try:
            worker = Worker(session, places[name], journals[name], runs[name], turns=turns, disk=disk)
            if name in environments:
                worker.before_record = environments[name].explain
            worker.work()
            ended_by[name] = worker.ended_by
            if worker.ended_by is None:
                reporter.vantage_point(name).does(State.DONE, "")
        except StoppedError:
            pass
        except BaseException as error:
            errors.append(error)
            reporter.error(f"{name}: {error}")
            reporter.vantage_point(name).does(State.FAILED, str(error))
        finally:
            reporter.vantage_point(name).finished()
            ended[name].set()

    # Events, not joins: before Python 3.13 a join that Ctrl-C interrupts marks the thread as ended (gh-90882), and its
    # journal was closed while in use.
    ended = {name: threading.Event() for name in places}
    threads = {name: threading.Thread(target=one, args=(name,), name=f"vantage-{name}") for name in places}
    gc.collect()
    gc.freeze()  # what is there stays: the collections after each measurement run need not look at it
    try:
        _run_all(threads, ended, session.stop, reporter)
    finally:
        gc.unfreeze()
    with contextlib.suppress(OSError):  # it would hide what ended the work
        disk.look()  # not after a signal: in a large folder it takes longer than there is to end
    if errors:
        raise errors[0]
    return next((reason for reason in ended_by.values() if reason is not None), None)


def _run_all(
    threads: Mapping[str, threading.Thread],
    ended: Mapping[str, threading.Event],
    stop: threading.Event,
    reporter: Reporter,
) -> None:
    """Starts the threads and waits until all have ended; Ctrl-C stops them first."""
    try:
        with signals.deferred():  # a thread that is being started waits for itself, and is not known before
            for thread in threads.values():
                thread.start()
        for event in ended.values():
            signals.wait_for(event)
    except BaseException:
        stop.set()
        reporter.does(State.STOPPING, signals.reason())
        for name, thread in threads.items():
            while thread.ident is not None and not ended[name].is_set():
                with contextlib.suppress(KeyboardInterrupt):  # pressed again: all waits of these threads are bounded
                    signals.wait_for(ended[name])
        raise


def _summary(journals: Mapping[str, Journal], *, stopped: bool, ended_by: str | None) -> RunSummary:
    counts = {name: journal.counts() for name, journal in journals.items()}
    states = {name: journal.document("stopping") for name, journal in journals.items()}
    enough = [name for name, state in states.items() if state.get("reached")]
    return RunSummary(
        **asdict(total(counts.values())),
        stopped=stopped,
        rule=next(iter(states.values())).get("rule", {}),
        enough=enough,
        void=dict(sum((Counter(journal.void_reasons()) for journal in journals.values()), Counter()).most_common()),
        runs=sum(journal.recorded_runs() for journal in journals.values()),
        wide={
            name: [one["name"] for one in state.get("comparisons", ()) if not one["reached"]]
            for name, state in states.items()
            if state.get("rule") and name not in enough
        },
        complete=all(c.recorded == c.planned for name, c in counts.items() if name not in enough),
        ended_by=ended_by,
    )


def _versions(campaign: Campaign) -> dict[str, str | None]:
    versions = {package: version(package) for package in _PACKAGES}
    for client in _clients(campaign):
        versions |= client.versions()
    return versions
