"""The `targets` table: the one reader and writer of its files, CSV and Parquet alike.

Its columns are the fields of `core.domain.Target`, in that order; their docstrings say what each means, their
names and types give units and column types. Both formats are read by the same rules:

- Which columns must be there depends on who reads (`needs`); other columns of `Target` may be missing or empty.
- Columns that `Target` does not have are kept, unless their name is similar to that of a missing column.
- An empty text means no value. The default provider is `other`, the default URL of a crawl's input https://DOMAIN/.
- Domain, URL, address, rank and size are checked, so that a campaign does not fail later; errors give the line (CSV)
  or row (Parquet, from 1). Addresses get one form: the shortest, that of IPv4 for IPv4-mapped ones.

A Parquet file needs no metadata of Upshift's: one that pandas or pyarrow wrote is read by its columns. Files are read
and written in batches of `store.ROWS_AT_ONCE` rows, so a list of any length needs little memory.
"""

from __future__ import annotations

import csv
import difflib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

from core.domain import Provider, Target
from core.errors import UsageError, unreadable
from core.files import disk, schemas, store
from core.reach import unmapped
from core.untrusted import FAULTS, no_formula

if TYPE_CHECKING:
    import pyarrow as pa

KIND = "targets"

SURVEYS = "survey_"
"""Prefix of the kinds of files that have a domain and an address in each row, and can be mapped as well."""

MAPPED = (
    "asn", "organisation", "provider", "prefix", "rule", "rival_asns", "dissent", "cname_provider", "cname_agrees",
)  # fmt: skip
"""What `upshift map targets` says of a target: all of it is of one address."""

LONGEST_LINE = 1 << 20
"""Longest line of a CSV file [characters]."""

_EXAMPLE = "domain,url,provider,rank,size_bytes,server_ip"
_PANDAS_INDEX = "__index_level_"
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")
_TYPES = {"int64": "a whole number", "double": "a number", "bool": "true or false", "string": "text"}


def is_table(path: Path) -> bool:
    """Whether a file is a table (Parquet; CSV whose header names the domain and a URL or address), not a top list.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        with path.open("rb") as handle:
            head = handle.read(4_096)
    except OSError as error:
        raise UsageError(unreadable(error), where=str(path), remedy="give a top list or a targets file") from None
    if head.startswith(b"PAR1"):
        return True
    first = head.decode("utf-8-sig", "replace").partition("\n")[0]
    names = {name.strip().strip('"') for name in first.split(",")}
    return "domain" in names and not names.isdisjoint({"url", "server_ip"})


def read(path: Path, *, needs: Sequence[str] = ("domain", "url"), surveys: bool = False) -> pa.Table:
    """A file as a table: all columns of `Target`, then the other columns of the file.

    Args:
        path: `.csv`, or Parquet.
        needs: columns that must be there.
        surveys: also accept results of surveys; they keep their columns.

    Raises:
        UsageError: one sentence with file, line or row, and remedy.
    """
    import pyarrow as pa

    return pa.concat_tables([batch.table for batch in _batches(path, needs, surveys=surveys)])


def rows(path: Path, *, needs: Sequence[str] = ("domain", "url")) -> Iterator[tuple[str, Target]]:
    """The targets of a file with the place of each (`FILE, line 3`), read in batches. Raises UsageError as `read`."""
    names = schemas.row_schema(KIND).names
    for batch in _batches(path, needs):
        for number, row in zip(batch.numbers, batch.table.select(names).to_pylist(), strict=True):
            yield f"{path}, {batch.unit} {number}", Target(**row)


def values(path: Path, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Some columns of a file and the provider, row by row; that is None where `upshift map targets` did not set it yet.

    Only these are read and checked. Raises UsageError as `read`, and for a file without rows.
    """
    needed = dict.fromkeys((*names, "provider", "asn", "rule"))
    is_empty = True
    for batch in _batches(path, ("domain",), only=list(needed)):
        for row in batch.table.select(list(needed)).to_pylist():
            mapped = row["provider"] != Provider.OTHER or row["asn"] is not None or row["rule"] is not None
            is_empty = False
            yield {name: row[name] for name in names} | {"provider": row["provider"] if mapped else None}
    if is_empty:
        remedy = "crawl first (upshift crawl), or give a top list"
        raise UsageError("the targets file is empty", where=str(path), remedy=remedy)


