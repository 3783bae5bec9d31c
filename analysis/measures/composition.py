"""How the target set was chosen, from the report of `upshift targets compose` in a campaign's folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

HEADINGS = ("provider", "files found", "eligible", "chosen", "why")


def cells(account: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Headings, then a row per provider: targets found, eligible and chosen, and why others were dropped."""
    rows = []
    for provider, share in account.get("providers", {}).items():
        dropped = "; ".join(f"{count} {reason}" for reason, count in share.get("dropped", {}).items())
        numbers = (str(share.get(name, "")) for name in ("seen", "eligible", "chosen"))
        rows.append((str(provider), *numbers, dropped))
    return [HEADINGS, *rows]


def sentences(account: Mapping[str, Any]) -> Iterator[str]:
    """The requirement on targets."""
    required = {
        "tcp": "ECN, SACK and window scaling",
        "quic": "HTTP/3",
        "both": "ECN, SACK, window scaling and HTTP/3",
        "none": "nothing",
    }
    asked = str(account.get("require", ""))
    yield f"Eligible targets support {required.get(asked, asked)}; the draw has the seed {account.get('seed', '?')}."
