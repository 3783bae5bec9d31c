"""`upshift crawl LIST -o FILE`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from core.errors import UsageError
from core.files.targets import check_out
from core.outreach import arguments

if TYPE_CHECKING:
    from crawler.run import CrawlSummary


def crawl(
    source: Annotated[
        Path,
        typer.Argument(metavar="LIST", help="Top list: Tranco, CrUX, Umbrella, Majestic, Alexa, bare; plain, gz, zip."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Targets found (.parquet, .csv).")],
    contact: arguments.Contact,
    ledger: arguments.LedgerFile = None,
    min_size: Annotated[int, typer.Option(min=1, help="Smallest size of a file [bytes].")] = 1_000_000,
    max_size: Annotated[int, typer.Option(min=1, help="Largest size of a file [bytes].")] = 100_000_000,
    depth: Annotated[int, typer.Option(min=0, help="Links from the start page.")] = 2,
    pages: Annotated[int, typer.Option(min=1, help="Pages per domain.")] = 8,
    probes: Annotated[int, typer.Option(min=1, help="Files per domain whose size is requested.")] = 40,
    domain_time: Annotated[
        float, typer.Option(min=1, help="Longest visit of a domain, excluding rate-limit waits [s].")
    ] = 600.0,
    shard: arguments.Shard = "1/1",
    limit: arguments.Limit = None,
    workers: Annotated[int, typer.Option(min=1, max=2000, help="Domains visited at the same time.")] = 200,
    rate: Annotated[float, typer.Option(min=0.01, help="Requests per second and server address.")] = 2.0,
    per_address: Annotated[int, typer.Option(min=1, max=8, help="Concurrent requests per server address.")] = 1,
    timeout: Annotated[float, typer.Option(min=0.1, help="Longest request [s].")] = 15.0,
    block_list: arguments.BlockLists = None,
    opt_out: arguments.OptOut = None,
    nameserver: arguments.Nameserver = None,
    nameserver_port: arguments.NameserverPort = 53,
    ca: arguments.Certificates = None,
    start: Annotated[str, typer.Option(help="Start page of a domain.")] = "https://{domain}/",
    as_json: arguments.AsJson = False,
) -> None:
    """Top list -> one file of --min-size or more per domain, with its size.

    Stays on each domain and its address, obeys robots.txt (agent name: upshift) and Crawl-delay. After an
    interruption, the same command resumes from its ledger.
    """
    from core.outreach.blocks import block_list_paths
    from core.outreach.lists import parse_shard
    from core.terminal import show_progress
    from crawler.run import CrawlOptions, crawl
    from crawler.visit import CrawlLimits

    if "{domain}" not in start or not start.startswith(("https://", "http://")):
        raise UsageError(f"{start!r} is not a valid start page", where="--start", remedy="write https://{domain}/")
    if max_size < min_size:
        raise UsageError("it is smaller than --min-size", where="--max-size", remedy="raise it")
    arguments.check_certificates(ca)
    check_out(out)
    limits = CrawlLimits(
        min_size=min_size,
        max_size=max_size,
        depth=depth,
        pages=pages,
        probes=probes,
        domain_s=domain_time,
        start=start,
    )
    options = CrawlOptions(
        source=source,
        out=out,
        ledger=arguments.ledger_beside(out, ledger),
        contact=arguments.check_contact(contact),
        limits=limits,
        shard=parse_shard(shard),
        limit=limit,
        workers=workers,
        rate_per_s=rate,
        per_address=per_address,
        timeout_s=timeout,
        nameserver=nameserver,
        nameserver_port=nameserver_port,
        ca_file=ca,
        block_lists=block_list_paths(block_list, opt_out),
    )
    with show_progress(as_json=as_json) as progress:
        summary = crawl(options, progress)
    facts = {
        "domains": summary.domains,
        "found": summary.with_file,
        "outcomes": dict(summary.outcomes.most_common()),
        "list_form": summary.list_form,
        "broken_rows": dict(summary.broken_rows),
        "named_faults": summary.named_faults,
        "duplicates": summary.filled.duplicates if summary.filled else None,
        "complaints": summary.complaints,
    }
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        _print(summary, min_size, out)


def _print(summary: CrawlSummary, min_size: int, out: Path) -> None:
    for line in (*summary.named_faults, *summary.complaints):
        typer.echo(line, err=True)
    for reason, count in summary.broken_rows.items():
        typer.echo(f"rows skipped: {count:,} {reason}", err=True)
    if summary.filled and summary.filled.duplicates:
        typer.echo(f"rows skipped: {summary.filled.duplicates:,} duplicate domains", err=True)
    for outcome, count in summary.outcomes.most_common():
        typer.echo(f"{outcome:<20} {count:>9,}")
    typer.echo(f"{summary.with_file:,} of {summary.domains:,} domains have a file of {min_size:,} bytes or more: {out}")
