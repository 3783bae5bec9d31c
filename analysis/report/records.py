"""Tables as flat records, for CSV and JSON. Shares are 0 to 1."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.captures.limiter import Limiter
from analysis.measures.client_effect import ClientEffectRow
from analysis.measures.limiters import LimiterRow
from analysis.measures.rows import BIN_NAMES, LARGER_CLUSTERS, SpeedupRow, SpeedupSummary
from analysis.measures.tables import ConfigurationRow, DoseRow
from core.untrusted import no_formula

TABLE1_CSV = ("vantage", "provider", "transport", "planned", "ok", "ok_share", "failed", "censored")
CONFIGURATIONS_CSV = (
    *(one.name for one in dataclasses.fields(ConfigurationRow) if one.type in ("str", "int")),
    "void_share",
)
SUMMARY_CSV = (
    *("comparison", "role", "config", "vs", "n", "faster", "slower", *BIN_NAMES),
    *("tie", "undecided", "bin_undecided", "bounds", "domains"),
    *("median", "median_low", "median_high", "median_least", "median_most"),
    *("typical", "typical_low", "typical_high", "typical_least", "typical_most"),
    *(f"{name}{end}" for name in ("gain", "lose") for end in ("", "_low", "_high")),
    *("faster_low", "faster_high", "slower_low", "slower_high"),
    *(f"{name}_{end}" for name in BIN_NAMES for end in ("low", "high")),
    "excluded",
)
"""Columns that tell of speed-ups without tests."""

TABLE2_CSV = (
    *SUMMARY_CSV,
    *("p_wilcoxon", "p_clusters", "p_sign", "p_equivalence", "q_bh", "q_by"),
    *("verdict", "size", "margin", "mixed_by", "q_parts", "typical_unit", "typical_units", "p_providers"),
    *("handshake", "transfer", "starved"),
    *("median_low90", "median_high90"),
    *(f"{name.lower()}_{end}" for name in LARGER_CLUSTERS for end in ("clusters", "low", "high", "p")),
    *("planned_n", "planned_faster", "planned_faster_low", "planned_faster_high", "planned_slower"),
    *("planned_median", "planned_low", "planned_high", "planned_p"),
    *("failed_config_only", "failed_vs_only", "failed_both", "p_mcnemar", "differs_in"),
)
"""Columns of table2.csv; with `--by`, preceded by the group's column (`vantage`, `provider`, `iteration`)."""

CLIENT_EFFECTS_CSV = (
    *("what", "name", "over", "n", "domains", "starved"),
    *(f"ratio{end}" for end in ("", "_low", "_high", "_least", "_most")),
)
"""Columns of client_effects.csv."""

LIMITERS_CSV = ("configuration", "provider", "n", "missing", *Limiter, *(f"{name}_time" for name in Limiter))
"""Columns of limiters.csv: shares of the downloads, then of the time."""

SPLITS_CSV = (
    *("comparison", "by", "of", "p", "part", "n", "domains"),
    *("median", "median_least", "median_most", "sure_low", "sure_high"),
)
"""Columns of splits.csv: a line for each part of each row; `sure` is the 99 % interval of its typical speed-up."""

DOSE_CSV = ("dose", "acted", *SUMMARY_CSV)
"""Columns of dose.csv; `acted` is yes, no or unknown, and each comparison has a line for each."""


