"""Table 1 (successful downloads), the table of configurations, and Table 2 (shares of speed-ups), as values.

`analysis.report.render` formats them for the terminal, CSV and Markdown.

Table 2 by dose: a speed-up of 1.0 over many runs may mean that an option has no effect, or that it could not take
effect: ECN without a queue, a large window where 65,535 bytes are enough. Each factor defines when it took effect
(`Factor.dose`, a KPI and a threshold), which is stored in `campaign.json`. What tells the parts apart happened after
the option was set: they are described and not tested. See docs/method/comparisons.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analysis.measures import costs, speedup
from analysis.measures.columns import Codes, Downloads, Ints, Mask, Texts, counts, on_all_cores
from analysis.measures.dataset import Dataset
from analysis.measures.folders import Design
from analysis.measures.pairs import Samples, pair
from analysis.measures.rows import Grouping, Metric, SpeedupRow, SpeedupSummary
from analysis.measures.selection import DEFAULT, Selection
from analysis.measures.speedup import summary_of
from core.domain import Comparison, Failure, Outcome, Provider, Transport, VoidReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Table1Row:
    """Downloads of one vantage point, provider and transport, warm-ups left out."""

    vantage: str
    provider: str
    transport: str
    planned: int
    ok: int
    failed: int
    censored: int
    causes: Mapping[str, int]
    """Cause -> failed and censored downloads."""
    codes: Mapping[str, int]
    """`CAUSE: SECOND WORD` -> those of them that have one (`core.domain.FailureCode`)."""

    @property
    def ok_share(self) -> float:
        return self.ok / self.planned


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationRow:
    """Outcomes of the downloads of one configuration."""

    configuration: str
    client: str
    transport: str
    planned: int
    ok: int
    failed: int
    censored: int
    proven: int
    """Downloads, ok or censored, with proven treatment."""
    disturbed: int
    """Downloads that the host disturbed (`core.domain.HostDisturbance`), in runs that were not void. Left out of
    speed-ups."""
    mismatched: int
    """Downloads with `treatment_ok` false that nothing disturbed: other options on the wire than requested, or client
    and capture contradict each other. Left out of speed-ups."""
    unusable: int
    """Downloads in measurement runs that stayed void. Left out of speed-ups; `proven`, `disturbed`, `mismatched` and
    `unproven` are without them."""
    unproven: int
    """Downloads, ok or censored, whose treatment could not be determined. Left out of speed-ups by default."""
    cpu_bound: int
    """Downloads, ok or censored, whose client used more than 70 % of a core from the first packet to the end."""
    starved: int
    """Downloads, ok or censored, whose client waited for a CPU for more than 25 % of that time."""
    cpu_unknown: int
    """Downloads, ok or censored, for which one of the two is unknown."""
    near_ceiling: int
    """Downloads, ok or censored, that were faster than 70 % of their client's ceiling."""
    ceiling_unknown: int
    """Downloads, ok or censored, of which nothing tells how near their client's ceiling they were."""
    handshakes: int
    """Downloads whose handshake completed on a path with a known round-trip time."""
    slow_handshakes: int
    """Those of them whose handshake took longer than its round trips (`Download.slow_handshake`)."""
    void: int
    """Attempts in void measurement runs, which were repeated."""
    causes: Mapping[str, int]
    codes: Mapping[str, int]
    """`CAUSE: SECOND WORD` -> downloads, as in `Table1Row`."""
    reasons: Mapping[str, int]
    """Reason (`core.domain.TreatmentReason`) -> downloads that are mismatched; older files have no reasons."""
    void_reasons: Mapping[str, int]
    """Reason (`core.domain.VoidReason`) -> downloads that are unusable."""

    @property
    def void_share(self) -> float:
        """Void attempts over all attempts."""
        return self.void / (self.void + self.planned) if self.planned else 1.0


