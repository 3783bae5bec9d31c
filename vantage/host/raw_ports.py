"""What a raw-socket prober needs on the host itself: source ports of its own, no reset from the kernel, a next hop.

The prober uses the host's address, so the kernel sees the answers and would reset connections that it does not know.
Ports are reserved by `ip_local_reserved_ports`, so that no program gets one by chance, and a table of ours drops the
resets that leave from them. The prober writes its own packets to the device, past that table.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

from core.errors import PlaceError
from core.system.place import Prober
from core.system.process import run
from vantage.host.network import find_uplink, made_of, read_json
from vantage.host.undo import UndoStep
from vantage.host.undo_log import UndoLog
from vantage.linux import sysctls
from vantage.linux.offloads import features, set_features
from vantage.linux.ports import local_ports

RESERVED = "net/ipv4/ip_local_reserved_ports"
"""The setting holds for both families, in spite of its name."""
COUNT = 8192
STARTS = (52_000, 43_000, 34_000, 25_000, 16_000)
"""First ports of the ranges that are tried."""
NEIGHBOUR_S = 2.0


def open_prober(undo_log: UndoLog, interface: str) -> Prober:
    """Reserves ports and keeps the kernel silent about them, each change recorded first.

    Raises PlaceError if the interface has no IPv4 address, no gateway that answers, or merges packets.
    """
    prober = find_prober(interface)
    interface = prober.device
    reserved = sysctls.read(RESERVED) or ""
    first, last = free_ports(reserved, local_ports("tcp"))
    table = f"upshift_prober_{undo_log.ident}"
    # Of a VLAN or bond, packets are merged by the network card below.
    merging = {device: _merging(device) for device in made_of(interface)}
    steps = [UndoStep(kind="feature", name=device, value=name) for device, names in merging.items() for name in names]
    steps += [UndoStep(kind="sysctl", name=RESERVED, value=reserved), UndoStep(kind="table", name=f"inet {table}")]
    undo_log.add(steps)
    if kept := [one for device, names in merging.items() for one in set_features(device, dict.fromkeys(names, False))]:
        raise PlaceError(
            f"the interface {interface} merges packets, and its driver does not switch that off ({', '.join(kept)})",
            remedy="use --isolation netns",
        )
    sysctls.write(RESERVED, ",".join([*([reserved] if reserved else []), f"{first}-{last}"]))
    undo_log.run(("nft", "-f", "-"), stdin=reset_table(table, first, last)).check(
        doing="keeping the kernel from resetting the prober's connections"
    )
    return replace(prober, ports=(first, last))


def _merging(device: str) -> list[str]:
    return [name for name, active in features(device).items() if active and ("gro" in name or "lro" in name)]


def reset_table(table: str, first: int, last: int) -> str:
    """The table that drops the kernel's resets from these source ports."""
    return f"""table inet {table} {{
  chain output {{
    type filter hook output priority 0; policy accept;
    tcp sport {first}-{last} tcp flags & rst == rst counter drop
  }}
}}
"""


def free_ports(reserved: str, used: Iterable[int]) -> tuple[int, int]:
    """First and last port of a range that is neither reserved nor in use. Raises PlaceError if there is none."""
    taken = [(port, port) for port in used]
    for part in filter(None, reserved.split(",")):
        low, _, high = part.partition("-")
        taken.append((int(low), int(high or low)))
    for first in STARTS:
        last = first + COUNT - 1
        if not any(low <= last and high >= first for low, high in taken):
            return first, last
    raise PlaceError(f"no {COUNT} source ports in a row are free on this host", remedy="use --isolation netns")


def find_prober(interface: str) -> Prober:
    """Addresses of the interface (`any`: that of the default route), and the MAC address of its gateway.

    There is one next hop for both families: IPv6 is left out where its gateway is another one.
    """
    interface = find_uplink(None if interface == "any" else interface).name
    [link] = read_json(("ip", "-json", "address", "show", "dev", interface))
    listed = [one for one in link["addr_info"] if one.get("scope") == "global" and not one.get("temporary")]
    listed.sort(key=lambda one: one["local"].startswith(("fc", "fd")))  # RFC 4193: no answer comes to such an address
    held = {one["family"]: one["local"] for one in reversed(listed)}
    own = Prober(ipv4=held["inet"], ipv6=held.get("inet6"), device=interface, neighbour=None)
    if link["link_type"] == "none":
        return own
    neighbour = gateway("-4", interface)
    if neighbour is None:
        raise PlaceError(f"the gateway of the interface {interface} does not answer", remedy="name another uplink")
    same = own.ipv6 is not None and gateway("-6", interface) == neighbour
    return replace(own, ipv6=own.ipv6 if same else None, neighbour=neighbour)


def gateway(family: str, interface: str) -> str | None:
    """MAC address of the default route's gateway (`family` is -4 or -6); None if there is none, or it is silent."""
    routes = read_json(("ip", "-json", family, "route", "show", "default", "dev", interface))
    hops = [
        route["gateway"] for route in sorted(routes, key=lambda route: route.get("metric", 0)) if "gateway" in route
    ]
    until = time.monotonic() + NEIGHBOUR_S
    while hops and time.monotonic() < until:
        entries = read_json(("ip", "-json", family, "neighbour", "show", "to", hops[0], "dev", interface))
        for entry in entries:
            if "lladdr" in entry and "FAILED" not in entry.get("state", ()):
                return str(entry["lladdr"])
        # NTF_USE: the kernel asks for it, as for any packet of its own (ip-neighbour(8)).
        run(("ip", family, "neighbour", "replace", hops[0], "dev", interface, "use"))
        time.sleep(0.05)
    return None
