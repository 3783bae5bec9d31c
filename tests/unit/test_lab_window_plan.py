"""Initial windows of a lab: fields of the topology, addresses, routes and rules, what the emulator and lab.json get."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest

from core.errors import UsageError
from tests.topologies import server, topology
from vantage.lab import dns, pathem, truth
from vantage.lab.addresses import address_plan, populations, prefixes, prober_addresses, window_addresses
from vantage.lab.planner import _nodes, server_setups
from vantage.lab.roles import roles, speaks_quic
from vantage.lab.state import LabFolder
from vantage.lab.topology import Topology
from vantage.lab.topology_file import load_topology
from vantage.lab.truth import targets_of
from vantage.programs import sender
from vantage.server_kind import ServerRole

WINDOWS = "windows = [1, 100]"
POPULATION = (
    "population = [{ hosts = 1, initcwnd = 4 }, { hosts = 4096, initcwnd = 10 }, { hosts = 256, initcwnd = 2 }]"
)


def load(folder: Path, *servers: str, vantages: tuple[str, ...] = ("V",)) -> Topology:
    path = folder / "t.toml"
    path.write_text(topology("windows", *servers, vantages=vantages))
    return load_topology(path)


def test_each_window_has_an_address_a_table_and_a_name(tmp_path: Path) -> None:
    found = load(tmp_path, server("a", "www.a.example", more=WINDOWS), server("b", "www.b.example"))
    plan = address_plan(found)
    own = window_addresses(found)["a"]
    # Behind the server's own one, and before the next server's.
    assert [plan["a"].ipv4, own[1].ipv4, own[100].ipv4, plan["b"].ipv4] == [f"198.19.0.{n}" for n in range(16, 20)]
    node = next(node for node in _nodes(found, plan, ipv6=True) if node.name == "a")
    for window, address in own.items():
        assert f"rule add from {address.ipv4} lookup {10_000 + window}" in node.ip_batch
        assert f"rule add from {address.ipv6} lookup {10_000 + window}" in node.ip6_batch
        for prefix in ("198.18.0.0/15", "fd00:198:18::/48"):
            line = f"route add {prefix} dev tun0 table {10_000 + window} congctl cubic initcwnd {window}"
            assert line in node.ip_batch
    made = pathem.configuration(found, plan, ipv6=True)
    held = next(node["addresses"] for node in made["nodes"] if node["name"] == "a")
    assert held == [plan["a"].ipv4, plan["a"].ipv6, own[1].ipv4, own[1].ipv6, own[100].ipv4, own[100].ipv6]
    assert f"iw-100.www.a.example. IN A {own[100].ipv4}\n" in dns.zone(found, plan)
    paths = {path["domain"]: path for path in truth.document(found, plan, timing={})["paths"]}
    assert [paths[name]["initcwnd"] for name in ("www.a.example", "iw-1.www.a.example", "iw-100.www.a.example")] == [
        10,
        1,
        100,
    ]
    assert paths["iw-100.www.a.example"]["addresses"]["ipv4"] == own[100].ipv4


def test_a_path_may_have_a_window_and_drops_of_its_own(tmp_path: Path) -> None:
    paths = "V = { rtt_ms = 6, rate_mbit = 50, initcwnd = 40, drop = [0, 39], packets_per_rtt = 2 }"
    text = server("a", "www.a.example", vantages=("V", "W"))
    text = text.replace("V = { rtt_ms = 6, rate_mbit = 50 }", paths)
    found = load(tmp_path, text, vantages=("V", "W"))
    plan = address_plan(found)
    node = next(node for node in _nodes(found, plan, ipv6=True) if node.name == "a")
    assert f"route add 198.18.1.0/24 dev tun0 src {plan['a'].ipv4} congctl cubic initcwnd 40" in node.ip_batch
    assert f"route add fd00:198:18:1::/64 dev tun0 src {plan['a'].ipv6} congctl cubic initcwnd 40" in node.ip_batch
    # It covers the vantage point's prober.
    assert ipaddress.ip_address(prober_addresses(found)["V"].ipv4) in ipaddress.ip_network("198.18.1.0/24")
    pairs = {(pair["from"], pair["to"]): pair for pair in pathem.configuration(found, plan, ipv6=True)["pairs"]}
    assert pairs["a", "V"]["loss"] == {"pattern": [0, 39], "count": "payload"}
    assert pairs["a", "V"]["policer"] == {"packets": 2, "every_us": 6000}
    assert pairs["a", "W"]["loss"] is None and "policer" not in pairs["a", "W"]
    assert "loss" not in pairs["V", "a"] and "policer" not in pairs["V", "a"]
    document = truth.document(found, plan, timing={})["paths"]
    assert [(path["initcwnd"], path["drop"], path["clean"]) for path in document] == [
        (40, [0, 39], False),
        (10, [], True),
    ]


def test_a_population_is_prefixes_that_the_node_answers_for(tmp_path: Path) -> None:
    found = load(tmp_path, server("a", "www.a.example", more=POPULATION), server("b", "www.b.example"))
    plan = address_plan(found)
    parts = populations(found)
    assert [(part.prefix, part.hosts, part.initcwnd) for part in parts] == [
        ("198.19.0.0/20", 4096, 10),
        ("198.19.16.0/24", 256, 2),
        ("198.19.17.0/32", 1, 4),
    ]
    assert plan["a"].ipv4 == "198.18.255.16" and str(prefixes(found)["o"][0]) == "198.18.255.0/24"
    node = next(node for node in _nodes(found, plan, ipv6=True) if node.name == "a")
    for part in parts:
        assert f"route add local {part.prefix} dev lo" in node.ip_batch
        assert f"rule add from {part.prefix} lookup {10_000 + part.initcwnd}" in node.ip_batch
    made = {node["name"]: node for node in pathem.configuration(found, plan, ipv6=True)["nodes"]}
    assert made["a"]["prefixes"] == [part.prefix for part in parts] and "prefixes" not in made["b"]
    document = truth.document(found, plan, timing={})
    assert document["populations"][0] == {"server": "a", "prefix": "198.19.0.0/20", "hosts": 4096, "initcwnd": 10}


def test_a_full_population_leaves_room_for_everything_else(tmp_path: Path) -> None:
    blocks = ", ".join(f"{{ hosts = 4096, initcwnd = {window} }}" for window in range(1, 17))
    found = load(tmp_path, server("a", "www.a.example", more=f"population = [{blocks}]"))
    held = [ipaddress.IPv4Network(part.prefix) for part in populations(found)]
    assert list(ipaddress.collapse_addresses(held)) == [ipaddress.IPv4Network("198.19.0.0/16")]
    others = [own.ipv4 for own in (*address_plan(found).values(), *prober_addresses(found).values())]
    assert not any(ipaddress.ip_address(address) in ipaddress.ip_network("198.19.0.0/16") for address in others)


@pytest.mark.parametrize(
    ("more", "path", "said"),
    [
        ("initcwnd = 4001", "", "server.a.initcwnd: 4001 is out of range; use 1 to 4000"),
        ("windows = [0]", "", "server.a.windows: 0 is out of range; use 1 to 4000"),
        ("windows = [4, 4]", "", "server.a.windows: a window appears twice; remove one"),
        ("population = [{ hosts = 3, initcwnd = 1 }]", "", "hosts: 3 is not a power of two up to 65536"),
        ("population = [{ hosts = 8, initcwnd = 4001 }]", "", "population.initcwnd: 4001 is out of range"),
        (
            "population = [{ hosts = 65536, initcwnd = 1 }, { hosts = 1, initcwnd = 2 }]",
            "",
            "have 65537 hosts together; use at most 65536",
        ),
        (f"population = [{'{ hosts = 1, initcwnd = 1 }, ' * 17}]", "", "17 blocks; use at most 16"),
        ("", "initcwnd = 0", "server.a.paths.V.initcwnd: 0 is out of range; use 1 to 4000"),
        ("", "drop = [-1]", "server.a.paths.V.drop: -1 is out of range"),
        ("", "drop = [1], loss_percent = 1", "server.a.paths.V.drop: the path has loss_percent as well; remove one"),
        ("", "ecn_threshold_bytes = 0", "server.a.paths.V.ecn_threshold_bytes: 0 is out of range; use 1 to 1e+10"),
        ("", "packets_per_rtt = 17", "server.a.paths.V.packets_per_rtt: 17 is out of range; use 1 to 16"),
        ("", "first = 64000", "server.a.paths.V.first: needs a server of kind sender"),
        ('web_server = "sender"', "first = 64000", "10 packets are less than the 64000 bytes of first; use initcwnd"),
        ('web_server = "apache"', "", "unknown web server 'apache'; use one of: caddy, nginx, sender, smoltcp"),
        ('web_server = "fault"', "", "unknown web server 'fault'"),
        ('web_server = "nginx"\nfault = "reset"', "", "the server is an edge, or has body, fault or such sites"),
        ('web_server = "sender"\nquic_server = "caddy"', "", "server.a.quic_server: the server has no QUIC"),
    ],
)
def test_what_cannot_be_is_one_sentence(tmp_path: Path, more: str, path: str, said: str) -> None:
    text = server("a", "www.a.example", more=more)
    if path:
        text = text.replace("rate_mbit = 50 }", f"rate_mbit = 50, {path} }}")
    with pytest.raises(UsageError) as caught:
        load(tmp_path, text)
    assert said in caught.value.sentence() and "\n" not in caught.value.sentence()


def test_a_file_that_says_how_it_is_sent_needs_the_sender(tmp_path: Path) -> None:
    send = 'size = "100 kB", send = { first = 105000, pace = 1.5 }'
    text = server("a", "www.a.example").replace('size = "100 kB"', send)
    with pytest.raises(UsageError, match="needs a server of kind sender"):
        load(tmp_path, text)
    text = text.replace("files", 'web_server = "sender"\nfiles')
    with pytest.raises(UsageError) as caught:
        load(tmp_path, text)
    assert "server.a.initcwnd: 10 packets are less than the 105000 bytes of first" in caught.value.sentence()
    found = load(tmp_path, text.replace("files", "initcwnd = 2000\nfiles"))
    assert found.server[0].files[0].target == "/a.bin?pace=1.5&first=105000"
    [path] = truth.document(found, address_plan(found), timing={})["paths"]
    fields = ("initial_window", "initial_window_unit", "pacing", "spread_rtt", "quic")
    assert [path[field] for field in fields] == [105000, "bytes", "paced", 1.5, False]
    assert path["congestion_control"] == "cubic"
    found = load(tmp_path, text.replace("first = 105000", 'cc = "bbr"'))
    [path] = truth.document(found, address_plan(found), timing={})["paths"]
    assert path["congestion_control"] == "bbr", "the file's goes before the route's"
    assert not speaks_quic(found, found.server[0]) and roles(found, found.server[0])[ServerRole.WEB].name == "sender"


def test_a_window_in_bytes_may_depend_on_the_vantage_point(tmp_path: Path) -> None:
    text = server("a", "www.a.example", more='web_server = "sender"\ninitcwnd = 2000', vantages=("V", "W"))
    text = text.replace("W = { rtt_ms = 6, rate_mbit = 50", "W = { rtt_ms = 6, rate_mbit = 50, first = 83000")
    found = load(tmp_path, text, vantages=("V", "W"))
    [(kind, setup)] = server_setups(found, found.server[0], address_plan(found), LabFolder(tmp_path), ipv6=True)
    [program] = kind.programs(setup)
    assert program.argv[-4:] == ("--first", "198.18.2.0/24=83000", "--first", "fd00:198:18:2::/64=83000")
    paths = truth.document(found, address_plan(found), timing={})["paths"]
    assert [(path["initial_window"], path["initial_window_unit"]) for path in paths] == [
        (2000, "segments"),
        (83000, "bytes"),
    ]
    assert [path["initcwnd"] for path in paths] == [2000, None], "expected times would count with 2000 segments"


def test_rfc3390_is_four_segments_up_to_1095_bytes_and_three_of_1200() -> None:
    assert [sender.first_bytes("rfc3390", mss) // mss for mss in (64, 128, 536, 1095, 1200, 1460, 2190, 4380)] == [
        4,
        4,
        4,
        4,
        3,
        3,
        2,
        2,
    ]
    assert sender.first_bytes("105000", 64) == 105_000


def test_pacing_spreads_what_follows_the_first_ten_segments() -> None:
    # (32 - 10) x 1200 bytes over half of 100 ms.
    assert sender.pacing_rate(0.5, window=32 * 1200, mss=1200, rtt_s=0.1) == 528_000
    assert sender.pacing_rate(0.5, window=10 * 1200, mss=1200, rtt_s=0.1) is None


def test_other_windows_are_targets_and_those_of_a_sender_are_asked_over_http(tmp_path: Path) -> None:
    found = load(
        tmp_path,
        server("a", "www.a.example", more=WINDOWS),
        server("s", "www.s.example", more='web_server = "sender"'),
    )
    targets = targets_of(found)
    assert [(target.url, target.quic) for target in targets] == [
        ("https://www.a.example/a.bin", True),
        ("https://iw-1.www.a.example/a.bin", False),
        ("https://iw-100.www.a.example/a.bin", False),
        ("http://www.s.example/a.bin", False),
    ]
    assert targets[2].server_ip == window_addresses(found)["a"][100].ipv4


def test_another_make_of_tcp_has_the_servers_addresses_instead_of_the_kernel(tmp_path: Path) -> None:
    text = server("a", "www.a.example", more='web_server = "smoltcp"')
    found = load(tmp_path, text)
    plan = address_plan(found)
    node = next(node for node in _nodes(found, plan, ipv6=True) if node.name == "a")
    assert node.ip_batch == () and node.ip6_batch == ()
    [path] = truth.document(found, plan, timing={})["paths"]
    assert (path["initial_window"], path["initial_window_unit"], path["quic"]) == (2048, "bytes", False)
    assert (path["initcwnd"], path["congestion_control"]) == (None, None)
    [(kind, setup)] = server_setups(found, found.server[0], plan, LabFolder(tmp_path), ipv6=True)
    [program] = kind.programs(setup)
    assert program.argv[-4:] == ("--address", f"{plan['a'].ipv4}/15", "--address", f"{plan['a'].ipv6}/48")


@pytest.mark.parametrize(
    "line",
    [
        "initcwnd = 4",
        'congestion_control = "reno"',
        'without = ["sack"]',
        "windows = [4]",
        "population = [{ hosts = 4, initcwnd = 4 }]",
    ],
)
def test_what_another_make_of_tcp_would_ignore_is_refused(tmp_path: Path, line: str) -> None:
    text = server("a", "www.a.example", more=f'web_server = "smoltcp"\n{line}')
    said = f"field server.a.{line.split()[0]}: smoltcp has a TCP of its own, without this; remove this field"
    with pytest.raises(UsageError, match=said):
        load(tmp_path, text)
    load(tmp_path, text.replace("smoltcp", "nginx"))


def test_another_make_of_tcp_has_no_window_of_a_path(tmp_path: Path) -> None:
    text = server("a", "www.a.example", more='web_server = "smoltcp"', path="rtt_ms = 6, rate_mbit = 50, initcwnd = 4")
    with pytest.raises(UsageError, match=r"field server\.a\.paths\.V\.initcwnd: smoltcp has a TCP of its own"):
        load(tmp_path, text)


def test_a_server_may_have_the_name_that_the_origin_of_another_would_have(tmp_path: Path) -> None:
    found = load(tmp_path, server("x-origin", "www.a.example", more=WINDOWS), server("x", "www.b.example"))
    plan = address_plan(found)
    node = next(node for node in _nodes(found, plan, ipv6=True) if node.name == "x-origin")
    assert f"rule add from {window_addresses(found)['x-origin'][100].ipv4} lookup 10100" in node.ip_batch