def write(path: Path, table: pa.Table) -> None:
    """Writes a table of `read`: `.csv` by the file name, else Parquet; atomically."""
    if _is_csv(path):
        chunks = (chunk.to_pylist() for chunk in table.to_batches(max_chunksize=store.ROWS_AT_ONCE))
        _write_csv(path, table.column_names, (row.values() for chunk in chunks for row in chunk))
    else:
        store.write_table(path, schemas.kind_in(table.schema) or KIND, table)


def write_rows(path: Path, rows: Iterable[Target]) -> None:
    """Writes targets as they come: `.csv` by the file name, else Parquet; atomically."""
    if _is_csv(path):
        names = schemas.row_schema(KIND).names
        _write_csv(path, names, ([getattr(target, name) for name in names] for target in rows))
    else:
        store.write_rows(path, KIND, rows)


def check_out(path: Path, option: str = "--out") -> None:
    """Raises UsageError for a file of targets to be written whose name says neither Parquet nor CSV."""
    if path.suffix.lower() not in (".parquet", ".csv"):
        raise UsageError(
            f"{path.name!r} says neither Parquet nor CSV", where=option, remedy="end it in .parquet or .csv"
        )


def with_columns(table: pa.Table, columns: Mapping[str, Sequence[Any]]) -> pa.Table:
    """The table with columns of `Target` set; existing columns keep their position."""
    import pyarrow as pa

    schema = schemas.row_schema(KIND)
    for name, values in columns.items():
        field = schema.field(name)
        array = pa.array(values, field.type)
        field = field.with_nullable(field.nullable or array.null_count > 0)  # a survey's row may have no provider
        at = table.schema.get_field_index(name)
        table = table.append_column(field, array) if at < 0 else table.set_column(at, field, array)
    return table


def _is_csv(path: Path) -> bool:
    return path.suffix.lower() == ".csv"


