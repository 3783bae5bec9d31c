"""Values of the IW-in-the-wild paper, which ship with Upshift (`survey/data`)."""

from __future__ import annotations

import csv
from functools import cache
from importlib import resources

NAME = "iw-in-the-wild"


@cache
def rows(name: str) -> tuple[dict[str, str], ...]:
    """The rows of a shipped table, e.g. `cdn-initial-windows`."""
    text = (resources.files("survey") / "data" / f"{name}.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


def fact(what: str) -> str:
    """The value of a row of `scan-facts`."""
    return next(row["value"] for row in rows("scan-facts") if row["what"] == what)
