"""Topologies: what is shipped, what is refused, and what is made of them."""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import os
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdn_mapping import as_path
from core.domain import Provider
from core.errors import UsageError
from core.files.disk import parse_size
from core.reach import LAB_PREFIXES, is_allowed
from core.system import process
from core.system.process import Completed
from tests.topologies import MINI
from vantage.lab import dns, holder, pathem, sites
from vantage.lab.addresses import address_plan, prefixes
from vantage.lab.planner import CLIENT_RMEM, CLIENT_WMEM, SERVER_RMEM, SERVER_WMEM, _nodes, server_setups
from vantage.lab.state import LabFolder
from vantage.lab.topology import MINIMUM_QUEUE_BYTES, PathSpec, Rewrite, Topology
from vantage.lab.topology_file import find_topology, load_topology, shipped
from vantage.lab.truth import targets_of
from vantage.server_kind import ServerRole
from vantage.servers import caddy


@pytest.fixture(params=shipped())
def topology(request: pytest.FixtureRequest) -> Topology:
    return load_topology(request.param)


def test_every_address_is_a_lab_address_of_its_organisation(topology: Topology) -> None:
    plan = address_plan(topology)
    both = [address for own in plan.values() for address in (own.ipv4, own.ipv6)]
    assert len(set(both)) == len(both)
    assert all(is_allowed(address, LAB_PREFIXES) for address in both)
    assert set(plan) == set(topology.node_names())
    for server in topology.server:
        four, six = prefixes(topology)[server.organisation]
        assert ipaddress.ip_address(plan[server.name].ipv4) in four
        assert ipaddress.ip_address(plan[server.name].ipv6) in six


def test_anrw_has_the_shape_of_the_paper() -> None:
    topology = load_topology("anrw")
    assert [vantage.name for vantage in topology.vantage] == ["MUC", "SFO", "SGP"]
    assert len(topology.server) >= 14
    assert {topology.organisation_of(server).provider for server in topology.server} == set(Provider)
    measured = [server for server in topology.server if server.domains]
    assert len(measured) == sum(len(server.domains) for server in measured) == 16
    paths = [(server, path) for server in measured for path in server.paths.values()]
    assert min(path.rtt_ms for _, path in paths) == 3
    assert max(path.rtt_ms for _, path in paths) == 200
    for vantage in topology.vantage:
        assert sum(server.paths[vantage.name].rtt_ms > 120 for server in topology.server) <= 2
    for server, path in paths:
        assert path.rate_mbit <= 30
        assert 1_000_000 <= server.files[0].size_bytes <= 2_000_000
        if path.loss_percent:
            assert 0.1 <= path.loss_percent <= 1
            assert path.rtt_ms <= 40
        if path.ecn_threshold_bytes:
            assert path.bdp_bytes + path.ecn_threshold_bytes < 48_000
    assert sum(path.queue_bytes < path.bdp_bytes for path in topology.server[13].paths.values()) == 3
    assert 2 <= sum(server.edge is not None for server in topology.server) <= 4
    assert sum(path.clean for _, path in paths) >= 20


def test_anrw_fits_into_its_time() -> None:
    """Nine downloads of every target by the download-time model: under 150 s per vantage point."""
    topology = load_topology("anrw")
    for vantage in topology.vantage:
        total = 0.0
        for server in topology.server:
            if not server.domains:
                continue
            path, size = server.paths[vantage.name], server.files[0].size_bytes
            total += 5 * modelled_s(size, path, server.initcwnd, limit=45)
            total += 4 * modelled_s(size, path, server.initcwnd, limit=10**9)
        assert total < 155, vantage.name