def _write_csv(path: Path, names: Sequence[str], rows: Iterable[Iterable[Any]]) -> None:
    with disk.whole_file(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(map(_cell, row) for row in rows)


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    # The module csv writes a lone \r unquoted.
    return no_formula(value.replace("\r", " ")) if isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class _Batch:
    """Some rows of a file, and the line or row of each."""

    table: pa.Table
    numbers: Sequence[int]
    unit: str
    """`line` or `row`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rules:
    """How one file is read."""

    path: Path
    needs: Sequence[str]
    kind: str = KIND
    only: Sequence[str] | None = None
    """The columns to read; None: all."""

    def refuse(self, what: str, place: str, remedy: str) -> NoReturn:
        raise UsageError(what, where=f"{self.path}{place}", remedy=remedy)

    def takes(self, name: str) -> bool:
        """Whether a column is read."""
        return self.only is None or name in self.only

    def check_names(self, names: Sequence[str], place: str) -> None:
        """Raises UsageError for a missing, duplicate or misspelt column."""
        known = [] if self.kind != KIND else schemas.row_schema(KIND).names
        for name in names:
            if names.count(name) > 1:
                self.refuse(f"there are two columns {name[:40]!r}", place, "give each its own name")
            meant = [] if name in known else difflib.get_close_matches(name, known, 1, 0.8)
            if meant and meant[0] not in names:
                self.refuse(f"unknown column {name[:40]!r}", place, f"write {meant[0]}, or rename it")
        for name in self.needs:
            if name not in names:
                self.refuse(f"the column {name} is missing", place, f"name the columns as in {_EXAMPLE}")

    def checked(self, batch: _Batch) -> _Batch:
        """The batch with the types and defaults of the table. Raises UsageError for the first invalid row."""
        import pyarrow as pa

        schema = schemas.row_schema(KIND)
        columns = {name: batch.table.column(name) for name in batch.table.column_names}
        for name in [name for name in schema.names if name in columns]:
            columns[name] = self._typed(name, columns[name], schema.field(name).type, batch)
        if self.kind == KIND:
            self._complete(columns, batch)
        faults = sorted(filter(None, (self._first_fault(name, columns[name]) for name in FAULTS if name in columns)))
        if faults:
            index, what = faults[0]
            self.refuse(what, f", {batch.unit} {batch.numbers[index]}", "correct or remove it")
        if "server_ip" in columns:
            one_form = (str(unmapped(ip)) if ip and ":" in ip else ip for ip in columns["server_ip"].to_pylist())
            columns["server_ip"] = pa.chunked_array([pa.array(one_form, pa.string())])
        fields = [schema.field(name) for name in schema.names if name in columns]
        fields += [batch.table.schema.field(name) for name in batch.table.column_names if name not in schema.names]
        table = pa.table([columns[field.name] for field in fields], schema=pa.schema(fields))
        return _Batch(table.replace_schema_metadata({"upshift.kind": self.kind}), batch.numbers, batch.unit)

    def _typed(self, name: str, column: Any, wanted: Any, batch: _Batch) -> Any:
        """A column of the table's type; an empty text or NaN means no value."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if pa.types.is_dictionary(column.type):  # a categorical of pandas
            column = column.cast(column.type.value_type)
        kind, is_text = column.type, pa.types.is_string(wanted)
        if not (
            kind.equals(wanted)
            or pa.types.is_null(kind)
            or (is_text and (pa.types.is_large_string(kind) or str(kind) == "string_view"))
            or (str(wanted) in ("int64", "double") and (pa.types.is_integer(kind) or pa.types.is_floating(kind)))
        ):
            self.refuse(f"the column {name} holds {kind}, not {_TYPES[str(wanted)]}", "", f"write it as {wanted}")
        if pa.types.is_floating(kind):
            column = pc.if_else(pc.is_nan(column), pa.scalar(None, kind), column)
        try:
            column = column.cast(wanted)
        except pa.ArrowInvalid:
            for number, value in zip(batch.numbers, column.to_pylist(), strict=True):
                if value is not None and not (math.isfinite(value) and value == int(value) and abs(value) < 2**63):
                    sentence = f"{name} {value!r} is not {_TYPES[str(wanted)]}"
                    self.refuse(sentence, f", {batch.unit} {number}", "correct it, or leave it empty")
            raise
        if not is_text:
            return column
        column = pc.utf8_trim_whitespace(column)
        return pc.if_else(pc.equal(column, ""), pa.scalar(None, wanted), column)

    def _complete(self, columns: dict[str, Any], batch: _Batch) -> None:
        """Adds the columns that are missing, and the values that have a default."""
        import pyarrow as pa
        import pyarrow.compute as pc

        for field in schemas.row_schema(KIND):
            if field.name not in columns and self.takes(field.name):
                columns[field.name] = pa.chunked_array([pa.nulls(len(batch.numbers), field.type)])
        columns["domain"] = pc.utf8_lower(columns["domain"])
        if not pc.all(pc.string_is_ascii(columns["domain"])).as_py():
            columns["domain"] = pa.chunked_array([pa.array(map(_in_dns, columns["domain"].to_pylist()), pa.string())])
        if "url" in columns and "url" not in self.needs:
            columns["url"] = pc.coalesce(
                columns["url"], pc.binary_join_element_wise("https://", columns["domain"], "/", "")
            )
        if "provider" in columns:
            columns["provider"] = pc.coalesce(pc.utf8_lower(columns["provider"]), pa.scalar(str(Provider.OTHER)))
        if "size_is_lower_bound" in columns:
            columns["size_is_lower_bound"] = pc.fill_null(columns["size_is_lower_bound"], False)

    def _first_fault(self, name: str, column: Any) -> tuple[int, str] | None:
        check = FAULTS[name]
        for index, value in enumerate(column.to_pylist()):
            if value is None:
                if name == "domain" or (name == "url" and self.kind == KIND):
                    return index, f"the {name} is missing"
            elif (fault := check(value)) is not None:
                return index, fault
        return None


def _in_dns(domain: str | None) -> str | None:
    """A domain as DNS, lists and block lists have it (A-labels); unchanged if it is no domain name."""
    import idna  # few files need it

    try:
        return domain if domain is None or domain.isascii() else idna.encode(domain, uts46=True).decode("ascii")
    except UnicodeError:
        return domain


def _batches(
    path: Path, needs: Sequence[str], *, surveys: bool = False, only: Sequence[str] | None = None
) -> Iterator[_Batch]:
    """The file in batches, at least one."""
    if _is_csv(path):
        rules = _Rules(path=path, needs=needs, only=only)
        for batch in _csv_batches(rules):
            yield rules.checked(batch)
        return
    with store.parquet(path, KIND) as file:
        kind = schemas.kind_in(file.schema_arrow)
        if kind is not None and not (surveys and kind.startswith(SURVEYS)):
            schemas.check_kind(file.schema_arrow, path, KIND)
        rules = _Rules(path=path, needs=needs, kind=KIND if kind is None else kind, only=only)
        for batch in _parquet_batches(file, rules):
            yield rules.checked(batch)


def _parquet_batches(file: Any, rules: _Rules) -> Iterator[_Batch]:
    import pyarrow as pa

    schema = file.schema_arrow
    rules.check_names(schema.names, "")
    chosen = [n for n in schema.names if rules.takes(n) and not n.startswith(_PANDAS_INDEX)]
    done = 0
    for batch in file.iter_batches(batch_size=store.ROWS_AT_ONCE, columns=chosen):
        yield _Batch(pa.Table.from_batches([batch]), range(done + 1, done + 1 + batch.num_rows), "row")
        done += batch.num_rows
    if not done:
        yield _Batch(pa.schema([schema.field(name) for name in chosen]).empty_table(), (), "row")


def _csv_batches(rules: _Rules) -> Iterator[_Batch]:
    try:
        handle = rules.path.open(encoding="utf-8-sig", newline="")
    except OSError as error:
        raise UsageError(unreadable(error), where=str(rules.path), remedy="check the path") from None
    with handle:
        reader = csv.reader(_lines(handle, rules), strict=True)
        try:
            header = [name.strip() for name in next(reader, [])]
            rules.check_names([name for name in header if name], ", line 1")
            lines = _csv_rows(reader, header, rules)
            yield _csv_batch(list(islice(lines, store.ROWS_AT_ONCE)), header, rules)  # one without rows, too
            while chunk := list(islice(lines, store.ROWS_AT_ONCE)):
                yield _csv_batch(chunk, header, rules)
        except UnicodeDecodeError as error:
            rules.refuse(f"this is not text in UTF-8 ({error})", "", "save it as CSV in UTF-8")
        except csv.Error as error:
            rules.refuse(str(error), f", line {reader.line_num}", "correct that line")


def _lines(handle: IO[str], rules: _Rules) -> Iterator[str]:
    while line := handle.readline(LONGEST_LINE):
        if len(line) == LONGEST_LINE:
            rules.refuse(f"a line is longer than {LONGEST_LINE:,} characters", "", "name a CSV file of targets")
        yield line


def _csv_rows(reader: Any, header: Sequence[str], rules: _Rules) -> Iterator[tuple[int, list[str]]]:
    for cells in reader:
        if not any(cells):
            continue
        if len(cells) != len(header):
            rules.refuse(
                f"the row has another number of columns than the header ({len(cells)}, not {len(header)})",
                f", line {reader.line_num}",
                "quote values with commas",
            )
        yield reader.line_num, cells


def _csv_batch(chunk: Sequence[tuple[int, list[str]]], header: Sequence[str], rules: _Rules) -> _Batch:
    import pyarrow as pa

    schema = schemas.row_schema(KIND)
    numbers = [number for number, _ in chunk]
    columns = {}
    for at, name in enumerate(header):
        if not name or not rules.takes(name):
            continue
        kind = schema.field(name).type if name in schema.names else pa.string()
        parse = _PARSERS[str(kind)]
        values = []
        for number, cells in chunk:
            try:
                text = cells[at].strip()
                values.append(parse(text) if text else None)
            except ValueError:
                sentence = f"{name} {text[:60]!r} is not {_TYPES[str(kind)]}"
                rules.refuse(sentence, f", line {number}", "correct it, or leave it empty")
        columns[name] = pa.chunked_array([pa.array(values, kind)])
    return _Batch(pa.table(columns), numbers, "line")


def _whole(text: str) -> int:
    if not _WHOLE.fullmatch(text) or not -(2**63) <= int(text) < 2**63:
        raise ValueError(text)
    return int(text)


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0"):
        raise ValueError(text)
    return text.lower() in ("true", "1")


_PARSERS: Mapping[str, Callable[[str], Any]] = {"int64": _whole, "double": _number, "bool": _truth, "string": str}
