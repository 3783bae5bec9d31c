"""Tables as text: cells for the terminal and the page, Markdown and LaTeX. Shares are per cent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from analysis.captures.limiter import Limiter
from analysis.measures.client_effect import ClientEffectRow, Effect
from analysis.measures.limiters import LimiterRow
from analysis.measures.rows import (
    BIN_NAMES,
    LARGER_CLUSTERS,
    MINIMUM_DOMAINS,
    MINIMUM_PAIRS,
    Median,
    Metric,
    PairShare,
    Size,
    SpeedupRow,
    SplitBy,
    Typical,
)
from analysis.measures.tables import ConfigurationRow, DoseRow, Table1Row, provider_rank, transport_rank
from core.domain import Role
from core.untrusted import plain

Cells = list[list[str]]

METRIC_WORDS = {
    Metric.TIME: "time(reference) / time(configuration), from connecting to the last body byte",
    Metric.THROUGHPUT: "mean throughput(configuration) / mean throughput(reference)",
}

SPLIT_WORDS = {
    SplitBy.LIMITER: "what limited the reference",
    SplitBy.DOSE: "whether an option took effect",
    SplitBy.PROVIDER: "the provider",
    SplitBy.VANTAGE: "the vantage point",
}


def percent(share: PairShare) -> str:
    """`83` per cent; the count, `3/8`, of fewer than `MINIMUM_PAIRS` pairs; `–` without pairs."""
    if share.share is None:
        return "–"
    return f"{share.count}/{share.n}" if share.n < MINIMUM_PAIRS else f"{100 * share.share:.0f}"


def share_of_runs(share: PairShare) -> str:
    """`83 [71–92] % of 54 runs`, or `3 of 8 runs`."""
    runs = "run" if share.n == 1 else "runs"
    if share.n < MINIMUM_PAIRS:
        return f"{share.count} of {share.n} {runs}"
    return f"{percent_interval(share)} % of {share.n} {runs}"


def percent_interval(share: PairShare) -> str:
    """`83 [71–92]`, without the interval if there is none."""
    if share.low is None or share.high is None:
        return percent(share)
    return f"{percent(share)} [{100 * share.low:.0f}–{100 * share.high:.0f}]"


def median_text(median: Median | Typical) -> str:
    """`1.42`; `>2.10` or `<0.61` if censored downloads leave only a bound."""
    if median.value is not None:
        return "∞" if math.isinf(median.value) else f"{median.value:.2f}"
    if median.least is None or median.most is None:
        return "–"
    if math.isinf(median.most):
        return f">{median.least:.2f}" if median.least else "?"
    least, most = f"{median.least:.2f}", f"{median.most:.2f}"
    return (least if least == most else f"{least}…{most}") if median.least else f"<{most}"


def median_interval(median: Median | Typical) -> str:
    """`1.42 [1.20–1.70]`, without the interval if there is none."""
    if median.low is None or median.high is None:
        return median_text(median)
    high = "∞" if math.isinf(median.high) else f"{median.high:.2f}"
    return f"{median_text(median)} [{median.low:.2f}–{high}]"


def chance_text(value: float | None) -> str:
    """A p- or q-value: `0.21`, `0.034`, `<0.001`; `–` if there is none."""
    if value is None:
        return "–"
    return "<0.001" if value < 0.001 else f"{value:.3f}" if value < 0.1 else f"{value:.2f}"


def relation(value: float | None) -> str:
    """A p- or q-value after its letter: `= 0.034` or `< 0.001`."""
    text = chance_text(value)
    return f"< {text[1:]}" if text.startswith("<") else f"= {text}"


def table1_wide(rows: Sequence[Table1Row]) -> Cells:
    """Heading and rows: vantage point and transport down, providers across, with sums."""
    providers = sorted({row.provider for row in rows}, key=provider_rank)
    cells = [["vantage", "transport", *providers, "all ok", "of", "ok %", "failed", "censored"]]
    lines = sorted({(row.vantage, row.transport) for row in rows}, key=lambda k: (k[0], transport_rank(k[1])))
    groups = [(v, t, [r for r in rows if (r.vantage, r.transport) == (v, t)]) for v, t in lines]
    if len({v for v, _ in lines}) > 1:
        for transport in sorted({row.transport for row in rows}, key=transport_rank):
            groups.append(("all", transport, [row for row in rows if row.transport == transport]))
    for vantage, transport, members in groups:
        by_provider = [sum(r.ok for r in members if r.provider == p) for p in providers]
        ok, planned = sum(r.ok for r in members), sum(r.planned for r in members)
        failed, censored = sum(r.failed for r in members), sum(r.censored for r in members)
        tail = [ok, planned, f"{100 * ok / planned:.1f}", failed, censored]
        cells.append([vantage, transport.upper(), *map(str, by_provider), *map(str, tail)])
    return cells


def table1_long(rows: Sequence[Table1Row]) -> Cells:
    """Heading and rows: one row per vantage point, transport and provider, for a narrow terminal."""
    cells = [["vantage", "transport", "provider", "ok", "of", "ok %", "failed", "censored"]]
    for row in rows:
        numbers = (row.ok, row.planned, f"{100 * row.ok_share:.1f}", row.failed, row.censored)
        cells.append([row.vantage, row.transport.upper(), row.provider, *map(str, numbers)])
    return cells


def configuration_cells(rows: Sequence[ConfigurationRow]) -> Cells:
    """Heading and rows of the table of configurations."""
    heading = ["configuration", "ok", "of", "failed", "censored", "disturbed", "mismatch", "void", "unproven"]
    cells = [[*heading, "CPU-bound", "starved", "near ceiling", "repeated %", "why"]]
    for row in rows:
        void = {f"void: {reason.replace('_', ' ')}": count for reason, count in row.void_reasons.items()}
        why = ", ".join([*causes_in_words(row), *(f"{cause} {count}" for cause, count in void.items())])
        ends = (row.ok, row.planned, row.failed, row.censored)
        numbers = (*ends, row.disturbed, row.mismatched, row.unusable, row.unproven)
        limits = [
            "?" if unknown and not count else str(count)
            for count, unknown in (
                (row.cpu_bound, row.cpu_unknown),
                (row.starved, row.cpu_unknown),
                (row.near_ceiling, row.ceiling_unknown),
            )
        ]
        cells.append([row.configuration, *map(str, numbers), *limits, f"{100 * row.void_share:.1f}", why])
    return cells


def causes_in_words(row: Table1Row | ConfigurationRow) -> list[str]:
    """`connection_reset 3 (in_body 2, in_tls 1)`: each cause with its failure codes."""
    causes = []
    for cause, count in row.causes.items():
        words = [
            f"{key.partition(': ')[2]} {number}" for key, number in row.codes.items() if key.startswith(f"{cause}: ")
        ]
        causes.append(f"{cause} {count}" + (f" ({', '.join(words)})" if words else ""))
    return causes


def verdict_words(row: SpeedupRow) -> str:
    """`faster, at least 2 %`, `slower, perhaps less than 2 %`, `faster, at these providers`, `mixed by limiter`,
    `equivalent`; `–`: none."""
    if row.verdict is None:
        return "–"
    if row.split is not None:
        return f"{row.verdict} by {row.split.by}"
    if row.size is None:
        return row.verdict
    if row.size is Size.THESE_PROVIDERS:
        return f"{row.verdict}, at these providers"
    size = "at least" if row.size is Size.AT_LEAST else "perhaps less than"
    return f"{row.verdict}, {size} {margin_text(row.margin)}"


def margin_text(margin: float | None) -> str:
    """`2 %`, `3.1 %`, `150 %`; a noise floor of which only a bound is known has none."""
    return f"{round(100 * (margin - 1), 1):g} %" if margin and math.isfinite(margin) else "the noise floor"


def count_of(number: int, thing: str) -> str:
    """`1 run`, `48 runs`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def table2_cells(rows: Sequence[SpeedupRow], *, detail: int = 5) -> Cells:
    """Heading and rows; verdict, typical speed-up, domains and runs always.

    Args:
        detail: 5 is everything; 4: no intervals of shares and no p; 3: intervals of the domains' shares, no bins; 2: no
            shares of runs; 1: neither medians nor parts of the download; 0: no shares, no q.
    """
    runs = percent_interval if detail == 5 else percent
    share = percent_interval if detail in (5, 3) else percent
    bins = BIN_NAMES if detail > 3 else ()
    open_ended = detail > 2 and any(row.undecided.count or row.tie.count for row in rows)
    by_part = detail > 1 and any(row.handshake is not None for row in rows)
    has_differences = detail > 3 and any(row.differs_in for row in rows)
    cells = [["comparison", *(["differs in"] if has_differences else []), "verdict", "typical"]]
    cells[0] += ["median"] if detail > 1 else []
    cells[0] += ["gain %", "lose %"] if detail else []
    cells[0] += (
        ["faster %", "slower %", *(["equal %", "undecided %"] if open_ended else []), *bins] if detail > 2 else []
    )
    cells[0] += ["handshake", "transfer"] if by_part else []
    cells[0] += [*(["p"] if detail == 5 else []), *(["q"] if detail else []), "domains", "runs"]
    for row in rows:
        line = [row.comparison.name, *([row.differs_in or "–"] if has_differences else [])]
        line += [verdict_words(row), median_interval(row.typical)]
        line += [median_text(row.median)] if detail > 1 else []
        line += [of_domains(row, row.gain, share), of_domains(row, row.lose, share)] if detail else []
        if detail > 2:
            line += [runs(row.faster), runs(row.slower)]
            line += [percent(row.tie), percent(row.undecided)] if open_ended else []
            line += [percent(share) for share in row.bins] if bins else []
        line += [number(row.handshake), number(row.transfer)] if by_part else []
        line += [chance_text(row.p_wilcoxon)] if detail == 5 else []
        line += [chance_text(row.q)] if detail else []
        cells.append([*line, str(row.domains), str(row.n)])
    return cells


