"""What went wrong, and what is left out of speed-ups, with the reasons. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.measures import tables
from analysis.measures.dataset import Dataset, Record
from analysis.measures.rows import SpeedupRow
from core.domain import Download, Outcome

_MAX_LISTED = 500
"""Most rows of the lists of failed, censored, mismatched and void downloads."""


def cause_table(states: Sequence[tables.ConfigurationRow]) -> tuple[list[str], list[tuple[str, list[int]]]]:
    """Configurations with downloads that are not ok, and their number for each cause."""
    names = [row.configuration for row in states if row.causes]
    total: dict[str, int] = {}
    for row in states:
        for cause, count in row.causes.items():
            total[cause] = total.get(cause, 0) + count
    by_name = {row.configuration: row.causes for row in states}
    ordered = sorted(total, key=lambda cause: (-total[cause], cause))
    return names, [(cause, [by_name[name].get(cause, 0) for name in names]) for cause in ordered]


def lists(dataset: Dataset) -> list[tuple[str, str, list[tuple[str, ...]], int]]:
    """(title, explanation, rows, number of rows left out) of the downloads that need an explanation."""

    def pick(records: Sequence[Record]) -> list[tuple[str, ...]]:
        return [
            (*_place(d), f"{d.failure or ''} {d.failure_detail or ''}".strip()) for d in (r.download for r in records)
        ]

    of = {o: [r for r in dataset.records if r.download.outcome == o] for o in (Outcome.FAILED, Outcome.CENSORED)}
    mismatches: list[tuple[str, ...]] = [
        (*_place(d), d.void_detail or ": ".join(filter(None, (d.treatment_reason, d.treatment_detail))))
        for d in (record.download for record in dataset.records)
        if d.void_reason is not None or d.treatment_ok is False
    ]
    disturbed: list[tuple[str, ...]] = [
        (*_place(d), d.host_disturbance_detail or d.host_disturbance)
        for d in (record.download for record in dataset.records)
        if d.host_disturbance is not None
    ]
    elsewhere: list[tuple[str, ...]] = [
        (*_place(d), d.identity_detail)
        for d in (record.download for record in dataset.records)
        if d.identity_detail is not None
    ]
    voids: list[tuple[str, ...]] = [
        (v.vantage, str(v.iteration), v.domain, v.configuration, v.detail or v.reason) for v in dataset.superseded
    ]
    found: list[tuple[str, str, list[tuple[str, ...]]]] = [
        ("Failed", "They have a cause and are left out of speed-ups.", pick(of[Outcome.FAILED])),
        (
            "Censored",
            "They hit a budget: only a lower bound of their time is known, and used as one.",
            pick(of[Outcome.CENSORED]),
        ),
        (
            "Treatment not accepted",
            "Other options on the wire than requested, or client and capture disagree: left out of speed-ups.",
            mismatches,
        ),
        ("Disturbed by the host", "The client waited for a processor: left out of speed-ups.", disturbed),
        (
            "Different object or server",
            "Compared with most downloads of their measurement run. Flagged only: they stay in speed-ups.",
            elsewhere,
        ),
        ("Void", "Their measurement run was disturbed or interrupted, and repeated completely.", voids),
    ]
    return [(title, words, rows[:_MAX_LISTED], max(0, len(rows) - _MAX_LISTED)) for title, words, rows in found]


def _place(d: Download) -> tuple[str, str, str, str]:
    return d.vantage, str(d.iteration), d.domain, d.configuration


def excluded_cells(rows: Sequence[SpeedupRow]) -> list[list[str]]:
    """Heading and rows: for each comparison the measurement runs without a pair, by reason; empty if there are none."""
    reasons = sorted({reason for row in rows for reason in row.excluded})
    cells = [["comparison", "pairs", "runs without a pair", "why"]]
    for row in rows:
        why = ", ".join(f"{reason} {row.excluded[reason]}" for reason in reasons if reason in row.excluded)
        cells.append([row.comparison.name, str(row.n), str(sum(row.excluded.values())), why])
    return cells if reasons else []
