"""nftables rules as text: address translation for a campaign's namespace, and what may leave it (nft(8)).

Both tables are our own: removing one is a single command and touches no other rule.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence

from core.reach import IPNetwork
from vantage.host.network import Link

INNER_TABLE = "inet upshift"


def host_table(
    table: str, *, link: Link, interface: str, uplink: str, only_ours: bool, allowed: Sequence[IPNetwork]
) -> str:
    """Rules in the host: translate packets from the namespace and forward them to the uplink only.

    A packet that connection tracking calls invalid is not translated; it would leave with a private address. A prober
    writes its packets to the device, past the namespace's own rules, so what it may contact is limited here.

    Args:
        table: its name.
        link: addresses of the namespace.
        interface: the host's end of the pair.
        uplink: the host's interface to the Internet.
        allowed: what a prober in the namespace may contact.
        only_ours: forwarding was off on the uplink before; then nothing else that arrives there is forwarded.
    """
    probers = [f"ip saddr {link.prober4}"] + ([f"ip6 saddr {link.prober6}"] if link.prober6 else [])
    sources = [f"ip saddr {link.inner4.ip}"] + ([f"ip6 saddr {link.inner6.ip}"] if link.inner6 else []) + probers
    translate = "\n".join(f'    {source} oifname "{uplink}" masquerade' for source in sources)
    jumps = "\n".join(f"    {source} jump prober" for source in probers)
    reach = "\n".join(f"    {_family(prefix.version)} daddr {prefix} return" for prefix in allowed)
    rest = f'    iifname "{uplink}" drop\n' if only_ours else ""
    return f"""table inet {table} {{
  chain postrouting {{
    type nat hook postrouting priority 100; policy accept;
{translate}
  }}
  chain prober {{
{reach}
    counter drop
  }}
  chain forward {{
    type filter hook forward priority 0; policy accept;
    iifname "{interface}" ct state invalid counter drop
{jumps}
    iifname "{interface}" oifname "{uplink}" accept
    iifname "{interface}" counter drop
    iifname "{uplink}" oifname "{interface}" ct state established,related accept
    oifname "{interface}" counter drop
{rest}  }}
}}
"""


def inner_table(allowed: Sequence[IPNetwork], nameservers: Iterable[str]) -> str:
    """Rules in the namespace: only allowed addresses, and port 53 of the DNS servers, get a packet from it.

    Neighbour discovery stays on the pair of interfaces. A rejected packet is reported to the program at once.
    """
    lines = [f"    {_family(prefix.version)} daddr {prefix} accept" for prefix in allowed]
    for server in nameservers:
        family = _family(ipaddress.ip_address(server).version)
        lines += [f"    {family} daddr {server} {protocol} dport 53 accept" for protocol in ("udp", "tcp")]
    rules = "\n".join(lines)
    return f"""table {INNER_TABLE} {{
  chain output {{
    type filter hook output priority 0; policy drop;
    oifname "lo" accept
    icmpv6 type {{ nd-neighbor-solicit, nd-neighbor-advert }} accept
{rules}
    counter reject with icmpx type admin-prohibited
  }}
}}
"""


def _family(version: int) -> str:
    return "ip6" if version == 6 else "ip"


def intersection(left: Iterable[IPNetwork], right: Iterable[IPNetwork]) -> tuple[IPNetwork, ...]:
    """Prefixes of the addresses that are in both."""
    shared: list[IPNetwork] = []
    others = tuple(right)
    for one in left:
        for other in others:
            if isinstance(one, ipaddress.IPv4Network) and isinstance(other, ipaddress.IPv4Network):
                narrow: IPNetwork = one if one.subnet_of(other) else other
                if one.overlaps(other):
                    shared.append(narrow)
            elif isinstance(one, ipaddress.IPv6Network) and isinstance(other, ipaddress.IPv6Network):
                narrow = one if one.subnet_of(other) else other
                if one.overlaps(other):
                    shared.append(narrow)
    return tuple(dict.fromkeys(shared))
