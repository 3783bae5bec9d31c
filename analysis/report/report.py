"""The report as one HTML file: no network access, no third-party scripts, every string escaped.

Strings in a campaign are untrusted (domains, headers, error texts). The template escapes all of them; only our style
sheet, our script, and matplotlib's drawings without their comments are inserted as mark-up. As a second defence, the
page's content security policy allows our script by its hash, and nothing external.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

import upshift
from analysis.measures import composition, dose, tables, truth
from analysis.measures.comparisons import Design
from analysis.measures.dataset import Dataset, Record, writing
from analysis.measures.selection import DEFAULT, Selection, client_limits, identity
from analysis.measures.speedup import BIN_EDGES, BIN_NAMES, DEFAULT_SEED, RESAMPLES, Metric, Share, SpeedupRow
from analysis.measures.tables import Grouping
from analysis.report import figures, findings, render, targets
from upshift.domain import Download, Outcome, Role, Transport
from upshift.files import store
from upshift.scrub import plain

_SLOW_BINS = BIN_EDGES.index(1.0) + 1
"""Number of bins below 1, which come first."""

_MAX_LISTED = 500
"""Most rows of the lists of failed, censored, mismatched and void downloads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The user's choices."""

    metric: Metric = Metric.TIME
    selection: Selection = DEFAULT
    """Which downloads enter speed-ups."""
    targets: int = 200
    """Targets shown in detail."""
    seed: int = DEFAULT_SEED


def write(dataset: Dataset, path: Path, options: Options | None = None) -> None:
    """Writes the report atomically."""
    html = build(dataset, options or Options())
    with writing(path.parent):
        store.write_text(path, html)


def build(dataset: Dataset, options: Options) -> str:
    """The report as HTML."""
    folder = resources.files("analysis.report") / "templates"
    sources = {
        name: (folder / name).read_text(encoding="utf-8") for name in ("report.html.j2", "report.css", "report.js")
    }
    environment = jinja2.Environment(
        loader=jinja2.DictLoader(sources),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "percent": render.percent,
        "percent_interval": render.percent_interval,
        "share_of_runs": render.share_of_runs,
        "median": render.median_interval,
        "heat": heat,
        "plain": plain,
    }
    script = sources["report.js"]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    context = _context(dataset, options)
    context |= {"style": Markup(sources["report.css"]), "script": Markup(script), "script_hash": digest}  # noqa: S704
    return environment.get_template("report.html.j2").render(**context)


def heat(share: Share) -> str:
    """How dark a cell is, 0 to 0.6: the square root keeps small shares visible and dark ones readable."""
    return f"{0.6 * (share.share or 0.0) ** 0.5:.3f}"


def _context(dataset: Dataset, options: Options) -> dict[str, Any]:
    main = tables.table2(dataset, metric=options.metric, selection=options.selection, seed=options.seed)
    doses = dose.dose_rows(dataset, metric=options.metric, selection=options.selection, seed=options.seed)
    states = tables.configurations(dataset)
    known = _truth(dataset, options)
    pages, left_out = targets.views(dataset.records, limit=options.targets)
    downloads = [record.download for record in dataset.records]
    sentences: list[str | None] = [*findings.noise_sentences(main), findings.outcome_sentence(states)]
    sentences += [findings.handshake_sentence(states), findings.truth_sentence(known)]
    limits = client_limits(dataset.records)
    sentences += [findings.ceiling_sentence(limits, unlimited_only=options.selection.unlimited_only)]
    sentences += [*findings.identity_sentences(identity(dataset.records), only_hits=options.selection.only_hits)]
    sentences += [findings.interval_note(main), *dataset.notes]
    return {
        "title": _title(downloads),
        "facts": _facts(dataset),
        "treatment": findings.treatment_sentence(states, unproven=options.selection.unproven),
        "findings": findings.findings(main, doses),
        "sentences": [sentence for sentence in sentences if sentence],
        "bins": BIN_NAMES,
        "slow_bins": _SLOW_BINS,
        "metric": render.METRIC_WORDS[options.metric],
        "noise_floor": Role.NOISE_FLOOR,
        "table2": main,
        "table2_notes": render.table2_notes(main),
        "dose": render.dose_cells(doses) if doses else None,
        "table2_more": list(_more_tables(dataset, options)),
        "configurations": dataset.design.cells(),
        "table1": render.table1_wide(tables.table1(dataset)),
        "states": render.configuration_cells(states),
        "causes": _causes(states),
        "lists": _lists(dataset),
        "truth": _truth_matrix(known, dataset.design),
        "conservation": _conservation(downloads),
        "figures": [
            # Our own drawing: labels are drawn as paths, and comments, which repeat them, are removed.
            (figure.title, Markup(re.sub(r"<!--.*?-->", "", figures.inline_svg(figure), flags=re.DOTALL)))  # noqa: S704
            for figure in figures.plan(dataset, selection=options.selection)
        ],
        "environments": [(str(f.path), list(_flatten(f.environment))) for f in dataset.folders if f.environment],
        "compositions": [
            (composition.cells(f.composition), list(composition.sentences(f.composition)))
            for f in dataset.folders
            if f.composition
        ],
        "targets": pages,
        "targets_left_out": left_out,
        "seed": options.seed,
        "resamples": RESAMPLES,
        "version": upshift.__version__,
    }


