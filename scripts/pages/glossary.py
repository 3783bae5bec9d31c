"""docs/reference/glossary.md: `glossary.md` beside this file, with entries of plug-ins from the plug-ins themselves."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from pathlib import Path

from analysis.captures.kpis import ALL as KPIS
from downloader import clients, factors

SOURCE = Path(__file__).with_suffix(".md")


def text(_: Path) -> str:
    """The page. Raises KeyError if the source names a list that is not made here."""
    lists = {
        "factors": entries((f"`{f.name}`, {f.label}", f.help) for f in factors.ALL.values()),
        "clients": entries((f"`{client.name}`", client.help) for client in clients.ALL.values()),
        "kpis": entries(
            (f"`{kpi.name}`", " ".join(f"{kpi.meaning} {unit(kpi.unit)} ({kpi.source})".split()))
            for kpi in KPIS.values()
        ),
    }
    return SOURCE.read_text(encoding="utf-8").format_map(lists)


def unit(name: str) -> str:
    return f"[{name}]" if name not in ("", "1") else ""


def entries(words: Iterable[tuple[str, str]]) -> str:
    """A list of words, each with what it means."""
    lines = (textwrap.fill(f"- {word}: {meaning}", 118, subsequent_indent="  ") for word, meaning in words)
    return "".join(f"{line}\n" for line in lines)
