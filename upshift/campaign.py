"""A campaign from its file to `downloads.parquet`: opens places, runs or resumes, inspects the folder."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.evidence import Inspection, inspect_campaign
from analysis.evidence.sources import inspect_capture
from core.errors import AskedToStopError, PlaceError, UpshiftError, UsageError, file_error
from core.files import disk
from core.files.disk import check_free, check_room, folder_lock
from core.system import signals
from core.system.confine import user_of
from core.system.place import Place
from core.system.process import require
from core.system.this_host import read_clock
from core.terminal import Progress
from downloader import clients, factors
from downloader.campaign.campaign import Campaign, load
from downloader.campaign.configurations import prepared
from downloader.campaign.limits import parse_rule
from downloader.control import running
from downloader.control.metrics import Endpoint, parse_endpoint
from downloader.control.reporter import Reporter
from downloader.control.stop_pause import STOP, StoppableProgress, clear_stop, parse_time
from downloader.execution.engine import Session, trusts_clock
from downloader.execution.journal import in_recorded_order
from downloader.execution.run import RunSummary, check_plan, run_campaign
from downloader.limits.disk import check_start
from downloader.schedule.schedule import State
from downloader.schedule.slots import SharedPlan
from upshift.run_options import RunOptions
from upshift.shared_plan import require_known, shared_plan, write_windows

if TYPE_CHECKING:
    from vantage.lab.lab import Lab

STATE_BYTES = 64_000
"""Size of the files in which places record what they change."""

CLEAN_UP_S = 9.5
"""Longest time from a signal to our end on a real host; after it the guardian does the rest."""


def run_file(
    path: Path, out: Path, options: RunOptions | None = None, *, progress: Progress
) -> tuple[RunSummary, Inspection | None]:
    """Runs the campaign of a file into a folder, or resumes the one in that folder; then makes its tables.

    Where it was asked to end, no tables are made, as those of a long campaign take minutes: None.

    Raises:
        AskedToStopError: asked to end while it made the tables.
        UpshiftError: wrong input, a place that cannot be opened, or a folder that holds another plan.
    """
    options = options or RunOptions()
    here = options.here
    endpoint = None if options.metrics is None else parse_endpoint(options.metrics)
    end = None if options.until is None else parse_time(options.until, where="--until", now=time.time())
    run_as = None if options.client_user is None else user_of(options.client_user, where="--client-user")
    campaign = load(path, options.host_file)
    vantage_points = tuple(options.vantage or ()) or None
    # A lab's are looked up in its topology, and a file without any takes all names.
    if vantage_points and campaign.topology is None and campaign.vantage_points:
        require_known(vantage_points, campaign.vantage_points, whose="the campaign", where="--vantage")
    given: dict[str, Any] = {"order": options.order, "vantage_points": vantage_points, "isolation": options.isolation}
    campaign = replace(campaign, **{name: value for name, value in given.items() if value is not None})
    if options.stop_when:
        campaign = replace(campaign, stop_when=parse_rule(options.stop_when, campaign.comparisons))
    check_free(out)  # first: the journal of a run that has just begun cannot be read yet
    plan = shared_plan(replace(campaign, vantage_points=in_recorded_order(campaign.vantage_points, out)), here)
    in_folder = len(plan.vantage_points) if here is None and campaign.topology is not None else 1
    check_plan(plan, out, in_folder=in_folder)
    _check_host(plan, here)
    _check_room(plan, in_folder, out)
    with ExitStack() as stack:
        if campaign.topology is None:
            stack.enter_context(running.announced(campaign.name, out, force=options.force))
        others = _names_beside if campaign.topology is None else tuple
        reporter = stack.enter_context(reported(out, campaign.name, endpoint, others))
        session = Session(
            plan=plan,
            out=out,
            progress=progress,
            reporter=reporter,
            until=end,
            client_ceilings=_client_ceilings(),
            inspect=partial(inspect_capture, factors=factors.ALL),
            run_as=run_as,
        )
        return _run(session, here, let_cpus_sleep=options.let_cpus_sleep)


def _names_beside() -> list[str]:
    return [other.name for other in running.others()]


def _run(session: Session, here: str | None, *, let_cpus_sleep: bool) -> tuple[RunSummary, Inspection | None]:
    plan, campaign, out, reporter = session.plan, session.plan.campaign, session.out, session.reporter
    require("tcpdump", package="tcpdump")
    for note in prepared(campaign.configurations)[1]:
        print(f"upshift: {note}", file=sys.stderr)  # noqa: T201 - the user should read it before the run
    with ExitStack() as stack:
        if goes_on := out.exists():  # a new folder waits: a start that is refused would leave it
            _lock(out, stack)
        truth: Mapping[str, Any] | None = None
        names = plan.vantage_points if here is None else (here,)
        if campaign.topology is None:
            stack.enter_context(signals.clean_up_within(CLEAN_UP_S))
            places = _host_place(campaign, names[0], stack, let_cpus_sleep)
        else:
            from vantage.lab.lab import open_lab

            lab = stack.enter_context(
                open_lab(campaign.topology, progress=session.progress, let_cpus_sleep=let_cpus_sleep)
            )
            places, truth = _lab_places(lab, names, stack), lab.truth()
        if not goes_on:
            _lock(out, stack)
        summary = run_campaign(session, places)
        reporter.does(*(State.STOPPING, summary.ended_by) if summary.ended_by else (State.RUNNING, "making the tables"))
    # Only now: a folder that holds another plan was refused above, and keeps its lab.json.
    if truth is not None:
        disk.write_json(out / "lab.json", truth)
    write_windows(out, plan.targets)
    if summary.ended_by is not None:
        reporter.end(State.STOPPED, summary.ended_by)
        return summary, None
    inspection = inspect_campaign(out, factors=factors.ALL, progress=StoppableProgress(session.progress, out))
    if summary.complete:
        reporter.end(State.DONE, "")
    else:
        left = f"{summary.planned - summary.recorded} of {summary.planned} downloads are not recorded"
        reporter.end(State.FAILED, left)
    return summary, inspection


def _lock(out: Path, stack: ExitStack) -> None:
    stack.enter_context(folder_lock(out))
    clear_stop(out)  # at once: with the lock this process can be asked


@contextmanager
def reported(
    out: Path, campaign: str, endpoint: Endpoint | None, others: Callable[[], Iterable[str]] = tuple
) -> Iterator[Reporter]:
    """The campaign's status while the block runs; how it ends, too, if that is by an error or a signal."""
    with Reporter(out, campaign=campaign, endpoint=endpoint, others=others) as reporter:
        try:
            with signals.as_interrupt():
                yield reporter
        except KeyboardInterrupt:
            reporter.end(State.STOPPED, signals.reason())
            raise
        except AskedToStopError:
            reporter.end(State.STOPPED, STOP)
            raise
        except Exception as error:
            known = file_error(error) if isinstance(error, OSError) else error
            reporter.end(State.FAILED, known.sentence() if isinstance(known, UpshiftError) else repr(error))
            raise