def csv_text(header: Sequence[str], rows: Iterable[Mapping[str, object]]) -> str:
    """CSV (RFC 4180, but lines end with a line feed); unknown values are empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    for row in rows:
        writer.writerow([csv_value(row[name]) for name in header])
    return out.getvalue()


def csv_value(value: object) -> object:
    """What a CSV file has for it: floats with six digits, unknown values empty."""
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else no_formula(value)


def _summary(row: SpeedupSummary) -> dict[str, Any]:
    """The columns of `SUMMARY_CSV`, and the 90 % interval of the median."""
    flat: dict[str, Any] = {"comparison": row.comparison.name, "role": row.comparison.role.value}
    flat |= {"config": row.comparison.config, "vs": row.comparison.vs}
    flat |= {"n": row.n, "domains": row.domains, "bounds": row.bounds, "excluded": sum(row.excluded.values())}
    shares = (("faster", row.faster), ("slower", row.slower), ("gain", row.gain), ("lose", row.lose))
    for name, share in (*shares, *zip(BIN_NAMES, row.bins, strict=True)):
        flat |= {name: share.share, f"{name}_low": share.low, f"{name}_high": share.high}
    flat |= {name: getattr(row, name).share for name in ("tie", "undecided", "bin_undecided")}
    typical = row.typical
    flat |= {"typical": typical.value, "typical_low": typical.low, "typical_high": typical.high}
    flat |= {"typical_least": typical.least, "typical_most": typical.most}
    median = dataclasses.asdict(row.median)
    return flat | {"median": median.pop("value"), **{f"median_{name}": value for name, value in median.items()}}


def _evidence(row: SpeedupRow) -> dict[str, Any]:
    """The tests of one row, and what checks them."""
    flat: dict[str, Any] = {
        name: getattr(row, name)
        for name in ("p_wilcoxon", "p_clusters", "p_sign", "p_equivalence", "q_bh", "q_by", "margin")
    }
    flat["verdict"] = None if row.verdict is None else row.verdict.value
    flat |= {"size": None if row.size is None else row.size.value, "q_parts": row.q_parts}
    flat |= {"mixed_by": None if row.split is None else row.split.by.value}
    flat |= {"typical_unit": row.typical.unit.value, "typical_units": row.typical.units}
    flat |= {"p_providers": row.typical.p_providers, "handshake": row.handshake, "transfer": row.transfer}
    flat |= {"starved": row.starved}
    for name in LARGER_CLUSTERS:
        larger = row.larger.get(name)
        for end in ("clusters", "low", "high", "p"):
            flat[f"{name.lower()}_{end}"] = None if larger is None else getattr(larger, end)
    planned = row.intention
    flat |= {"planned_n": planned.n, "planned_faster": planned.faster.share, "planned_slower": planned.slower.share}
    flat |= {"planned_faster_low": planned.faster.low, "planned_faster_high": planned.faster.high}
    flat |= {"planned_median": planned.median.value, "planned_p": planned.p_wilcoxon}
    flat |= {"planned_low": planned.median.low, "planned_high": planned.median.high}
    failures = row.failures
    flat |= {"failed_config_only": failures.config_only, "failed_vs_only": failures.vs_only}
    return flat | {"failed_both": failures.both, "p_mcnemar": failures.p, "differs_in": row.differs_in}


@dataclass(frozen=True, slots=True)
class FlatTable:
    """A table of `tables/` as flat records, for CSV and JSON."""

    columns: Sequence[str]
    """Those of the CSV file; records may have more, such as the causes."""
    flat: Callable[[Any], Iterable[dict[str, Any]]]
    """The records of one row."""
    grouped: bool = False
    """Whether its rows have a group, whose column comes first."""

    def records(self, rows: Iterable[Any], by: str | None = None) -> list[dict[str, Any]]:
        """The records of all rows, with the group's column (`by`) if there is one."""
        return [({by: row.group} if by and self.grouped else {}) | flat for row in rows for flat in self.flat(row)]

    def csv(self, rows: Iterable[Any], by: str | None = None) -> str:
        """The CSV file."""
        return csv_text((by, *self.columns) if by and self.grouped else self.columns, self.records(rows, by))


def _limiters(row: LimiterRow) -> dict[str, Any]:
    """Shares are None without downloads."""
    return (
        {"configuration": row.configuration, "provider": row.provider, "n": row.n, "missing": row.missing}
        | {name.value: share if row.n else None for name, share in row.downloads.items()}
        | {f"{name}_time": share if row.n else None for name, share in row.time.items()}
    )


def _dose(row: DoseRow) -> Iterator[dict[str, Any]]:
    words = {"acted": "yes", "idle": "no", "unknown": "unknown"}
    for name, part in row.parts:
        flat = _summary(part)
        yield {"dose": row.words, "acted": words[name], **{column: flat[column] for column in SUMMARY_CSV}}


def _splits(row: SpeedupRow) -> Iterator[dict[str, Any]]:
    for split in row.splits:
        for part in split.parts:
            yield (
                {"comparison": row.comparison.name, "by": split.by.value, "of": split.of, "p": split.p}
                | {"part": part.name, "n": part.n, "domains": part.domains, "median": part.median.value}
                | {"median_least": part.median.least, "median_most": part.median.most}
                | dict(zip(("sure_low", "sure_high"), part.sure or (None, None), strict=True))
            )


def _client_effects(row: ClientEffectRow) -> dict[str, Any]:
    return (
        {"what": row.what.value, "name": row.name, "over": row.over}
        | {"n": row.n, "domains": row.domains, "starved": row.starved}
        | {"ratio": row.median.value, "ratio_low": row.median.low, "ratio_high": row.median.high}
        | {"ratio_least": row.median.least, "ratio_most": row.median.most}
    )


FLAT: Mapping[str, FlatTable] = {
    "table1": FlatTable(TABLE1_CSV, lambda row: [{**dataclasses.asdict(row), "ok_share": row.ok_share}]),
    "configurations": FlatTable(
        CONFIGURATIONS_CSV, lambda row: [{**dataclasses.asdict(row), "void_share": row.void_share}]
    ),
    "table2": FlatTable(TABLE2_CSV, lambda row: [_summary(row) | _evidence(row)], grouped=True),
    "splits": FlatTable(SPLITS_CSV, _splits, grouped=True),
    "dose": FlatTable(DOSE_CSV, _dose),
    "client_effects": FlatTable(CLIENT_EFFECTS_CSV, lambda row: [_client_effects(row)]),
    "limiters": FlatTable(LIMITERS_CSV, lambda row: [_limiters(row)]),
}
"""Stem of the file -> table; shares are 0 to 1."""


def flat(document: Any, joint: str, skip: Collection[str] = (), name: str = "") -> Iterator[tuple[str, Any]]:
    """The values in nested objects, each with the names on the way to it, joined; those of `skip` are left out."""
    if not isinstance(document, Mapping):
        yield name, document
        return
    for key, value in document.items():
        if key not in skip:
            yield from flat(value, joint, skip, f"{name}{joint}{key}" if name else str(key))


def listed(value: Any) -> str:
    """A value as text, those of a list with commas between."""
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def finite(value: Any) -> Any:
    """The same data with infinities as None, as JSON does not have them."""
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