def table1(dataset: Dataset) -> list[Table1Row]:
    """Rows in order of vantage point, transport (TCP first) and provider."""
    d = dataset.downloads
    vantages = d.runs.vantage.names
    groups = (
        (d.runs.vantage.codes[d.run], len(vantages)),
        (d.transport.codes, len(d.transport.names)),
        (d.provider.codes, len(d.provider.names)),
    )
    planned = counts(*groups, where=~d.is_warmup)
    by_outcome = {each: counts(*groups, where=~d.is_warmup & d.outcome.are(each)) for each in Outcome}
    of_cause, of_code = _by_cause(d, groups, ~d.is_warmup), _by_code(d, groups, ~d.is_warmup)
    rows = [
        Table1Row(
            vantage=vantages[v],
            provider=d.provider.names[p],
            transport=d.transport.names[t],
            planned=int(planned[v, t, p]),
            **{outcome.value: int(number[v, t, p]) for outcome, number in by_outcome.items()},
            causes=frequent(of_cause[0], of_cause[1][v, t, p]),
            codes=frequent(of_code[0], of_code[1][v, t, p]),
        )
        for v, t, p in np.argwhere(planned).tolist()
    ]
    return sorted(rows, key=lambda row: (row.vantage, transport_rank(row.transport), provider_rank(row.provider)))


def configurations(dataset: Dataset) -> list[ConfigurationRow]:
    """Rows in the order of the campaign, the warm-up first; others after them, by name."""
    d = dataset.downloads
    # The last group is empty: that of configurations of which only void attempts are left.
    group = (d.configuration.codes, len(d.configuration.names) + 1)
    is_ok, measured = d.outcome.are(Outcome.OK), ~d.outcome.are(Outcome.FAILED)
    is_whole = ~d.is_disturbed
    mismatched = is_whole & (d.treatment_ok == 0)
    chosen = {
        "planned": None,
        "ok": is_ok,
        "failed": ~measured,
        "censored": d.outcome.are(Outcome.CENSORED),
        "proven": measured & is_whole & (d.treatment_ok == 1),
        "disturbed": (d.host_disturbance.codes >= 0) & ~d.is_void,
        "mismatched": mismatched,
        "unusable": d.is_void,
        "unproven": measured & is_whole & (d.treatment_ok < 0),
        "cpu_bound": d.cpu_bound == 1,
        "starved": d.starved == 1,
        "cpu_unknown": measured & ((d.cpu_bound < 0) | (d.starved < 0)),
        "near_ceiling": measured & (d.near_ceiling == 1),
        "ceiling_unknown": measured & (d.near_ceiling < 0),
        "handshakes": d.slow_handshake >= 0,
        "slow_handshakes": d.slow_handshake == 1,
    }
    numbers = {what: counts(group, where=rows) for what, rows in chosen.items()}
    causes, words = _by_cause(d, (group,), None), _by_code(d, (group,), None)
    reasons = counts(group, _coded(d.treatment_reason), where=mismatched & (d.treatment_reason.codes >= 0))
    void = counts(group, _coded(d.void_reason), where=d.is_void)
    sides = [(texts.names, counts(group, _coded(texts))) for texts in (d.client, d.transport)]
    voids = Counter(row.configuration for row in dataset.superseded if row.reason != VoidReason.INTERRUPTED)
    code_of = {name: code for code, name in enumerate(d.configuration.names)}
    rows = []
    for name in sorted({*d.configuration.present(), *voids}, key=dataset.design.rank):
        code = code_of.get(name, -1)
        client, transport = (_listed(values, count[code]) for values, count in sides)
        rows.append(
            ConfigurationRow(
                configuration=name,
                client=client,
                transport=transport,
                **{what: int(number[code]) for what, number in numbers.items()},
                void=voids[name],
                causes=frequent(causes[0], causes[1][code]),
                codes=frequent(words[0], words[1][code]),
                reasons=frequent(d.treatment_reason.names, reasons[code]),
                void_reasons=frequent(d.void_reason.names, void[code]),
            )
        )
    return rows


def _coded(texts: Texts) -> tuple[Codes, int]:
    return texts.codes, len(texts.names)


def _listed(names: Sequence[str], numbers: Ints) -> str:
    return ", ".join(sorted(name for name, number in zip(names, numbers, strict=True) if number))


def _by_cause(d: Downloads, groups: Sequence[tuple[Codes, int]], where: Mask | None) -> tuple[tuple[str, ...], Ints]:
    """Causes, and how many downloads of each group are not ok because of them; a missing cause is `unknown`."""
    failed = ~d.outcome.are(Outcome.OK)
    cause = d.failure.filled(Failure.UNKNOWN)
    return cause.names, counts(*groups, _coded(cause), where=failed if where is None else failed & where)


