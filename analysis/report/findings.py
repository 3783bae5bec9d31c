"""Findings as sentences with numbers, for the head of tables and report. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from analysis.measures.client_effect import ClientEffectRow, Effect
from analysis.measures.folders import Design
from analysis.measures.rows import (
    BIN_NAMES,
    LEAST_PART,
    MINIMUM_DOMAINS,
    MINIMUM_PAIRS,
    PairShare,
    Size,
    SpeedupRow,
    Split,
    SplitBy,
    Unit,
    Verdict,
)
from analysis.measures.selection import ClientLimits, Identity
from analysis.measures.tables import ConfigurationRow, DoseRow
from analysis.measures.truth import TOLERANCE, TruthRow
from analysis.measures.verdicts import PROVIDERS_DIFFER, SIGNIFICANCE, floors_of, noise_floors
from analysis.report import render
from core.domain import Provider, Transport

_FAR = 1.1
"""How far medians are apart that are worth a sentence: a bin of Table 2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFinding:
    """One comparison in words."""

    name: str
    verdict: Verdict
    sentence: str
    """All of it."""
    adds: str
    """What the columns of Table 2 do not show: for whom, and why; empty if there is nothing."""
    why: str
    """The part of it that the first screen of a terminal has room for: splits whose parts differ."""


def findings(rows: Sequence[SpeedupRow], doses: Sequence[DoseRow] = ()) -> list[ReportFinding]:
    """One finding per row that has a verdict and pairs; `doses` are the same rows, split."""
    all_findings = []
    floors = noise_floors(rows)
    for row in rows:
        if row.n == 0 or row.verdict is None:
            continue
        is_busy = row.verdict is Verdict.HOST_BUSY
        limited = [split for split in row.splits if _tells_why(row, split)]
        parts = [_split_sentence(row, row.split)] if row.split is not None else []
        differ = [_split_sentence(row, split) for split in limited if _differs(row, split)]
        why = _busy_sentence(row) if is_busy else " ".join(parts + differ)
        parts += [_split_sentence(row, split) for split in limited]
        parts += [_dose_sentence(dose) for dose in doses if dose.comparison == row.comparison]
        parts += [_unit_sentence(row)]
        adds = " ".join(part for part in parts if part)
        own = floors_of(row, [floor for floor in floors if floor.group == row.group])
        sentences = [_verdict_sentence(row), _shares_sentence(row, own), _duration_sentence(row), adds]
        sentence = " ".join(part for part in sentences if part)
        all_findings.append(
            ReportFinding(name=row.comparison.name, verdict=row.verdict, sentence=sentence, adds=adds, why=why)
        )
    return all_findings


def _verdict_sentence(row: SpeedupRow) -> str:
    config, vs = row.comparison.config, row.comparison.vs
    typical = f"{render.median_interval(row.typical)} times as fast"
    data = f"q {render.relation(row.q)}; {_amount(row.domains, row.n)}"
    if row.verdict is Verdict.HOST_BUSY:
        remedy = "Stop other programs, or use a host with more cores."
        return f"{_busy_sentence(row)} {remedy} {config} was typically {typical} as {vs} ({data})."
    if row.verdict is Verdict.MIXED and row.split is not None:
        return f"{config} against {vs} is mixed: it depends on {_reason(row, row.split)} ({data})."
    if row.verdict is Verdict.EQUIVALENT:
        return f"{config} and {vs} are equivalent, within 2 % of each other: {config} was typically {typical} ({data})."
    if row.verdict is Verdict.UNDECIDED:
        if _hangs_on_the_unit(row):
            return (
                f"Undecided: {config} was typically {typical} as {vs} counting each provider once, and "
                f"{row.typical.over_domains:.2f} counting each domain once ({data}). It depends on the providers."
            )
        # No test of fewer is below 5 %, whatever their number of runs.
        more = "More domains or iterations" if row.domains >= LEAST_PART else "More domains"
        return f"Undecided: {config} was typically {typical} as {vs}, which may be chance ({data}). {more} may tell."
    margin = render.margin_text(row.margin)
    size = f"surely by at least {margin}" if row.size is Size.AT_LEAST else f"perhaps by less than {margin}"
    if row.size is Size.THESE_PROVIDERS:
        size = "at these providers: counted once each, their interval holds 1, so it is open for others"
    if row.typical.low is None:
        size = f"by how much is open with fewer than {MINIMUM_DOMAINS} domains"
    return f"{config} was {row.verdict} than {vs}: typically {typical}, {size} ({data})."


