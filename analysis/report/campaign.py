"""What the report says of the campaign itself: question, places, dates, targets, servers, and its course: the order of
its downloads, and where it stopped early. Pure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analysis.measures.columns import Codes, Ints, Mask, Texts
from analysis.measures.dataset import Dataset, dates
from analysis.measures.folders import Design
from analysis.measures.order import MINIMUM_RUNS, OrderEffect, OrderEffects
from analysis.measures.stopping import StoppingOutcome
from analysis.report import render
from core.domain import Outcome, Role, Transport
from core.files.campaign_json import DescribedConfiguration
from core.sequential import Interval

MAX_SERVERS = 1_000
"""Most rows in the page."""

_NOT_KNOWN = "–"

_MOST_VANTAGES = 6

_SIGNIFICANT = 0.05
"""Level of the tests of order."""


def question(dataset: Dataset) -> str:
    """The question as a sentence: where from, to how many targets, which configuration instead of which."""
    runs = dataset.downloads.runs
    vantages = sorted(runs.vantage.present())
    domains = len(runs.domain.present())
    places = _and(vantages) if len(vantages) <= _MOST_VANTAGES else f"{len(vantages)} vantage points"
    words = f"How much faster do downloads from {domains} {'domain' if domains == 1 else 'domains'} to {places} get"
    instead = _instead(dataset.design)
    return f"{words} {'; '.join(instead)}?" if instead else f"{words}?"


def _instead(design: Design) -> list[str]:
    """`with ECN or SACK instead of BL`, one per reference."""
    groups: dict[str, list[str]] = {}
    for comparison in design.comparisons:
        if comparison.role is Role.EFFECT:
            groups.setdefault(comparison.vs, []).append(comparison.config)
    return [f"with {_and(names, 'or')} instead of {vs}" for vs, names in groups.items()]


def names(design: Design) -> list[tuple[str, str]]:
    """What each configuration is, in a few words: the usual reference in full, others by what differs from it.

    Warm-ups, which are compared for their caches only, are left out.
    """
    shown = [comparison for comparison in design.comparisons if comparison.role is not Role.CACHE]
    compared = {name for comparison in shown for name in (comparison.config, comparison.vs)}
    known = {one.name: one for one in design.configurations if one.name in compared}
    tcp = [one for one in known.values() if one.transport is Transport.TCP]
    usual = [known.get(name) for name, _ in Counter(comparison.vs for comparison in shown).most_common()]
    base = next((one for one in [*usual, *tcp] if one in tcp), None)
    return [(one.name, _words(one, base, [*known.values()])) for one in known.values()]


def _words(
    one: DescribedConfiguration, base: DescribedConfiguration | None, known: Sequence[DescribedConfiguration]
) -> str:
    if base is None or one.transport is not Transport.TCP:
        alike = [other for other in known if other.client == one.client]
        varied = [name for name in one.options if len({other.options.get(name) for other in alike}) > 1]
        return ", ".join([f"HTTP/3 over QUIC by {one.client}", *(f"{name} {one.options[name]}" for name in varied)])
    tcp = [other for other in known if other.transport is Transport.TCP]
    varied = [name for name in one.levels if len({other.levels.get(name) for other in tcp}) > 1]
    named = {"ecn": "ECN", "sack": "SACK"}
    level_of = {name: f"{named.get(name, name.replace('_', ' '))} {one.levels[name]}" for name in varied}
    if one is base:
        http = f"HTTP/{one.http}" if one.http else "HTTP"
        return ", ".join([f"{http} over TCP by {one.client}", *level_of.values()])
    changes = [words for name, words in level_of.items() if one.levels[name] != base.levels.get(name)]
    changes += [f"client {one.client}"] if one.client != base.client else []
    changes += [f"{name} {value}" for name, value in one.options.items() if base.options.get(name) != value]
    return f"{base.name} with {', '.join(changes)}" if changes else f"the same as {base.name}"


def _and(names: Sequence[str], word: str = "and") -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {word} {names[-1]}"


def title(dataset: Dataset) -> str:
    """The page's title: the names of the campaigns."""
    names = sorted(dataset.texts("campaign").present())
    return f"Upshift: {', '.join(names[:3])}{' …' if names[3:] else ''}"


