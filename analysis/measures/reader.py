"""Reads the downloads of campaign folders into columns, a batch of row groups at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from analysis.measures.ceilings import ceiling, cpu_bound, delivery_rate, near_ceiling, starved
from analysis.measures.columns import (
    Ceiling,
    Codes,
    Downloads,
    Flags,
    Floats,
    Ints,
    Runs,
    Texts,
    numbered,
    rows_by_code,
)
from core.domain import Download, Failure, Outcome
from core.errors import UsageError
from core.files import schemas

_RUN_TEXTS = ("campaign", "vantage", "domain", "url")
"""Columns of `schemas.RUN_KEY` that are texts."""

_STORED = {entry.name for entry in fields(Download)}
_AS_STORED = {entry.name: str(entry.type) for entry in fields(Downloads) if entry.name in _STORED}
"""Columns of `downloads` that `Downloads` has by the same name -> their types."""
_TEXTS = tuple(name for name, kind in _AS_STORED.items() if kind == "Texts" and name != "asn")
_READ = ("body_bytes", "first_byte_s", "transfer_cpu_s", "run_delay_s", "kpi_engine")
"""Columns that other quantities are made from."""

COLUMNS = tuple(dict.fromkeys((*schemas.RUN_KEY, *_AS_STORED, *_READ)))
"""The columns of `downloads` that tables need."""


class Names:
    """Texts (or numbers) as codes, in order of first appearance."""

    def __init__(self) -> None:
        self._known: pa.Array | None = None

    def __len__(self) -> int:
        return 0 if self._known is None else len(self._known)

    @property
    def all(self) -> tuple[str, ...]:
        """All texts so far, by code."""
        return () if self._known is None else tuple(map(str, self._known.to_pylist()))

    def sorted(self, codes: Codes) -> Texts:
        """These codes as texts whose names are sorted."""
        names = self.all
        order = sorted(range(len(names)), key=names.__getitem__)
        rank = np.full(len(order) + 1, -1, dtype=np.min_scalar_type(-len(order) - 1))
        rank[order] = np.arange(len(order))
        return Texts(rank[codes], tuple(names[code] for code in order))

    def encode(self, column: pa.DictionaryArray) -> Codes:
        """The codes of a column, -1 where it is empty, in the narrowest type."""
        local = self._local(column.dictionary)
        kind = np.min_scalar_type(-len(self) - 1)
        if not column.null_count:
            codes: Codes = local.astype(kind)[column.indices.to_numpy()]
            return codes
        with_empty: Codes = np.append(local, -1).astype(kind)[column.indices.fill_null(len(local)).to_numpy()]
        return with_empty

    def _local(self, texts: pa.Array) -> Ints:
        """The codes of these texts. Python looks up new ones only: thousands would take longer than all else."""
        places = pc.index_in(texts, value_set=texts[:0] if self._known is None else self._known)
        if places.null_count:
            new = pa.array(dict.fromkeys(texts.filter(places.is_null()).to_pylist()), type=texts.type)
            self._known = new if self._known is None else pa.concat_arrays([self._known, new])
            places = pc.index_in(texts, value_set=self._known)
        codes: Ints = places.to_numpy().astype(np.int64)
        return codes


class Reader:
    """Reads folders one by one; then `finish` has all of them.

    Args:
        rows: how many downloads they have together.
    """

    def __init__(self, rows: int) -> None:
        self._names = {name: Names() for name in (*_RUN_TEXTS, *_TEXTS, "asn")}
        self._groups: list[list[npt.NDArray[Any]]] = []
        """Folder, number of the run and `schemas.RUN_KEY` of each group: neighbouring rows of one run."""
        self._known_groups = 0
        self._rows = rows
        self._read = 0
        self._whole: dict[str, npt.NDArray[Any]] = {}
        """The columns, of which the first `_read` rows are filled."""
        self._ceilings: dict[tuple[int, int, int], tuple[int, Ceiling]] = {}
        """(folder, vantage, client) -> index, ceiling."""
        self._paths: list[Path] = []

    def add(self, path: Path, batches: Iterable[pa.RecordBatch], environment: Mapping[str, Any] | None) -> int:
        """Adds the downloads of a folder, and returns their number.

        Args:
            path: the folder, for messages.
            batches: its downloads, with `COLUMNS`.
            environment: its `environment.json`, if present.

        Raises:
            UsageError: a row has no number of its measurement run.
        """
        self._paths.append(path)
        first = self._read
        for batch in batches:
            if batch.column("run").null_count:
                raise UsageError("the column run has empty cells", where=str(path / "downloads.parquet"), remedy=_AGAIN)
            columns = self._columns(batch)
            self._rate(batch, columns, environment)
            for name, values in columns.items():
                self._fill(name, values)
            self._read += batch.num_rows
        return self._read - first

    def _fill(self, name: str, values: npt.NDArray[Any]) -> None:
        """Writes a column of a batch into the whole one: joining all batches at the end would copy everything."""
        whole = self._whole.get(name)
        if whole is None:
            whole = np.empty(self._rows, dtype=values.dtype)
        elif whole.dtype != values.dtype:  # More texts need a wider code.
            whole = whole.astype(np.promote_types(whole.dtype, values.dtype))
        whole[self._read : self._read + len(values)] = values
        self._whole[name] = whole

    def _group(self, batch: pa.RecordBatch) -> Codes:
        """The group of each row; what identifies its run is read from its first row."""
        run = _numbers(batch, "run")
        starts = np.ones(len(run), dtype=np.bool_)
        starts[1:] = run[1:] != run[:-1]
        first = np.flatnonzero(starts)
        firsts = batch.select(list(schemas.RUN_KEY)).take(pa.array(first))
        keys = [
            self._names[name].encode(firsts.column(name)) if name in self._names else _numbers(firsts, name)
            for name in schemas.RUN_KEY
        ]
        group = (np.cumsum(starts) - 1 + self._known_groups).astype(np.int32)
        self._groups.append([np.full(len(first), len(self._paths) - 1), run[first], *keys])
        self._known_groups += len(first)
        return group

    def _columns(self, batch: pa.RecordBatch) -> dict[str, npt.NDArray[Any]]:
        """The columns of `Downloads` that need no environment."""
        texts = {name: self._names[name].encode(batch.column(name)) for name in _TEXTS}
        outcome, failure = (Texts(texts[name], self._names[name].all) for name in ("outcome", "failure"))
        measured = outcome.are(Outcome.OK, Outcome.CENSORED)
        last_byte_s, budget_s = _numbers(batch, "last_byte_s"), _numbers(batch, "budget_s")
        # As `Download.time_bounds_s`: a time budget ends a download after its last byte.
        ran_out = outcome.are(Outcome.CENSORED) & ~failure.are(Failure.BYTE_BUDGET)
        ran_s = np.where(ran_out, np.fmax(last_byte_s, budget_s), last_byte_s)
        return texts | {
            "group": self._group(batch),
            "asn": self._names["asn"].encode(batch.column("asn").dictionary_encode()),
            "is_warmup": _numbers(batch, "position") <= 0,
            "position": _numbers(batch, "position").astype(np.int16),
            "last_byte_s": last_byte_s,
            "budget_s": budget_s,
            "has_kpis": batch.column("kpi_engine").is_valid().to_numpy(zero_copy_only=False),
            "treatment_ok": _flags(batch, "treatment_ok"),
            "slow_handshake": _flags(batch, "slow_handshake"),
            "cpu_bound": cpu_bound(measured, ran_s, _numbers(batch, "transfer_cpu_s")),
            "starved": starved(measured, ran_s, _numbers(batch, "run_delay_s")),
        }

    def _rate(
        self,
        batch: pa.RecordBatch,
        columns: dict[str, npt.NDArray[Any]],
        environment: Mapping[str, Any] | None,
    ) -> None:
        """Adds which ceiling is that of each row, and whether its rate is near it."""
        vantage = self._names["vantage"].encode(batch.column("vantage"))
        vantages, clients = self._names["vantage"].all, self._names["client"].all
        pairs = vantage.astype(np.int64) * len(clients) + columns["client"]
        index = np.full(len(vantages) * len(clients), -1, dtype=np.int32)
        for pair in np.flatnonzero(np.bincount(pairs)).tolist():
            at, of = divmod(pair, len(clients))
            known = (len(self._ceilings), ceiling(environment, vantage=vantages[at], client=clients[of]))
            index[pair] = self._ceilings.setdefault((len(self._paths), at, of), known)[0]
        columns["ceiling"] = index[pairs]
        highest = np.array([math.nan if c.mbit_s is None else c.mbit_s for _, c in self._ceilings.values()])
        rates = delivery_rate(_numbers(batch, "body_bytes"), _numbers(batch, "first_byte_s"), columns["last_byte_s"])
        rates[Texts(columns["outcome"], self._names["outcome"].all).are(Outcome.FAILED)] = math.nan
        columns["has_rate"] = ~np.isnan(rates)
        columns["near_ceiling"] = near_ceiling(rates, highest[columns["ceiling"]])

    def finish(self, started_at: Callable[[], Floats]) -> Downloads:
        """All downloads.

        Args:
            started_at: reads when each download started [Unix time, s]; called if folders have the same runs.

        Raises:
            UsageError: a download is listed twice, in one folder or in two, or a run has two targets.
        """
        folder, run, *keys = (np.concatenate(part) for part in zip(*self._groups, strict=True))
        del self._groups
        joined: dict[str, Any] = dict(self._whole)
        del self._whole
        # The runs in their order within the folder: rows may be in any order.
        run_of_group = numbered([folder, run])
        of_runs = []
        for column in (folder, *keys):
            values = np.empty(int(run_of_group.max(initial=-1)) + 1, dtype=np.int64)
            values[run_of_group] = column
            if (differ := np.flatnonzero(values[run_of_group] != column)).size:
                group = differ[0]
                where = str(self._paths[int(folder[group])] / "downloads.parquet")
                what = f"rows of two measurement runs have the number {run[group]}"
                raise UsageError(what, where=where, remedy=_AGAIN)
            of_runs.append(values)
        for name in _TEXTS:
            joined[name] = Texts(joined[name], self._names[name].all)
        joined["asn"] = self._names["asn"].sorted(joined["asn"])
        key_of_run = dict(zip(("folder", *schemas.RUN_KEY), of_runs, strict=True))
        downloads = Downloads(
            runs=self._runs(key_of_run),
            run=run_of_group.astype(np.int32)[joined.pop("group")],
            ceilings=tuple(known for _, known in self._ceilings.values()),
            **joined,
        )
        self._refuse_repeats(downloads)
        self._refuse_copies(downloads, key_of_run, started_at)
        return downloads

    def _runs(self, keys: Mapping[str, Ints]) -> Runs:
        return Runs(
            folder=keys["folder"],
            vantage=self._names["vantage"].sorted(keys["vantage"]),
            iteration=keys["iteration"],
            domain=self._names["domain"].sorted(keys["domain"]),
            url=Texts(keys["url"], self._names["url"].all),
        )

    def _refuse_repeats(self, downloads: Downloads) -> None:
        """Raises UsageError for a run with two downloads of one configuration."""
        seen = np.empty(len(downloads.runs), dtype=np.int32)
        for members in rows_by_code(downloads.configuration.codes, len(downloads.configuration.names)):
            run = downloads.run[members]
            seen[run[::-1]] = members[::-1]  # The first row of each run stays.
            later = np.flatnonzero(seen[run] != members)
            if len(later):
                raise self._twice(downloads, int(members[later[0]]))

    def _refuse_copies(self, downloads: Downloads, keys: Mapping[str, Ints], started_at: Callable[[], Floats]) -> None:
        """Raises UsageError for a download that is there twice, e.g. as one folder is a copy of another."""
        same = numbered([keys[name] for name in schemas.RUN_KEY])
        several = np.bincount(same) > 1
        rows = np.flatnonzero(several[same][downloads.run]) if several.any() else ()
        if not len(rows):
            return
        started = np.unique(started_at()[rows], return_inverse=True)[1]
        key = numbered([same[downloads.run[rows]], downloads.configuration.codes[rows], started])
        order = np.argsort(key, kind="stable")
        repeats = np.flatnonzero(key[order][1:] == key[order][:-1])
        if not len(repeats):
            return
        first, second = (int(rows[order[repeats[0] + step]]) for step in (0, 1))
        one, other = (self._paths[int(downloads.runs.folder[downloads.run[row]])] for row in (first, second))
        if one == other:
            raise self._twice(downloads, second)
        what = f"download {self._words(downloads, second)} is also in {one}"
        raise UsageError(what, where=str(other / "downloads.parquet"), remedy="name one of the two")

    def _twice(self, downloads: Downloads, row: int) -> UsageError:
        path = self._paths[int(downloads.runs.folder[downloads.run[row]])] / "downloads.parquet"
        return UsageError(f"download {self._words(downloads, row)} is listed twice", where=str(path), remedy=_AGAIN)

    def _words(self, downloads: Downloads, row: int) -> str:
        runs, run, named = downloads.runs, int(downloads.run[row]), downloads.configuration
        vantage, domain = (texts.names[int(texts.codes[run])] for texts in (runs.vantage, runs.domain))
        return f"{vantage}, iteration {runs.iteration[run]}, {domain}, {named.names[int(named.codes[row])]}"


_AGAIN = "make it again with `upshift inspect`"


def _numbers(batch: pa.RecordBatch, name: str) -> npt.NDArray[Any]:
    """A column of numbers; NaN where it is empty."""
    values: npt.NDArray[Any] = batch.column(name).to_numpy(zero_copy_only=False)
    return values


def _flags(batch: pa.RecordBatch, name: str) -> Flags:
    values: Flags = batch.column(name).cast("int8").fill_null(-1).to_numpy()
    return values
