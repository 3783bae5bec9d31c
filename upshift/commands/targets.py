"""`upshift targets compose`."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from core.errors import UsageError
from core.options import command_group
from core.untrusted import no_formula

NEEDS = ("domain", "url", "provider")

targets = command_group("Target sets.")


@targets.command()
def compose(
    files: Annotated[list[Path], typer.Argument(help="Targets (.parquet, .csv), surveyed; rows are joined.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The target set (.parquet, .csv), as a campaign reads it.")],
    per_provider: Annotated[int, typer.Option(min=0, help="Targets for each provider.")] = 100,
    other: Annotated[int, typer.Option(min=0, help="Targets without a provider.")] = 100,
    require: Annotated[
        Literal["tcp", "quic", "both", "none"],
        typer.Option(help="What they support: tcp (ECN, SACK, window scaling), quic, both, none."),
    ] = "tcp",
    seed: Annotated[int, typer.Option(help="Seed of the random draw.")] = 1,
    union: Annotated[
        list[Path] | None,
        typer.Option("--union", help="An earlier target set (.parquet, .csv) to keep; may be repeated."),
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write the summary to this file as JSON.")] = None,
    dropped: Annotated[
        Path | None, typer.Option(help="Write every dropped target and its reason to this file as CSV.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON document.")] = False,
) -> None:
    """Choose N targets per provider that support all options: seeded, stratified by rank, with reasons for the rest."""
    from core.files import disk
    from core.files import targets as table_of
    from survey.compose import Require, account
    from survey.compose import compose as choose

    table_of.check_out(out)
    used = {path.resolve() for path in files}
    for option, path in (("--out", out), ("--report", report), ("--dropped", dropped)):
        if path is not None and path.is_dir():
            raise UsageError("this is a folder", where=f"{option} {path}", remedy="name a file")
        if path is not None and path.resolve() in used:
            raise UsageError("already used for the input or the results", where=option, remedy="give another file")
        # An earlier set may be replaced by the new one, which keeps all of it.
        used |= {one.resolve() for one in (path, *(union or [])) if one is not None}
    tables = [table_of.read(path, needs=NEEDS) for path in files]
    earlier = [table_of.read(path, needs=NEEDS) for path in union or []]
    composition = choose(
        _rows(tables),
        per_provider=per_provider,
        other=other,
        require=Require(require),
        seed=seed,
        earlier=_rows(earlier),
    )
    facts = account(composition) | {"seed": seed, "require": require}
    if not composition.rows:
        reasons = sorted({reason for _, _, _, reason in composition.dropped})
        raise UsageError(
            f"no targets left ({'; '.join(reasons) or 'the files are empty'})",
            where=", ".join(map(str, files)),
            remedy="survey them first (upshift survey options, upshift survey quic), or ask for less with --require",
        )
    table_of.write(out, _table(composition.rows, [*tables, *earlier]))
    if report is not None:
        disk.write_json(report, facts)
    if dropped is not None:
        _write_dropped(dropped, composition.dropped)
    typer.echo(json.dumps(facts) if as_json else _text(facts))


def _rows(tables: list[Any]) -> list[dict[str, Any]]:
    return [row for table in tables for row in table.to_pylist()]


def _table(rows: Any, sources: list[Any]) -> Any:
    """A table with all columns of the sources, those of `Target` first, with their types in the sources."""
    import pyarrow as pa

    fields: dict[str, Any] = {}
    for source in sources:
        for field in source.schema:
            fields.setdefault(field.name, field)
    schema = pa.schema(fields.values())
    try:
        return pa.table({name: [row.get(name) for row in rows] for name in schema.names}, schema=schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise UsageError(
            f"a column has different types in the files ({error})", remedy="make them with one version of Upshift"
        ) from None


def _write_dropped(path: Path, rows: list[tuple[str, str, str, str]]) -> None:
    from core.files.disk import whole_file

    with whole_file(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(("domain", "url", "provider", "reason"))
        writer.writerows(map(no_formula, row) for row in rows)


def _text(facts: dict[str, Any]) -> str:
    lines = [f"{'provider':<12} {'seen':>8} {'eligible':>9} {'kept':>6} {'chosen':>7} {'missing':>8}"]
    for provider, share in facts["providers"].items():
        lines.append(
            f"{provider:<12} {share['seen']:>8,} {share['eligible']:>9,} {share['kept_from_earlier_set']:>6,}"
            f" {share['chosen']:>7,} {share['missing']:>8,}"
        )
    for provider, share in facts["providers"].items():
        lines += [f"{provider}: {count:,} dropped: {reason}" for reason, count in share["dropped"].items()]
    if facts["kept_without_support"]:
        kept = len(facts["kept_without_support"])
        lines.append(f"{kept:,} targets of the earlier set do not meet the requirement and are kept")
    lines.append(f"{facts['targets']:,} targets (seed {facts['seed']}, required: {facts['require']})")
    return "\n".join(lines)