def modelled_s(size: int, path: PathSpec, window: int, *, limit: int) -> float:
    """Three round trips, slow start by doubling up to a limit, then line rate or window rate."""
    rtt, segments = path.rtt_ms / 1000, -(-size // 1448)
    serial = 1500 * 8 / (path.rate_mbit * 1e6)
    time, sent = 3 * rtt, 0
    while True:
        window = min(window, limit)
        if sent + window >= segments or window * serial >= rtt:
            return time + (segments - sent) * serial
        sent, time, window = sent + window, time + rtt, window * 2


def load_text(text: str, folder: Path) -> Topology:
    path = folder / "mini.toml"
    path.write_text(text)
    return load_topology(path)


def test_the_smallest_topology(tmp_path: Path) -> None:
    topology = load_text(MINI, tmp_path)
    path = topology.server[0].paths["V"]
    assert path.bdp_bytes == 12_500
    assert path.queue_bytes == MINIMUM_QUEUE_BYTES
    assert path.clean


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("rtt_ms = 2", "rtt_ms = 2, rtt = 2", r"field server\.0\.paths\.V\.rtt: unknown field"),
        ("rtt_ms = 2, ", "", r"field server\.0\.paths\.V\.rtt_ms: it is missing"),
        ("rate_mbit = 50", "rate_mbit = 0", r"field server\.s\.paths\.V\.rate_mbit: 0 is out of range; use 0\.01 to"),
        (
            "rate_mbit = 50",
            'rate_mbit = 50, queue = "many"',
            r"server\.s\.paths\.V\.queue: 'many' is not a valid size; use",
        ),
        (
            "rate_mbit = 50",
            f'rate_mbit = 50, queue = "bdp x {"9" * 400}"',
            r"paths\.V\.queue: 'bdp x 9+' is not a valid",
        ),
        ("rate_mbit = 50", "rate_mbit = 50, loss_percent = 101", r"loss_percent: 101 is out of range"),
        ("rate_mbit = 50", 'rate_mbit = 50, rewrites = ["blech"]', r"paths\.V\.rewrites\.0: .*'bleach'"),
        ("paths = { V", "paths = { W", r"field server\.s\.paths\.W: unknown vantage point; use V"),
        ('organisation = "o"', 'organisation = "p"', r"unknown organisation 'p'; use one of: o"),
        ('name = "V"', 'name = "s"', r"two nodes are named 's'"),
        ('name = "V"', 'name = "dns"', r"two nodes are named 'dns'"),
        ('name = "s"', 'name = "ca"', r"'ca' is the name of a file of each lab; rename the node"),
        ('name = "V"', 'name = "s-quic"', r"'s-quic' is the name of a program of s, too; rename one"),
        ('name = "V"', 'name = "../x"', r"'\.\./x' is not a valid node name"),
        ('name = "mini"', 'name = "a/b"', r"field name: 'a/b' is not a valid name"),
        ('"/a.bin"', '"/../a.bin"', r"'/\.\./a\.bin' is not a valid path"),
        ("files = [", 'files = [{ path = "/a.bin", size = 1 }, ', r"server\.s\.files: /a\.bin appears twice"),
        ('"/a.bin"', '"/index.html"', r"server\.s\.files: /index\.html is the server's start page"),
        ("files = [", 'files = [{ path = "/a.bin/b", size = 1 }, ', r"files: /a\.bin is a folder, too"),
        ("files = [", 'files = [{ path = "/a", size = 1 }, { path = "/a/b", size = 1 }, ', r"/a/b is a folder, too"),
        (
            '["www.mini.example"]',
            '["www.mini.example", "iw-3.www.mini.example"]\nwindows = [3]',
            r"server\.s\.windows: iw-3\.www\.mini\.example appears twice",
        ),
        ('name = "V"', 'name = "V"\nuplink_mbit = 1e-9', r"vantage\.0\.uplink_mbit: 1e-09 is out of range; use 0\.01"),
        ('"10 kB"', '"ten"', r"field server\.s\.files\.size: 'ten' is not a valid size"),
        ('["www.mini.example"]', '["www.mini.example", "www.mini.example"]', r"appears twice"),
        ('["www.mini.example"]', '["$(reboot)"]', r"is not a valid domain"),
        ("files =", 'congestion_control = "a b"\nfiles =', r"congestion_control: 'a b' is not a valid algorithm"),
        (
            'size = "10 kB" }]',
            'size = "10 kB", send = { cc = "a&b c" } }]\nweb_server = "sender"',
            r"server\.s\.files\.send\.cc: 'a&b c' is not a valid algorithm",
        ),
        ("files =", 'fault = "explode"\nfiles =', r"field server\.0\.fault: input should be 'status_404'"),
        ("schema = 1", "schema = 2", r"field schema: input should be 1"),
        ("[[vantage]]", "[[vantage]", r"not valid TOML"),
        (
            "asn = 3000001",
            "asn = 64496",
            r"field organisation\.o\.asn: 64496 is a reserved AS number .*; use 3000001 or higher",
        ),
        ("asn = 3000001", "asn = 3000001\nsiblings = [131071]", r"asn: 131071 is a reserved AS number"),
        ("asn = 3000001", "asn = 3000001\nsiblings = [3000001]", r"o\.asn: 3000001 appears twice"),
        ("files =", 'without = ["mptcp"]\nfiles =', r"field server\.0\.without\.0: input should be 'ecn', 'sack'"),
        (
            "files =",
            "pretends_quic = true\nfiles =",
            r"server\.s\.pretends_quic: the server has QUIC; add quic = false",
        ),
        (
            "files =",
            'body = { rate_mbit = 0, chunk = "1 kB" }\nfiles =',
            r"server\.s\.body\.rate_mbit: 0 is out of range",
        ),
        (
            "files =",
            'quic_server = "caddy"\nbody = { rate_mbit = 1, chunk = 1 }\nfiles =',
            r"server\.s\.body: needs an ordinary server with quiche",
        ),
        ('domains = ["www.mini.example"]\n', "", r"server\.s\.domains: missing; add one, .* or add a \[\[site"),
        ('files = [{ path = "/a.bin", size = "10 kB" }]\n', "", r"server\.s\.files: missing; add one"),
    ],
)
def test_faults_are_sentences(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence) as caught:
        load_text(MINI.replace(old, new), tmp_path)
    assert str(caught.value).startswith(f"{tmp_path}/mini.toml: ")


