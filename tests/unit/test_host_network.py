"""What the host's network is like, from the words of `ip`, `nft` and resolv.conf; and the rules that we make."""

from __future__ import annotations

import ipaddress
import random
from pathlib import Path
from typing import ClassVar

import pytest

from core.domain import RouteAttribute, Sysctl
from core.errors import PlaceError, ReachError
from core.reach import ANYWHERE, parse_prefixes
from vantage.host import namespace, network
from vantage.host.network import (
    POOLS,
    capture_interface,
    choose_link,
    default_interface,
    forward_blockers,
    host_nameservers,
    host_table,
    inner_table,
    intersection,
    made_of,
    parse_uplink,
)
from vantage.host.place import narrowed, undo_steps
from vantage.host.undo import UndoStep
from vantage.linux import sysctls
from vantage.linux.offloads import wire_features


def test_the_uplink_is_that_of_the_preferred_default_route() -> None:
    routes = [
        {"dst": "default", "gateway": "192.0.2.1", "dev": "wlan0", "metric": 600, "flags": []},
        {"dst": "default", "gateway": "192.0.2.1", "dev": "eth1", "metric": 50, "flags": ["linkdown"]},
        {"dst": "default", "gateway": "192.0.2.1", "dev": "eth0", "metric": 100, "flags": []},
    ]
    assert default_interface(routes) == "eth0"
    assert default_interface([]) is None


@pytest.mark.parametrize(
    ("ipv4", "ipv6", "found"),
    [
        (["eth0"], ["he-ipv6"], {(4,): "eth0", (6,): "he-ipv6", (4, 6): "any"}),
        (["eth0"], ["eth0"], {(4,): "eth0", (6,): "eth0", (4, 6): "eth0"}),
        ([], ["eth0"], {(4,): "any", (6,): "eth0", (4, 6): "eth0"}),
        ([None], ["eth0"], {(4,): "any", (6,): "eth0", (4, 6): "any"}),
        ([], [], {(4,): "any", (6,): "any", (4, 6): "any"}),
    ],
)
def test_captures_are_taken_where_the_measured_family_leaves(
    monkeypatch: pytest.MonkeyPatch,
    ipv4: list[str | None],
    ipv6: list[str | None],
    found: dict[tuple[int, ...], str],
) -> None:
    """Captures of IPv6 by a tunnel were empty: they were taken on IPv4's uplink. A route with several hops has none of
    its own."""
    routes = {"-4": ipv4, "-6": ipv6}
    listed = {
        family: [{"dst": "default"} | ({"dev": name} if name else {}) for name in routes[family]] for family in routes
    }
    monkeypatch.setattr(network, "read_json", lambda argv: listed[argv[2]])
    assert {versions: capture_interface(*versions) for versions in found} == found


