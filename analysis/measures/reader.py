"""Reads the downloads and KPIs of campaign folders into columns, a batch of row groups at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from analysis.measures import processor
from analysis.measures.arrays import Codes, Flags, Floats, Ints, Texts, numbered, rows_by_code
from analysis.measures.ceilings import Ceiling, ceiling, delivery_rate, near_ceiling
from analysis.measures.columns import Downloads, Runs
from analysis.measures.comparisons import Appearance
from analysis.measures.run_keys import KEY_TEXTS, KpiKeys, Names, numbers, run_stretches
from core.domain import Outcome
from core.errors import UsageError
from core.files import schemas
from core.files.config import parse_json

if TYPE_CHECKING:
    import pyarrow as pa

_TEXTS = (
    *("client", "transport", "provider", "outcome", "failure", "host_disturbance"),
    *("treatment_reason", "cache_state", "identity_flags"),
)
_OTHERS = (
    *("levels", "position", "body_bytes", "first_byte_s", "last_byte_s", "budget_s", "transfer_cpu_s", "run_delay_s"),
    *("void_reason", "treatment_ok", "slow_handshake", "asn"),
)
COLUMNS = (*schemas.DOWNLOAD_KEY, *_TEXTS, *_OTHERS)
"""The columns of `downloads` that tables need."""


class Reader:
    """Reads folders one by one; then `finish` has all of them.

    Args:
        rows: how many downloads they have together.
    """

    def __init__(self, rows: int) -> None:
        self._names = {name: Names() for name in (*KEY_TEXTS, *_TEXTS, "levels", "asn")}
        self._keys: list[list[npt.NDArray[Any]]] = []
        """Folder and run key of each stretch: of neighbouring rows of one run."""
        self._stretches = 0
        self._rows = rows
        self._read = 0
        self._whole: dict[str, npt.NDArray[Any]] = {}
        """The columns, of which the first `_read` rows are filled."""
        self._ceilings: dict[tuple[int, int, int], tuple[int, Ceiling]] = {}
        """(folder, vantage, client) -> index, ceiling."""
        self._paths: list[Path] = []
        self._kpis: list[tuple[Codes, Codes]] = []
        """Per folder: stretch and configuration of each row of `kpis`; no rows if the file is missing."""

    def add(
        self, path: Path, batches: Iterable[pa.RecordBatch], environment: Mapping[str, Any] | None
    ) -> list[Appearance]:
        """Adds the downloads of a folder, and returns its configurations in order of appearance.

        Args:
            path: the folder, for messages.
            batches: its downloads, with `COLUMNS`.
            environment: its `environment.json`, if present.

        Raises:
            UsageError: a text in `levels` is not JSON.
        """
        where = f"{path / 'downloads.parquet'}: column levels"
        self._paths.append(path)
        self._kpis.append((np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int8)))
        appearances: dict[int, Appearance] = {}
        for batch in batches:
            known = len(self._names["levels"].all)
            columns = self._columns(batch)
            for text in self._names["levels"].all[known:]:
                parse_json(text, where=where, remedy="export it again with `upshift run`")
            self._rate(batch, columns, environment)
            _appear(batch, columns["configuration"], appearances)
            for name, values in columns.items():
                self._fill(name, values)
            self._read += batch.num_rows
        return list(appearances.values())

    def _fill(self, name: str, values: npt.NDArray[Any]) -> None:
        """Writes a column of a batch into the whole one: joining all batches at the end would copy everything."""
        whole = self._whole.get(name)
        if whole is None:
            whole = np.empty(self._rows, dtype=values.dtype)
        elif whole.dtype != values.dtype:  # More texts need a wider code.
            whole = whole.astype(np.promote_types(whole.dtype, values.dtype))
        whole[self._read : self._read + len(values)] = values
        self._whole[name] = whole

    def add_kpis(self, found: KpiKeys) -> None:
        """Adds the rows of `kpis` of the folder added last."""
        keys = [
            self._names[name].of(found.names[name])[column] if name in self._names else column
            for name, column in zip(schemas.RUN_KEY, found.keys, strict=True)
        ]
        codes = self._names["configuration"].of(found.names["configuration"])
        stretch = found.stretch + self._add_keys(keys)
        self._kpis[-1] = (stretch, codes[found.configuration])

    def _stretch(self, batch: pa.RecordBatch) -> Codes:
        """The stretch of each row."""
        keys, found = run_stretches(batch, self._names)
        return (found + self._add_keys(keys)).astype(np.int32)

    def _add_keys(self, keys: Sequence[npt.NDArray[Any]]) -> int:
        """Adds stretches of the folder added last; returns the number of the first."""
        first, count = self._stretches, len(keys[0])
        self._keys.append([np.full(count, len(self._paths) - 1), *keys])
        self._stretches += count
        return first

    def _columns(self, batch: pa.RecordBatch) -> dict[str, npt.NDArray[Any]]:
        """The columns of `Downloads` that need no environment."""
        found = {name: self._names[name].encode(batch.column(name)) for name in ("configuration", "levels", *_TEXTS)}
        del found["levels"]  # Only its names are needed.
        is_ok = Texts(found["outcome"], self._names["outcome"].all).are(Outcome.OK)
        last_byte_s = numbers(batch, "last_byte_s")
        return found | {
            "stretch": self._stretch(batch),
            "asn": self._names["asn"].encode(batch.column("asn").dictionary_encode()),
            "is_warmup": numbers(batch, "position") <= 0,
            "position": numbers(batch, "position").astype(np.int16),
            "last_byte_s": last_byte_s,
            "budget_s": numbers(batch, "budget_s"),
            "is_void": batch.column("void_reason").is_valid().to_numpy(zero_copy_only=False),
            "treatment_ok": _flags(batch, "treatment_ok"),
            "slow_handshake": _flags(batch, "slow_handshake"),
            "cpu_bound": processor.cpu_bound(is_ok, last_byte_s, numbers(batch, "transfer_cpu_s")),
            "starved": processor.starved(is_ok, last_byte_s, numbers(batch, "run_delay_s")),
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
        rates = delivery_rate(numbers(batch, "body_bytes"), numbers(batch, "first_byte_s"), columns["last_byte_s"])
        rates[Texts(columns["outcome"], self._names["outcome"].all).are(Outcome.FAILED)] = math.nan
        columns["has_rate"] = ~np.isnan(rates)
        columns["near_ceiling"] = near_ceiling(rates, highest[columns["ceiling"]])

    def finish(self, started_at: Callable[[], Floats]) -> tuple[Downloads, tuple[Codes, ...]]:
        """All downloads; and per folder, for each row of its `kpis`, the row of its download (-1: there is none).

        Args:
            started_at: reads when each download started [Unix time, s]; called if folders have the same runs.

        Raises:
            UsageError: a download is listed twice, in one folder or in two.
        """
        keys = [np.concatenate(part) for part in zip(*self._keys, strict=True)]
        joined: dict[str, Any] = dict(self._whole)
        del self._whole
        stretch = joined.pop("stretch")
        of_stretch = numbered(keys)
        del self._keys
        is_measured = np.zeros(int(of_stretch.max(initial=-1)) + 1, dtype=np.bool_)
        is_measured[of_stretch[stretch]] = True
        # Runs of which only `kpis` has rows have numbers behind the others, for the check below.
        number = np.where(is_measured, np.cumsum(is_measured), is_measured.sum() + np.cumsum(~is_measured)) - 1
        run_of_stretch = number[of_stretch].astype(np.int32)
        several = [np.empty(len(number), dtype=np.int64) for _ in keys]
        for values, column in zip(several, keys, strict=True):
            values[run_of_stretch] = column
        key_of_run = dict(zip(("folder", *schemas.RUN_KEY), several, strict=True))
        count = int(is_measured.sum())
        for name in ("configuration", *_TEXTS):
            joined[name] = Texts(joined[name], self._names[name].all)
        joined["asn"] = self._names["asn"].sorted(joined["asn"])
        downloads = Downloads(
            runs=self._runs({name: values[:count] for name, values in key_of_run.items()}),
            run=run_of_stretch[stretch],
            ceilings=tuple(known for _, known in self._ceilings.values()),
            **joined,
        )
        del stretch
        rows = rows_by_code(downloads.configuration.codes, len(downloads.configuration.names))
        self._refuse_repeats(downloads, rows)
        if len(self._paths) > 1:
            self._refuse_copies(downloads, key_of_run, started_at)
        return downloads, tuple(self._kpi_rows(downloads, key_of_run, run_of_stretch, rows))

    def _runs(self, keys: Mapping[str, Ints]) -> Runs:
        return Runs(
            folder=keys["folder"],
            vantage=self._names["vantage"].sorted(keys["vantage"]),
            iteration=keys["iteration"],
            domain=self._names["domain"].sorted(keys["domain"]),
            url=Texts(keys["url"], self._names["url"].all),
        )

    def _refuse_repeats(self, downloads: Downloads, rows: Sequence[Ints]) -> None:
        row = _repeated(downloads.run, rows, len(downloads.runs))
        if row is not None:
            path = self._paths[int(downloads.runs.folder[downloads.run[row]])]
            what = f"download {self._words(downloads, row)} is listed twice"
            raise UsageError(what, where=str(path / "downloads.parquet"), remedy="export it again")

    def _refuse_copies(self, downloads: Downloads, keys: Mapping[str, Ints], started_at: Callable[[], Floats]) -> None:
        """Raises UsageError for a download that two folders have, e.g. as one is a copy of the other."""
        same = numbered([keys[name][: len(downloads.runs)] for name in schemas.RUN_KEY])
        rows = np.flatnonzero((np.bincount(same) > 1)[same][downloads.run])
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
        what = f"download {self._words(downloads, second)} is also in {one}"
        raise UsageError(what, where=str(other / "downloads.parquet"), remedy="name one of the two")

    def _words(self, downloads: Downloads, row: int) -> str:
        runs, run, named = downloads.runs, int(downloads.run[row]), downloads.configuration
        vantage, domain = (texts.names[int(texts.codes[run])] for texts in (runs.vantage, runs.domain))
        return f"{vantage}, iteration {runs.iteration[run]}, {domain}, {named.names[int(named.codes[row])]}"

    def _kpi_rows(
        self, downloads: Downloads, keys: Mapping[str, Ints], run_of_stretch: Codes, rows: Sequence[Ints]
    ) -> list[Codes]:
        """Per folder, the download of each row of its `kpis`.

        Args:
            rows: the downloads of each configuration.
        """
        runs = len(keys["folder"])
        names = self._names["configuration"].all
        found = []
        for path, (stretches, configurations) in zip(self._paths, self._kpis, strict=True):
            run = run_of_stretch[stretches]
            members_of = rows_by_code(configurations, len(names))
            row = _repeated(run, members_of, runs)
            if row is not None:
                key = {name: int(keys[name][run[row]]) for name in ("vantage", "iteration", "domain")}
                vantage, domain = (self._names[name].all[key[name]] for name in ("vantage", "domain"))
                words = f"{vantage}, iteration {key['iteration']}, {domain}, {names[int(configurations[row])]}"
                where = str(path / "kpis.parquet")
                raise UsageError(f"two rows for download {words}", where=where, remedy="make the file again")
            download = np.full(len(run), -1, dtype=np.int32)
            at = np.empty(runs, dtype=np.int32)
            for of_configuration, members in zip(rows, members_of, strict=True):
                at[:] = -1
                at[downloads.run[of_configuration]] = of_configuration
                download[members] = at[run[members]]
            found.append(download)
        return found


def _repeated(run: Codes, members_of: Sequence[Ints], runs: int) -> int | None:
    """A row with the run and the configuration of an earlier one; None if there is none.

    Args:
        members_of: the rows of each configuration, in their order.
    """
    seen = np.empty(runs, dtype=np.int32)
    for members in members_of:
        seen[run[members][::-1]] = members[::-1]  # The first row of each run stays.
        later = np.flatnonzero(seen[run[members]] != members)
        if len(later):
            return int(members[later[0]])
    return None


def _appear(batch: pa.RecordBatch, configuration: Codes, found: dict[int, Appearance]) -> None:
    """Adds the configurations that appear for the first time."""
    codes, rows = np.unique(configuration, return_index=True)
    for row, code in sorted(zip(rows.tolist(), codes.tolist(), strict=True)):
        if code not in found:
            found[code] = Appearance(*(batch.column(name)[row].as_py() for name in Appearance._fields))


def _flags(batch: pa.RecordBatch, name: str) -> Flags:
    found: Flags = batch.column(name).cast("int8").fill_null(-1).to_numpy()
    return found
