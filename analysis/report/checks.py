"""What may be wrong: downloads that ended badly or are left out, and expected against measured times of a lab. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.measures import tables, truth
from analysis.measures.columns import Mask
from analysis.measures.dataset import Dataset
from analysis.measures.folders import Design
from analysis.measures.rows import SpeedupRow
from analysis.measures.selection import Selection
from core.domain import Download, Outcome, Superseded, Transport

_MAX_LISTED = 500
"""Most rows of the lists of failed, censored, mismatched and void downloads."""


def cause_table(states: Sequence[tables.ConfigurationRow]) -> tuple[list[str], list[tuple[str, list[int]]]]:
    """Configurations with downloads that are not ok, and their number for each cause and its failure codes."""
    names = [row.configuration for row in states if row.causes]
    by_name = {row.configuration: {**row.causes, **row.codes} for row in states}
    total = sum((Counter(counts) for counts in by_name.values()), Counter[str]())

    def rank(cause: str) -> tuple[int, str, int, str]:  # failure codes below their cause
        first = cause.partition(": ")[0]
        return (-total[first], first, 0 if cause == first else -total[cause], cause)

    ordered = sorted(total, key=rank)
    return names, [(cause, [by_name[name].get(cause, 0) for name in names]) for cause in ordered]


def _failure(d: Download) -> str:
    return f"{words_of(d)} {d.failure_detail or ''}".strip()


def words_of(d: Download) -> str:
    """Both words on a failure, with the number that belongs to the second: `tls_error: alert 40`."""
    number = "" if d.failure_number is None else f" {d.failure_number}"
    return (d.failure or "") + ("" if d.failure_code is None else f": {d.failure_code}{number}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _List:
    """Downloads that need an explanation."""

    title: str
    words: str
    members: Callable[[Dataset], Mask]
    why: Callable[[Download], str | None]


_LISTS = (
    _List(
        title="Failed",
        words="They have a cause and are left out of speed-ups.",
        members=lambda data: data.downloads.outcome.are(Outcome.FAILED),
        why=_failure,
    ),
    _List(
        title="Censored",
        words="They hit a budget, so their time is a lower bound; times of two to the same byte are compared.",
        members=lambda data: data.downloads.outcome.are(Outcome.CENSORED),
        why=_failure,
    ),
    _List(
        title="Treatment not accepted",
        words="Other options on the wire than requested, or client and capture disagree: left out of speed-ups.",
        members=lambda data: ~data.downloads.is_disturbed & (data.downloads.treatment_ok == 0),
        why=lambda d: ": ".join(filter(None, (d.treatment_reason, d.treatment_detail))),
    ),
    _List(
        title="Void to the end",
        words="Their measurement run was disturbed at its last attempt, too: left out of speed-ups.",
        members=lambda data: data.downloads.is_void,
        why=lambda d: d.void_reason and (d.void_detail or d.void_reason),
    ),
    _List(
        title="Disturbed by the host",
        words="The client waited for a processor: left out of speed-ups.",
        members=lambda data: ~data.downloads.is_void & (data.downloads.host_disturbance.codes >= 0),
        why=lambda d: d.host_disturbance and (d.host_disturbance_detail or d.host_disturbance),
    ),
    _List(
        title="Different object or server",
        words="Compared with most downloads of their measurement run. Flagged only: they stay in speed-ups.",
        members=lambda data: data.has("identity_detail"),
        why=lambda d: d.identity_detail,
    ),
)

Row = tuple[str, str, str, str, str, str]
"""Vantage point, iteration, domain, configuration, why; and the provider, by which the page filters."""


def lists(dataset: Dataset) -> list[tuple[str, str, list[Row], int]]:
    """(title, explanation, rows, number of rows left out) of the downloads that need an explanation."""

    def row(of: Download | Superseded, why: str | None) -> Row:
        return of.vantage, str(of.iteration), of.domain, of.configuration, why or "", of.provider

    members = [np.flatnonzero(one.members(dataset)) for one in _LISTS]
    shown = np.unique(np.concatenate([rows[:_MAX_LISTED] for rows in members]))
    known = dict(zip(shown.tolist(), dataset.records_of(shown), strict=True))
    parts = []
    for one, rows in zip(_LISTS, members, strict=True):
        downloads = [known[at].download for at in rows[:_MAX_LISTED].tolist()]
        listed = [row(download, one.why(download)) for download in downloads]
        parts.append((one.title, one.words, listed, len(rows) - len(listed)))
    voids = [row(v, v.detail or v.reason) for v in dataset.superseded[:_MAX_LISTED]]
    words = "Their measurement run was disturbed or interrupted, and repeated completely."
    return [*parts, ("Void, then repeated", words, voids, len(dataset.superseded) - len(voids))]


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
            where = str(folder.path / "lab.json")
            rows += truth.compare(folder.lab, dataset, folder=index, where=where, selection=selection)
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


def conservation(dataset: Dataset) -> str | None:
    """Whether every packet that entered the emulator left it or was dropped as programmed."""
    counted = whole = 0
    for _, (sent, received, dropped) in dataset.kpi_numbers("lab_sent", "lab_received", "lab_dropped"):
        counted += int(np.count_nonzero(~np.isnan(sent + received + dropped)))
        whole += int(np.count_nonzero(sent == received + dropped))
    if not counted:
        return None
    return (
        f"The emulator accounts for every packet (sent = received + programmed drops) of {whole} of {counted} "
        "downloads."
    )