def _hangs_on_the_unit(row: SpeedupRow) -> bool:
    """Whether either the test over domains or the interval over providers sees a difference, and the other does not, or
    one of another sign."""
    typical = row.typical
    if typical.over_domains is None or typical.low is None or typical.high is None:
        return False
    return (row.q is not None and row.q < SIGNIFICANCE) or not typical.low <= 1.0 <= typical.high


def _busy_sentence(row: SpeedupRow) -> str:
    return (
        f"In {row.starved} of {render.count_of(row.n, 'run')} one of the two clients waited for a CPU for more than a "
        "quarter of the transfer, which slows them differently."
    )


def _reason(row: SpeedupRow, split: Split) -> str:
    return render.SPLIT_WORDS[split.by].replace("the reference", split.of or row.comparison.vs)


def _amount(domains: int, runs: int) -> str:
    return f"{render.count_of(domains, 'domain')}, {render.count_of(runs, 'run')}"


def _shares_sentence(row: SpeedupRow, floors: Sequence[SpeedupRow]) -> str:
    """How many domains gain and lose, beside what chance alone makes of that, and the median that the paper prints."""
    chance = "".join(
        f" (of the noise floor {floor.comparison.name}: {_share(floor.gain)} and {_share(floor.lose)})"
        for floor in floors
    )
    return (
        f"Of the domains, {_share(row.gain)} are at least 2 % faster and {_share(row.lose)} at least 2 % "
        f"slower{chance}; the median speed-up is {render.median_interval(row.median)}."
    )


def _share(share: PairShare) -> str:
    least = "at least " if share.is_least else ""
    amount = f"{render.percent_interval(share)} %" if share.n >= MINIMUM_PAIRS else f"{share.count} of {share.n}"
    return least + amount


def _duration_sentence(row: SpeedupRow) -> str:
    if row.handshake is None and row.transfer is None:
        return ""
    return f"Handshake: {render.number(row.handshake)}; transfer: {render.number(row.transfer)} times as fast."


def _tells_why(row: SpeedupRow, split: Split) -> bool:
    """Whether it is by limiter, has several parts, and has not been printed as what a mixed row depends on."""
    return split.by is SplitBy.LIMITER and len(split.parts) > 1 and (row.split is None or row.split.by is not split.by)


def _differs(row: SpeedupRow, split: Split) -> bool:
    """Whether its parts differ for certain, or their medians by a tenth: a path where window scaling overflows a short
    queue may hide from the test that it helps on the others."""
    medians = [part.median.value for part in split.parts if part.median.value is not None]
    is_far = len(medians) > 1 and max(medians) > _FAR * min(medians)
    return (is_far and split.of != row.comparison.vs) or (split.p is not None and split.p < SIGNIFICANCE)


def _split_sentence(row: SpeedupRow, split: Split) -> str:
    parts = [
        f"{part.name.replace('_', ' ')} {render.median_text(part.median)} ({_amount(part.domains, part.n)})"
        for part in split.parts
    ]
    sentence = f"Median by {_reason(row, split)}: {', '.join(parts)}."
    is_own = split.of == row.comparison.vs
    return f"{sentence} Not tested: what slowed {split.of} by chance tells the parts, too." if is_own else sentence


