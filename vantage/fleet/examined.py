"""What speaks against a campaign on each host, from the documents of `upshift doctor --for campaign`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from core.errors import UsageError
from core.files.config import build
from core.scrub import scrub
from vantage.fleet.inventory import Host
from vantage.fleet.verdicts import MOST_CHARACTERS

_CLOCK, _NAT = "time of day", "NAT"
"""Findings that some fleets do without."""

_UNREADABLE = "its doctor's answer cannot be read: provision it again, with the Upshift of this machine"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Finding:
    name: str
    says: str
    status: str
    campaign: bool = False
    remedy: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Uplink:
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """What is used of a doctor's answer."""

    findings: tuple[_Finding, ...]
    uplink: _Uplink | None = None


def lacks(
    documents: Mapping[str, Mapping[str, Any]], hosts: Mapping[str, Host], isolation: str
) -> dict[str, list[str]]:
    """Host -> why no campaign should run there, as clauses; empty for a host that is ready.

    Args:
        documents: host -> its doctor's answer.
        isolation: of the campaign; only `netns` needs address translation.
    """
    answers = {name: _answer(document) for name, document in documents.items()}
    found = {
        name: [_UNREADABLE] if answer is None else _findings(answer, hosts[name], isolation)
        for name, answer in answers.items()
    }
    holders: dict[str, list[str]] = {}
    for name, answer in answers.items():
        for address in dict.fromkeys(answer.uplink.addresses if answer and answer.uplink else ()):
            holders.setdefault(scrub(address), []).append(name)
    for address, names in holders.items():
        for name in names:
            others = [other for other in names if other != name]
            if others:
                found[name].append(f"uplink: {', '.join(others)} has the same address, {address}")
    return found


def _answer(document: Mapping[str, Any]) -> _Answer | None:
    """A host's answer; None for one that cannot be read: it is the host's, so it may be anything."""
    try:
        return build(document, _Answer, where="doctor")
    except UsageError:
        return None


def _findings(answer: _Answer | None, host: Host, isolation: str) -> list[str]:
    if answer is None:
        return [_UNREADABLE]
    unneeded = set()
    if host.trusted_clock:
        unneeded.add(_CLOCK)
    if isolation == "host":
        unneeded.add(_NAT)
    return [
        _clause(finding)
        for finding in answer.findings
        if finding.campaign and finding.status != "ok" and finding.name not in unneeded
    ]


def _clause(finding: _Finding) -> str:
    said = f"{finding.name}: {finding.says}"
    if finding.remedy:
        said = f"{said} ({finding.remedy.replace('upshift doctor --', 'upshift fleet doctor --')})"
    return scrub(said, most=MOST_CHARACTERS)
