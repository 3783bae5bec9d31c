"""The report as one HTML file: no network access, no third-party scripts, every string escaped.

Strings in a campaign are untrusted (domains, headers, error texts). The template escapes all of them; only our style
sheet, our script, and matplotlib's drawings without their comments are inserted as mark-up. As a second defence, the
page's content security policy allows our script by its hash, and nothing external.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

import core
from analysis.captures.limiter import Limiter
from analysis.measures import ceilings, client_effect, speedup, tables
from analysis.measures.costs import THROUGHPUT_KPI
from analysis.measures.dataset import Dataset
from analysis.measures.folders import writing
from analysis.measures.pairs import Samples
from analysis.measures.results import Results, results
from analysis.measures.rows import BIN_EDGES, BIN_NAMES, Grouping, Metric, PairShare, SpeedupRow
from analysis.measures.selection import DEFAULT, Selection, client_limits, identity
from analysis.measures.verdicts import judge
from analysis.report import campaign, checks, figures, findings, plots, points, records, render, series, targets
from core.domain import Role
from core.files import disk, fixed_rates
from core.untrusted import plain

SCRIPTS = ("plot.js", "explore.js", "series.js", "report.js")
"""Files of the page's script, in order."""
_PAGE = "report.html.j2"
_STYLE = "report.css"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """The user's choices."""

    metric: Metric = Metric.TIME
    selection: Selection = DEFAULT
    """Which downloads enter speed-ups."""
    targets: int = 200
    """Targets shown in detail."""


def write(
    dataset: Dataset, path: Path, options: ReportOptions | None = None, made: tuple[Results, Samples] | None = None
) -> plots.FirstScreen:
    """Writes the report atomically; returns its first screen for the terminal.

    Args:
        made: the tables by these options and without groups, where they have been made.
    """
    context = _context(dataset, options or ReportOptions(), made)
    html = _html(context)
    with writing(path.parent):
        disk.write_text(path, html)
    return plots.FirstScreen(question=context["question"], forest=context["forest"], noise=tuple(context["noise"]))


def build(dataset: Dataset, options: ReportOptions) -> str:
    """The report as HTML."""
    return _html(_context(dataset, options))


def _html(context: dict[str, Any]) -> str:
    template, parts = _template()
    return template.render(**context, **_CONSTANTS, **parts)