def _unit_sentence(row: SpeedupRow) -> str:
    """Whom the typical speed-up speaks of, where that is not the domains of several providers alike."""
    p = row.typical.p_providers
    differ = f"Effects may differ more between providers than between the domains of one (p {render.relation(p)})"
    providers = next((split.parts for split in row.splits if split.by is SplitBy.PROVIDER), ())
    # `other` is the name of many.
    named = [part for part in providers if part.name != Provider.OTHER]
    if row.typical.unit is Unit.PROVIDER:
        if p is not None and p >= PROVIDERS_DIFFER:
            differ = f"In another row with the reference {row.comparison.vs} effects may differ between providers"
        end = "." if len(named) == len(providers) else f", {Provider.OTHER}, the name of many, as one of them."
        return f"{differ}, so the typical speed-up and its interval count each of {len(providers)} providers once{end}"
    sentences = []
    if p is not None and p < PROVIDERS_DIFFER and row.over_providers is None:
        sentences.append(
            f"{differ}, but fewer than three have several domains, or one's speed-up has no bound, so the "
            "typical speed-up and its interval count each domain once, and the interval may be too narrow."
        )
    largest = max(named, key=lambda part: part.domains, default=None)
    if largest is not None and len(providers) > 1 and 2 * largest.domains > row.domains:
        sentences.append(
            f"Of the {render.count_of(row.domains, 'domain')}, {largest.domains} are of the provider {largest.name}: "
            "the typical speed-up and its interval are mostly that provider's."
        )
    return " ".join(sentences)


def _dose_sentence(row: DoseRow) -> str:
    parts = []
    if row.acted.n:
        parts.append(f"{render.median_interval(row.acted.median)} in {row.acted.n} with {row.words}")
    if row.idle.n:
        parts.append(f"{render.median_interval(row.idle.median)} in {row.idle.n} without")
    if row.unknown.n:
        parts.append(f"{render.median_interval(row.unknown.median)} in {row.unknown.n} for which it is unknown")
    return f"Median by dose, runs: {', '.join(parts)}." if parts else ""


def noise_sentences(rows: Sequence[SpeedupRow]) -> list[str]:
    """How much equal configurations differ."""
    noise = noise_floors(rows)
    if not noise:
        return [
            "No comparison here has the role noise_floor (two equal configurations, A/A), so it is unknown how "
            "much of a difference is noise."
        ]
    return [_noise_sentence(row) for row in noise]


def _noise_sentence(row: SpeedupRow) -> str:
    near = sum(share.count for name, share in zip(BIN_NAMES, row.bins, strict=True) if name in ("0.9-1.0", "1.0-1.1"))
    return (
        f"Noise floor: two identical configurations ({row.comparison.config} and {row.comparison.vs}) were within 10 % "
        f"of each other in {near} of {row.n} measurement runs; their median speed-up is "
        f"{render.median_interval(row.median)}. Of the domains, by chance alone, {_share(row.gain)} are at least 2 % "
        f"faster there, and {_share(row.lose)} slower: compare gain and lose of every other row with these. "
        f"{_unit_sentence(row)}"
    ).rstrip()


CLIENT_EFFECTS_TITLE = "What the client alone does: change of the time of a download"


def client_effect_sentence(rows: Sequence[ClientEffectRow]) -> str:
    """How much of a difference is the transport's, and how much the client's; empty without rows."""
    parts = [
        f"transport {render.client_change(row)} ({row.name} over {row.over}, the same program)"
        for row in rows
        if row.what is Effect.TRANSPORT
    ]
    count = sum(row.what is Effect.CLIENT for row in rows)
    parts += [
        f"client {render.client_change(row)} ({row.name}, the slowest of {count} QUIC clients, over {row.over}, "
        "the fastest)"
        for row in rows
        if row.what is Effect.RANGE
    ]
    return f"Time of a download: {'; '.join(parts)}." if parts else ""


def treatment_sentence(states: Sequence[ConfigurationRow], *, unproven: bool) -> str:
    """How many downloads have a proven treatment, and the state of the others.

    Args:
        unproven: whether unproven ones are included in Table 2.
    """
    proven, open_ = sum(row.proven for row in states), sum(row.unproven for row in states)
    late = sum(row.disturbed for row in states)
    disturbed = f" Disturbed by the host, and left out: {late}." if late else ""
    if unusable := sum(row.unusable for row in states):
        why = ", ".join(sorted({reason.replace("_", " ") for row in states for reason in row.void_reasons}))
        disturbed += f" In void measurement runs, and left out: {unusable} ({why})."
    where = "included by --unproven" if unproven else "left out of Table 2 and figures; --unproven includes them"
    return (
        f"Treatment: proven for {render.count_of(proven, 'download')}, unproven for "
        f"{open_}{f' ({where})' if open_ else ''}, not accepted for "
        f"{sum(row.mismatched for row in states)}{_reasons(states)}.{disturbed}"
    )