def _client_ceilings() -> Mapping[str, Any] | None:
    """This host's calibration, judged for the present versions."""
    from vantage.doctor import ceilings

    return ceilings.present(clients.ALL.values(), path=ceilings.calibration_file(), now=ceilings.circumstances())


def _check_host(plan: SharedPlan, here: str | None) -> None:
    """Before anything is changed: one vantage point per host outside labs, and a clock that tells slots."""
    campaign = plan.campaign
    if campaign.topology is None and here is None and len(plan.vantage_points) != 1:
        raise UsageError(
            f"this host is one vantage point, the campaign has {len(plan.vantage_points)}",
            where=str(campaign.path),
            remedy=f"name this host with --here, one of: {', '.join(plan.vantage_points)}",
        )
    if plan.slots is not None and not trusts_clock(campaign) and (fault := read_clock().fault()) is not None:
        raise PlaceError(
            f"{fault}, and vantage points take turns by the clock",
            where=str(campaign.path),
            remedy='run a time daemon (chrony); on a test host write vantage_clock = "trusted"',
        )


def _check_room(plan: SharedPlan, in_folder: int, out: Path) -> None:
    """Before anything is changed: a full disk, of the campaign's folder or of what has to be undone on this host."""
    from vantage.linux.state_folder import state_directory

    check_start(plan.campaign, plan.targets, in_folder, out)
    remedy = "free some space there or set UPSHIFT_STATE_DIR"
    check_room(state_directory(), STATE_BYTES, what="the records of this host's changes", remedy=remedy)


def _lab_places(lab: Lab, names: Sequence[str], stack: ExitStack) -> Mapping[str, Place]:
    """Vantage points of a lab, reserved for this process."""
    places: dict[str, Place] = {}
    for name in names:
        place = lab.place(name)
        stack.callback(place.close)
        place.claim()
        places[name] = place
    return places


def _host_place(campaign: Campaign, name: str, stack: ExitStack, let_cpus_sleep: bool) -> Mapping[str, Place]:
    """This host, under the name that the campaign gives it."""
    from vantage.host.place import HostPlace

    place = HostPlace(
        name,
        isolation="host" if campaign.isolation == "host" else "netns",
        allowed_prefixes=campaign.allowed_prefixes,
        nameservers=campaign.nameservers,
        uplink=campaign.uplink,
        ipv6=campaign.address_family == "ipv6",
        either=campaign.address_family == "any",
        let_cpus_sleep=let_cpus_sleep,
    )
    stack.callback(place.close)
    for note in place.notes:
        print(f"upshift: {note}", file=sys.stderr)  # noqa: T201 - the user should read it before the run
    return {place.name: place}
