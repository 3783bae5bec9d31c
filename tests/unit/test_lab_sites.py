"""Sites of a topology: what is refused, what they make, and that every kind can be served."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from core.errors import UsageError
from tests.lab._sites import planted_sites, read_access
from tests.topologies import MINI, site_kinds
from vantage.lab import dns, sites
from vantage.lab.addresses import address_plan
from vantage.lab.planner import server_setups
from vantage.lab.roles import speaks_quic
from vantage.lab.site_kinds import MB
from vantage.lab.state import LabFolder
from vantage.lab.topology import Topology
from vantage.lab.topology_file import load_topology
from vantage.servers import caddy

HEAD = f"""{MINI}
[[server]]
name = "t"
organisation = "o"
paths = {{ V = {{ rtt_ms = 2, rate_mbit = 50 }} }}
"""


def site(**fields: object) -> str:
    return "[[site]]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in fields.items())


SMALL = site(kind="plain", domain="t.example", server="t")


def load(text: str, folder: Path) -> Topology:
    path = folder / "mini.toml"
    path.write_text(HEAD + SMALL + text + site_kinds())
    return load_topology(path)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            site(kind="plane", domain="a.example", server="s"),
            r"field site\.1\.kind: unknown kind 'plane'; did you mean plain\? use one of: .*add \[site_kind\.plane\]",
        ),
        (site(kind="plain", domain="a.example"), r"site\.1\.server: a site of the kind plain needs one; add it"),
        (
            site(kind="plain", domain="a.example", server="u"),
            r"site\.1\.server: unknown server 'u'; use one of: s, t",
        ),
        (site(kind="unresolvable", domain="a.example", server="s"), r"unresolvable has none; remove it"),
        (site(kind="plain", domain="a.example", server="s", count=2), r"several sites need both \{n\} in the domain"),
        (site(kind="plain", domain="a{n}.example", server="s"), r"does not match count; several .* and a count"),
        (site(kind="plain", domain="a{n}.example", server="s", count=0), r"site\.1\.count: 0 is out of range"),
        (site(kind="plain", domain="A.example", server="s"), r"'A\.example' is not a valid domain"),
        (site(kind="plain", domain="www.mini.example", server="s"), r"www\.mini\.example appears twice"),
        (site(kind="www", domain="mini.example", server="s"), r"www\.mini\.example appears twice"),
        (site(kind="other_address", domain="a.example", server="s"), r"other_address needs one; add it"),
        (site(kind="other_address", domain="a.example", server="s", other_server="s"), r"same as the site's server"),
        (site(kind="leaves_domain", domain="a.example", server="s"), r"site\.1\.leads_to: .* needs one"),
        (
            site(kind="leaves_domain", domain="a.example", server="s", leads_to="x"),
            r"'x' is not a valid URL; use https://",
        ),
        (
            site(kind="reset", domain="a.example", server="s"),
            r"field server\.s\.domains: it has sites that need Upshift's own server",
        ),
        *(
            (f"[site_kind.own.pages]\n{answers}\n", rf"field site_kind\.own: '?{path}'? is {what}")
            for answers, path, what in (
                ('"/../../x" = { text = "x" }', "/../../x", "not a valid path; use /folder/name"),
                ('"//etc/x" = { text = "x" }', "//etc/x", "not a valid path"),
                ('"/a/./x" = { text = "x" }', "/a/./x", "not a valid path"),
                ('"/a" = { size = 1 }\n"/a/b" = { size = 1 }', "/a/b", "in a file; use another path"),
            )
        ),
    ],
)
def test_faults_are_sentences(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence) as caught:
        load(text, tmp_path)
    assert str(caught.value).startswith(f"{tmp_path}/mini.toml: ")


def test_a_kind_may_answer_below_what_is_no_file_and_have_any_name_for_one(tmp_path: Path) -> None:
    answers = dict.fromkeys(("/", "/a/b", "/.well-known/x y", "/..a/b.."), "size = 1")
    answers |= {"/a": 'status = 301\nlocation = "/a/"', "/a/": "status = 404"}
    text = "".join(f'[site_kind.own.pages."{path}"]\n{answer}\n' for path, answer in answers.items())
    assert set(load(text, tmp_path).site_kinds["own"].pages) == set(answers)


def of_every_kind(folder: Path) -> str:
    made = []
    for kind, table in load("", folder).site_kinds.items():
        fields: dict[str, object] = {"kind": kind, "domain": f"{kind.replace('_', '-')}-{{n}}.example", "count": 2}
        fields |= {"server": "t"} if table.pages else {}
        fields |= {"other_server": "s"} if table.files else {}
        fields |= {"leads_to": "https://www.mini.example/a.bin"} if table.leads_away else {}
        made.append(site(**fields))
    return "".join(made)


def test_every_kind_has_its_hosts_names_and_files(tmp_path: Path) -> None:
    topology = load(of_every_kind(tmp_path), tmp_path)
    assert len(topology.site_kinds) == 28
    hosts = {host.name: host for host in sites.hosts(topology)}
    assert hosts["plain-2.example"].server == "t"
    assert hosts["www.www-1.example"].answers["/file.iso"].size == 1_300_000
    assert hosts["files.other-address-1.example"].server == "s"
    assert hosts["other-domain-1.example"].answers["/hop.iso"].location == "https://www.mini.example/a.bin"
    assert hosts["inside.private-redirect-2.example"].server is None
    assert "unresolvable-1.example" not in hosts
    assert not [
        text for host in hosts.values() for answer in host.answers.values() for text in (answer.text,) if "{" in text
    ]
    zone = dns.zone(topology, address_plan(topology))
    assert f"inside.private-redirect-1.example. IN A {sites.PRIVATE_ADDRESS}" in zone
    assert "unresolvable" not in zone
    for found in planted_sites(topology):
        assert (found.url is None) == (topology.site_kinds[found.kind].finds is None)
        assert found.size_bytes is None or MB <= found.size_bytes <= 100 * MB
    files = {found.url for found in planted_sites(topology)}
    assert {"https://plain-1.example/docs/report.pdf", "https://www.www-2.example/file.iso"} <= files


def test_a_server_of_sites_that_caddy_cannot_serve_is_our_own_program(tmp_path: Path) -> None:
    topology = load(site(kind="unsized", domain="a.example", server="t"), tmp_path)
    measured, own = topology.server
    assert (sites.need_site_server(topology, measured), sites.need_site_server(topology, own)) == (False, True)
    assert (speaks_quic(topology, measured), speaks_quic(topology, own)) == (True, False)
    assert "HTTPS" not in "".join(
        line for line in dns.zone(topology, address_plan(topology)).splitlines(True) if "a.ex" in line
    )


def test_measured_files_are_served_as_without_sites(tmp_path: Path) -> None:
    topology = load(site(kind="no_head", domain="a.example", server="s"), tmp_path)
    server = topology.server[0]
    (_, setup), *_ = server_setups(topology, server, address_plan(topology), LabFolder(Path("/lab")), ipv6=True)
    assert [host.name for host in setup.hosts] == ["a.example"]
    made = (replace(setup, hosts=[]), setup)
    before, after = (
        caddy.server_configuration(each, data=Path("/d"))["apps"]["http"]["servers"]["https"] for each in made
    )
    assert after["routes"][: len(before["routes"]) - 1] == before["routes"][:-1]
    assert after["logs"] == {"logger_names": {"a.example": "sites"}, "skip_unmapped_hosts": True}
    assert "logs" not in before


def test_content_of_sites_takes_no_disk(tmp_path: Path) -> None:
    topology = load(site(kind="too_large", domain="a.example", server="t"), tmp_path)
    sites.write_sites(sites.hosts_of(topology, topology.server[1]), tmp_path / "sites")
    file = tmp_path / "sites" / "a.example" / "file.iso"
    assert file.stat().st_size == 100 * MB + 1
    assert file.stat().st_blocks < 100
    assert '<a href="/file.iso">' in (tmp_path / "sites" / "a.example" / "index.html").read_text()


def test_access_logs_may_be_cut(tmp_path: Path) -> None:
    line = {
        "ts": 12.5, "duration": 0.5, "status": 200, "size": 7,
        "request": {"remote_ip": "198.18.1.2", "method": "GET", "host": "a.example", "uri": "/x?y", "headers": {}},
    }  # fmt: skip
    path = tmp_path / "log"
    path.write_text(json.dumps(line) + "\n" + json.dumps(line)[:20])
    (access,) = read_access(path, server="s")
    assert (access.at, access.path, access.sent_bytes, access.user_agent) == (12.0, "/x?y", 7, "")
    assert list(read_access(tmp_path / "none", server="s")) == []