def of_domains(row: SpeedupRow, share: PairShare, form: Callable[[PairShare], str] = percent) -> str:
    """A share of domains that gain or lose; in brackets for two equal configurations, which differ by chance alone."""
    text = or_more(share, form)
    return f"({text})" if row.comparison.role is Role.NOISE_FLOOR else text


def or_more(share: PairShare, form: Callable[[PairShare], str] = percent) -> str:
    """As by `form`; `≥50` where others may be part of it, too, as censored downloads leave only bounds of them."""
    return ("≥" if share.is_least else "") + form(share)


def number(value: float | None, digits: int = 2) -> str:
    """`2.00`; `–` if it is unknown."""
    return "–" if value is None else f"{value:.{digits}f}"


def by_limiter_cells(rows: Sequence[SpeedupRow]) -> Cells:
    """Heading and rows: the median speed-up of the runs in which the same limited the reference's twin (without one
    the reference itself, which is not tested), and their number."""
    splits = [(row, split) for row in rows for split in row.splits if split.by is SplitBy.LIMITER and row.verdict]
    present = {part.name for _, split in splits for part in split.parts}
    shown = [name for name in Limiter if name in present]
    cells = [["comparison", "reference's twin", *(name.value.replace("_", " ") for name in shown)]]
    for row, split in splits:
        parts = {part.name: f"{median_text(part.median)} ({part.n})" for part in split.parts}
        vs = row.comparison.vs
        twin = f"none ({vs}, not tested)" if split.of in (None, vs) else split.of
        cells.append([row.comparison.name, twin, *(parts.get(name, "–") for name in shown)])
    return cells if shown else []