EDGES = (1, 23455, 23456, 23457, 64495, 64496, 131071, 131072, 4_199_999_999, 4_200_000_000, 4_294_967_295)


@pytest.mark.parametrize("asn", EDGES)
def test_an_organisation_may_have_the_numbers_that_upshift_map_takes_for_one(asn: int, tmp_path: Path) -> None:
    refused = pytest.raises(UsageError, match=f"{asn} is a reserved AS number")
    with refused if as_path.is_reserved(asn) else contextlib.nullcontext():
        load_text(MINI.replace("asn = 3000001", f"asn = {asn}"), tmp_path)


def test_unknown_names_list_what_is_shipped() -> None:
    with pytest.raises(UsageError, match=r"unknown topology 'nope'; use one of: anrw, cdn-iw, small, studies; or"):
        find_topology("nope")


@given(st.floats(0.1, 1000), st.floats(0.1, 1000), st.integers(1, 8))
def test_queues_in_bandwidth_delay_products(rtt_ms: float, rate_mbit: float, times: int) -> None:
    path = PathSpec(rtt_ms=rtt_ms, rate_mbit=rate_mbit, queue=f"bdp x {times}")
    assert path.queue_bytes == times * path.bdp_bytes
    assert path.clean
    assert PathSpec(rtt_ms=rtt_ms, rate_mbit=rate_mbit).queue_bytes >= max(4 * path.bdp_bytes, MINIMUM_QUEUE_BYTES)


@given(st.integers(0, 10**9))
def test_sizes(number: int) -> None:
    assert parse_size(number) == parse_size(f"{number} B") == number
    assert parse_size(f"{number} kB") * 1000 == parse_size(f"{number} MB")
    assert parse_size(f"{number}KiB") == number * 1024


def test_the_emulator_gets_both_directions_of_every_path(topology: Topology) -> None:
    made = pathem.configuration(topology, address_plan(topology), ipv6=True)
    pairs = {(pair["from"], pair["to"]): pair for pair in made["pairs"]}
    assert len(pairs) == len(made["pairs"])
    for (one, other), pair in pairs.items():
        assert (other, one) in pairs
        assert pair.get("rate_bps") is None or pair["queue_bytes"] >= 1500
    for server in topology.server:
        for name, path in server.paths.items():
            there, back = pairs[name, server.name], pairs[server.name, name]
            assert there["delay_us"] + back["delay_us"] == round(path.rtt_ms * 1000)
            assert back["rate_bps"] == path.rate_mbit * 1e6
            assert (back["loss"] is not None) == bool(path.loss_percent)
            assert there.get("loss") is None


@pytest.mark.parametrize("name", get_args(Rewrite))
def test_every_rewrite_has_rules(name: Rewrite) -> None:
    topology = load_topology("small")
    server = topology.server[0]
    path = dataclasses.replace(server.paths["MUC"], rewrites=[name])
    changed = dataclasses.replace(topology, server=[dataclasses.replace(server, paths={"MUC": path})])
    pairs = pathem.configuration(changed, address_plan(changed), ipv6=False)["pairs"]
    rules = {(pair["from"], pair["to"]): pair.get("rewrite", []) for pair in pairs}
    assert rules["MUC", server.name] or rules[server.name, "MUC"]
    assert not rules["MUC", "dns"] and not rules["dns", "MUC"]


