"""What may be wrong: downloads that ended badly or are left out, and expected against measured times of a lab. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from analysis.measures import tables, truth
from analysis.measures.dataset import Dataset
from analysis.measures.folders import Design
from analysis.measures.rows import SpeedupRow
from analysis.measures.selection import Selection
from core.domain import Download, Outcome, Superseded, Transport

_MAX_LISTED = 500
"""Most rows of the lists of failed, censored, mismatched and void downloads."""


def cause_table(states: Sequence[tables.ConfigurationRow]) -> tuple[list[str], list[tuple[str, list[int]]]]:
    """Configurations with downloads that are not ok, and their number for each cause and its second words."""
    names = [row.configuration for row in states if row.causes]
    by_name = {row.configuration: {**row.causes, **row.codes} for row in states}
    total = sum((Counter(counts) for counts in by_name.values()), Counter[str]())

    def rank(cause: str) -> tuple[int, str, int, str]:  # second words below their cause
        first = cause.partition(": ")[0]
        return (-total[first], first, 0 if cause == first else -total[cause], cause)

    ordered = sorted(total, key=rank)
    return names, [(cause, [by_name[name].get(cause, 0) for name in names]) for cause in ordered]


def _failure(d: Download, outcome: Outcome) -> str | None:
    return f"{words_of(d)} {d.failure_detail or ''}".strip() if d.outcome == outcome else None


def words_of(d: Download) -> str:
    """Both words on a failure, with the number that belongs to the second: `tls_error: alert 40`."""
    number = "" if d.failure_number is None else f" {d.failure_number}"
    return (d.failure or "") + ("" if d.failure_code is None else f": {d.failure_code}{number}")


def _mismatch(d: Download) -> str | None:
    if d.void_reason is not None or d.treatment_ok is not False:
        return None
    return ": ".join(filter(None, (d.treatment_reason, d.treatment_detail)))


_LISTS: tuple[tuple[str, str, Callable[[Download], str | None]], ...] = (
    ("Failed", "They have a cause and are left out of speed-ups.", lambda d: _failure(d, Outcome.FAILED)),
    (
        "Censored",
        "They hit a budget: only a lower bound of their time is known, and used as one.",
        lambda d: _failure(d, Outcome.CENSORED),
    ),
    (
        "Treatment not accepted",
        "Other options on the wire than requested, or client and capture disagree: left out of speed-ups.",
        _mismatch,
    ),
    (
        "Void to the end",
        "Their measurement run was disturbed at its last attempt, too: left out of speed-ups.",
        lambda d: d.void_reason and (d.void_detail or d.void_reason),
    ),
    (
        "Disturbed by the host",
        "The client waited for a processor: left out of speed-ups.",
        lambda d: d.host_disturbance and (d.host_disturbance_detail or d.host_disturbance),
    ),
    (
        "Different object or server",
        "Compared with most downloads of their measurement run. Flagged only: they stay in speed-ups.",
        lambda d: d.identity_detail,
    ),
)
"""Title, explanation, and why a download is in the list; None: it is not."""

Row = tuple[str, str, str, str, str, str]
"""Vantage point, iteration, domain, configuration, why; and the provider, by which the page filters."""


def lists(dataset: Dataset) -> list[tuple[str, str, list[Row], int]]:
    """(title, explanation, rows, number of rows left out) of the downloads that need an explanation."""
    downloads = [record.download for record in dataset.records]

    def row(of: Download | Superseded, why: str) -> Row:
        return of.vantage, str(of.iteration), of.domain, of.configuration, why, of.provider

    parts = [
        (title, words, [row(d, why) for d in downloads if (why := reason(d)) is not None])
        for title, words, reason in _LISTS
    ]
    voids = [row(v, v.detail or v.reason) for v in dataset.superseded]
    parts.append(
        ("Void, then repeated", "Their measurement run was disturbed or interrupted, and repeated completely.", voids)
    )
    return [(title, words, rows[:_MAX_LISTED], max(0, len(rows) - _MAX_LISTED)) for title, words, rows in parts]


def excluded_cells(rows: Sequence[SpeedupRow]) -> list[list[str]]:
    """Heading and rows: for each comparison the measurement runs without a pair, by reason; empty if there are none."""
    reasons = sorted({reason for row in rows for reason in row.excluded})
    cells = [["comparison", "pairs", "runs without a pair", "why"]]
    for row in rows:
        why = ", ".join(f"{reason} {row.excluded[reason]}" for reason in reasons if reason in row.excluded)
        cells.append([row.comparison.name, str(row.n), str(sum(row.excluded.values())), why])
    return cells if reasons else []


def expected(dataset: Dataset, selection: Selection) -> list[truth.TruthRow]:
    """Expected against measured times of all lab paths."""
    rows: list[truth.TruthRow] = []
    for index, folder in enumerate(dataset.folders):
        if folder.lab:
            downloads = [
                record.download
                for record in dataset.records
                if record.folder == index and not (selection.unlimited_only and record.near_ceiling)
            ]
            rows += truth.compare(
                folder.lab, downloads, where=str(folder.path / "lab.json"), unproven=selection.unproven
            )
    return rows


def expected_matrix(rows: Sequence[truth.TruthRow], design: Design) -> dict[str, Any] | None:
    """Paths down, configurations across; the warm-up is left out, as it only fills caches."""
    if not rows:
        return None
    names = sorted({row.configuration for row in rows if not row.warmup}, key=design.rank)
    paths: dict[int, dict[str, truth.TruthRow]] = {}
    for row in rows:
        # By identity: two campaigns may have the same path, each with its own measurements.
        paths.setdefault(id(row.path), {})[row.configuration] = row
    lines: list[dict[str, Any]] = []
    for cells in paths.values():
        tcp = [cells[name] for name in names if name in cells and cells[name].transport == Transport.TCP]
        notes = dict.fromkeys(row.note for row in tcp if row.note)
        some = next(iter(cells.values()))
        delivery = next((row.delivery_ratio for row in tcp if row.delivery_ratio is not None), None)
        size = next((row.size_bytes for row in cells.values() if row.size_bytes), None)
        lines.append(
            {
                "path": some.path,
                "size": size,
                "cells": [cells.get(name) for name in names],
                "delivery": delivery,
                "notes": "; ".join(notes),
            }
        )
    return {
        "names": names,
        "lines": lines,
        "quic": "; ".join(sorted({row.path.quic_note for row in rows if row.path.quic})),
        "delivery_range": truth.DELIVERY_RANGE,
    }


def conservation(downloads: Sequence[Download]) -> str | None:
    """Whether every packet that entered the emulator left it or was dropped as programmed."""
    counted = [
        (d.lab_sent, d.lab_received, d.lab_dropped)
        for d in downloads
        if d.lab_sent is not None and d.lab_received is not None and d.lab_dropped is not None
    ]
    if not counted:
        return None
    whole = sum(sent == received + dropped for sent, received, dropped in counted)
    return (
        f"The emulator accounts for every packet (sent = received + programmed drops) of {whole} of {len(counted)} "
        "downloads."
    )
