"""What speaks against a campaign on each host: what its doctor finds (`upshift doctor --for campaign`), and its clock.
Pure.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any

from core.reach import is_allowed
from core.system.this_host import MOST_APART_S
from core.untrusted import is_address, scrub
from vantage.fleet.inventory import Host
from vantage.fleet.verdicts import MOST_CHARACTERS, Account, HostVerdict, Interval, account_of

_CLOCK, _NAT, _UPLINK = "time of day", "NAT", "uplink"
"""Findings that some fleets do without."""

_ANYBODYS = tuple(map(ipaddress.ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")))

_UNREADABLE = "its doctor's answer cannot be read: provision it again, with the Upshift of this machine"


def lacks(
    documents: Mapping[str, Mapping[str, Any]], hosts: Mapping[str, Host], isolation: str, *, ipv6: bool = False
) -> dict[str, list[str]]:
    """Host -> why no campaign should run there, as clauses; empty for a host that is ready.

    Args:
        documents: host -> its doctor's answer.
        isolation: of the campaign; only `netns` needs address translation.
        ipv6: it contacts servers over IPv6 alone; only `netns` needs an IPv4 address then.
    """
    against: dict[str, list[str]] = {}
    holders: dict[tuple[str, str], list[str]] = {}
    for name, document in documents.items():
        try:
            against[name] = _findings(document, hosts[name], isolation, ipv6=ipv6)
            addresses = {scrub(address) for address in (document.get("uplink") or {}).get("addresses", ())}
        except (AttributeError, KeyError, TypeError):  # it is the host's, so it may be anything
            against[name], addresses = [_UNREADABLE], set()
        for address in sorted(addresses):
            holders.setdefault((address, hosts[name].address if _is_anybodys(address) else ""), []).append(name)
    for (address, _), names in holders.items():
        for name in names:
            others = [other for other in names if other != name]
            if others:
                against[name].append(f"uplink: {', '.join(others)} has the same address, {address}")
    return against


def _is_anybodys(address: str) -> bool:
    """Whether hosts of different networks may have it (RFC 1918, 6598): then it tells two hosts apart, or makes them
    one, only where both are reached by the same address.
    """
    return is_address(address) and is_allowed(address, _ANYBODYS)


def campaigns_beside(document: Mapping[str, Any], own: str) -> list[str]:
    """Names of the campaigns that run on a host, without our own, by its doctor's answer.

    Args:
        own: the end of the path of its results on hosts, as they tell it.
    """
    others = document.get("campaigns", ())
    try:
        return [scrub(str(other["name"])) for other in others if not str(other["folder"]).endswith(own)]
    except (KeyError, TypeError):  # it is the host's, so it may be anything; `lacks` tells
        return []


def _findings(document: Mapping[str, Any], host: Host, isolation: str, *, ipv6: bool) -> list[str]:
    unneeded = set()
    if host.trusted_clock:
        unneeded.add(_CLOCK)
    if isolation == "host":
        unneeded.add(_NAT)
        if ipv6 and (document.get("uplink") or {}).get("ipv6"):
            unneeded.add(_UPLINK)
    return [
        _clause(finding)
        for finding in document.get("findings", ())
        if finding.get("campaign") and finding["status"] != "ok" and finding["name"] not in unneeded
    ]


def _clause(finding: Mapping[str, Any]) -> str:
    clause = f"{finding['name']}: {finding['says']}"
    if finding.get("remedy"):
        clause = f"{clause} ({str(finding['remedy']).replace('upshift doctor --', 'upshift fleet doctor --')})"
    return scrub(clause, most=MOST_CHARACTERS)


def clock_faults(verdicts: Mapping[str, HostVerdict], hosts: Mapping[str, Host]) -> dict[str, str]:
    """Host -> why no turns can be taken by its clock, as a clause; without those that are near enough to all.

    A host that is far from the control machine says nothing about the others. Hosts that did not tell their time, and
    those whose clock is trusted, are left out.
    """
    offsets = {
        name: verdict.clock_offset_s
        for name, verdict in verdicts.items()
        if verdict.clock_offset_s is not None and not hosts[name].trusted_clock
    }
    apart = {host: _apart(own, (0.0, 0.0), "this machine") for host, own in offsets.items()}
    near = {host: own for host, own in offsets.items() if apart[host] is None}
    for host, own in near.items():
        words = (_apart(own, its, other) for other, its in near.items())
        apart[host] = next((word for word in words if word is not None), None)
    return {
        host: f"clock: it is {words}{_own_account(account_of(verdicts[host].result))}"
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
