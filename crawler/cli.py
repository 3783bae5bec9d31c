"""`upshift crawl LIST -o FILE`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from upshift.errors import UsageError


def crawl(
    source: Annotated[
        Path,
        typer.Argument(metavar="LIST", help="Top list: Tranco, CrUX, Umbrella, Majestic, Alexa, bare; plain, gz, zip."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Targets found (Parquet).")],
    contact: Annotated[
        str, typer.Option(help="Mail or web address in the user agent, for owners of the sites. Required.")
    ],
    ledger: Annotated[
        Path | None, typer.Option(help="State of the crawl (SQLite). Default: FILE with .ledger.sqlite.")
    ] = None,
    min_size: Annotated[int, typer.Option(min=1, help="Least size of a file [bytes].")] = 1_000_000,
    max_size: Annotated[int, typer.Option(min=1, help="Largest size of a file [bytes].")] = 100_000_000,
    depth: Annotated[int, typer.Option(min=0, help="Links from the start page.")] = 2,
    pages: Annotated[int, typer.Option(min=1, help="Pages per domain.")] = 8,
    probes: Annotated[int, typer.Option(min=1, help="Files per domain whose size is asked for.")] = 40,
    domain_time: Annotated[
        float, typer.Option(min=1, help="Longest visit of a domain, less what it waits for its address's turn [s].")
    ] = 600.0,
    shard: Annotated[str, typer.Option(help="Part of the list: i/n, by hash of the domain.")] = "1/1",
    limit: Annotated[int | None, typer.Option(min=1, help="Domains of the shard to crawl. Default: all.")] = None,
    workers: Annotated[int, typer.Option(min=1, max=2000, help="Domains visited at the same time.")] = 200,
    rate: Annotated[float, typer.Option(min=0.01, help="Requests per second and server address.")] = 2.0,
    per_address: Annotated[int, typer.Option(min=1, max=8, help="Requests under way per server address.")] = 1,
    timeout: Annotated[float, typer.Option(min=0.1, help="Longest request [s].")] = 15.0,
    block_list: Annotated[
        list[Path] | None,
        typer.Option(help="Domains and prefixes to leave alone, one a line; may be repeated, read again when changed."),
    ] = None,
    opt_out: Annotated[
        Path | None, typer.Option(help="The same, for those who opt out while the crawl runs (made if missing).")
    ] = None,
    nameserver: Annotated[str | None, typer.Option(help="Name server: an address. Default: this host's.")] = None,
    nameserver_port: Annotated[int, typer.Option(min=1, max=65535, help="Its UDP and TCP port.")] = 53,
    ca: Annotated[Path | None, typer.Option(help="Certificates to trust (PEM). Default: the system's.")] = None,
    start: Annotated[str, typer.Option(help="Start page of a domain.")] = "https://{domain}/",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document; progress as JSON lines.")] = False,
) -> None:
    """Top list -> one file of --min-size or more per domain, with its size.

    Stays on each domain and its address, obeys robots.txt (agent name: upshift) and Crawl-delay. Killed or interrupted,
    the same command goes on from its ledger.
    """
    from crawler.run import Options, crawl
    from crawler.visit import Limits
    from upshift.blocks import block_list_paths
    from upshift.lists import parse_shard
    from upshift.progress import show

    if "{domain}" not in start or not start.startswith(("https://", "http://")):
        raise UsageError(f"{start!r} is no start page", where="--start", remedy="write https://{domain}/")
    if max_size < min_size:
        raise UsageError("it is smaller than --min-size", where="--max-size", remedy="raise it")
    if not contact.strip() or not contact.isprintable():
        raise UsageError(f"{contact!r} is no address", where="--contact", remedy="give a mail or web address")
    limits = Limits(
        min_size=min_size,
        max_size=max_size,
        depth=depth,
        pages=pages,
        probes=probes,
        domain_s=domain_time,
        start=start,
    )
    options = Options(
        source=source,
        out=out,
        ledger=ledger or out.with_name(out.name + ".ledger.sqlite"),
        contact=contact.strip(),
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
    with show(as_json=as_json) as progress:
        summary = crawl(options, progress)
    facts = {
        "domains": summary.domains,
        "found": summary.found,
        "outcomes": dict(summary.outcomes.most_common()),
        "list_form": summary.list_form,
        "broken_rows": dict(summary.broken_rows),
        "named_faults": summary.named_faults,
        "duplicates": summary.filled.duplicates if summary.filled else None,
        "complaints": summary.complaints,
    }
    if as_json:
        typer.echo(json.dumps(facts))
        return
    for line in (*summary.named_faults, *summary.complaints):
        typer.echo(line, err=True)
    for reason, count in summary.broken_rows.items():
        typer.echo(f"rows passed over: {count:,} {reason}", err=True)
    if summary.filled and summary.filled.duplicates:
        typer.echo(f"rows passed over: {summary.filled.duplicates:,} domains that were there already", err=True)
    for outcome, count in summary.outcomes.most_common():
        typer.echo(f"{outcome:<20} {count:>9,}")
    typer.echo(f"{summary.found:,} of {summary.domains:,} domains have a file of {min_size:,} bytes or more: {out}")
