"""What speaks against a campaign on each host, from the documents of `upshift doctor --for campaign`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.untrusted import scrub
from vantage.fleet.inventory import Host
from vantage.fleet.verdicts import MOST_CHARACTERS

_CLOCK, _NAT = "time of day", "NAT"
"""Findings that some fleets do without."""

_UNREADABLE = "its doctor's answer cannot be read: provision it again, with the Upshift of this machine"


def lacks(
    documents: Mapping[str, Mapping[str, Any]], hosts: Mapping[str, Host], isolation: str
) -> dict[str, list[str]]:
    """Host -> why no campaign should run there, as clauses; empty for a host that is ready.

    Args:
        documents: host -> its doctor's answer.
        isolation: of the campaign; only `netns` needs address translation.
    """
    found: dict[str, list[str]] = {}
    holders: dict[str, list[str]] = {}
    for name, document in documents.items():
        try:
            found[name] = _findings(document, hosts[name], isolation)
            addresses = {scrub(address) for address in (document.get("uplink") or {}).get("addresses", ())}
        except (AttributeError, KeyError, TypeError):  # it is the host's, so it may be anything
            found[name], addresses = [_UNREADABLE], set()
        for address in sorted(addresses):
            holders.setdefault(address, []).append(name)
    for address, names in holders.items():
        for name in names:
            others = [other for other in names if other != name]
            if others:
                found[name].append(f"uplink: {', '.join(others)} has the same address, {address}")
    return found


def campaigns_beside(document: Mapping[str, Any], campaign: str) -> list[str]:
    """Names of the campaigns that run on a host, without this one, by its doctor's answer."""
    own = f"/{campaign}/results"
    others = document.get("campaigns", ())
    try:
        return [scrub(str(other["name"])) for other in others if not str(other["folder"]).endswith(own)]
    except (KeyError, TypeError):  # it is the host's, so it may be anything; `lacks` tells
        return []


def _findings(document: Mapping[str, Any], host: Host, isolation: str) -> list[str]:
    unneeded = set()
    if host.trusted_clock:
        unneeded.add(_CLOCK)
    if isolation == "host":
        unneeded.add(_NAT)
    return [
        _clause(finding)
        for finding in document.get("findings", ())
        if finding.get("campaign") and finding["status"] != "ok" and finding["name"] not in unneeded
    ]


def _clause(finding: Mapping[str, Any]) -> str:
    said = f"{finding['name']}: {finding['says']}"
    if finding.get("remedy"):
        said = f"{said} ({str(finding['remedy']).replace('upshift doctor --', 'upshift fleet doctor --')})"
    return scrub(said, most=MOST_CHARACTERS)