def _title(downloads: Sequence[Download]) -> str:
    names = sorted({d.campaign for d in downloads})
    return f"Upshift: {', '.join(names[:3])}{' …' if names[3:] else ''}"


def _facts(dataset: Dataset) -> list[tuple[str, str]]:
    downloads = [record.download for record in dataset.records]
    times = [d.started_at for d in downloads]
    first, last = (datetime.fromtimestamp(t, UTC).strftime("%Y-%m-%d %H:%M") for t in (min(times), max(times)))
    labs = sorted({str(folder.lab.get("topology", "?")) for folder in dataset.folders if folder.lab})
    vantages = sorted({d.vantage for d in downloads})
    facts = [
        ("Vantage points", ", ".join(vantages)),
        ("Targets", str(len({d.domain for d in downloads}))),
        ("Measurement runs", str(len({record.run for record in dataset.records}))),
        ("Downloads", str(len(downloads))),
        ("Measured", f"{first} to {last} UTC"),
    ]
    return [*facts, ("Lab topology", ", ".join(labs))] if labs else facts


def _more_tables(dataset: Dataset, options: Options) -> Iterator[tuple[str, list[SpeedupRow]]]:
    """Other versions of Table 2: the other metric, then per vantage point and provider."""
    other = Metric.THROUGHPUT if options.metric is Metric.TIME else Metric.TIME
    if other is Metric.TIME or tables.THROUGHPUT_KPI in dataset.kpi_units:
        rows = tables.table2(dataset, metric=other, selection=options.selection, seed=options.seed)
        yield f"The other metric: {render.METRIC_WORDS[other]}", rows
    for by in (Grouping.VANTAGE, Grouping.PROVIDER):
        rows = tables.table2(dataset, metric=options.metric, by=by, selection=options.selection, seed=options.seed)
        for group in dict.fromkeys(row.group for row in rows):
            words = "Vantage point" if by is Grouping.VANTAGE else "Provider"
            yield f"{words} {group}", [row for row in rows if row.group == group]


def _causes(states: Sequence[tables.ConfigurationRow]) -> tuple[list[str], list[tuple[str, list[int]]]]:
    """Configurations with downloads that are not ok, and their number for each cause."""
    names = [row.configuration for row in states if row.causes]
    total: dict[str, int] = {}
    for row in states:
        for cause, count in row.causes.items():
            total[cause] = total.get(cause, 0) + count
    by_name = {row.configuration: row.causes for row in states}
    ordered = sorted(total, key=lambda cause: (-total[cause], cause))
    return names, [(cause, [by_name[name].get(cause, 0) for name in names]) for cause in ordered]


def _lists(dataset: Dataset) -> list[tuple[str, str, list[tuple[str, ...]], int]]:
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


def _truth(dataset: Dataset, options: Options) -> list[truth.TruthRow]:
    rows: list[truth.TruthRow] = []
    for index, folder in enumerate(dataset.folders):
        if folder.lab:
            downloads = [
                record.download
                for record in dataset.records
                if record.folder == index and not (options.selection.unlimited_only and record.near_ceiling)
            ]
            rows += truth.compare(
                folder.lab, downloads, where=str(folder.path / "lab.json"), unproven=options.selection.unproven
            )
    return rows


def _truth_matrix(rows: Sequence[truth.TruthRow], design: Design) -> dict[str, Any] | None:
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
        told = [cells[name] for name in names if name in cells and cells[name].transport == Transport.TCP]
        notes = dict.fromkeys(row.note for row in told if row.note)
        some = next(iter(cells.values()))
        delivery = next((row.delivery_ratio for row in told if row.delivery_ratio is not None), None)
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


def _conservation(downloads: Sequence[Download]) -> str | None:
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


def _flatten(document: Mapping[str, Any] | None, prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in sorted((document or {}).items()):
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key} › ")
        elif isinstance(value, list):
            yield f"{prefix}{key}", ", ".join(map(str, value))
        else:
            yield f"{prefix}{key}", str(value)
