"""`upshift crawl LIST -o FILE`, which is `upshift crawl files`, and `upshift crawl objects`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from core.errors import UsageError
from core.files.targets import check_out
from core.options import command_group, with_options
from core.outreach import arguments

if TYPE_CHECKING:
    from crawler.run import CrawlOptions, CrawlSummary
    from crawler.visit import CrawlLimits

FILES = "files"


class FilesByDefault(TyperGroup):
    """A group whose command `files` need not be named: `upshift crawl LIST`."""

    default = FILES

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Names it, unless a command is named or help is asked for."""
        named = not args or args[0] in self.commands or args[0] in ctx.help_option_names
        return super().parse_args(ctx, args if named else [self.default, *args])


app = command_group(
    "Visit the domains of a top list, politely. The command files need not be named: upshift crawl LIST -o FILE.",
    FilesByDefault,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """The options that both commands have, besides the list and the results."""

    contact: arguments.Contact
    ledger: arguments.LedgerFile = None
    domain_time: Annotated[
        float, typer.Option(min=1, help="Longest visit of a domain, excluding rate-limit waits [s].")
    ] = 600.0
    shard: arguments.Shard = "1/1"
    limit: arguments.Limit = None
    workers: Annotated[int, typer.Option(min=1, max=2000, help="Domains visited at the same time.")] = 200
    rate: Annotated[float, typer.Option(min=0.01, help="Requests per second and server address.")] = 2.0
    per_address: Annotated[int, typer.Option(min=1, max=8, help="Concurrent requests per server address.")] = 1
    timeout: Annotated[float, typer.Option(min=0.1, help="Longest request [s].")] = 15.0
    block_list: arguments.BlockLists = None
    opt_out: arguments.OptOut = None
    nameserver: arguments.Nameserver = None
    nameserver_port: arguments.NameserverPort = 53
    ca: arguments.Certificates = None
    start: Annotated[str, typer.Option(help="Start page of a domain.")] = "https://{domain}/"


@app.command(FILES)
@with_options
def crawl(
    source: Annotated[
        Path,
        typer.Argument(metavar="LIST", help="Top list: Tranco, CrUX, Umbrella, Majestic, Alexa, bare; plain, gz, zip."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Targets found (.parquet, .csv).")],
    shared: Shared,
    min_size: Annotated[int, typer.Option(min=1, help="Smallest size of a file [bytes].")] = 1_000_000,
    max_size: Annotated[int, typer.Option(min=1, help="Largest size of a file [bytes].")] = 100_000_000,
    depth: Annotated[int, typer.Option(min=0, help="Links from the start page.")] = 2,
    pages: Annotated[int, typer.Option(min=1, help="Pages per domain.")] = 8,
    probes: Annotated[int, typer.Option(min=1, help="Files per domain whose size is requested.")] = 40,
    as_json: arguments.AsJson = False,
) -> None:
    """Top list -> one file of --min-size or more per domain, with its size.

    Stays on each domain and its address, obeys robots.txt (agent name: upshift) and Crawl-delay. After an
    interruption, the same command resumes from its ledger.
    """
    from crawler.visit import CrawlLimits

    if max_size < min_size:
        raise UsageError("it is smaller than --min-size", where="--max-size", remedy="raise it")
    check_out(out)
    limits = CrawlLimits(
        min_size=min_size,
        max_size=max_size,
        depth=depth,
        pages=pages,
        probes=probes,
        domain_s=shared.domain_time,
        start=shared.start,
    )
    options = _options(source, out, limits, shared)
    summary = _run(options, as_json=as_json)
    if as_json:
        typer.echo(json.dumps(_facts(summary) | {"found": summary.with_file}))
    else:
        _print(summary)
        has = f"have a file of {min_size:,} bytes or more"
        typer.echo(f"{summary.with_file:,} of {summary.domains:,} domains {has}: {out}")


@app.command("objects")
@with_options
def objects(
    source: Annotated[
        Path, typer.Argument(metavar="LIST", help="Top list of any kind, or targets (.parquet, .csv), as for surveys.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="A row per object (.parquet).")],
    shared: Shared,
    most: Annotated[int, typer.Option(min=1, max=1000, help="Objects per page that are asked for.")] = 100,
    as_json: arguments.AsJson = False,
) -> None:
    """Top list -> sizes of each start page and of its images, style sheets, scripts and fonts.

    Sizes are those on the wire for a client that accepts gzip: the Content-Length of a HEAD, or of a GET where a HEAD
    does not tell, else bytes counted up to 5 MB. Rules, rates and resuming are those of `upshift crawl LIST`.
    """
    from crawler.objects import COUNTED_BYTES
    from crawler.visit import CrawlLimits

    if out.suffix.lower() != ".parquet":
        raise UsageError(f"{out.name!r} is not Parquet", where="--out", remedy="end it in .parquet")
    limits = CrawlLimits(
        min_size=COUNTED_BYTES,
        max_page_bytes=COUNTED_BYTES,
        objects=most,
        domain_s=shared.domain_time,
        start=shared.start,
    )
    options = _options(source, out, limits, shared)
    summary = _run(options, as_json=as_json)
    if as_json:
        typer.echo(json.dumps(_facts(summary) | {"objects": dict(summary.objects.most_common())}))
        return
    _print(summary)
    for what, count in summary.objects.most_common():
        if what != "measured" and count:
            typer.echo(f"objects: {what:<20} {count:>9,}")
    typer.echo(f"{summary.with_file:,} of {summary.domains:,} domains answered, {summary.objects['measured']:,} sizes")
    typer.echo(f"Results: {out}; to see them: upshift survey figures {out}")


def _options(source: Path, out: Path, limits: CrawlLimits, shared: Shared) -> CrawlOptions:
    """What both commands have in common, checked."""
    from core.outreach.blocks import block_list_paths
    from core.outreach.lists import parse_shard
    from core.untrusted import url_fault
    from crawler.run import CrawlOptions

    if "{domain}" not in shared.start or url_fault(limits.start_of("a.example")) is not None:
        what = f"{shared.start!r} is not a valid start page"
        raise UsageError(what, where="--start", remedy="write https://{domain}/")
    arguments.check_out(out, source)
    arguments.check_certificates(shared.ca)
    return CrawlOptions(
        source=source,
        out=out,
        ledger=arguments.ledger_beside(out, shared.ledger),
        contact=arguments.check_contact(shared.contact),
        limits=limits,
        shard=parse_shard(shared.shard),
        limit=shared.limit,
        workers=shared.workers,
        rate_per_s=shared.rate,
        per_address=shared.per_address,
        timeout_s=shared.timeout,
        nameserver=shared.nameserver,
        nameserver_port=shared.nameserver_port,
        ca_file=shared.ca,
        block_lists=block_list_paths(shared.block_list, shared.opt_out),
    )


def _run(options: CrawlOptions, *, as_json: bool) -> CrawlSummary:
    from core.terminal import show_progress
    from crawler.run import crawl

    if options.source.is_file():  # else it is refused
        reads, written = (options.source, options.ca_file), (options.out, options.ledger)
        arguments.give_up_rights(reads=reads, lists=options.block_lists, written=written)
    with show_progress(as_json=as_json) as progress:
        return crawl(options, progress)


def _facts(summary: CrawlSummary) -> dict[str, Any]:
    """What both commands say as JSON."""
    return {
        "domains": summary.domains,
        "outcomes": dict(summary.outcomes.most_common()),
        "list_form": summary.list_form,
        "broken_rows": dict(summary.broken_rows),
        "named_faults": summary.named_faults,
        "duplicates": summary.duplicates,
        "complaints": summary.complaints,
    }


def _print(summary: CrawlSummary) -> None:
    for line in summary.named_faults:
        typer.echo(line, err=True)
    for reason, count in summary.broken_rows.items():
        typer.echo(f"rows skipped: {count:,} {reason}", err=True)
    if summary.duplicates:
        typer.echo(f"rows skipped: {summary.duplicates:,} duplicate domains", err=True)
    for outcome, count in summary.outcomes.most_common():
        typer.echo(f"{outcome:<20} {count:>9,}")
