"""Commands on a campaign's folder: `upshift inspect` (its tables again), `upshift snapshot`, `upshift account`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from core import terminal as progress_display
from core.errors import IncompleteError, UsageError
from core.files.disk import size_text
from core.options import with_options
from core.untrusted import plain

if TYPE_CHECKING:
    from analysis.evidence import Inspection


_MOST_NAMED = 20
"""Most lost captures that are listed by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectOptions:
    """What is read, with which means."""

    jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="Captures read at once. Default: one per core.")] = (
        None
    )
    again: Annotated[
        bool,
        typer.Option(
            "--again",
            help="Read all captures that were not dropped, and name those that are missing. Default: only those in "
            "which this version has not analysed yet, right after the measurement run.",
        ),
    ] = False
    captures: Annotated[
        str | None,
        typer.Option(
            metavar="s3://BUCKET/PREFIX",
            help="Read captures from S3 (credentials, region and AWS_ENDPOINT_URL as for the AWS SDKs). Default: DIR.",
        ),
    ] = None
    scheduler: Annotated[
        str | None,
        typer.Option(
            metavar="tcp://HOST:8786",
            help="Read captures by the workers of this Dask scheduler (extra scale), which have the same Upshift and "
            "see DIR under the same path. Default: threads of this machine.",
        ),
    ] = None

    @contextmanager
    def means(self) -> Iterator[dict[str, Any]]:
        """The arguments of `inspect_campaign` that these are."""
        if self.scheduler is not None and self.jobs is not None:
            what = "it is for threads of this machine"
            raise UsageError(what, where="--jobs", remedy="leave it out with --scheduler")
        means: dict[str, Any] = {"jobs": self.jobs, "again": self.again}
        if self.captures is not None:
            from analysis.evidence.s3 import InS3

            means["captures"] = InS3.of(self.captures)
        if self.scheduler is None:
            yield means
        else:
            from analysis.evidence.cluster import Cluster

            with Cluster(self.scheduler) as cluster:
                yield {**means, "cluster": cluster}


@with_options
def inspect(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR", help="Campaign folders: what `upshift run` writes to --out.")
    ],
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Make the tables of the folders together, in this folder: for the folders of hosts that shared a "
            "campaign (upshift run --here). Journals and captures stay where they are.",
        ),
    ] = None,
    options: InspectOptions,
    json: Annotated[bool, typer.Option("--json", help="Progress and one result per folder as JSON lines.")] = False,
) -> None:
    """Make downloads.parquet with KPIs and the proof of treatment again, from journals and captures.

    It needs no network, no root and no lab, so it works on a copy of a folder on any machine. Rows that cannot be made
    again because their capture is missing are kept and named, and the exit code is 1.
    """
    from analysis.evidence import inspect_campaign, link_together
    from downloader.factors import ALL as FACTORS

    if out is not None:
        link_together(folders, out)
        folders = [out]
    if options.captures is not None and len(folders) > 1:
        raise UsageError("a prefix has captures of one folder", where="--captures", remedy="inspect one DIR at a time")
    inspections = []
    with options.means() as means:
        for folder in folders:
            with progress_display.show_progress(as_json=json) as progress:
                inspections.append(inspect_campaign(folder, factors=FACTORS, progress=progress, **means))
            typer.echo(dumps(asdict(inspections[-1])) if json else inspections[-1].sentence())
    require_evidence(inspections)


def require_evidence(inspections: Sequence[Inspection]) -> None:
    """Lists what is lost; exit code 1 if anything is."""
    lost = [f"{inspection.folder}/{lost.path}: {lost.why}" for inspection in inspections for lost in inspection.lost]
    for line in lost[:_MOST_NAMED]:
        typer.echo(f"upshift: {plain(line)}", err=True)
    if len(lost) > _MOST_NAMED:
        typer.echo(f"upshift: and {len(lost) - _MOST_NAMED} more; --json names all", err=True)
    if lost:
        kept = sum(inspection.kept for inspection in inspections)
        recorded = sum(inspection.recorded for inspection in inspections)
        known = f", {recorded} have what the journal found" if recorded else ""
        raise IncompleteError(
            f"{len(lost)} captures or journals are missing or damaged; {kept} downloads keep their earlier rows{known}",
            remedy="restore them, then run upshift inspect",
        )