TABLE2_DETAILS = (5, 4, 3, 2, 1, 0)
"""Forms of Table 2, the widest first."""


def evidence_cells(rows: Sequence[SpeedupRow]) -> Cells:
    """Heading and rows: all tests of Table 2, and how it changes with other units and with other runs."""
    cells = [["comparison", "domains", "Wilcoxon p", "all pairs p", "sign p", "q", "q (BY)"]]
    cells[0] += ["verdict", *(f"by {name}" for name in LARGER_CLUSTERS), "as planned", "failures", "McNemar p"]
    for row in rows:
        line = [row.comparison.name, str(row.domains)]
        line += map(chance_text, (row.p_wilcoxon, row.p_clusters, row.p_sign, row.q_bh, row.q_by))
        line += [verdict_words(row), *(_larger_text(row, name) for name in LARGER_CLUSTERS)]
        line += [f"{median_interval(row.intention.median)} of {row.intention.n}"]
        line += [f"{row.failures.config_only}:{row.failures.vs_only}", chance_text(row.failures.p)]
        cells.append(line)
    return cells


def _larger_text(row: SpeedupRow, name: str) -> str:
    """`1.10–1.52 (6)`, the interval and the number of clusters; `– (2)` with too few, `–` if they are unknown."""
    clusters = row.larger.get(name)
    if clusters is None:
        return "–"
    ends = "–" if clusters.low is None or clusters.high is None else f"{clusters.low:.2f}–{clusters.high:.2f}"
    return f"{ends} ({clusters.clusters})"


def dose_cells(rows: Sequence[DoseRow]) -> Cells:
    """Heading and rows: the runs in which the options took effect, and those in which they did not."""
    cells = [["comparison", "dose", "n", "faster %", "median", "n without", "faster %", "median", "n unknown"]]
    for row in rows:
        line = [row.comparison.name, row.words]
        for part in (row.acted, row.idle):
            line += [str(part.n), percent(part.faster), median_interval(part.median)]
        cells.append([*line, str(row.unknown.n)])
    return cells


def change_text(median: Median) -> str:
    """A ratio of times as a change: `+4.2 % [+3.1, +5.0]`, without the interval if there is none; `> +354.5 %` if
    censored downloads leave only a bound; `–` if unknown."""
    if median.value is None:
        return _bound_text(median.least, median.most)
    if math.isinf(median.value):
        return "–"
    ends = [f"{100 * (end - 1):+.1f}" for end in (median.low, median.high) if end is not None and math.isfinite(end)]
    return f"{100 * (median.value - 1):+.1f} %" + (f" [{', '.join(ends)}]" if len(ends) == 2 else "")


