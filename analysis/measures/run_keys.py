"""Which measurement runs the rows of a file are of: their keys as numbers, a batch of row groups at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from analysis.measures.arrays import Codes, Ints, Texts
from core.files import schemas

if TYPE_CHECKING:
    import pyarrow as pa

KEY_TEXTS = ("campaign", "vantage", "domain", "url", "configuration")
"""The columns of `schemas.DOWNLOAD_KEY` that are texts."""


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
            found: Codes = local.astype(kind)[column.indices.to_numpy()]
            return found
        with_empty: Codes = np.append(local, -1).astype(kind)[column.indices.fill_null(len(local)).to_numpy()]
        return with_empty

    def of(self, others: Names) -> Codes:
        """The code here of each of these texts, by their code there; the last element is that of -1."""
        local = np.zeros(0, dtype=np.int64) if others._known is None else self._local(others._known)
        codes: Codes = np.append(local, -1).astype(np.min_scalar_type(-len(self) - 1))
        return codes

    def _local(self, texts: pa.Array) -> Ints:
        """The codes of these texts. Python looks up new ones only: thousands would take longer than all else."""
        import pyarrow as pa
        import pyarrow.compute as pc

        found = pc.index_in(texts, value_set=texts[:0] if self._known is None else self._known)
        if found.null_count:
            new = pa.array(dict.fromkeys(texts.filter(found.is_null()).to_pylist()), type=texts.type)
            self._known = new if self._known is None else pa.concat_arrays([self._known, new])
            found = pc.index_in(texts, value_set=self._known)
        codes: Ints = found.to_numpy().astype(np.int64)
        return codes


def run_stretches(batch: pa.RecordBatch, names: Mapping[str, Names]) -> tuple[list[npt.NDArray[Any]], Ints]:
    """The run key of each stretch of neighbouring rows of one run, column by column; and the stretch of each row."""
    keys: list[npt.NDArray[Any]] = [
        names[name].encode(batch.column(name)) if name in names else numbers(batch, name) for name in schemas.RUN_KEY
    ]
    starts = np.zeros(batch.num_rows, dtype=np.bool_)
    starts[:1] = True
    for column in keys:
        starts[1:] |= column[1:] != column[:-1]
    first = np.flatnonzero(starts)
    return [column[first] for column in keys], np.cumsum(starts) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class KpiKeys:
    """Which downloads the rows of a `kpis.parquet` are of, with names of its own."""

    names: Mapping[str, Names]
    keys: Sequence[npt.NDArray[Any]]
    """`schemas.RUN_KEY` of each stretch."""
    stretch: Codes
    """Per row."""
    configuration: Codes
    """Per row."""


def read_kpi_keys(batches: Iterable[pa.RecordBatch]) -> KpiKeys:
    """The keys in batches with `schemas.DOWNLOAD_KEY`. It may be done by a thread while a `Reader` reads downloads."""
    names = {name: Names() for name in KEY_TEXTS}
    keys: list[list[npt.NDArray[Any]]] = [[np.zeros(0, dtype=np.int64) for _ in schemas.RUN_KEY]]
    rows: list[tuple[Codes, Codes]] = [(np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int8))]
    count = 0
    for batch in batches:
        of_stretch, stretch = run_stretches(batch, names)
        keys.append(of_stretch)
        rows.append(((stretch + count).astype(np.int32), names["configuration"].encode(batch.column("configuration"))))
        count += len(of_stretch[0])
    of_rows, configurations = map(np.concatenate, zip(*rows, strict=True))
    joined = [np.concatenate(column) for column in zip(*keys, strict=True)]
    return KpiKeys(names=names, keys=joined, stretch=of_rows, configuration=configurations)


def numbers(batch: pa.RecordBatch, name: str) -> npt.NDArray[Any]:
    """A column of numbers; NaN where it is empty."""
    found: npt.NDArray[Any] = batch.column(name).to_numpy(zero_copy_only=False)
    return found