def _reasons(states: Sequence[ConfigurationRow]) -> str:
    """` (ECN: bleached 3; SACK: stripped 1)`: why treatments were not accepted."""
    parts = [
        f"{row.configuration}: {', '.join(f'{reason} {count}' for reason, count in row.reasons.items())}"
        for row in states
        if row.reasons
    ]
    return f" ({'; '.join(parts)})" if parts else ""


def outcome_sentence(states: Sequence[ConfigurationRow]) -> str:
    """How many of the planned downloads had which outcome."""
    planned = sum(row.planned for row in states)
    ok, failed = sum(row.ok for row in states), sum(row.failed for row in states)
    censored, void = sum(row.censored for row in states), sum(row.void for row in states)
    bound, starved = sum(row.cpu_bound for row in states), sum(row.starved for row in states)
    text = f"{ok} of {planned} planned downloads ({100 * ok / max(planned, 1):.1f} %) ended well"
    text += f"; {failed} failed, {censored} hit their budget (censored)"
    text += f". {void} more were in void measurement runs, which were repeated."
    if bound:
        text += f" In {bound} the client used more than 70 % of a core, so it may have been the limit itself."
    if starved:
        text += f" In {starved} the client waited for a CPU for more than 25 % of the transfer: the host was too busy."
    return text


def handshake_sentence(states: Sequence[ConfigurationRow]) -> str | None:
    """How many handshakes took longer than their round trips, and whose; None if no handshake could be judged."""
    judged, slow = sum(row.handshakes for row in states), sum(row.slow_handshakes for row in states)
    if not judged:
        return None
    whose = ", ".join(f"{r.configuration} {r.slow_handshakes} of {r.handshakes}" for r in states if r.slow_handshakes)
    return (
        f"Handshakes: {slow} of {judged} took longer than 1.3 times their round trips + 15 ms (QUIC 1, TCP with TLS "
        f"1.3 2, with TLS 1.2 3){f': {whose}' if whose else ''}."
    )


def truth_sentence(rows: Sequence[TruthRow]) -> str | None:
    """How well measured times on clean paths match the model; None without such paths."""
    asserted = [row for row in rows if row.within is not None]
    if not asserted:
        return None
    within = sum(row.within is True for row in asserted)
    ratios = sorted(row.ratio for row in asserted if row.ratio is not None)
    return (
        f"Expected against measured: on clean lab paths {within} of {len(asserted)} median download times are within "
        f"{100 * TOLERANCE:.0f} % of the model (measured / expected from {ratios[0]:.3f} to {ratios[-1]:.3f})."
    )


def ceiling_sentence(limits: ClientLimits, *, unlimited_only: bool) -> str:
    """How many downloads the client itself may have limited, and for how many that is not known.

    Args:
        unlimited_only: whether the former were left out of Table 2.
    """
    many = sum(limits.near.values())
    counts = ", ".join(f"{client} {count}" for client, count in limits.near.items())
    sentence = f"Client ceilings: {many} of {limits.downloads} downloads were faster than 70 % of what their client "
    sentence += "can do here"
    if many:
        sentence += f" ({counts}); " + (
            "left out by --unlimited-only" if unlimited_only else "--unlimited-only leaves them out"
        )
    if limits.doubtful:
        sentence += (
            f"; for {limits.doubtful} of them the ceiling is too low, as other programs used the CPUs when it was "
        )
        sentence += "measured"
    if not limits.unknown:
        return f"{sentence}."
    why = "; ".join(f"{', '.join(clients)}: {reason}" for reason, clients in limits.reasons.items())
    open_ = f"unknown for {limits.unknown} of {limits.downloads} ({why}); before a campaign, run "
    open_ += "upshift doctor --calibrate."
    return f"Client ceilings: {open_}" if limits.unknown == limits.downloads else f"{sentence}; {open_}"