@pytest.mark.parametrize(
    ("routes", "said"),
    [
        ([{"dst": "default", "dev": "eth1"}], None),
        ([{"dst": "default", "dev": "eth0"}], "default route leaves by eth0, not by eth1: downloads"),
        ([{"dst": "default", "nexthops": [{"dev": "eth0"}, {"dev": "eth1"}]}], "leaves by no single interface, not by"),
        ([], "leaves by no single interface, not by eth1"),
    ],
)
def test_an_uplink_that_the_default_route_does_not_take_is_said(
    routes: list[object], said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host routes the packets of the namespace by its default route, and our rules drop them there."""
    monkeypatch.setattr(network, "read_json", lambda _: routes)
    notes = network.routed_elsewhere("eth1")
    assert said in notes[0] if said else notes == []


def test_an_uplink_counts_global_addresses_only() -> None:
    data = {
        "ifname": "ens4",
        "mtu": 1460,
        "addr_info": [
            {"family": "inet", "local": "198.18.4.1", "scope": "global"},
            {"family": "inet6", "local": "fe80::1", "scope": "link"},
        ],
    }
    uplink = parse_uplink(data)
    assert (uplink.name, uplink.mtu, uplink.ipv4, uplink.ipv6) == ("ens4", 1460, True, False)
    assert uplink.addresses == ("198.18.4.1",)


def test_the_link_takes_no_prefix_that_the_host_uses() -> None:
    used = [ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("0.0.0.0/0")]
    for seed in range(50):
        link = choose_link(used, ipv6=True, rng=random.Random(seed))
        assert not link.host4.network.overlaps(used[0])
        assert link.host4.network == link.inner4.network and link.host4.ip != link.inner4.ip
        assert link.prober4 in link.host4.network
        assert len({link.host4.ip, link.inner4.ip, link.prober4}) == 3
        assert link.inner6 is not None and link.inner6.ip in ipaddress.ip_network("fd00::/8")
    with pytest.raises(PlaceError, match="no free prefix"):
        choose_link([ipaddress.ip_network(pool) for pool in POOLS], ipv6=False, rng=random.Random(0))


@pytest.mark.parametrize(
    ("resolv", "upstreams", "ipv6", "expected"),
    [
        ("nameserver 192.0.2.53\n", "", False, ("192.0.2.53",)),
        ("# a stub\nnameserver 127.0.0.53\noptions edns0\n", "nameserver 192.0.2.1\n", False, ("192.0.2.1",)),
        ("nameserver 2001:db8::53\nnameserver 192.0.2.53\n", "", False, ("192.0.2.53",)),
        ("nameserver 2001:db8::53\nnameserver fe80::1%eth0\n", "", True, ("2001:db8::53",)),
    ],
)
def test_nameservers_that_a_namespace_can_reach(
    tmp_path: Path, resolv: str, upstreams: str, ipv6: bool, expected: tuple[str, ...]
) -> None:
    (tmp_path / "resolv").write_text(resolv)
    (tmp_path / "upstreams").write_text(upstreams)
    assert host_nameservers(tmp_path / "resolv", tmp_path / "upstreams", ipv6=ipv6) == expected


def test_a_stub_without_upstreams_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "resolv").write_text("nameserver 127.0.0.1\nnameserver nonsense\nnameserver\n")
    with pytest.raises(PlaceError, match=r"resolv lists no DNS server .* \(127.0.0.1\); set nameservers"):
        host_nameservers(tmp_path / "resolv", tmp_path / "missing", ipv6=True)


def test_firewalls_that_drop_forwarded_packets_are_named() -> None:
    ruleset = {
        "nftables": [
            {"metainfo": {}},
            {"chain": {"family": "ip", "table": "filter", "name": "FORWARD", "hook": "forward", "policy": "drop"}},
            {"chain": {"family": "ip", "table": "filter", "name": "INPUT", "hook": "input", "policy": "drop"}},
            {"chain": {"family": "inet", "table": "x", "name": "f", "hook": "forward", "policy": "accept"}},
            {"chain": {"family": "ip", "table": "filter", "name": "DOCKER"}},
        ]
    }
    assert forward_blockers(ruleset, ipv6=True) == ["ip filter FORWARD"]


REFUSED = {"reject": {"type": "icmpx", "expr": "admin-prohibited"}}
ESTABLISHED = {"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": ["established", "related"]}}


@pytest.mark.parametrize(
    ("rules", "named"),
    [
        ([[ESTABLISHED, {"accept": None}], [{"jump": {"target": "filter_FORWARD_POLICIES"}}], [REFUSED]], True),
        ([[{"counter": {"packets": 0, "bytes": 0}}, {"drop": None}]], True),
        ([[REFUSED], [ESTABLISHED, {"accept": None}]], False),
        ([[ESTABLISHED, {"drop": None}]], False),
        ([], False),
    ],
)
def test_firewalls_whose_last_rule_refuses_what_is_left_are_named(rules: list[object], named: bool) -> None:
    """firewalld's chain has the policy accept, and its last rule rejects: all downloads failed, nothing was said."""
    chain = {"family": "inet", "table": "firewalld"}
    hooked = {**chain, "name": "filter_FORWARD", "hook": "forward", "prio": 10, "policy": "accept"}
    listed: list[object] = [{"chain": hooked}, {"chain": {**chain, "name": "filter_FORWARD_POLICIES"}}]
    listed += [{"rule": {**chain, "chain": "filter_FORWARD", "expr": rule}} for rule in rules]
    listed.append({"rule": {**chain, "chain": "filter_FORWARD_POLICIES", "expr": [REFUSED]}})
    assert forward_blockers({"nftables": listed}, ipv6=True) == ["inet firewalld filter_FORWARD"] * named


def test_a_vlan_of_a_bond_is_made_of_what_is_below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forwarding on it switches LRO off on all of them."""
    for name, below in {"bond0.7": ["bond0"], "bond0": ["eth1", "eth0"], "eth0": [], "eth1": []}.items():
        (tmp_path / name).mkdir()
        for each in below:
            (tmp_path / name / f"lower_{each}").symlink_to(f"../{each}")
    monkeypatch.setattr(network, "_INTERFACES", tmp_path)
    assert made_of("bond0.7") == ["eth0", "eth1", "bond0", "bond0.7"]
    assert made_of("ppp0") == ["ppp0"]


def test_large_receive_offload_is_restored_below_the_uplink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The network card of a VLAN or bond lost it for good."""
    (tmp_path / "eth0.7").mkdir()
    (tmp_path / "eth0.7" / "lower_eth0").symlink_to("../eth0")
    monkeypatch.setattr(network, "_INTERFACES", tmp_path)
    monkeypatch.setattr(namespace, "features", lambda name: {"rx-lro": name == "eth0"})
    monkeypatch.setattr(namespace, "forwarding_flags", lambda *_, **__: ("net/ipv4/conf/eth0.7/forwarding",))

    class Log:
        ident: str = "aa"
        shared: ClassVar[list[str]] = []
        steps: ClassVar[list[UndoStep]] = []

        def share(self, flags: tuple[str, ...], interfaces: list[str]) -> tuple[str, ...]:
            self.shared.extend(interfaces)
            return flags

        def add(self, steps: list[UndoStep]) -> None:
            self.steps.extend(steps)
            raise PlaceError("nothing is changed")

    uplink = network.Uplink(name="eth0.7", mtu=1500, ipv4=True, ipv6=False, addresses=("192.0.2.2",))
    with pytest.raises(PlaceError, match="nothing is changed"):
        namespace.CampaignNamespace(Log(), uplink=uplink, ipv6=False, allowed=ANYWHERE, nameservers=())  # type: ignore[arg-type]
    assert [(step.name, step.value) for step in Log.steps if step.kind == "feature"] == [("eth0", "rx-lro")]
    assert Log.shared == ["eth0", "eth0.7"]


def test_rules_forward_nothing_else_where_forwarding_was_off() -> None:
    link = choose_link((), ipv6=True, rng=random.Random(1))
    allowed = parse_prefixes("198.18.4.0/24,fd00:198:18:4::/64", where="test")
    ours = host_table("t", link=link, interface="upsX", uplink="eth0", only_ours=["ipv6"], allowed=allowed)
    theirs = host_table("t", link=link, interface="upsX", uplink="eth0", only_ours=[], allowed=allowed)
    rest = 'iifname "eth0" oifname != "ups*" drop'
    assert f"    meta nfproto ipv6 {rest}\n" in ours and f"ipv4 {rest}" not in ours and rest not in theirs
    assert f'ip saddr {link.inner4.ip} oifname "eth0" masquerade' in ours
    assert f"ip6 saddr {link.inner6.ip if link.inner6 else None} oifname" in ours
    assert f'ip saddr {link.prober4} oifname "eth0" masquerade' in ours
    assert f"ip saddr {link.prober4} jump prober" in ours and f"ip6 saddr {link.prober6} jump prober" in ours
    assert "ip daddr 198.18.4.0/24 return\n    ip6 daddr fd00:198:18:4::/64 return\n    counter drop" in ours


def test_rules_inside_let_out_what_is_allowed() -> None:
    text = inner_table(parse_prefixes("198.18.0.0/15,fd00:198:18::/48", where="test"), ["192.0.2.53"])
    assert "policy drop" in text
    assert "ip daddr 198.18.0.0/15 accept" in text and "ip6 daddr fd00:198:18::/48 accept" in text
    assert "ip daddr 192.0.2.53 udp dport 53 accept" in text and "192.0.2.53 accept" not in text


def test_limits_are_intersected() -> None:
    lab = parse_prefixes("198.18.0.0/15,fd00:198:18::/48", where="test")
    assert set(intersection(ANYWHERE, lab)) == set(lab)
    assert intersection(parse_prefixes("198.18.4.0/24,10.0.0.0/8", where="test"), lab) == parse_prefixes(
        "198.18.4.0/24", where="test"
    )
    assert intersection(parse_prefixes("10.0.0.0/8", where="test"), lab) == ()


def test_offloads_that_hide_the_wire_are_switched_off() -> None:
    names = ("tx-tcp-segmentation", "rx-gro", "rx-lro", "tx-checksum-ip-generic", "rx-checksum", "highdma")
    wire = wire_features(dict.fromkeys(names, True))
    assert set(wire) == {"tx-tcp-segmentation", "rx-gro", "rx-lro", "tx-checksum-ip-generic"}
    assert not any(wire.values())


def test_names_of_settings_stay_below_their_folder() -> None:
    assert sysctls.path_of("net.ipv4.tcp_sack") == Path("/proc/sys/net/ipv4/tcp_sack")
    assert sysctls.path_of("net/ipv4/conf/eth0.7/forwarding") == Path("/proc/sys/net/ipv4/conf/eth0.7/forwarding")
    for name in ("../../etc/passwd", "/etc/passwd"):
        with pytest.raises(PlaceError):
            sysctls.path_of(name)


def test_present_values_are_noted_before_a_change() -> None:
    steps = undo_steps([Sysctl(name="net.ipv4.tcp_sack", value="0"), RouteAttribute(name="window", value="1")])
    assert steps[0].name == "net.ipv4.tcp_sack" and steps[0].value in {"0", "1"}
    assert [(step.kind, step.name) for step in steps[1:]] == [("attribute", "-4 window"), ("attribute", "-6 window")]
    assert undo_steps([RouteAttribute(name="window", value="1")], known={"-4 window", "-6 window"}) == []


def test_reach_is_required_and_stays_within_the_environment() -> None:
    assert narrowed(ANYWHERE)  # the test suite's own limits
    with pytest.raises(ReachError, match="no address may be contacted"):
        narrowed(())
    with pytest.raises(ReachError, match=r"UPSHIFT_ALLOWED_PREFIXES allows no address in 192\.0\.2\.0/24"):
        narrowed(parse_prefixes("192.0.2.0/24", where="test"))
