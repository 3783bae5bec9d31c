"""The host's network: its uplink, free addresses for a campaign's namespace, its DNS servers; nftables rules as text.

This module only reads. `ip -json` is iproute2's machine form (ip(8)). The rules (nft(8)) translate the addresses of a
campaign's namespace and say what may leave it. Both tables are our own: removing one is a single command and touches no
other rule.
"""

from __future__ import annotations

import ipaddress
import itertools
import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.errors import PlaceError
from core.reach import IPNetwork
from core.system.process import run
from vantage.linux.environment import read

POOLS = ("10.213.0.0/16", "172.29.0.0/16", "192.168.213.0/24")
"""Private prefixes (RFC 1918) out of which a free /29 for host, namespace and prober is drawn."""

RESOLV_CONF = Path("/etc/resolv.conf")
_STUB_UPSTREAMS = Path("/run/systemd/resolve/resolv.conf")
"""systemd-resolved(8): the real servers behind its stub at 127.0.0.53."""

_DRAWS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Uplink:
    """The interface through which the host reaches the Internet."""

    name: str
    mtu: int
    ipv4: bool
    """It has a global IPv4 address."""
    ipv6: bool
    """It has a global IPv6 address."""
    addresses: tuple[str, ...]
    """Its global addresses."""


_INTERFACES = Path("/sys/class/net")