def facts(dataset: Dataset) -> list[tuple[str, str]]:
    """Name and value of what was measured: where, when, and of how many."""
    runs, times = dataset.downloads.runs, dataset.started_at()
    labs = sorted({str(folder.lab.get("topology", "?")) for folder in dataset.folders if folder.lab})
    pairs = [
        ("Vantage points", ", ".join(sorted(runs.vantage.present()))),
        ("Domains", str(len(runs.domain.present()))),
        ("Measurement runs", str(len(runs))),
        ("Downloads", str(len(times))),
        ("Measured", f"{dates(times)} UTC"),
    ]
    return [*pairs, ("Lab topology", ", ".join(labs))] if labs else pairs


def composition_cells(account: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Headings, then a row per provider: targets found, eligible and chosen, and why others were dropped.

    Where an earlier set was kept, its targets are among the chosen, and not among those that were found.
    """
    providers = account.get("providers", {})
    columns = {"seen": "files found", "eligible": "eligible", "chosen": "chosen"}
    if any(share.get("kept_from_earlier_set") for share in providers.values()):
        columns = {
            "kept_from_earlier_set": "kept from an earlier set",
            "seen": "other files found",
            "eligible": "eligible",
            "chosen": "in the set",
        }
    rows = []
    for provider, share in providers.items():
        dropped = "; ".join(f"{count} {reason}" for reason, count in share.get("dropped", {}).items())
        rows.append((str(provider), *(str(share.get(name, "")) for name in columns), dropped))
    return [("provider", *columns.values(), "why"), *rows]


def composition_sentence(account: Mapping[str, Any]) -> str:
    """The requirement on targets."""
    required = {
        "tcp": "had to support ECN, SACK and window scaling",
        "quic": "had to support HTTP/3",
        "both": "had to support ECN, SACK, window scaling and HTTP/3",
        "none": "did not have to support any option",
    }
    requirement = str(account.get("require", ""))
    support = required.get(requirement, f"had to support {requirement}")
    kept = len(account.get("kept_without_support") or ())
    exceptions = f" Of the earlier set, {kept} do not meet this, and are kept." if kept else ""
    return f"Eligible targets {support}; the draw has the seed {account.get('seed', '?')}.{exceptions}"


def server_cells(dataset: Dataset) -> tuple[list[list[str]], int]:
    """Heading and rows, one per vantage point and target; and how many are left out."""
    heading = ["vantage point", "domain", "provider", "address", "HTTP", "TLS", "group"]
    heading += ["initial window", "congestion control", "handshake RTT ms", "MB"]
    d, runs = dataset.downloads, dataset.downloads.runs
    # Names are sorted, so their codes are in the same order.
    keys, server = np.unique(
        runs.vantage.codes * np.int64(len(runs.domain.names)) + runs.domain.codes, return_inverse=True
    )
    names = [
        (runs.vantage.names[at], runs.domain.names[of])
        for at, of in zip(*(side.tolist() for side in np.divmod(keys, len(runs.domain.names))), strict=True)
    ]
    count = min(len(keys), MAX_SERVERS)
    rows = np.flatnonzero(server[d.run] < count)
    columns = _server_columns(dataset, rows, server[d.run[rows]], count)
    known = _paths(dataset, names)
    cells = [heading]
    for at, name in enumerate(names[:count]):
        path = known.get(name, {})
        provider, address, http, tls, group, rtt, size = (column[at] for column in columns)
        window = path.get("initcwnd", path.get("surveyed", _NOT_KNOWN))
        control = path.get("congestion_control", _NOT_KNOWN)
        cells.append([*name, provider, address, http, tls, group, window, control, rtt, size])
    return cells, len(keys) - count


def _server_columns(dataset: Dataset, rows: Codes, server: Ints, count: int) -> list[list[str]]:
    """Provider, address, HTTP, TLS, group, RTT and MB of each server.

    Args:
        rows: the downloads of these servers.
        server: the server of each of them.
        count: how many servers there are.
    """
    d = dataset.downloads
    http, tls = dataset.texts("http_version")[rows], dataset.texts("tls_version")[rows]
    http = Texts(http.codes, tuple(name.removeprefix("HTTP/") for name in http.names))
    tls = Texts(tls.codes, tuple(name.removeprefix("TLSv") for name in tls.names))
    group, transport = dataset.texts("tls_group")[rows], d.transport[rows]
    has_group = group.select(bool)
    # Python's TLS library does not report the group before 3.14, so that of TCP is often not known.
    unknown = _any(server, transport.are(Transport.TCP) & (group.codes < 0), count)
    others = _any(server, has_group & ~transport.are(Transport.QUIC), count)
    groups = [
        f"{text} (QUIC)" if text != _NOT_KNOWN and unknown[at] and not others[at] else text
        for at, text in enumerate(_listed(server, group, count))
    ]
    rtt = dataset.kpi("handshake_rtt")[rows]
    least = np.full(count, math.inf)
    np.minimum.at(least, server, np.where(np.isnan(rtt), math.inf, rtt))
    is_ok = d.outcome[rows].are(Outcome.OK)
    sizes, size = np.unique(dataset.kpi("body_bytes")[rows[is_ok]], return_inverse=True)
    texts = Texts(size, tuple(f"{value / 1e6:.2f}" for value in sizes.tolist()))
    return [
        _listed(server, d.provider[rows], count),
        _listed(server, dataset.texts("server_ip")[rows], count),
        _listed(server, http, count),
        _listed(server, tls, count),
        groups,
        [_NOT_KNOWN if math.isinf(value) else f"{value:.1f}" for value in least.tolist()],
        _listed(server[is_ok], texts, count),
    ]


def _any(server: Ints, rows: Mask, count: int) -> Mask:
    """The servers with one of these downloads."""
    return np.bincount(server[rows], minlength=count) > 0


def _listed(server: Ints, texts: Texts, count: int) -> list[str]:
    """The different texts of each server, the most frequent first."""
    known = texts.codes >= 0
    pairs, numbers = np.unique(server[known] * len(texts.names) + texts.codes[known], return_counts=True)
    occurrences: list[Counter[str]] = [Counter() for _ in range(count)]
    for pair, number in zip(pairs.tolist(), numbers.tolist(), strict=True):
        at, code = divmod(pair, len(texts.names))
        if texts.names[code]:
            occurrences[at][texts.names[code]] += number
    # The most frequent first; of as many, in order of the alphabet.
    return [
        ", ".join(text for _, text in sorted((-n, text) for text, n in of.items())) or _NOT_KNOWN for of in occurrences
    ]


def _paths(dataset: Dataset, servers: Sequence[tuple[str, str]]) -> dict[tuple[str, str], dict[str, str]]:
    """(vantage, domain) -> the TCP server there by lab.json, and by a survey of initial windows."""
    known: dict[tuple[str, str], dict[str, str]] = {}
    for folder in dataset.folders:
        for path in (folder.lab or {}).get("paths", ()):
            texts = {name: str(path[name]) for name in ("initcwnd", "congestion_control") if path.get(name) is not None}
            if path.get("initial_window_unit") in ("bytes", "rfc3390"):
                size = path.get("initial_window")
                texts["initcwnd"] = f"{size / 1000:.4g} kB" if isinstance(size, int) else "RFC 3390"
            known[str(path.get("vantage")), str(path.get("domain"))] = texts
        for vantage, domain in servers:
            if (window := _window((folder.windows or {}).get(domain))) is not None:
                known.setdefault((vantage, domain), {})["surveyed"] = window
    return known


def _window(survey: object) -> str | None:
    """A window by `upshift survey iw`: `32`, `64 kB`, `100, paced`; None if the file does not say."""
    if not isinstance(survey, Mapping):
        return None
    segments, size = survey.get("iw_segments"), survey.get("iw_bytes")
    if isinstance(segments, int):
        text = str(segments)
    elif isinstance(size, int):
        text = f"{size / 1000:.4g} kB"
    else:
        return None
    return f"{text}, paced" if survey.get("paced") is True else text


def order_sentence(effects: OrderEffects) -> str:
    """Whether position and predecessor show in the times."""
    if effects.runs < MINIMUM_RUNS:
        return f"Order: with fewer than {MINIMUM_RUNS} measurement runs, no test of position and predecessor."
    parts = [_effect_words("position", effects.position), _effect_words("predecessor", effects.predecessor)]
    return f"Order, tested in {effects.runs} measurement runs: {'; '.join(parts)}."


def _effect_words(name: str, effect: OrderEffect) -> str:
    if effect.p is None:
        return f"the effect of the {name} cannot be told from that of the configuration, as the order hardly varies"
    finding = f"the {name} has an effect" if effect.p < _SIGNIFICANT else f"no effect of the {name} found"
    slowest = max(effect.medians, key=lambda key: effect.medians[key])
    fastest = min(effect.medians, key=lambda key: effect.medians[key])
    after = "after " if name == "predecessor" else "position "
    return (
        f"{finding} (p {render.relation(effect.p)}; median time {after}{fastest} {_percent(effect.medians[fastest])}, "
        f"{after}{slowest} {_percent(effect.medians[slowest])})"
    )


def _percent(factor: float) -> str:
    return f"{100 * (factor - 1):+.1f} %"


def order_cells(effects: OrderEffects) -> list[list[str]]:
    """Heading and rows: the median of each position and predecessor."""
    cells = [["order", "downloads", "median time against expected"]]
    for words, effect in (("position", effects.position), ("after", effects.predecessor)):
        cells += [[f"{words} {n}", str(effect.counts[n]), _percent(value)] for n, value in effect.medians.items()]
    return cells


def stopping_sentences(stoppings: Sequence[StoppingOutcome]) -> list[str]:
    """Whether a campaign with a rule to stop early did so, and which intervals hold then."""
    sentences = []
    for one in stoppings:
        rule = " and ".join(f"{quantity.value} {width:g}" for quantity, width in one.rule.items())
        runs = f"{one.recorded_runs} of {one.planned_runs} planned measurement runs"
        if one.counted_runs is not None and one.counted_runs < one.recorded_runs:
            runs += f", of which the first {one.counted_runs} of the plan count"
        if one.early:
            sentence = f"{one.vantage} stopped early, after {runs}: all intervals were within {rule} (until_ci)."
        elif one.reached:
            sentence = (
                f"{one.vantage} measured its whole plan; with its end all intervals were within {rule} (until_ci)."
            )
        else:
            wide = ", ".join(row.comparison for row in one.rows if not row.meets) or "none"
            sentence = f"{one.vantage} did not reach intervals within {rule} (until_ci) in {runs}; wider: {wide}."
        late = [row.comparison for row in one.rows if not row.meets] if one.reached else []
        if late:
            sentence += f" Without the downloads that inspection rejected, {', '.join(late)} would be wider."
        if one.counted_runs is None:
            sentence += " An older Upshift counted in the order of time: with slots or budgets its intervals may miss."
        sentences.append(sentence)
    if any(one.early for one in stoppings):
        sentences.append(
            "As the data decided when to stop, the intervals of Table 2 do not hold at 95 % there. The anytime-valid "
            "ones (confidence sequences, one step per domain and vantage point) do."
        )
    return sentences


def stopping_cells(stoppings: Sequence[StoppingOutcome]) -> list[list[str]]:
    """Heading and rows: the anytime-valid intervals."""
    cells = [["vantage point", "comparison", "domains", "median speed-up", "share faster", "narrow enough"]]
    for one in stoppings:
        for row in one.rows:
            ends = [_ends(row.median, 3), _ends(row.share, 2)]
            cells.append([one.vantage, row.comparison, str(row.domains), *ends, "yes" if row.meets else "no"])
    return cells


def _ends(interval: Interval, digits: int) -> str:
    high = "∞" if math.isinf(interval.high) else f"{interval.high:.{digits}f}"
    return f"[{interval.low:.{digits}f}, {high}]"
