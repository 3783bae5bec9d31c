"""`upshift survey iw`: how much servers send before the first ACK."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from core.errors import UsageError
from core.outreach.lists import parse_shard
from survey.iw.charts import ALL as CHARTS
from survey.iw.figures import figures
from survey.iw.record import OF_TARGETS, OF_WINDOW, IwRecord
from survey.iw.wire import LARGEST_MSS, MOST_PIPELINED, PATH_BYTES, SMALLEST_MSS, ProbeVerdict
from survey.subjects import Source, Subjects
from survey.surveys import Context, Survey, SurveyOptions, Visit

MSS = (64, 128, 536, 1200)


@dataclass(frozen=True, slots=True, kw_only=True)
class IwSettings:
    """The survey's own options."""

    scheme: Annotated[str, typer.Option(help="For lists without URLs: http or https.")] = "http"
    path: Annotated[
        str, typer.Option(help="For lists without URLs: what to request first; then a redirect, then a long path.")
    ] = "/"
    mss: Annotated[
        list[int] | None,
        typer.Option(help="MSS to announce [B]; may be repeated: the kind needs two at least. [64, 128, 536, 1200]"),
    ] = None
    votes: Annotated[
        str,
        typer.Option(
            help="Probes per MSS: adaptive (two that agree on the largest value, else up to ten), published (always"
            " ten). A single probe whose last segment was lost is one too small and still says limited."
        ),
    ] = "adaptive"
    pipeline: Annotated[
        int, typer.Option(min=1, max=MOST_PIPELINED, help="Copies of the request in one segment, for more data.")
    ] = 1
    pacing: Annotated[
        bool,
        typer.Option("--pacing", help="Judge pacing: probes at MSS 1200 with the ACK delayed by 0, 50 and 100 ms."),
    ] = False
    packet_rate: Annotated[
        float | None, typer.Option(min=1, help="Most packets sent per second, all together. Default: no limit.")
    ] = None
    prefixes: Annotated[
        Path | None, typer.Option(help="Probe addresses of these prefixes (one a line) instead of INPUT.")
    ] = None
    sample: Annotated[float, typer.Option(help="Share of the addresses of --prefixes, up to 1.")] = 1.0
    seed: Annotated[int, typer.Option(help="Seed of the sample.")] = 1
    cdn_names: Annotated[
        Path | None, typer.Option(help="Suffixes and names of CDNs: suffix,name, or cdn.h. Default: our own list.")
    ] = None
    control: Annotated[
        list[str] | None,
        typer.Option(
            help="URL=IW, a server whose window is known [segments]; may be repeated. If one is measured"
            " wrongly, the results are marked, and figures leave them out."
        ),
    ] = None
    vantage: Annotated[str | None, typer.Option(help="Name of the vantage point, for figures of several.")] = None

    @property
    def values_of_mss(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(self.mss or MSS))


def _check(settings: IwSettings) -> None:
    from survey.iw.probers import parse_controls
    from survey.iw.sources import read_names
    from survey.iw.visit import PACING_MSS

    for mss in settings.values_of_mss:
        if not SMALLEST_MSS <= mss <= LARGEST_MSS:
            raise UsageError(f"{mss} is not a valid MSS", where="--mss", remedy=f"use at least {SMALLEST_MSS} bytes")
    for option, value, known in (
        ("--votes", settings.votes, ("adaptive", "published")),
        ("--scheme", settings.scheme, ("http", "https")),
    ):
        if value not in known:
            raise UsageError(f"{value!r} is not known", where=option, remedy=f"write {' or '.join(known)}")
    if not settings.path.startswith("/") or not all("!" <= letter <= "~" for letter in settings.path):
        raise UsageError(f"{settings.path[:60]!r} is not a path", where="--path", remedy="begin it with /, in ASCII")
    if len(settings.path) > PATH_BYTES:
        raise UsageError("it is too long", where="--path", remedy=f"use at most {PATH_BYTES} bytes")
    if not 0 < settings.sample <= 1:
        raise UsageError(f"{settings.sample:g} is not a share", where="--sample", remedy="give more than 0, up to 1")
    if settings.sample != 1 and settings.prefixes is None:
        raise UsageError("it is a share of --prefixes", where="--sample", remedy="give --prefixes, or use --limit")
    if settings.pacing and PACING_MSS not in settings.values_of_mss:
        raise UsageError(f"it is judged at MSS {PACING_MSS}", where="--pacing", remedy=f"add --mss {PACING_MSS}")
    read_names(settings.cdn_names)
    parse_controls(settings.control or ())


def _subjects(options: SurveyOptions, settings: IwSettings) -> Source:
    from survey.iw.sources import Archive, PrefixSample, check_block_list, is_archive

    shard = parse_shard(options.shard)
    if settings.prefixes is not None:
        if options.source is not None:
            raise UsageError("INPUT and --prefixes cannot be combined", remedy="leave one out")
        sample = PrefixSample(
            settings.prefixes, share=settings.sample, seed=settings.seed, shard=shard, limit=options.limit
        )
        check_block_list(sample, has_block_list=bool(options.block_list))
        return sample
    if options.source is None:
        raise UsageError("there is no INPUT", remedy="give a list or targets, or --prefixes")
    if is_archive(options.source):
        return Archive(options.source, limit=options.limit, shard=shard)
    return Subjects(options.source, limit=options.limit, shard=shard)


def _visits(context: Context) -> AbstractAsyncContextManager[Visit]:
    from survey.iw.probers import visits

    return visits(context)


def _of_fit(column: str) -> Callable[[IwRecord], Any]:
    """A target has no mark: of an unfit vantage point it gets nothing, nor `paced` without a window."""

    def says(record: IwRecord) -> Any:
        has_window = any(getattr(record, name) is not None for name in OF_WINDOW)
        return getattr(record, column) if has_window and record.vantage_fit is not False else None

    return says


def _refused(record: Any, error: Any) -> None:
    record.failure, record.failure_detail = error.failure, error.detail
    record.verdict = None


IW = Survey(
    name="iw",
    help="""Initial window of every server: how much it sends before the first ACK.

    The ACKs of the answer are withheld, until the server retransmits its first segment. A probe takes 15 s and 0.6 MB
    at most. After an interruption, the same command resumes from its ledger.
    """,
    record=IwRecord,
    visits=_visits,
    figures=figures,
    charts=CHARTS,
    subjects=_subjects,
    settings=IwSettings,
    check=_check,
    targets={name: _of_fit(name) for name in OF_TARGETS},
    together=OF_TARGETS,
    outcome=lambda record: record.verdict or record.failure or "unknown",
    good=lambda outcome: outcome == ProbeVerdict.LIMITED,
    refused=_refused,
    defaults={"source": None, "timeout": 15.0, "rate": 100.0},
    unplanned=("packet_rate", "prefixes"),  # the prefixes are the list
    raw=True,
    visits_per_place=2,
)
