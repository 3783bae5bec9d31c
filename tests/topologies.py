"""Texts of small topologies, for tests that need a lab of their own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

UNFIT = "rtt_ms = 200, rate_mbit = 500, packets_per_rtt = 2"
"""A path that lets one segment of any window through, if the server answers within a round trip: a busy host's does."""


def server(
    name: str,
    domain: str,
    *,
    more: str = "",
    vantages: Sequence[str] = ("V",),
    size: str = "100 kB",
    path: str = "rtt_ms = 6, rate_mbit = 50",
) -> str:
    """A [[server]] with one file, on the same path from every vantage point."""
    paths = ", ".join(f"{vantage} = {{ {path} }}" for vantage in vantages)
    return (
        f'\n[[server]]\nname = "{name}"\norganisation = "o"\ndomains = ["{domain}"]\n'
        f'files = [{{ path = "/a.bin", size = "{size}" }}]\n{more}\npaths = {{ {paths} }}\n'
    )


def topology(name: str, *servers: str, vantages: Sequence[str] = ("V",), seed: int | None = None) -> str:
    """The text of a topology file."""
    head = f'schema = 1\nname = "{name}"\n' + ("" if seed is None else f"seed = {seed}\n")
    head += "".join(f'[[vantage]]\nname = "{vantage}"\n' for vantage in vantages)
    return head + '[[organisation]]\nname = "o"\ntitle = "O"\nasn = 3000001\n' + "".join(servers)


def site_kinds(*names: str) -> str:
    """Kinds of sites of tests/lab/topologies/crawl.toml, as text for another topology; without names, all."""
    text = (Path(__file__).parent / "lab" / "topologies" / "crawl.toml").read_text()
    sections = re.finditer(r"^\[site_kind\.(\w+)[^[]*(?:\[(?!site_kind|\[)[^[]*)*", text, re.MULTILINE)
    return "\n" + "".join(section[0] for section in sections if not names or section[1] in names)


MINI = topology("mini", server("s", "www.mini.example", size="10 kB", path="rtt_ms = 2, rate_mbit = 50"))
"""The smallest one that can be built, for tests that add to it or change it."""
