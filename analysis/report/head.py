"""The head of the report: what was asked, where, when and of how many. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from analysis.measures.comparisons import Design
from analysis.measures.dataset import Dataset
from core.domain import Download, Role

_MOST_VANTAGES = 6


def asked(dataset: Dataset) -> str:
    """The question as a sentence: where from, to how many targets, which configuration instead of which."""
    downloads = [record.download for record in dataset.records]
    vantages = sorted({d.vantage for d in downloads})
    domains = len({d.domain for d in downloads})
    places = _and(vantages) if len(vantages) <= _MOST_VANTAGES else f"{len(vantages)} vantage points"
    said = f"How much faster do downloads from {domains} {'domain' if domains == 1 else 'domains'} to {places} get"
    instead = _instead(dataset.design)
    return f"{said} {'; '.join(instead)}?" if instead else f"{said}?"


def _instead(design: Design) -> list[str]:
    """`with ECN or SACK instead of BL`, one per reference."""
    groups: dict[str, list[str]] = {}
    for comparison in design.comparisons:
        if comparison.role is Role.EFFECT:
            groups.setdefault(comparison.vs, []).append(comparison.config)
    return [f"with {_and(names, 'or')} instead of {vs}" for vs, names in groups.items()]


def _and(names: Sequence[str], word: str = "and") -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {word} {names[-1]}"


def title(downloads: Sequence[Download]) -> str:
    names = sorted({d.campaign for d in downloads})
    return f"Upshift: {', '.join(names[:3])}{' …' if names[3:] else ''}"


def facts(dataset: Dataset) -> list[tuple[str, str]]:
    downloads = [record.download for record in dataset.records]
    times = [d.started_at for d in downloads]
    first, last = (datetime.fromtimestamp(t, UTC).strftime("%Y-%m-%d %H:%M") for t in (min(times), max(times)))
    labs = sorted({str(folder.lab.get("topology", "?")) for folder in dataset.folders if folder.lab})
    vantages = sorted({d.vantage for d in downloads})
    found = [
        ("Vantage points", ", ".join(vantages)),
        ("Targets", str(len({d.domain for d in downloads}))),
        ("Measurement runs", str(len(dataset.downloads.runs))),
        ("Downloads", str(len(downloads))),
        ("Measured", f"{first} to {last} UTC"),
    ]
    return [*found, ("Lab topology", ", ".join(labs))] if labs else found
