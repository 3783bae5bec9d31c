"""`upshift survey quic`."""

from __future__ import annotations

import json
import ssl
import sys
from pathlib import Path
from typing import Annotated

import typer

from upshift.outreach import arguments


def quic(
    source: Annotated[Path, typer.Argument(metavar="INPUT", help="Top list of any kind, or targets (.parquet, .csv).")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Results, one row per domain (Parquet).")],
    contact: arguments.Contact,
    targets_out: Annotated[
        Path | None, typer.Option(help="Write INPUT (targets) again, with quic filled in (.parquet, .csv).")
    ] = None,
    ledger: arguments.LedgerFile = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Probe domains, too, that offer h3 neither in DNS nor by Alt-Svc.")
    ] = False,
    unpadded: Annotated[
        bool, typer.Option("--unpadded", help="Ask servers by a probe that is too small, too: they must not answer.")
    ] = False,
    ipv6: Annotated[bool, typer.Option("--ipv6", help="Ask for AAAA records and probe over IPv6.")] = False,
    shard: arguments.Shard = "1/1",
    limit: arguments.Limit = None,
    rate: Annotated[
        float, typer.Option(min=0.1, max=50_000, help="Probes and handshakes (and domains looked up) per second.")
    ] = 500,
    concurrency: Annotated[int, typer.Option(min=1, max=100_000, help="Domains at the same time.")] = 2000,
    handshakes: Annotated[
        int, typer.Option(min=1, max=1000, help="Handshakes at the same time, with servers that answer.")
    ] = 16,
    address_rate: Annotated[float, typer.Option(min=0.01, help="Handshakes per second and server address.")] = 10,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=60, help="Longest wait for a probe's answer, a handshake, a response [s].")
    ] = 3.0,
    probes: Annotated[int, typer.Option(min=1, max=10, help="Probes to a server that stays silent.")] = 2,
    block_list: arguments.BlockLists = None,
    opt_out: arguments.OptOut = None,
    nameserver: arguments.Nameserver = None,
    nameserver_port: arguments.NameserverPort = 53,
    ca: arguments.Certificates = None,
    as_json: arguments.AsJson = False,
) -> None:
    """Find out which domains serve HTTP/3: offers, forced version negotiation, then a handshake and a HEAD.

    Offers are HTTPS records, and the Alt-Svc headers that the crawl saw (INPUT: targets). Killed or interrupted, the
    same command goes on from its ledger.
    """
    from survey.quic.figures import as_document, figures, print_figures
    from survey.quic.scan import Options, survey
    from survey.quic.visit import Limits
    from upshift.outreach.blocks import block_list_paths
    from upshift.outreach.lists import parse_shard
    from upshift.progress import show

    ca = ca or _trusted_here()
    arguments.check_certificates(ca)
    options = Options(
        source=source,
        out=out,
        ledger=arguments.ledger_beside(out, ledger),
        targets_out=targets_out,
        contact=arguments.check_contact(contact),
        limits=Limits(timeout_s=timeout, probes=probes, everything=everything, unpadded=unpadded, ipv6=ipv6),
        shard=parse_shard(shard),
        limit=limit,
        concurrency=concurrency,
        rate_per_s=rate,
        address_rate_per_s=address_rate,
        handshakes=handshakes,
        nameserver=nameserver,
        nameserver_port=nameserver_port,
        ca_file=ca,
        block_lists=block_list_paths(block_list, opt_out),
    )
    with show(as_json=as_json) as progress:
        summary = survey(options, progress)
    found = figures(summary.records)
    if as_json:
        read = {"passed_over": summary.passed_over, "complaints": summary.complaints, "dropped": summary.dropped}
        typer.echo(json.dumps({**as_document(found), **read}))
        return
    for line in (*summary.complaints, *summary.faults):
        typer.echo(line, err=True)
    for reason, count in summary.passed_over.items():
        typer.echo(f"rows passed over: {count:,} {reason}", err=True)
    if summary.dropped:
        typer.echo(f"this host dropped {summary.dropped:,} answers to probes: lower --rate", err=True)
    print_figures(found, sys.stdout)
    typer.echo(f"Results: {out}")


def _trusted_here() -> Path | None:
    """The system's certificates, or those that SSL_CERT_FILE names (a lab's); None leaves it to aioquic (certifi)."""
    file = ssl.get_default_verify_paths().cafile
    return Path(file) if file else None