def snapshot(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Campaign folder: the --out of `upshift run`.")],
    free: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Instead, remove the captures in this snapshot.json, which were copied and verified; what was found "
            "in them stays in the journal.",
        ),
    ] = None,
    sha256: Annotated[
        str | None, typer.Option(metavar="HASH", help="With --free: only if FILE has this SHA-256.")
    ] = None,
    restore: Annotated[
        Path | None,
        typer.Option(metavar="JOURNAL", help="Instead, go on from this collected journal, if --here has none."),
    ] = None,
    here: Annotated[str, typer.Option(metavar="NAME", help="With --restore: the vantage point.")] = "",
    plan: Annotated[
        str | None, typer.Option(metavar="SHA256", help="With --restore: hash of the plan that it has to be of.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Write DIR/snapshot: what to copy of a campaign's folder, with SHA-256, also while the campaign runs.

    It has copies of the journals and of small files, and lists the captures to which these journals refer. A capture
    is read for its hash once. `sha256sum --check` reads captures.sha256, and `rsync --files-from` captures.list.
    """
    from downloader.execution import snapshot as snapshots

    for option, value, needs, other in (
        ("--sha256", sha256, free, "--free FILE"),
        ("--here", here or None, restore, "--restore JOURNAL"),
        ("--plan", plan, restore, "--restore JOURNAL"),
    ):
        if value is not None and needs is None:
            raise UsageError(f"it needs {other}", where=option, remedy=f"add {other}, or leave it out")
    if restore is not None:
        if free is not None:
            raise UsageError("--free cannot be given with it", where="--restore", remedy="give one of the two")
        if not here:
            raise UsageError("the vantage point is not named", where="--restore", remedy="add --here NAME")
        done = snapshots.restore(folder, restore, here, plan_sha256=plan)
        outcome = f"goes on from {restore}" if done else "has a journal, which stays"
        typer.echo(dumps({"restored": done}) if json else f"{folder}: {here} {outcome}")
        return
    if free is not None:
        freed = snapshots.free(folder, free, sha256=sha256)
        sentence = f"{folder}: {freed.captures} captures removed, {size_text(freed.bytes)}"
        typer.echo(dumps(asdict(freed)) if json else sentence)
        return
    taken = snapshots.take(folder)
    if json:
        typer.echo(dumps(asdict(taken)))
        return
    size = size_text(sum(file.bytes for file in taken.files))
    typer.echo(f"{folder / snapshots.FOLDER}: {len(taken.files)} files, {size}, {len(taken.captures)} of them captures")


def account(
    who: Annotated[
        str,
        typer.Argument(
            metavar="DOMAIN|PREFIX|ASN",
            help="Who asks: www.example.org (with all names below it), 192.0.2.0/24 or an address, AS64500.",
        ),
    ],
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Campaign folders: what `upshift run` writes to --out.")
    ],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document, with every request.")] = False,
) -> None:
    """What did you fetch from us, and when? Times, URLs, bytes, user agent and addresses, from the journals.

    One line per attempt of a measurement run: downloads of one file, back to back. Bytes are IP bytes in both
    directions; look-ups are not counted. Interrupted and void attempts are included.
    """
    from downloader.execution.account import fetched, parse

    attempts = sorted(fetched(parse(who), folders), key=lambda one: one.began)
    requests = sum(len(one.requests) for one in attempts)
    total = sum(one.ip_bytes for one in attempts)
    if json:
        document = {"asked": who, "ip_bytes": total, "requests": requests, "fetched": [asdict(one) for one in attempts]}
        typer.echo(dumps(document))
        return
    lines = [("from (UTC)", "to", "vantage", "requests", "bytes", "from address", "to address", "URL")]
    for one in attempts:
        sources = dict.fromkeys(request.local_ip for request in one.requests if request.local_ip is not None)
        lines.append(
            (
                time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(one.began)),
                time.strftime("%H:%M:%S", time.gmtime(one.ended)),
                one.vantage,
                str(len(one.requests)),
                f"{'' if one.exact else 'at most '}{one.ip_bytes}",
                " ".join(sources) or "-",
                one.server_ip,
                one.url,
            )
        )
    if attempts and sys.stdout.isatty():
        some = [(*row[:1], *row[2:4], *row[6:]) for row in lines]
        least = [(*row[:1], *row[6:]) for row in lines]
        words = {*lines[0]} - {"requests", "bytes"}
        to = progress_display.console(sys.stdout)
        progress_display.print_table(to, [lines, some, least], title=f"Attempts for {who}", words=words)
    elif attempts:  # one line each, whatever its length
        for line in _aligned(lines):
            typer.echo(plain(line))
    if attempts:
        for agent in dict.fromkeys(one.user_agent for one in attempts):
            typer.echo(plain(f"user agent: {agent}"))
    typer.echo(f"{who}: {len(attempts)} measurement runs, {requests} requests recorded, {size_text(total)}")


def _aligned(lines: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines]
