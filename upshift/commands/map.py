"""`upshift map targets|explain|table|fetch`."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from core.errors import UsageError
from core.options import command_group
from core.untrusted import is_address, plain

app = command_group("Addresses -> AS, organisation, provider.")

Ribs = Annotated[
    list[Path],
    typer.Option(
        "--rib",
        help="RIB in MRT format (plain, gz, bz2, zst), may be repeated; or one prefix table (.npz) from `map table`."
        " A RIB is read once: its table is kept in ~/.cache/upshift/prefix-tables.",
    ),
]
As2Org = Annotated[
    list[Path] | None,
    typer.Option(
        "--as2org",
        help="CAIDA as-org2info (txt or jsonl), then as2org+ sibling lists (JSON), in this order; may be repeated."
        " Without it only the seed ASNs of a provider count.",
    ),
]
ProviderFolder = Annotated[
    Path | None, typer.Option("--providers", help="Folder of provider TOML files. Default: the five of the paper.")
]
Backend = Annotated[str, typer.Option(help="Reader of RIBs: own, or bgpstream (needs pybgpstream).")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def _mapper(table: Any, as2org: list[Path] | None, folder: Path | None) -> Any:
    from cdn_mapping import as2org as reader
    from cdn_mapping.mapping import Mapper
    from cdn_mapping.provider_rules import SHIPPED, Providers, read_providers

    organisations = reader.Organisations()
    for path in as2org or []:
        reader.read(path, into=organisations)
    if not as2org:
        typer.echo("no --as2org: organisations stay unknown, and only the seed ASNs of a provider count", err=True)
    files = read_providers(folder or SHIPPED)
    return Mapper(table=table, organisations=organisations, providers=Providers(files, organisations))


def _open(rib: list[Path], backend: str, progress: Any) -> Any:
    from cdn_mapping import sources

    table = sources.open_table(rib, progress, backend=backend)
    for warning in sources.warnings(table):
        typer.echo(warning, err=True)
    return table


@app.command()
def targets(
    file: Annotated[Path, typer.Argument(help="Targets: Parquet of the crawl, or CSV with domain and server_ip.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Targets with AS and provider: .parquet or .csv.")],
    rib: Ribs,
    as2org: As2Org = None,
    providers: ProviderFolder = None,
    backend: Backend = "own",
    cname_lookups: Annotated[
        bool, typer.Option("--cname-lookups", help="Look up the CNAMEs of each URL's host in DNS (a second opinion).")
    ] = False,
    nameserver: Annotated[
        str | None, typer.Option(help="Address of the name server. Default: this host's first.")
    ] = None,
    nameserver_port: Annotated[int, typer.Option(min=1, max=65535, help="Its UDP and TCP port.")] = 53,
    dns_rate: Annotated[float, typer.Option(min=0.1, max=10_000, help="Queries per second.")] = 50.0,
    as_json: Json = False,
) -> None:
    """Targets -> AS, organisation and provider, with conflicting evidence."""
    from cdn_mapping.mapping import chains_by_dns, map_table
    from core.files import targets as table_of
    from core.terminal import show_progress

    table_of.check_out(out)
    table = table_of.read(file, needs=("domain", "server_ip"), surveys=True)
    with show_progress(as_json=as_json) as progress:
        prefixes = _open(rib, backend, progress)
        mapper = _mapper(prefixes, as2org, providers)
        if cname_lookups:
            table, failed = chains_by_dns(table, nameserver, nameserver_port, dns_rate, progress)
        else:
            failed = Counter()
    mapped, summary = map_table(table, mapper)
    summary["cname_failed"] = dict(failed)
    table_of.write(out, mapped)
    if as_json:
        typer.echo(json.dumps(summary))
        return
    for provider, count in summary["providers"].items():
        typer.echo(f"{provider:<12} {count:>9,}")
    typer.echo(
        f"{summary['targets']:,} targets: {summary['without_address']:,} without address, "
        f"{summary['without_prefix']:,} in no prefix, {summary['without_origin']:,} with unknown origin (AS_SET), "
        f"{summary['without_organisation']:,} with unknown organisation; "
        f"{summary['rival_organisations']:,} announced by several organisations; "
        f"CNAME against AS: {summary['cname_disagrees']:,} of {summary['cname_opinions']:,} disagree"
    )
    for cause, count in summary["cname_failed"].items():
        typer.echo(f"CNAME look-ups failed: {count:,} {cause}")


@app.command()
def explain(
    address: Annotated[str, typer.Argument(help="An IPv4 or IPv6 address.")],
    rib: Ribs,
    as2org: As2Org = None,
    providers: ProviderFolder = None,
    backend: Backend = "own",
    as_json: Json = False,
) -> None:
    """Prefix, origin, organisation and provider of one address, with the rule and conflicting evidence."""
    from cdn_mapping.mapping import explain as facts
    from cdn_mapping.mapping import sentences
    from core.terminal import show_progress

    if not is_address(address):
        what = f"{address!r} is not a valid IP address"
        raise UsageError(what, where="ADDRESS", remedy="write 192.0.2.1 or 2001:db8::1")
    with show_progress(as_json=as_json) as progress:
        mapper = _mapper(_open(rib, backend, progress), as2org, providers)
    (mapped,) = mapper.map([address])
    typer.echo(json.dumps(facts(mapped)) if as_json else "\n".join(map(plain, sentences(mapped))))


@app.command()
def table(
    ribs: Annotated[list[Path] | None, typer.Argument(help="RIBs in MRT format (plain, gz, bz2, zst).")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The prefix table, .npz.")] = Path("prefixes.npz"),
    backend: Backend = "own",
    collector: Annotated[
        str | None, typer.Option(help="Instead of files: a RouteViews or RIS collector (needs --backend bgpstream).")
    ] = None,
    time: Annotated[str | None, typer.Option(help="Time of the collector's RIB in UTC, e.g. 2026-11-01T08:00.")] = None,
    as_json: Json = False,
) -> None:
    """RIBs -> prefix table, with counts of what was read, dropped and truncated."""
    from cdn_mapping import sources
    from core.terminal import show_progress

    if collector is not None:
        if backend != "bgpstream" or ribs:
            raise UsageError(
                "--collector needs BGPStream and takes no files",
                where="--collector",
                remedy="add --backend bgpstream and name no file, or fetch its RIB: upshift map fetch",
            )
        if time is None:
            remedy = "add it, e.g. --time 2026-11-01T08:00"
            raise UsageError("--collector needs the time of a RIB", where="--time", remedy=remedy)
        built = sources.build_from_collector(collector, _time(time))
    elif ribs:
        with show_progress(as_json=as_json) as progress:
            built = sources.build_table(ribs, progress, backend=backend)
    else:
        raise UsageError("no RIB given", where="RIBS", remedy="give one or more files, or --collector")
    built.save(out)
    for warning in sources.warnings(built):
        typer.echo(warning, err=True)
    facts: dict[str, Any] = {
        "out": str(out),
        "prefixes_v4": len(built.v4.low),
        "prefixes_v6": len(built.v6.low),
        "moas_v4": int(built.v4.moas.sum()),
        "moas_v6": int(built.v6.moas.sum()),
        "unknown_origin_v4": int((built.v4.origin == 0).sum()),
        "unknown_origin_v6": int((built.v6.origin == 0).sum()),
        **built.about,
    }
    if as_json:
        typer.echo(json.dumps(facts))
        return
    for version in ("v4", "v6"):
        typer.echo(
            f"IP{version}: {facts['prefixes_' + version]:,} prefixes, "
            f"{facts['moas_' + version]:,} with several origins, "
            f"{facts['unknown_origin_' + version]:,} with unknown origin (AS_SET)"
        )
    typer.echo(f"{facts['routes']:,} routes read")
    for reason, count in facts["dropped"].items():
        typer.echo(f"{count:,} routes dropped: {reason}")


def _time(text: str) -> datetime:
    try:
        when = datetime.fromisoformat(text)
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):  # in UTC it is before the year 1 or after 9999
        raise UsageError(f"{text!r} is not a valid time", where="--time", remedy="write 2026-11-01T08:00") from None


@app.command()
def fetch(
    folder: Annotated[Path, typer.Option("--out", "-o", help="Folder for the files.")] = Path(),
    name_only: Annotated[
        bool, typer.Option("--name-only", help="Only print which files are newest; do not fetch them.")
    ] = False,
    what: Annotated[Literal["rib", "as2org", "both"], typer.Option(help="What to fetch.")] = "both",
    collector: Annotated[str, typer.Option(help="RouteViews collector's folder. Default: route-views2.")] = "",
    routeviews: Annotated[str | None, typer.Option(help="Another mirror of archive.routeviews.org.")] = None,
    caida: Annotated[str | None, typer.Option(help="Another mirror of CAIDA's folder as-organizations.")] = None,
    as_json: Json = False,
) -> None:
    """Finds and fetches the newest RouteViews RIB (about 100 MB) and CAIDA AS2Org file (about 4 MB).

    This contacts archive.routeviews.org and publicdata.caida.org. An interrupted fetch resumes where it stopped.
    """
    from cdn_mapping import fetch as fetching
    from core.terminal import show_progress

    urls: dict[str, str] = {}
    if what in ("rib", "both"):
        urls["rib"] = fetching.newest_rib(routeviews or fetching.ROUTEVIEWS, collector=collector)
    if what in ("as2org", "both"):
        urls["as2org"] = fetching.newest_as2org(caida or fetching.CAIDA)
    files: dict[str, dict[str, Any]] = {kind: {"url": url} for kind, url in urls.items()}
    with show_progress(as_json=as_json) as progress:
        for kind, url in urls.items() if not name_only else ():

            def report(done: int, total: int, kind: str = kind) -> None:
                progress.update(f"fetching {kind} [kB]", done=done // 1000, total=max(total // 1000, 1))

            fetched = fetching.download(url, folder, on_read=report)
            files[kind] |= {
                "path": str(fetched.path),
                "size_bytes": fetched.size_bytes,
                "resumed_at": fetched.resumed_at,
            }
    if as_json:
        typer.echo(json.dumps(files))
        return
    for kind, facts in files.items():
        typer.echo(f"{kind}: {facts['url']}" + (f" -> {facts['path']}" if "path" in facts else ""))
