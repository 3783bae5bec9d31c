"""Addresses and source ports for a raw-socket prober on the host itself; and which ports are in use."""

from __future__ import annotations

import itertools
import socket
from types import SimpleNamespace

import pytest

from core.errors import PlaceError
from core.system.place import Prober
from core.system.process import Completed
from vantage.host import network, raw_ports
from vantage.host.raw_ports import COUNT, STARTS, find_prober, free_ports, reset_table
from vantage.host.undo import UndoStep
from vantage.linux.ports import local_ports


@pytest.mark.parametrize(
    ("reserved", "used", "first"),
    [
        ("", (), 52_000),
        ("7777", (80, 443, 51_999, 60_192), 52_000),
        ("", (60_191,), 43_000),
        ("", (52_000,), 43_000),
        ("50000-53000,45000", (), 34_000),
    ],
)
def test_a_range_that_nobody_has(reserved: str, used: tuple[int, ...], first: int) -> None:
    assert free_ports(reserved, used) == (first, first + COUNT - 1)


def test_ranges_do_not_overlap_and_none_free_is_one_sentence() -> None:
    ranges = sorted((first, first + COUNT - 1) for first in STARTS)
    assert all(one[1] < other[0] for one, other in itertools.pairwise(ranges))
    assert ranges[0][0] > 1023 and ranges[-1][1] < 65_536
    with pytest.raises(PlaceError, match="no 8192 source ports in a row are free") as caught:
        free_ports("1024-65535", ())
    assert "\n" not in caught.value.sentence()


def test_only_resets_from_these_ports_are_dropped() -> None:
    rule = [line.strip() for line in reset_table("t", 52_000, 60_191).splitlines() if "drop" in line]
    assert rule == ["tcp sport 52000-60191 tcp flags & rst == rst counter drop"]


@pytest.mark.parametrize(
    ("interface", "said"),
    [("nothing0", "no network interface named 'nothing0'"), ("any", "this host has no default IPv4 route, so")],
)
def test_an_interface_that_is_not_there_is_named(interface: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def ip(argv: tuple[str, ...]) -> Completed:
        return Completed(argv=argv, returncode=int("address" in argv), stdout="", stderr="")

    monkeypatch.setattr(network, "run", ip)
    with pytest.raises(PlaceError, match=said):
        find_prober(interface)


@pytest.mark.parametrize(
    ("addresses", "ipv6"),
    [
        (["fd12::1", "2001:db8::1", "2001:db8::2"], "2001:db8::1"),
        (["2001:db8::1", "fd12::1"], "2001:db8::1"),
        (["fd12::1", "fd12::2"], "fd12::1"),
        ([], None),
    ],
)
def test_probes_leave_from_an_address_that_is_answered(
    addresses: list[str], ipv6: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A router may announce a prefix of its own (RFC 4193) besides; from there, all servers were silent."""
    found = [{"family": "inet", "local": local, "scope": "global"} for local in ("192.0.2.2", "192.0.2.3")]
    found += [{"family": "inet6", "local": local, "scope": "global"} for local in addresses]
    monkeypatch.setattr(raw_ports, "read_json", lambda _: [{"addr_info": found, "link_type": "none"}])
    monkeypatch.setattr(raw_ports, "find_uplink", lambda _: SimpleNamespace(name="wg0"))
    prober = find_prober("wg0")
    assert (prober.ipv4, prober.ipv6) == ("192.0.2.2", ipv6)


def test_what_merges_packets_is_switched_off_below_the_uplink(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network card below a VLAN went on merging: no number, or (before Linux 6.0) several segments as one."""
    own = Prober(ipv4="192.0.2.2", ipv6=None, device="eth0.7", neighbour="02:00:00:00:00:01")
    off: list[tuple[str, dict[str, bool]]] = []
    steps: list[UndoStep] = []

    def switch(name: str, wanted: dict[str, bool]) -> list[str]:
        off.append((name, wanted))
        return []

    done = Completed(argv=(), returncode=0, stdout="", stderr="")
    monkeypatch.setattr(raw_ports, "find_prober", lambda _: own)
    monkeypatch.setattr(raw_ports, "made_of", lambda _: ["eth0", "eth0.7"])
    monkeypatch.setattr(raw_ports, "features", lambda name: {"rx-gro": True, "rx-lro": name == "eth0", "highdma": True})
    monkeypatch.setattr(raw_ports, "set_features", switch)
    monkeypatch.setattr(raw_ports, "sysctls", SimpleNamespace(read=lambda _: "", write=lambda *_: None))
    raw_ports.open_prober(SimpleNamespace(ident="aa", add=steps.extend, run=lambda *_, **__: done), "any")  # type: ignore[arg-type]
    assert off == [("eth0", {"rx-gro": False, "rx-lro": False}), ("eth0.7", {"rx-gro": False})]
    undone = [(step.name, step.value) for step in steps if step.kind == "feature"]
    assert undone == [("eth0", "rx-gro"), ("eth0", "rx-lro"), ("eth0.7", "rx-gro")]


def test_ports_in_use_are_those_of_all_sockets_or_of_servers() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
    ):
        datagrams.bind(("127.0.0.1", 0))
        listening, own, udp = (each.getsockname()[1] for each in (server, client, datagrams))
        assert {listening, own} <= local_ports("tcp")
        servers = local_ports("tcp", unconnected=True)
        assert listening in servers and own not in servers
        assert udp in local_ports("udp", "thread-self", unconnected=True)
    assert local_ports("tcp", "0") == set(), "no such process"
