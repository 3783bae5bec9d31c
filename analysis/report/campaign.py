"""What the report says of the campaign itself: question, places, dates, targets and servers. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from analysis.measures.dataset import Dataset, Record
from analysis.measures.folders import Design
from analysis.report import figures
from core.domain import Download, Role, Transport
from core.files.description import DescribedConfiguration

MAX_SERVERS = 1_000
"""Most rows in the page."""

_NOT_KNOWN = "–"

_MOST_VANTAGES = 6


def question(dataset: Dataset) -> str:
    """The question as a sentence: where from, to how many targets, which configuration instead of which."""
    downloads = [record.download for record in dataset.records]
    vantages = sorted({d.vantage for d in downloads})
    domains = len({d.domain for d in downloads})
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
    return [(one.name, _words(one, base, tcp)) for one in known.values()]


def _words(
    one: DescribedConfiguration, base: DescribedConfiguration | None, tcp: Sequence[DescribedConfiguration]
) -> str:
    if base is None or one.transport is not Transport.TCP:
        return f"HTTP/3 over QUIC by {one.client}"
    varied = [name for name in one.levels if len({other.levels.get(name) for other in tcp}) > 1]
    named = {"ecn": "ECN", "sack": "SACK"}
    level_of = {name: f"{named.get(name, name.replace('_', ' '))} {one.levels[name]}" for name in varied}
    if one is base:
        return ", ".join([f"HTTP/1.1 over TCP by {one.client}", *level_of.values()])
    changes = [words for name, words in level_of.items() if one.levels[name] != base.levels.get(name)]
    changes += [f"client {one.client}"] if one.client != base.client else []
    changes += [f"{name} {value}" for name, value in one.options.items() if base.options.get(name) != value]
    return f"{base.name} with {', '.join(changes)}" if changes else f"the same as {base.name}"


def _and(names: Sequence[str], word: str = "and") -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {word} {names[-1]}"


def title(downloads: Sequence[Download]) -> str:
    """The page's title: the names of the campaigns."""
    names = sorted({d.campaign for d in downloads})
    return f"Upshift: {', '.join(names[:3])}{' …' if names[3:] else ''}"


def facts(dataset: Dataset) -> list[tuple[str, str]]:
    """Name and value of what was measured: where, when, and of how many."""
    downloads = [record.download for record in dataset.records]
    times = [d.started_at for d in downloads]
    first, last = (datetime.fromtimestamp(t, UTC).strftime("%Y-%m-%d %H:%M") for t in (min(times), max(times)))
    labs = sorted({str(folder.lab.get("topology", "?")) for folder in dataset.folders if folder.lab})
    vantages = sorted({d.vantage for d in downloads})
    pairs = [
        ("Vantage points", ", ".join(vantages)),
        ("Targets", str(len({d.domain for d in downloads}))),
        ("Measurement runs", str(len(dataset.downloads.runs))),
        ("Downloads", str(len(downloads))),
        ("Measured", f"{first} to {last} UTC"),
    ]
    return [*pairs, ("Lab topology", ", ".join(labs))] if labs else pairs


def composition_cells(account: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Headings, then a row per provider: targets found, eligible and chosen, and why others were dropped."""
    rows = []
    for provider, share in account.get("providers", {}).items():
        dropped = "; ".join(f"{count} {reason}" for reason, count in share.get("dropped", {}).items())
        numbers = (str(share.get(name, "")) for name in ("seen", "eligible", "chosen"))
        rows.append((str(provider), *numbers, dropped))
    return [("provider", "files found", "eligible", "chosen", "why"), *rows]


def composition_sentences(account: Mapping[str, Any]) -> Iterator[str]:
    """The requirement on targets."""
    required = {
        "tcp": "ECN, SACK and window scaling",
        "quic": "HTTP/3",
        "both": "ECN, SACK, window scaling and HTTP/3",
        "none": "nothing",
    }
    requirement = str(account.get("require", ""))
    support = required.get(requirement, requirement)
    yield f"Eligible targets support {support}; the draw has the seed {account.get('seed', '?')}."


def server_cells(dataset: Dataset) -> tuple[list[list[str]], int]:
    """Heading and rows, one per vantage point and target; and how many are left out."""
    heading = ["vantage point", "domain", "provider", "address", "HTTP", "TLS", "group"]
    heading += ["initial window", "congestion control", "handshake RTT ms", "MB"]
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in dataset.records:
        groups.setdefault((record.download.vantage, record.download.domain), []).append(record)
    paths = _paths(dataset)
    rows = [_server_row(key, groups[key], paths.get(key, {})) for key in sorted(groups)[:MAX_SERVERS]]
    return [heading, *rows], len(groups) - len(rows)


def _server_row(key: tuple[str, str], records: Sequence[Record], path: dict[str, str]) -> list[str]:
    downloads = [record.download for record in records]
    rtts = [rtt for record in records if (rtt := figures.handshake_rtt(record)) is not None]
    groups = _listed(d.tls_group for d in downloads)
    # Python's TLS library does not report the group before 3.14, so that of TCP is often not known.
    if groups != _NOT_KNOWN and any(d.tls_group is None and d.transport == Transport.TCP for d in downloads):
        groups += " (QUIC)" if all(d.transport == Transport.QUIC for d in downloads if d.tls_group) else ""
    return [
        *key,
        _listed(d.provider for d in downloads),
        _listed(d.server_ip for d in downloads),
        _listed((d.http_version or "").removeprefix("HTTP/") for d in downloads),
        _listed((d.tls_version or "").removeprefix("TLSv") for d in downloads),
        groups,
        path.get("initcwnd", path.get("surveyed", _NOT_KNOWN)),
        path.get("congestion_control", _NOT_KNOWN),
        f"{min(rtts):.1f}" if rtts else _NOT_KNOWN,
        _listed(f"{d.body_bytes / 1e6:.2f}" for d in downloads if d.outcome == "ok"),
    ]


def _listed(values: Iterable[str | None]) -> str:
    """Different values, the most frequent first."""
    counts = Counter(value for value in values if value)
    return ", ".join(sorted(counts, key=lambda value: (-counts[value], value))) or _NOT_KNOWN


def _paths(dataset: Dataset) -> dict[tuple[str, str], dict[str, str]]:
    """(vantage, domain) -> the TCP server there by lab.json, and by a survey of initial windows."""
    known: dict[tuple[str, str], dict[str, str]] = {}
    for folder in dataset.folders:
        for path in (folder.lab or {}).get("paths", ()):
            names = (name for name in ("initcwnd", "congestion_control") if path.get(name) is not None)
            known[str(path.get("vantage")), str(path.get("domain"))] = {name: str(path[name]) for name in names}
        for vantage, domain in {(record.download.vantage, record.download.domain) for record in dataset.records}:
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
