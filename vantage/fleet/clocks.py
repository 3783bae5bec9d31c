"""How far the clocks of a fleet's hosts are apart. Pure.

A host answers with its own time. It did so between two moments of the control machine's clock, so its offset lies in an
interval, and nothing is said against a host unless all of that is too much.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from core.errors import UsageError
from core.files.config import build
from core.system.this_host import MOST_APART_S

HERE = "this machine"

Interval = tuple[float, float]
"""Least and largest offset of a host's clock from the control machine's [s]; positive: it is ahead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A host's answer about its clock (`core.system.this_host.clock_account`)."""

    began: float
    now: float
    synchronised: bool
    max_error_s: float | None


def account_of(answer: Mapping[str, Any] | None) -> Account | None:
    """What a host's answer says of its clock; None if it says nothing, or nothing that can be read."""
    try:
        return build((answer or {}).get("clock"), Account, where="clock")
    except UsageError:
        return None


def offset(account: Account, asked: str, answered: str) -> Interval:
    """The offset of a host's clock.

    Args:
        asked, answered: when, by the control machine's clock (ISO 8601, UTC).
    """
    return account.now - _unix(answered), account.began - _unix(asked)


def _unix(text: str) -> float:
    found = datetime.fromisoformat(text)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def faults(offsets: Mapping[str, Interval], accounts: Mapping[str, Account]) -> dict[str, str]:
    """Host -> why no turns can be taken by its clock, as a clause; without those that are near enough to all.

    A host that is far from the control machine says nothing about the others.

    Args:
        accounts: host -> its answer, which says how good its clock is by its own time daemon.
    """
    apart = {host: _apart(own, (0.0, 0.0), HERE) for host, own in offsets.items()}
    near = {host: own for host, own in offsets.items() if apart[host] is None}
    for host, own in near.items():
        words = (_apart(own, its, other) for other, its in near.items())
        apart[host] = next((word for word in words if word is not None), None)
    return {
        host: f"clock: it is {words}{_own_account(accounts.get(host))}"
        for host, words in apart.items()
        if words is not None
    }


def _apart(own: Interval, its: Interval, other: str) -> str | None:
    ahead, behind = own[0] - its[1], its[0] - own[1]
    if max(ahead, behind) <= MOST_APART_S:
        return None
    words = f"{ahead:.1f} s or more ahead of" if ahead > behind else f"{behind:.1f} s or more behind"
    return f"{words} that of {other}"


def _own_account(account: Account | None) -> str:
    if account is None or not account.synchronised or account.max_error_s is None:
        return ", and its time daemon does not count it as synchronised"
    return f", though its time daemon counts it as right within {account.max_error_s:.1f} s"
