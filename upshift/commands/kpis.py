"""`upshift kpis`: captures -> KPIs per connection, or one row per packet.

Heavy modules are imported when the command runs, so that `--help` is quick.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from core.errors import IncompleteError, UsageError

if TYPE_CHECKING:
    from analysis.captures.scan import CaptureReader

RulesName = Literal["4.0", "4.4"]
"""Which Wireshark `ws_class` agrees with."""


def kpis(
    captures: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE|DIR...",
            help="pcap or pcapng, plain, gzip or zstd; for a directory, every *.pcap, *.pcapng, *.cap, *.dmp below it.",
        ),
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document per connection and line on standard output.")
    ] = False,
    packets: Annotated[
        bool, typer.Option("--packets", help="One row per packet of one FILE: CSV on standard output, Parquet with -o.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FILE.parquet", help="Write a Parquet table (zstd).")
    ] = None,
    rules: Annotated[
        RulesName, typer.Option("--rules", help="Wireshark version whose per-packet verdicts `ws_class` follows.")
    ] = "4.0",
    series: Annotated[
        bool,
        typer.Option("--series", help="With --json: throughput per 100 ms, RTT samples, sequence numbers over time."),
    ] = False,
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, help="Files read at once; as many as this host has cores.")
    ] = None,
) -> None:
    """KPIs of the TCP and QUIC connections in captures.

    Rates are Mbit/s (10^6 bit/s), times s or ms, sizes bytes; each KPI is explained below. A truncated file gives its
    rows and a warning; a file that is not a capture gives an error and exit code 2; of several, the others give their
    rows, and the exit code is 1.
    """
    if out is not None and out.suffix != ".parquet":
        raise UsageError("-o writes a Parquet table", where=str(out), remedy="name FILE.parquet")
    if packets:
        if as_json or series:
            what = "--packets gives one row per packet, --json and --series are for connections"
            raise UsageError(what, where="--packets", remedy="leave one of them out")
        if len(captures) != 1:
            raise UsageError("--packets takes one FILE", where="--packets", remedy="name one")
        _packets(captures[0], out, rules)
        return
    if series and not as_json:
        raise UsageError("--series adds to JSON documents", where="--series", remedy="give --json too")
    _connections(captures, as_json=as_json, out=out, rules=rules, series=series, jobs=jobs)


def kpis_listing() -> dict[str, list[tuple[str, str]]]:
    """The KPIs, columns of `downloads.parquet`, with meaning and source, for `upshift kpis --help`."""
    from analysis.captures.kpis import ALL

    units = {"": "no unit", "1": "share, 0 to 1"}
    sentence = "[{unit}] {meaning} Source: {source}."
    return {
        "KPIs": [
            (kpi.name, sentence.format(unit=units.get(kpi.unit, kpi.unit), meaning=kpi.meaning, source=kpi.source))
            for kpi in ALL.values()
        ]
    }


def _warn(path: Path, sentence: str) -> None:
    typer.echo(f"upshift: {path}: {sentence}", err=True)


def _packets(path: Path, out: Path | None, rules: RulesName) -> None:
    import upshift_native

    from analysis.captures.scan import readable

    if path.is_dir():
        raise UsageError("this is a directory", where=str(path), remedy="--packets takes one capture file")
    if out is not None:
        from analysis.captures.export import write_packets

        rows, warnings = write_packets(path, out, rules=rules)
        typer.echo(f"{out}: {rows} packets", err=True)
    else:
        sys.stdout.flush()
        with readable(path):
            try:
                _, warnings = upshift_native.write_packets(path, sys.stdout.fileno(), rules=rules)
            except BrokenPipeError:
                _drop_output()
                raise SystemExit(0) from None
    for warning in warnings:
        _warn(path, warning)


def _drop_output() -> None:
    """The reader of standard output (e.g. `head`) has closed it: not an error, and what is still written is lost."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_read(text: str, *, table: bool) -> bool:
    """Writes to standard output, without a text all that waits; whether somebody still reads it.

    Args:
        table: a table is written as well, which nobody has closed: else the command ends here.
    """
    try:
        if text:
            sys.stdout.write(text)
        else:
            sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        if not table:
            raise SystemExit(0) from None
        return False
    return True


def _connections(
    captures: list[Path], *, as_json: bool, out: Path | None, rules: RulesName, series: bool, jobs: int | None
) -> None:
    from analysis.captures.export import KpiSummary, document, row, table_writer
    from analysis.captures.scan import find_captures

    paths = [path for named in captures for path in find_captures(named)]
    alone = len(paths) == 1
    summary = KpiSummary() if out is None and not as_json else None
    refused: list[UsageError] = []
    rows = 0
    with ExitStack() as stack:
        writer = stack.enter_context(table_writer(out)) if out is not None else None
        for reader in _with_progress(paths, rules=rules, series=series, jobs=jobs):
            if isinstance(reader, UsageError):
                if alone:
                    raise reader
                refused.append(reader)
                typer.echo(f"upshift: {reader.sentence()}", err=True)
                continue
            for connection in reader:
                if writer is not None:
                    writer.add(row(reader.path, connection))
                    rows += 1
                if as_json:
                    as_json = _is_read(document(reader.path, connection) + "\n", table=writer is not None)
                if summary is not None:
                    summary.add(reader.path, connection)
            if as_json:
                as_json = _is_read("", table=writer is not None)
            if summary is not None:
                summary.end(reader)
            for warning in reader.warnings:
                _warn(reader.path, warning)
        if len(refused) == len(paths):
            raise UsageError(
                "none of these files is a capture", where=", ".join(map(str, captures)), remedy="see above"
            )
    if out is not None:
        typer.echo(f"{out}: {rows} connections of {len(paths) - len(refused)} captures", err=True)
    if summary is not None:
        summary.show()
    if refused:
        raise IncompleteError(f"{len(refused)} of {len(paths)} files are not captures", remedy="their names are above")


def _with_progress(
    paths: list[Path], *, rules: RulesName, series: bool, jobs: int | None
) -> Iterator[CaptureReader | UsageError]:
    """Readers of the files; with a progress bar for directories if standard error is a terminal."""
    from analysis.captures.scan import read_many
    from core.terminal import show_progress

    results = read_many(paths, jobs=jobs, series=series, rules=rules)
    if len(paths) == 1 or not sys.stderr.isatty():
        yield from results
        return
    with show_progress() as progress:
        failed = 0
        for done, result in enumerate(results, start=1):
            failed += isinstance(result, UsageError)
            progress.update("captures", done=done, total=len(paths), failed=failed)
            yield result