def tcp_row_sentence(design: Design, limits: ClientLimits) -> str | None:
    """Which rows of QUIC over TCP to read where a TCP client was near its ceiling; None where none was."""
    named = {one.name: one for one in design.configurations}
    rows = {}
    for one in design.comparisons:
        config, vs = named.get(one.config), named.get(one.vs)
        if config and vs and (config.transport, vs.transport) == (Transport.QUIC, Transport.TCP):
            rows[one.name] = (config.client, vs.client)
    near = {name: tcp for name, (_, tcp) in rows.items() if tcp in limits.near}
    if not near:
        return None
    doubted = {*limits.near, *(client for clients in limits.reasons.values() for client in clients)}
    good = [name for name, clients in rows.items() if not doubted.intersection(clients)]
    advice = "none is known to be free of that; one with curl-h1 or curl-h2 may be"
    advice = f"read {', '.join(good)}" if good else advice
    clients = ", ".join(dict.fromkeys(near.values()))
    return f"QUIC over TCP: {clients} was near its ceiling in {', '.join(near)}, which may measure it; {advice}."


def identity_sentences(counted: Identity, *, only_hits: bool) -> list[str]:
    """Whether measurement runs got the same object from the same server, and which of them --only-hits keeps."""
    if not counted.runs:
        sentence = (
            "Only cache hits (--only-hits): no cache state is known here; `upshift inspect` reads it from the journals."
        )
        return [sentence] if only_hits else []
    counts = ", ".join(f"{flag} {count}" for flag, count in counted.by_flag.items())
    sentences = [
        f"Same object, same server: {counted.runs - counted.flagged} of {counted.runs} measurement runs have no flag"
        + (f"; flagged runs: {counts}." if counts else ".")
    ]
    if only_hits:
        failed = counted.runs - counted.hit_runs - counted.missed_runs - counted.unknown_runs
        sentences.append(
            f"Only cache hits (--only-hits): {counted.hit_runs} measurement runs are kept; left out are "
            f"{counted.missed_runs} with a cache miss after the warm-up and {counted.unknown_runs} with an unknown "
            f"cache state{f'; in {failed} every download failed' if failed else ''}."
        )
    return sentences


def method_sentences(rows: Sequence[SpeedupRow]) -> list[str]:
    """What intervals, q-values and verdicts mean, and of which population they speak."""
    effects = [row for row in rows if row.verdict is not None]
    sentences = [
        "Intervals are 95 %. Their unit is the domain; that of the typical speed-up the provider where effects may "
        f"differ between providers ({Provider.OTHER} counts as one), in a row or in another one with its reference. "
        "They speak of targets like these, of these providers and from these vantage points, not of the Internet."
    ]
    if effects:
        sentences.append(
            "Typical: Hodges and Lehmann's estimate, of providers the mean of theirs. Gain, lose: domains that are at "
            "least 2 % faster or slower. q: false discovery rate (Benjamini and Hochberg) over all tests of the table: "
            f"the direction of each declared effect ({len(effects)}; Wilcoxon's signed-rank test of the medians of "
            "domains), and whether parts of the runs differ; a mixed row shows that of its parts."
        )
        sentences.append(
            f"Faster or slower: q is below {SIGNIFICANCE:g}. At least: the interval of the typical speed-up lies "
            f"beyond the margin{_margins(effects)}, 2 % or the noise floor's if that is larger; perhaps less: it does "
            "not; at these providers: it counts each provider once and holds 1. Mixed: some gain (or "
            "lose) and others do not, as the named split shows. Equivalent: two one-sided tests "
            "show medians and ranks within 2 % of 1. Host too busy: the clients differ, and in more than a tenth of "
            "the runs one of them waited for a CPU for more than a quarter of the transfer. Else undecided: more data "
            "may tell."
        )
    return sentences


def _margins(rows: Sequence[SpeedupRow]) -> str:
    """` (2.0 to 3.1 %)`."""
    known = sorted(
        {f"{100 * (row.margin - 1):.1f}" for row in rows if row.margin and math.isfinite(row.margin)}, key=float
    )
    return f" ({' to '.join(dict.fromkeys((known[0], known[-1])))} %)" if known else ""
