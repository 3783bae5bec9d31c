"""From the lab's top list to targets with their provider: files, crawl and mapping as a user types them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.domain import Sysctl
from core.files import store
from tests.lab._sites import logged_requests, planted_sites
from vantage.lab.lab import Lab
from vantage.lab.place import LabPlace

pytestmark = pytest.mark.lab

UPSHIFT = [sys.executable, "-c", "from upshift.cli import main; main()"]

TCP_INFO_OPTIONS = """
import json, socket, sys
NAMES = {1: "timestamps", 2: "sack", 4: "window_scaling", 8: "ecn"}  # linux/tcp.h, TCPI_OPT_*
found = {}
for address in sys.argv[1:]:
    with socket.create_connection((address, 443), timeout=5) as s:
        options = s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)[5]
        found[address] = [name for bit, name in NAMES.items() if options & bit]
print(json.dumps(found))
"""


@pytest.fixture
def muc(anrw_lab: Lab) -> Iterator[LabPlace]:
    place = anrw_lab.place("MUC")
    yield place
    place.close()


def upshift(*arguments: str | Path, cache: Path) -> str:
    argv = [*UPSHIFT, *map(str, arguments)]
    env = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, env=env, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_from_the_list_to_providers(anrw_lab: Lab, tmp_path: Path) -> None:
    """All sixteen targets with the provider of the topology, and what else the crawl finds: two that are incomplete."""
    upshift("lab", "files", "anrw", "-o", tmp_path, cache=tmp_path)
    # `lab exec` needs to know about no name server: programs in the lab read its /etc/resolv.conf.
    crawl = ["crawl", tmp_path / "list.csv", "-o", tmp_path / "found.parquet", "--contact", "mailto:me@example.org"]
    upshift("lab", "exec", "MUC", "--lab", "anrw", "--", *UPSHIFT, *crawl, "--rate", "20", "--json", cache=tmp_path)
    sources = ["--rib", tmp_path / "rib.mrt.gz", "--as2org", tmp_path / "as-org2info.txt"]
    upshift("map", "targets", tmp_path / "found.parquet", "-o", tmp_path / "m.parquet", *sources, cache=tmp_path)
    rows = {row["domain"]: row for row in store.read_table(tmp_path / "m.parquet", "targets").to_pylist()}
    targets = {target.domain: target for target in anrw_lab.targets()}
    assert len(targets) == 16
    planted = {site.domain: site for site in planted_sites(anrw_lab.topology) if site.url}
    assert set(rows) == set(targets) | set(planted)
    for domain, target in targets.items():
        for field in ("url", "size_bytes", "server_ip", "provider", "asn", "organisation"):
            assert rows[domain][field] == getattr(target, field), (domain, field)
        assert bool(rows[domain]["alt_svc"]) == target.quic
        assert not rows[domain]["size_is_lower_bound"]
    for domain, site in planted.items():
        assert (rows[domain]["url"], rows[domain]["size_bytes"]) == (site.url, site.size_bytes)
        assert rows[domain]["provider"] == "other"
    assert rows["www.shop.example"]["cname_chain"] == "www.shop.example.edgekey.example e2.g.akamai.example"


def test_servers_negotiate_the_options_that_they_have(anrw_lab: Lab, muc: LabPlace) -> None:
    muc.apply([Sysctl(name="net.ipv4.tcp_ecn", value="1")])
    address = {server.name: anrw_lab.plan.addresses[server.name].ipv4 for server in anrw_lab.topology.server}
    said = muc.run([sys.executable, "-I", "-c", TCP_INFO_OPTIONS, *address.values()]).check(doing="looking").stdout
    found = json.loads(said)
    every = {"timestamps", "sack", "window_scaling", "ecn"}
    for server in anrw_lab.topology.server:
        assert set(found[address[server.name]]) == every - set(server.without), server.name
    assert {option for server in anrw_lab.topology.server for option in server.without} == {"sack", "ecn"}


def test_a_server_can_pretend_to_have_quic(anrw_lab: Lab, muc: LabPlace) -> None:
    (server,) = [server for server in anrw_lab.topology.server if server.pretends_quic]
    (site,) = [site for site in anrw_lab.topology.site if site.server == server.name]
    assert "h3,h2" in muc.run(["kdig", f"@{muc.nameservers[0]}", "+short", "HTTPS", site.domain]).stdout
    curl = ["curl", "-sSI", "--cacert", str(muc.ca_file), f"https://{site.domain}/"]
    assert 'alt-svc: h3=":443"' in muc.run(curl).stdout
    assert ":443 " not in anrw_lab.place(server.name).run(["ss", "-uln"]).stdout


def test_sites_are_no_targets(anrw_lab: Lab) -> None:
    measured = {target.domain for target in anrw_lab.targets()}
    assert {entry["domain"] for entry in anrw_lab.truth()["paths"]} == measured
    assert not measured & {site.domain for site in planted_sites(anrw_lab.topology)}
    before = len(logged_requests(anrw_lab))
    target = anrw_lab.targets()[0]
    place = anrw_lab.place("MUC")
    place.run(["curl", "-sS", "--cacert", str(place.ca_file), "-o", "/dev/null", target.url]).check(doing="fetching")
    assert len(logged_requests(anrw_lab)) == before, "a measured download was logged"