def _by_code(d: Downloads, groups: Sequence[tuple[Codes, int]], where: Mask | None) -> tuple[tuple[str, ...], Ints]:
    """The same by cause and failure code, of the downloads that have both."""
    both = (d.failure.codes >= 0) & (d.failure_code.codes >= 0)
    numbers = counts(*groups, _coded(d.failure), _coded(d.failure_code), where=both if where is None else both & where)
    names = tuple(f"{failure}: {code}" for failure in d.failure.names for code in d.failure_code.names)
    return names, numbers.reshape(*numbers.shape[:-2], len(names))


def frequent(names: Sequence[str], numbers: Ints) -> dict[str, int]:
    """Name -> number, the most frequent first; only those that occur."""
    present = [(name, int(number)) for name, number in zip(names, numbers, strict=True) if number]
    return dict(sorted(present, key=lambda item: (-item[1], item[0])))


def table2(
    dataset: Dataset,
    *,
    metric: Metric = Metric.TIME,
    by: Grouping | None = None,
    selection: Selection = DEFAULT,
    samples: Samples | None = None,
) -> list[SpeedupRow]:
    """Rows of Table 2: all comparisons that the campaigns declare; with `by`, of each group those that it has both
    sides of.

    Args:
        samples: those of the dataset by this metric and selection, if they are there already.

    Raises:
        UsageError: the metric needs KPIs that no folder has.
    """
    if samples is None:
        samples = costs.samples(dataset, metric=metric, selection=selection)
    if by is None:
        return _with_differences(dataset.design, speedup.speedup_rows({"": samples}, dataset.design.comparisons))
    rank: Mapping[Grouping, Callable[[str], Any]] = {Grouping.ITERATION: int, Grouping.PROVIDER: provider_rank}
    parts = samples.parts(_groups(dataset.downloads, by)[samples.download])
    ordered = {name: parts[name] for name in sorted(parts, key=rank.get(by))}
    return _with_differences(
        dataset.design, speedup.speedup_rows(ordered, dataset.design.comparisons, only_present=True)
    )


def _with_differences(design: Design, rows: Sequence[SpeedupRow]) -> list[SpeedupRow]:
    """The rows with what their two sides differ in."""
    return [replace(row, differs_in=design.differs_in(row.comparison)) for row in rows]


def _groups(d: Downloads, by: Grouping) -> Texts:
    """The group of each download."""
    if by is Grouping.PROVIDER:
        return d.provider
    if by is Grouping.VANTAGE:
        return d.runs.vantage[d.run]
    numbers, codes = np.unique(d.runs.iteration, return_inverse=True)
    return Texts(codes[d.run], tuple(map(str, numbers.tolist())))


def provider_rank(name: str) -> tuple[int, str]:
    """Sort key: by name, `other` last."""
    return (int(name == Provider.OTHER), name)


def transport_rank(name: str) -> tuple[int, str]:
    """Sort key: TCP first."""
    return (int(name != Transport.TCP), name)


@dataclass(frozen=True, slots=True, kw_only=True)
class DoseRow:
    """One row of Table 2, split."""

    comparison: Comparison
    words: str
    """The sign that an option took effect, e.g. `CE seen or SACK blocks seen`."""
    acted: SpeedupSummary
    """The runs in which one of the options that differ took effect, on either side."""
    idle: SpeedupSummary
    """Runs in which none did."""
    unknown: SpeedupSummary
    """Runs for which it is unknown, as a KPI is missing."""

    @property
    def parts(self) -> tuple[tuple[str, SpeedupSummary], ...]:
        """(name, row) of each part."""
        return ("acted", self.acted), ("idle", self.idle), ("unknown", self.unknown)


def dose_rows(dataset: Dataset, samples: Samples) -> list[DoseRow]:
    """One row per comparison of an effect whose options define when they took effect.

    Args:
        samples: those of the dataset.
    """
    effects = [c for c in dataset.design.comparisons if (c.config, c.vs) in samples.acted]
    states = {c: samples.acted[c.config, c.vs].codes for c in effects}
    rows = iter(on_all_cores(_part, [(samples, c, states[c] == state) for c in effects for state in (1, 0, -1)]))
    return [
        DoseRow(
            comparison=comparison,
            words=" or ".join(dose.words for dose in dataset.design.dose_of(comparison)),
            acted=next(rows),
            idle=next(rows),
            unknown=next(rows),
        )
        for comparison in effects
    ]


def _part(job: tuple[Samples, Comparison, Mask]) -> SpeedupSummary:
    samples, comparison, runs = job
    return summary_of(pair(samples, comparison.config, comparison.vs, runs=runs), comparison)