def made_of(interface: str) -> list[str]:
    """The interfaces below this one (of a VLAN, a bond, a bridge), the lowest first, and itself as the last."""
    below = sorted(path.name.removeprefix("lower_") for path in (_INTERFACES / interface).glob("lower_*"))
    return list(dict.fromkeys([*(name for each in below for name in made_of(each)), interface]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Addresses of the pair of interfaces between the host and a campaign's namespace."""

    host4: ipaddress.IPv4Interface
    inner4: ipaddress.IPv4Interface
    host6: ipaddress.IPv6Interface | None
    inner6: ipaddress.IPv6Interface | None
    prober4: ipaddress.IPv4Address
    """Address of a raw-socket prober in the namespace; no kernel has it."""
    prober6: ipaddress.IPv6Address | None


def read_json(argv: Sequence[str]) -> Any:
    """The JSON that a program prints (iproute2 prints nothing at all for an empty list)."""
    text = run(argv).check(doing=f"running {' '.join(argv)}").stdout
    return json.loads(text) if text.strip() else []


def find_uplink(wanted: str | None) -> Uplink:
    """The interface of that name, or the one of IPv4's default route with the lowest metric.

    Raises PlaceError if it does not exist or has no IPv4 address.
    """
    name = wanted or default_interface(default_routes(4))
    if name is None:
        remedy = 'name the uplink; or, over IPv6 alone, use isolation = "host"'
        raise PlaceError("this host has no default IPv4 route, so the uplink is unknown", remedy=remedy)
    done = run(("ip", "-json", "address", "show", "dev", name))
    if done.returncode != 0:
        raise PlaceError(f"no network interface named {name!r}", remedy="see: ip link")
    uplink = parse_uplink(json.loads(done.stdout)[0])
    if not uplink.ipv4:
        raise PlaceError(f"the interface {name} has no IPv4 address", remedy="name another uplink")
    return uplink


def capture_interface(*versions: int) -> str:
    """The interface by which servers are reached over IP of these versions; `any` where there are several, or none."""
    names = {default_interface(routes) for version in versions if (routes := default_routes(version))}
    return (names.pop() if len(names) == 1 else None) or "any"


def default_routes(version: int) -> list[dict[str, Any]]:
    """The default routes of IPv4 or IPv6 (`version` is 4 or 6), as `ip -json` gives them."""
    routes: list[dict[str, Any]] = read_json(("ip", "-json", f"-{version}", "route", "show", "default"))
    return routes


def default_interface(routes: Sequence[dict[str, Any]]) -> str | None:
    """Interface of the default route that the kernel prefers, from `ip -json route show default`."""
    usable = [route for route in routes if "dev" in route and "linkdown" not in route.get("flags", ())]
    return min(usable, key=lambda route: route.get("metric", 0))["dev"] if usable else None


def routed_elsewhere(uplink: str) -> list[str]:
    """A sentence if the default route does not leave by this uplink: our rules drop what the host routes elsewhere."""
    other = default_interface(default_routes(4)) or "no single interface"
    says = f"this host's default route leaves by {other}, not by {uplink}: downloads fail, save from servers with a"
    says += f" route over {uplink}, or if an ip rule leads packets from {', '.join(POOLS)} there"
    return [] if other == uplink else [says]


def parse_uplink(data: dict[str, Any]) -> Uplink:
    """One entry of `ip -json address`."""
    entries = [entry for entry in data["addr_info"] if entry.get("scope") == "global"]
    families = {entry["family"] for entry in entries}
    return Uplink(
        name=data["ifname"],
        mtu=data["mtu"],
        ipv4="inet" in families,
        ipv6="inet6" in families,
        addresses=tuple(entry["local"] for entry in entries),
    )


def used_prefixes() -> list[IPNetwork]:
    """Every prefix that the host has a route for, default routes left out."""
    prefixes = []
    for family in ("-4", "-6"):
        for route in read_json(("ip", "-json", family, "route", "show", "table", "all")):
            if route["dst"] != "default":
                prefixes.append(ipaddress.ip_network(route["dst"], strict=False))
    return prefixes


def choose_link(used: Iterable[IPNetwork], *, ipv6: bool, rng: random.Random) -> Link:
    """Addresses that overlap no route of the host. Raises PlaceError if no free prefix is found."""
    taken = [prefix for prefix in used if prefix.prefixlen > 0]
    for draw in range(_DRAWS):
        pool = ipaddress.ip_network(POOLS[draw % len(POOLS)])
        offset = rng.randrange(0, pool.num_addresses, 8)
        prefix = ipaddress.ip_network((int(pool.network_address) + offset, 29))
        if any(prefix.version == other.version and prefix.overlaps(other) for other in taken):
            continue
        first, second, third, *_ = prefix.hosts()
        host6 = inner6 = prober6 = None
        if ipv6:
            # RFC 4193, section 3.2: fd00::/8 and 40 random bits.
            base = (0xFD << 120) | (rng.getrandbits(40) << 80)
            host6, inner6 = (ipaddress.IPv6Interface((base + number, 64)) for number in (1, 2))
            prober6 = ipaddress.IPv6Address(base + 3)
        return Link(
            host4=ipaddress.IPv4Interface((first, 29)),
            inner4=ipaddress.IPv4Interface((second, 29)),
            host6=host6,
            inner6=inner6,
            prober4=ipaddress.IPv4Address(third),
            prober6=prober6,
        )
    raise PlaceError(
        f"no free prefix was found in {', '.join(POOLS)}",
        remedy='the host has routes for all of them; use isolation = "host"',
    )


def host_nameservers(resolv: Path = RESOLV_CONF, upstreams: Path = _STUB_UPSTREAMS, *, ipv6: bool) -> tuple[str, ...]:
    """DNS servers of the host that a namespace can reach, by resolv.conf(5).

    A server on the host's loopback cannot be reached from the namespace: the one of systemd-resolved is replaced by
    the servers behind it. Raises PlaceError if none is usable.
    """
    listed = listed_nameservers(resolv)
    if any(ipaddress.ip_address(server).is_loopback for server in listed):
        listed = [*listed, *listed_nameservers(upstreams)]
    usable = [
        server
        for server in dict.fromkeys(listed)
        if not (address := ipaddress.ip_address(server)).is_loopback and (ipv6 or address.version == 4)
    ]
    if not usable:
        raise PlaceError(
            f"{resolv} lists no DNS server that a network namespace can reach"
            + (f" ({', '.join(listed)})" if listed else ""),
            remedy='set nameservers = ["192.0.2.53"]',
        )
    return tuple(usable)


def listed_nameservers(resolv: Path) -> list[str]:
    """Addresses of its `nameserver` lines; link-local ones, which need an interface, are left out."""
    servers = []
    for line in (read(resolv) or "").splitlines():
        words = line.split()
        if len(words) < 2 or words[0] != "nameserver":
            continue
        try:
            address = ipaddress.ip_address(words[1].partition("%")[0])
        except ValueError:
            continue
        if not address.is_link_local:
            servers.append(str(address))
    return servers


def forward_blockers(ruleset: Any, *, ipv6: bool) -> list[str]:
    """Chains of the host's firewall that let no forwarded packet through unless a rule accepts it, by their policy or
    (firewalld) by their last rule, from `nft -json list ruleset`; those of IPv6 alone only if the namespace has it.

    A packet must pass every chain at a hook, so our rules cannot let it through (nft(8), section CHAINS).
    """
    entries = ruleset.get("nftables", ())
    # In the order of the ruleset, so that a chain's last rule stays.
    last = {_names(rule, "chain"): rule.get("expr", ()) for entry in entries if (rule := entry.get("rule"))}
    return [
        " ".join(_names(chain, "name"))
        for entry in entries
        if (chain := entry.get("chain"))
        and chain.get("hook") == "forward"
        and (chain.get("policy") == "drop" or _refuses_all(last.get(_names(chain, "name"), ())))
        and chain.get("family") in ("ip", "inet", *(["ip6"] if ipv6 else []))
    ]


def _names(entry: dict[str, str], chain: str) -> tuple[str, str, str]:
    return entry["family"], entry["table"], entry[chain]


def _refuses_all(statements: Iterable[dict[str, Any]]) -> bool:
    words = {word for statement in statements for word in statement}
    return bool(words & {"drop", "reject"}) and words <= {"drop", "reject", "counter", "log"}


INNER_TABLE = "inet upshift"

INVALID = "conntrack_invalid"
"""The counter of packets that connection tracking called invalid."""

INTERFACE_PREFIX = "ups"
"""Beginning of the names of the host's ends of pairs."""


def host_table(
    table: str, *, link: Link, interface: str, uplink: str, only_ours: Iterable[str], allowed: Sequence[IPNetwork]
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
        only_ours: `ipv4` and `ipv6`, where forwarding of it was off on the uplink before; then nothing else of it that
            arrives there is forwarded, save to another place's interface, which its own table judges: a packet has to
            pass all tables. What the host forwarded before (for its containers) it forwards still.
    """
    probers = [f"ip saddr {link.prober4}"] + ([f"ip6 saddr {link.prober6}"] if link.prober6 else [])
    sources = [f"ip saddr {link.inner4.ip}"] + ([f"ip6 saddr {link.inner6.ip}"] if link.inner6 else []) + probers
    translate = "\n".join(f'    {source} oifname "{uplink}" masquerade' for source in sources)
    jumps = "\n".join(f"    {source} jump prober" for source in probers)
    reach = "\n".join(f"    {_family(prefix.version)} daddr {prefix} return" for prefix in allowed)
    rest = "".join(
        f'    meta nfproto {family} iifname "{uplink}" oifname != "{INTERFACE_PREFIX}*" drop\n' for family in only_ours
    )
    return f"""table inet {table} {{
  counter {INVALID} {{ }}
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
    iifname "{interface}" ct state invalid counter name {INVALID} drop
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
    pairs = itertools.product(left, right)
    shared = (pair for pair in pairs if pair[0].version == pair[1].version and pair[0].overlaps(pair[1]))
    return tuple(dict.fromkeys(max(pair, key=lambda prefix: prefix.prefixlen) for pair in shared))
