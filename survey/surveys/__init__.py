"""The surveys, one file each: `upshift survey NAME`. To add one, add a file; `options.py` shows how.

A survey is one value of kind `Survey`, from which its command, its run and its figures are made. It has a visit (what
to measure for one domain), a record (one row of results) and figures (the summary of records). The engine provides
subjects, ledger, resume, DNS, block lists, rate limits, progress, files and the command line.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from core.outreach import arguments
from core.outreach.lists import parse_shard
from core.registry import Registry
from survey.charts import Chart
from survey.figures import Figures
from survey.programs import Start
from survey.subjects import Source, Subject, Subjects

if TYPE_CHECKING:
    from core.system.place import Prober
    from survey.access import Access, NotAskedError

Record: TypeAlias = Any
"""A dataclass: one row of results. It has `domain`, `rank`, `provider` and `surveyed_at`; the rest has defaults."""

Visit = Callable[[Subject, Record], Awaitable[Record]]
"""Surveys one domain, and returns its record: the given one, or another. May raise `survey.access.NotAskedError`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where the programs of a survey run."""

    start: Start
    prober: Prober | None = None
    """The address of raw-socket probers there; only if it was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyOptions:
    """The options of every survey; the command line has one option for each field."""

    source: Annotated[Path, typer.Argument(metavar="INPUT", help="Top list of any kind, or targets (.parquet, .csv).")]
    out: Annotated[Path, typer.Option("--out", "-o", help="Results, one row per domain (Parquet).")]
    contact: arguments.Contact = ""
    targets_out: Annotated[Path | None, typer.Option(help="Write INPUT (targets) to this file with {} filled in.")] = (
        None
    )
    ledger: arguments.LedgerFile = None
    ipv6: Annotated[bool, typer.Option("--ipv6", help="Look up AAAA records and contact servers over IPv6.")] = False
    shard: arguments.Shard = "1/1"
    limit: arguments.Limit = None
    rate: Annotated[
        float,
        typer.Option(min=0.1, max=200_000, help="Handshakes or probes per second; DNS look-ups have the same limit."),
    ] = 500
    concurrency: Annotated[int, typer.Option(min=1, max=100_000, help="Servers contacted at the same time.")] = 2000
    per_address: Annotated[int, typer.Option(min=1, help="The same, for each server address.")] = 2
    address_rate: Annotated[
        float, typer.Option(min=0.01, help="Handshakes or probes per second and server address.")
    ] = 10
    timeout: Annotated[float, typer.Option(min=0.1, max=130, help="Longest wait for a server [s].")] = 5.0
    block_list: arguments.BlockLists = None
    opt_out: arguments.OptOut = None
    nameserver: arguments.Nameserver = None
    nameserver_port: arguments.NameserverPort = 53


PLANNED = ("ipv6", "limit", "timeout")
"""The options that affect the results, besides list and shard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoSettings:
    """Settings of a survey without further options."""


@dataclass(frozen=True, slots=True)
class Remark:
    """A count that a run reports besides its records."""

    name: str
    """Its name in JSON."""
    value: object
    sentence: str
    """The sentence to print if the value is not 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What all visits of a run share."""

    options: SurveyOptions
    settings: Any
    """The survey's own options: an instance of its `settings`."""
    access: Access
    start: Start
    user_agent: str
    prober: Prober | None = None
    """The address that its programs send from; only for a survey whose programs have their own (`Survey.raw`)."""
    remarks: list[Remark] = field(default_factory=list)


def _listed(options: SurveyOptions, settings: Any) -> Source:  # noqa: ARG001 - a survey's own settings may name the list
    return Subjects(options.source, limit=options.limit, shard=parse_shard(options.shard))


def _refused(record: Record, error: NotAskedError) -> None:
    record.failure, record.failure_detail = error.failure, error.detail


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultKind:
    """One kind of results, of which `upshift survey figures` makes figures."""

    name: str
    record: type[Record]
    figures: Callable[[Sequence[Record]], Figures]
    charts: Mapping[str, Chart] = field(default_factory=dict)
    """Named figures, for `upshift survey figures --figure`."""
    picture: str | None = None
    """The one of these that is drawn if none is named; None: the shares."""

    @property
    def kind(self) -> str:
        """Kind of its files."""
        return self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey(ResultKind):
    """One kind of survey. `name` is that of the command, `upshift survey NAME`; its files are `survey_NAME`."""

    help: str
    """Help of the command; the first line is a sentence."""
    visits: Callable[[Context], AbstractAsyncContextManager[Visit]]
    """Opens what visits share (sockets, programs), and yields the visit; `each` makes one from a plain coroutine."""
    subjects: Callable[[SurveyOptions, Any], Source] = _listed
    """What to survey, from the options and the survey's own settings. Raises UsageError."""
    settings: type[Any] = NoSettings
    """A dataclass whose fields are this survey's own options, annotated for Typer."""
    check: Callable[[Any], None] = lambda _: None
    """Checks the settings before anything starts. Raises UsageError."""
    targets: Mapping[str, Callable[[Record], bool | int | str | None]] = field(default_factory=dict)
    """Column of `Target` -> its value from a record (None: unknown). If not empty, the command has `--targets-out`."""
    together: Collection[str] = ()
    """Those of these columns that are one value: a record that has one of them says them all, unknown ones too."""
    outcome: Callable[[Record], str] = lambda record: record.failure or "ok"
    """A record's outcome in the ledger and the progress display."""
    good: Callable[[str], bool] = lambda outcome: outcome == "ok"
    """Whether an outcome counts as success in the progress display."""
    refused: Callable[[Record, NotAskedError], None] = _refused
    """Notes in a record why no packet was sent."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Option of `SurveyOptions` -> this survey's default."""
    unplanned: Collection[str] = ()
    """Settings that do not decide the results: a resumed survey may have others."""
    contact: bool = True
    """Whether requests carry a contact (in the user agent): `--contact` is then required."""
    kernel: Mapping[str, str] = field(default_factory=dict)
    """Kernel settings that it needs (relative to /proc/sys): its programs run where these are set."""
    raw: bool = False
    """Whether its programs use raw sockets and an address of their own (`Context.prober`)."""
    visits_per_place: int = 1
    """Concurrent visits per server that may be contacted at the same time: more if most visits wait for DNS."""

    @property
    def kind(self) -> str:
        return f"survey_{self.name}"

    @property
    def starts_programs(self) -> bool:
        """Whether its programs get a place, so that its command keeps its rights; others give them up."""
        return bool(self.kernel) or self.raw


def each(visit: Callable[[Context, Subject, Record], Awaitable[Record]]) -> Any:
    """`visits` of a survey whose visits share nothing but the context."""

    @asynccontextmanager
    async def opened(context: Context) -> AsyncIterator[Visit]:
        yield lambda subject, record: visit(context, subject, record)

    return opened


ALL = Registry(__name__, Survey)
