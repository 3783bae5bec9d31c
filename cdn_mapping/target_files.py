"""Target files in and out of the mapping: Parquet between stages, CSV where people have their own lists."""

from __future__ import annotations

import csv
import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from upshift.domain import Provider
from upshift.errors import UsageError
from upshift.files.store import kind_of, read_table, row_schema, whole_file, write_table

if TYPE_CHECKING:
    import pyarrow as pa

CHAIN_COLUMN = "cname_chain"
"""CNAMEs from the domain to its address, in order, separated by spaces; from the crawl or from `--cname-lookups`."""

MAPPABLE = ("targets", "survey_options")
"""Kinds of files that have a domain and an address in each row."""


def read_targets(path: Path) -> pa.Table:
    """A targets file, `.parquet` or `.csv` with a header that has at least `domain` and `server_ip`.

    Results of `upshift survey options` have these columns, too, and can be mapped likewise.

    Raises:
        UsageError: with the line (CSV) or row (Parquet, from 1) and the column of what is wrong.
    """
    if path.suffix.lower() == ".csv":
        table = _read_csv(path)
    else:
        kind = kind_of(path)
        table = read_table(path, kind if kind in MAPPABLE else "targets")
    first = 2 if path.suffix.lower() == ".csv" else 1
    for number, address in enumerate(table.column("server_ip").to_pylist(), first):
        try:
            if address is not None:
                ipaddress.ip_address(address)
        except ValueError:
            kind = "line" if first == 2 else "row"
            raise UsageError(
                f"{kind} {number}: server_ip {address!r} is no IP address", where=str(path), remedy="mend or empty it"
            ) from None
    return table


def write_targets(path: Path, table: pa.Table) -> None:
    """Writes `.csv` for people, Parquet otherwise; whole or not at all."""
    if path.suffix.lower() != ".csv":
        kind = (table.schema.metadata or {}).get(b"upshift.kind", b"targets").decode()
        write_table(path, kind, table)
        return
    with whole_file(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(table.column_names)
        writer.writerows([_cell(value) for value in row.values()] for row in table.to_pylist())


def _cell(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def with_columns(table: pa.Table, columns: dict[str, tuple[Any, list[Any]]]) -> pa.Table:
    """The table with columns set: name -> (pyarrow type, values). Known names keep their place and their units."""
    import pyarrow as pa

    schema = row_schema("targets")
    for name, (kind, values) in columns.items():
        field = schema.field(name) if name in schema.names else pa.field(name, kind)
        array = pa.array(values, field.type)
        at = table.schema.get_field_index(name)
        table = table.append_column(field, array) if at < 0 else table.set_column(at, field, array)
    return table


def _read_csv(path: Path) -> pa.Table:
    import pyarrow as pa

    schema = row_schema("targets").append(pa.field(CHAIN_COLUMN, pa.string()))
    try:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            reader = csv.reader(handle, strict=True)
            header = [name.strip() for name in next(reader, [])]
            _check_header(header, path)
            rows = [_row(header, values, schema, path, reader.line_num) for values in reader if any(values)]
    except FileNotFoundError:
        raise UsageError("there is no such file", where=str(path), remedy="check the path") from None
    except (csv.Error, UnicodeDecodeError, OSError) as error:
        where = f" near line {reader.line_num}" if isinstance(error, csv.Error) else ""
        raise UsageError(
            f"this is no readable CSV file{where} ({error})", where=str(path), remedy="write it as UTF-8 CSV"
        ) from None
    names = [name for name in schema.names if name in header or name in row_schema("targets").names]
    kept = pa.schema([schema.field(name) for name in names])
    return pa.table({name: [row.get(name) for row in rows] for name in names}, schema=kept)


def _check_header(header: list[str], path: Path) -> None:
    for needed in ("domain", "server_ip"):
        if needed not in header:
            raise UsageError(
                f"line 1: the header has no column {needed}",
                where=str(path),
                remedy="begin the file with a header such as: domain,url,rank,size_bytes,server_ip",
            )


def _row(header: list[str], values: list[str], schema: pa.Schema, path: Path, line: int) -> dict[str, Any]:
    if len(values) != len(header):
        raise UsageError(
            f"line {line}: {len(header)} fields expected, {len(values)} found", where=str(path), remedy="mend that line"
        )
    row: dict[str, Any] = {"provider": str(Provider.OTHER), "size_is_lower_bound": False}
    for name, text in zip(header, values, strict=True):
        if name in schema.names and text.strip():
            try:
                row[name] = _value(text.strip(), str(schema.field(name).type))
            except ValueError:
                raise UsageError(
                    f"line {line}: {name} {text!r} is no {schema.field(name).type}",
                    where=str(path),
                    remedy="mend or empty it",
                ) from None
    if "domain" not in row:
        raise UsageError(f"line {line}: the domain is missing", where=str(path), remedy="mend or remove that line")
    row.setdefault("url", f"https://{row['domain']}/")
    return row


def _value(text: str, kind: str) -> Any:
    match kind:
        case "int64":
            return int(text)
        case "double":
            return float(text)
        case "bool":
            if text.lower() not in ("true", "false", "1", "0"):
                raise ValueError(text)
            return text.lower() in ("true", "1")
        case _:
            return text