def _bound_text(least: float | None, most: float | None) -> str:
    known = {sign: 100 * (end - 1) for sign, end in ((">", least), ("<", most)) if end and math.isfinite(end)}
    return ", ".join(f"{sign} {end:+.1f} %" for sign, end in known.items()) or "–"


def client_change(row: ClientEffectRow) -> str:
    """`+4.2 % [+3.1, +5.0]`, and whether it may be the host's."""
    return change_text(row.median) + (", host too busy" if row.is_busy else "")


def client_effect_cells(rows: Sequence[ClientEffectRow]) -> Cells:
    """Heading and rows: how much longer a download took, by what differs."""
    cells = [["what differs", "time of", "over that of", "n", "domains", "change of the time"]]
    for row in rows:
        over = "the run's QUIC clients (median)" if row.what is Effect.CLIENT else row.over
        what = row.what.value.replace("_", " ")
        cells.append([what, row.name, over, str(row.n), str(row.domains), client_change(row)])
    return cells


def limiter_cells(rows: Sequence[LimiterRow]) -> Cells:
    """Heading and rows: per cent of the downloads, without the limiters that no row has."""
    shown = [name for name in Limiter if any(row.downloads[name] for row in rows)]
    cells = [["configuration", "provider", "n", *(f"{name.value.replace('_', ' ')} %" for name in shown)]]
    for row in rows:
        shares = [f"{100 * row.downloads[name]:.0f}" if row.n else "–" for name in shown]
        cells.append([row.configuration, row.provider, str(row.n), *shares])
    return cells


def table2_notes(rows: Sequence[SpeedupRow]) -> list[str]:
    """Notes that explain these rows."""
    notes = []
    if any(0 < row.n < MINIMUM_PAIRS for row in rows):
        notes.append(f"Counts (3/8: 3 of 8) instead of percentages where n is below {MINIMUM_PAIRS}.")
    few = sorted({row.domains for row in rows if 0 < row.domains < MINIMUM_DOMAINS})
    if few:
        notes.append(f"No interval if n comes from fewer than {MINIMUM_DOMAINS} domains (here: {few[0]} and more).")
    if any(row.bounds for row in rows):
        notes.append(
            f"A download was censored, so only a bound of these pairs is known: {_per_row(rows, lambda r: r.bounds)}; "
            f"of these neither faster nor slower: {_per_row(rows, lambda r: r.undecided.count)}; "
            f"in no bin: {_per_row(rows, lambda r: r.bin_undecided.count)}."
        )
    if any(row.comparison.role is Role.NOISE_FLOOR and row.n for row in rows):
        notes.append(
            "In brackets: two equal configurations, of which so many domains gain or lose by chance alone; compare "
            "the other rows with that."
        )
    reasons: dict[str, list[str]] = {}
    for row in rows:
        for reason, count in row.excluded.items():
            reasons.setdefault(f"{reason} ({count})", []).append(row.comparison.name)
    if reasons:
        words = "; ".join(f"{reason}: {', '.join(names)}" for reason, names in reasons.items())
        notes.append(f"Measurement runs without a pair: {words}.")
    return notes


def _per_row(rows: Iterable[SpeedupRow], count: Callable[[SpeedupRow], int]) -> str:
    return ", ".join(f"{row.comparison.name} {count(row)}" for row in rows if count(row)) or "none"


def escape_markdown(text: str) -> str:
    """Escapes text that would end a cell or start HTML."""
    safe = plain(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return safe.replace("\\", "\\\\").replace("|", "\\|")


def markdown(cells: Cells) -> str:
    """A Markdown table; the first row is the heading."""

    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(escape_markdown(cell) for cell in cells) + " |\n"

    rule = " | ".join("---:" if index else "---" for index in range(len(cells[0])))
    return line(cells[0]) + f"| {rule} |\n" + "".join(line(row) for row in cells[1:])


_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"} | {
    character: f"\\{character}" for character in "&%$#_{}"
}
_LATEX |= {"<": r"\textless{}", ">": r"\textgreater{}", "≥": r"$\geq$", "∞": r"$\infty$", "…": r"\ldots{}", "–": "--"}


def escape_latex(text: str) -> str:
    """Escapes text that would start a command or a comment, or end a cell."""
    return "".join(_LATEX.get(character, character) for character in plain(text))


def latex(cells: Cells) -> str:
    """A LaTeX table (booktabs); the first row is the heading."""
    lines = [" & ".join(escape_latex(cell) for cell in line) + r" \\" for line in cells]
    columns = "l" + "r" * (len(cells[0]) - 1)
    body = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", lines[0], r"\midrule", *lines[1:]]
    return "\n".join([*body, r"\bottomrule", r"\end{tabular}", ""])
