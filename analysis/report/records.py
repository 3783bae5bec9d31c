"""Tables as flat records, for CSV and JSON. Shares are 0 to 1."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from analysis.captures.limiter import Limiter
from analysis.measures.client_effect import ClientEffectRow
from analysis.measures.dose import DoseRow
from analysis.measures.limiters import LimiterRow
from analysis.measures.rows import BIN_NAMES, LARGER_CLUSTERS, SpeedupRow, SpeedupSummary
from analysis.measures.tables import ConfigurationRow, Table1Row

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
    *("handshake", "transfer"),
    *("median_low90", "median_high90"),
    *(f"{name.lower()}_{end}" for name in LARGER_CLUSTERS for end in ("clusters", "low", "high", "p")),
    *("planned_n", "planned_faster", "planned_faster_low", "planned_faster_high", "planned_slower"),
    *("planned_median", "planned_low", "planned_high", "planned_p"),
    *("failed_config_only", "failed_vs_only", "failed_both", "p_mcnemar", "differs_in"),
)
"""Columns of table2.csv; with `--by`, preceded by the group's column (`vantage`, `provider`, `iteration`)."""

CLIENT_EFFECTS_CSV = (
    *("what", "name", "over", "n", "domains"),
    *(f"ratio{end}" for end in ("", "_low", "_high", "_least", "_most")),
)
"""Columns of client_effects.csv."""

LIMITERS_CSV = ("configuration", "provider", "n", "missing", *Limiter, *(f"{name}_time" for name in Limiter))
"""Columns of limiters.csv: shares of the downloads, then of the time."""

SPLITS_CSV = (
    *("comparison", "by", "p", "part", "n", "domains"),
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
    return f"{value:.6g}" if isinstance(value, float) else value


def table1_rows(rows: Sequence[Table1Row]) -> list[dict[str, Any]]:
    """Flat rows for CSV and JSON, with the causes."""
    return [{**dataclasses.asdict(row), "ok_share": row.ok_share} for row in rows]


def configuration_rows(rows: Sequence[ConfigurationRow]) -> list[dict[str, Any]]:
    """Flat rows for CSV and JSON, with the causes."""
    return [{**dataclasses.asdict(row), "void_share": row.void_share} for row in rows]


def table2_records(rows: Sequence[SpeedupRow], *, by: str | None = None) -> list[dict[str, Any]]:
    """Flat rows for CSV: shares 0..1, the columns of `TABLE2_CSV`."""
    return [({by: row.group} if by else {}) | _summary(row) | _evidence(row) for row in rows]


def _summary(row: SpeedupSummary) -> dict[str, Any]:
    """The columns of `SUMMARY_CSV`, and the 90 % interval of the median."""
    flat: dict[str, Any] = {"comparison": row.comparison.name, "role": row.comparison.role.value}
    flat |= {"config": row.comparison.config, "vs": row.comparison.vs}
    flat |= {"n": row.n, "domains": row.domains, "bounds": row.bounds, "excluded": sum(row.excluded.values())}
    for name, share in [("faster", row.faster), ("slower", row.slower), *zip(BIN_NAMES, row.bins, strict=True)]:
        flat |= {name: share.share, f"{name}_low": share.low, f"{name}_high": share.high}
    flat |= {name: getattr(row, name).share for name in ("tie", "undecided", "bin_undecided")}
    for name, share in (("gain", row.gain), ("lose", row.lose)):
        flat |= {name: share.share, f"{name}_low": share.low, f"{name}_high": share.high}
    typical = row.typical
    flat |= {"typical": typical.value, "typical_low": typical.low, "typical_high": typical.high}
    flat |= {"typical_least": typical.least, "typical_most": typical.most}
    median = dataclasses.asdict(row.median)
    return flat | {"median": median.pop("value"), **{f"median_{name}": value for name, value in median.items()}}


def limiter_rows(rows: Sequence[LimiterRow]) -> list[dict[str, Any]]:
    """Flat rows for CSV and JSON: the columns of `LIMITERS_CSV`; shares are None without downloads."""
    return [
        {"configuration": row.configuration, "provider": row.provider, "n": row.n, "missing": row.missing}
        | {name.value: share if row.n else None for name, share in row.downloads.items()}
        | {f"{name}_time": share if row.n else None for name, share in row.time.items()}
        for row in rows
    ]


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


def dose_rows(rows: Sequence[DoseRow]) -> list[dict[str, Any]]:
    """Flat rows for CSV and JSON: the columns of `DOSE_CSV`."""
    words = {"acted": "yes", "idle": "no", "unknown": "unknown"}
    return [
        {"dose": row.words, "acted": words[name], **{column: flat[column] for column in SUMMARY_CSV}}
        for row in rows
        for name, part in row.parts
        for flat in [_summary(part)]
    ]


def split_rows(rows: Sequence[SpeedupRow], *, by: str | None = None) -> list[dict[str, Any]]:
    """Flat rows for CSV and JSON: the columns of `SPLITS_CSV`."""
    return [
        ({by: row.group} if by else {})
        | {"comparison": row.comparison.name, "by": split.by.value, "p": split.p}
        | {"part": part.name, "n": part.n, "domains": part.domains, "median": part.median.value}
        | {"median_least": part.median.least, "median_most": part.median.most}
        | dict(zip(("sure_low", "sure_high"), part.sure or (None, None), strict=True))
        for row in rows
        for split in row.splits
        for part in split.parts
    ]


def client_effect_rows(rows: Sequence[ClientEffectRow]) -> list[dict[str, Any]]:
    """Flat rows for CSV and JSON: the columns of `CLIENT_EFFECTS_CSV`."""
    return [
        {"what": row.what.value, "name": row.name, "over": row.over, "n": row.n, "domains": row.domains}
        | {"ratio": row.median.value, "ratio_low": row.median.low, "ratio_high": row.median.high}
        | {"ratio_least": row.median.least, "ratio_most": row.median.most}
        for row in rows
    ]


_CSV: Mapping[str, tuple[Sequence[str], Callable[[Sequence[Any]], Sequence[Mapping[str, Any]]]]] = {
    "table1": (TABLE1_CSV, table1_rows),
    "configurations": (CONFIGURATIONS_CSV, configuration_rows),
    "table2": (TABLE2_CSV, table2_records),
    "splits": (SPLITS_CSV, split_rows),
    "dose": (DOSE_CSV, dose_rows),
    "client_effects": (CLIENT_EFFECTS_CSV, client_effect_rows),
    "limiters": (LIMITERS_CSV, limiter_rows),
}


def csv_table(name: str, rows: Sequence[Any]) -> str:
    """A table of `tables/`, by its stem, as CSV."""
    header, flat = _CSV[name]
    return csv_text(header, flat(rows))


def finite(value: Any) -> Any:
    """The same data with infinities as None, as JSON does not have them."""
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