def test_without_ipv6_no_node_has_such_an_address(topology: Topology) -> None:
    made = pathem.configuration(topology, address_plan(topology), ipv6=False)
    assert not [address for node in made["nodes"] for address in node["addresses"] if ":" in address]


def test_no_node_has_a_setting_of_its_host(topology: Topology, monkeypatch: pytest.MonkeyPatch) -> None:
    # Root of a user namespace may name groups of that namespace only.
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "getegid", lambda: 7)
    vantages = {vantage.name for vantage in topology.vantage}
    for node in _nodes(topology, address_plan(topology), ipv6=True):
        buffers = (CLIENT_RMEM, CLIENT_WMEM) if node.name in vantages else (SERVER_RMEM, SERVER_WMEM)
        # These and forwarding a new namespace has from its host.
        assert (node.sysctls["net.ipv4.tcp_rmem"], node.sysctls["net.ipv4.tcp_wmem"]) == buffers
        assert node.sysctls["net.ipv4.ip_forward"] == "0"
        assert node.sysctls["net.ipv4.ping_group_range"] == "7 7"


@pytest.mark.parametrize(("queue", "replaced"), [("fq", ["a", "b"]), ("fq_codel", []), ("pfifo_fast", [])])
def test_no_device_paces_where_the_host_does(queue: str, replaced: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    lines = {"ip": f"2: tun0: <POINTOPOINT,UP> mtu 1500 qdisc {queue} state UNKNOWN mode DEFAULT qlen 20000\n"}
    asked: list[list[str]] = []

    def run(argv: list[str]) -> Completed:
        asked.append(argv)
        return Completed(argv=tuple(argv), returncode=0, stdout=lines.get(argv[0], ""), stderr="")

    monkeypatch.setattr(process, "run", run)
    holder.stop_pacing(["a", "b"])
    changes = [argv for argv in asked if argv[0] == "tc"]
    assert [argv[argv.index("-n") + 1] for argv in changes] == replaced
    assert all(argv[3:] == ["qdisc", "replace", "dev", "tun0", "root", "pfifo_fast"] for argv in changes)


def test_every_name_resolves_in_the_zone(topology: Topology) -> None:
    plan = address_plan(topology)
    records = [line.split() for line in dns.zone(topology, plan).splitlines()[1:]]
    found = {(record[0], record[2]): record[3:] for record in records}
    for server in topology.server:
        for domain in server.domains:
            name = f"{domain}."
            while (name, "CNAME") in found:
                (name,) = found[name, "CNAME"]
            assert found[name, "A"] == [plan[server.name].ipv4]
            assert ((name, "HTTPS") in found) == (server.fault is None and server.web_server is None)
    for host in sites.hosts(topology):
        address = plan[host.server].ipv4 if host.server else sites.PRIVATE_ADDRESS
        assert found[f"{host.name}.", "A"] == [address]
    for site in topology.site:
        if site.kind == "unresolvable":
            assert not [name for name, _ in found if name == f"{site.domain}."]


def test_contents_are_the_same_everywhere(topology: Topology) -> None:
    server = topology.server[0]
    one, two = (sites.file_bytes(topology, server, "/a", 1000) for _ in range(2))
    assert one == two
    assert len(one) == 1000
    assert sites.file_bytes(topology, server, "/b", 1000) != one


def test_caddy_opens_no_door_but_its_own(topology: Topology) -> None:
    for server in topology.server:
        kind, setup = server_setups(topology, server, address_plan(topology), LabFolder(Path("/lab")), ipv6=True)[0]
        if kind is not caddy.CADDY:
            continue
        made = caddy.server_configuration(setup, data=Path("/d"))
        assert made["admin"]["disabled"] is True
        assert ("h3" in made["apps"]["http"]["servers"]["https"]["protocols"]) == (ServerRole.QUIC in setup.roles)
        assert all(entry["automatic_https"]["disable"] for entry in made["apps"]["http"]["servers"].values())


@pytest.mark.parametrize(("name", "count"), [("anrw", 16), ("small", 4)])
def test_targets_are_known_before_a_lab_is_up(name: str, count: int) -> None:
    """Servers that have only sites are none; their addresses are those of the plan of addresses."""
    topology = load_topology(name)
    found = targets_of(topology)
    assert len({target.domain for target in found}) == len(found) == count
    addresses = {own.ipv4 for own in address_plan(topology).values()}
    assert {target.server_ip for target in found} <= addresses and all(target.size_bytes for target in found)
    assert len(targets_of(topology, faults=True)) == {"anrw": 16, "small": 8}[name]