@functools.cache
def _template() -> tuple[jinja2.Template, Mapping[str, str]]:
    """The page, compiled once for all reports of a process, with its style, its script and the script's hash."""
    folder = resources.files("analysis.report") / "templates"
    sources = {name: (folder / name).read_text(encoding="utf-8") for name in (_PAGE, _STYLE, *SCRIPTS)}
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
        "median_text": render.median_text,
        "chance": render.chance_text,
        "of_domains": render.of_domains,
        "count_of": render.count_of,
        "words": render.verdict_words,
        "heat": heat,
        "plain": plain,
    }
    script = "".join(sources[name] for name in SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {"style": Markup(sources[_STYLE]), "script": Markup(script), "script_hash": digest}  # noqa: S704
    return environment.get_template(_PAGE), parts


def heat(share: PairShare) -> str:
    """How dark a cell is, 0 to 0.6: the square root keeps small shares visible and dark ones readable."""
    return f"{0.6 * (share.share or 0.0) ** 0.5:.3f}"


def _context(dataset: Dataset, options: ReportOptions, made: tuple[Results, Samples] | None = None) -> dict[str, Any]:
    computed, samples = made or results(dataset, metric=options.metric, selection=options.selection)
    main, states = computed.table2, computed.configurations
    known = checks.expected(dataset, options.selection)
    shown, drawn = _targets(dataset, options)
    pairs = points.points(dataset, samples)
    drawings = figures.plan(dataset, selection=options.selection)
    csv = {name: table.csv(computed.rows(name)) for name, table in records.FLAT.items()}
    if sum(map(len, drawings[0].lines.values())) <= figures.MOST_ROWS:
        csv["figures"] = records.csv_text(*figures.data_rows(dataset, drawings[0]))
    sentences = [
        findings.outcome_sentence(states),
        findings.handshake_sentence(states),
        findings.truth_sentence(known),
        *_selection_sentences(dataset, options.selection),
        campaign.order_sentence(computed.order),
        *findings.method_sentences(main),
        *dataset.notes,
    ]
    return {
        **_campaign(dataset),
        **shown,
        **_client_effects(dataset, samples, computed),
        "treatment": findings.treatment_sentence(states, unproven=options.selection.unproven),
        "forest": plots.forest(main, findings.findings(main, computed.dose)),
        "stopping": campaign.stopping_sentences(computed.stopping),
        "stopping_cells": campaign.stopping_cells(computed.stopping),
        "order_cells": campaign.order_cells(computed.order),
        "sentences": [sentence for sentence in sentences if sentence],
        "data": _shown(pairs.document | {"series": drawn}) | {"csv": csv},
        "points_left_out": pairs.runs_left_out,
        "points_every": pairs.every,
        "parts": points.PARTS,
        "part_lines": pairs.part_lines,
        "metric": render.METRIC_WORDS[options.metric],
        **_table2(main),
        "dose": render.dose_cells(computed.dose) if computed.dose else None,
        "limiters": render.limiter_cells(computed.limiters) if computed.limiters else None,
        "limiter_bars": plots.bars(computed.limiters),
        "table2_more": list(_more_tables(dataset, options, samples)),
        "table1": render.table1_wide(computed.table1),
        "states": render.configuration_cells(states),
        "causes": checks.cause_table(states),
        "truth": checks.expected_matrix(known, dataset.design),
        "figures": _drawings(drawings),
        "drawn_downloads": f"{figures.members_sentence(options.selection)} {figures.APART}",
        "has_figure_data": "figures" in csv,
    }


def _table2(rows: Sequence[SpeedupRow]) -> dict[str, Any]:
    """Table 2, and what stands beside it."""
    return {
        "table2": rows,
        "table2_notes": render.table2_notes(rows),
        "noise": findings.noise_sentences(rows),
        "evidence": render.evidence_cells(rows),
        "by_limiter": render.by_limiter_cells(rows),
        "excluded": checks.excluded_cells(rows),
    }


def _client_effects(dataset: Dataset, samples: Samples, computed: Results) -> dict[str, Any]:
    """What clients do, and how QUIC compares with TCP by each of them."""
    rows, table2 = computed.client_effects, computed.table2
    over_tcp = client_effect.against_tcp(dataset.design) if rows else []
    declared = {(row.comparison.config, row.comparison.vs) for row in table2}
    others = speedup.speedup_rows({"": samples}, [one for one in over_tcp if (one.config, one.vs) not in declared])
    # Beside those of Table 2, whose units they share; a row that is there has the same numbers and word here.
    judged = judge([*table2, *others])
    compared = {(row.comparison.config, row.comparison.vs): row for row in [*judged, *table2]}
    return {
        "client_effects": render.client_effect_cells(rows) if rows else None,
        "client_effect_sentence": findings.client_effect_sentence(rows),
        "client_forest": plots.forest([compared[one.config, one.vs] for one in over_tcp], []),
        "client_forest_over": over_tcp[0].vs if over_tcp else "",
    }


_CONSTANTS = {
    "max_points": f"{points.MAX_POINTS:,}",
    "bins": BIN_NAMES,
    "slow_bins": BIN_EDGES.index(1.0) + 1,  # the bins below 1, which come first
    "noise_floor": Role.NOISE_FLOOR,
    "fixed_rate_words": (len(fixed_rates.WORDS), f"{fixed_rates.TITLE}. {fixed_rates.LEGEND}"),
    "limiter_order": list(Limiter),
    "max_series": f"{series.MAX_DOWNLOADS:,}",
    "version": core.__version__,
}


def _campaign(dataset: Dataset) -> dict[str, Any]:
    """What was measured, where, and what was found there, whatever is asked about it."""
    servers, servers_left_out = campaign.server_cells(dataset)
    return {
        "title": campaign.title(dataset),
        "question": campaign.question(dataset),
        "names": campaign.names(dataset.design),
        "facts": campaign.facts(dataset),
        "configurations": dataset.design.cells(),
        "lists": checks.lists(dataset),
        "servers": servers,
        "servers_left_out": servers_left_out,
        "conservation": checks.conservation(dataset),
        "environments": [(str(f.path), _environment(f.environment)) for f in dataset.folders if f.environment],
        "compositions": [
            (campaign.composition_cells(f.composition), campaign.composition_sentence(f.composition))
            for f in dataset.folders
            if f.composition
        ],
        "fixed_rates_of_hosts": dict.fromkeys(
            (name, tuple(map(tuple, cells)))
            for folder in dataset.folders
            for name, cells in ceilings.fixed_rate_tables(folder.environment)
        ),
    }


def _targets(dataset: Dataset, options: ReportOptions) -> tuple[dict[str, Any], list[Any]]:
    """The targets that are shown in detail, and their downloads' series."""
    pages, left_out = targets.views(dataset, limit=options.targets)
    drawn, undrawn = series.documents({run.run: run.records for page in pages for run in page.runs}, dataset.folders)
    shown = {
        "targets": pages,
        "targets_left_out": left_out,
        "series": {run: index for index, run in enumerate(drawn)},
        "series_left_out": undrawn,
    }
    return shown, list(drawn.values())


def _selection_sentences(dataset: Dataset, selection: Selection) -> list[str | None]:
    """What --unlimited-only and --only-hits leave out, or would."""
    limits = client_limits(dataset.downloads)
    return [
        findings.ceiling_sentence(limits, unlimited_only=selection.unlimited_only),
        findings.tcp_row_sentence(dataset.design, limits),
        *findings.identity_sentences(identity(dataset.downloads), only_hits=selection.only_hits),
    ]


def _drawings(planned: Sequence[figures.Figure]) -> list[tuple[str, Markup]]:
    """Title and SVG of each figure: our own drawings, with labels as paths."""
    return [(figure.title, Markup(figures.inline_svg(figure))) for figure in planned]  # noqa: S704


def _shown(value: Any) -> Any:
    """The same data with control characters made visible in all strings."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, Mapping):
        return {plain(str(key)): _shown(item) for key, item in value.items()}
    return [_shown(item) for item in value] if isinstance(value, (list, tuple)) else value


def _more_tables(dataset: Dataset, options: ReportOptions, samples: Samples) -> Iterator[tuple[str, list[SpeedupRow]]]:
    """Other versions of Table 2: the other metric, then per vantage point and provider.

    Args:
        samples: those of the chosen metric.
    """
    other = Metric.THROUGHPUT if options.metric is Metric.TIME else Metric.TIME
    if other is Metric.TIME or THROUGHPUT_KPI in dataset.kpi_units:
        rows = tables.table2(dataset, metric=other, selection=options.selection)
        yield f"The other metric: {render.METRIC_WORDS[other]}", rows
    for by in (Grouping.VANTAGE, Grouping.PROVIDER):
        rows = tables.table2(dataset, metric=options.metric, by=by, selection=options.selection, samples=samples)
        for group in dict.fromkeys(row.group for row in rows):
            words = "Vantage point" if by is Grouping.VANTAGE else "Provider"
            yield f"{words} {group}", [row for row in rows if row.group == group]


def _environment(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and values, without the transfers of a calibration, which have a table of their own."""
    values = dict(records.flat(document, " › ", ("transfers",)))
    return [(name, records.listed(values[name])) for name in sorted(values)]
