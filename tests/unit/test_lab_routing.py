"""The lab's routing table and organisations: read by others as by us, and by `upshift map` as the topology says."""

from __future__ import annotations

import csv
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cdn_mapping import as2org
from cdn_mapping.provider_rules import Providers, read_providers
from cdn_mapping.rib import RibReader
from cdn_mapping.votes import Ballot
from core.domain import Provider
from core.errors import UsageError
from upshift.commands.lab import app as lab_app
from upshift.commands.map import app as map_app
from vantage.lab import files as lab_files
from vantage.lab.addresses import address_plan
from vantage.lab.files import LabFiles, write_files
from vantage.lab.topology_file import find_topology, load_topology, shipped


@pytest.fixture(params=sorted({*shipped()} - {"studies"}))  # which nobody crawls
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def files(name: str, tmp_path: Path) -> LabFiles:
    return write_files(load_topology(name), tmp_path)


def test_the_table_reads_back_as_it_was_meant(name: str, files: LabFiles) -> None:
    reader = RibReader(files.rib)
    entries = list(reader)
    meant = list(lab_files.routes(load_topology(name)))
    assert len(entries) == len(meant)
    assert not reader.truncated
    assert not reader.skipped
    assert len(reader.peers) >= 3
    for entry, route in zip(entries, meant, strict=True):
        peer = lab_files.PEERS[route.peer]
        tail = [f"{{{','.join(map(str, route.origins))}}}"] if route.origins else []
        assert (entry.prefix, entry.peer_asn, entry.peer_address) == (str(route.prefix), peer.asn, peer.address)
        assert entry.as_path.split() == [*map(str, route.path), *tail]
        assert entry.origin == (None if route.origins else route.path[-1])


def test_the_table_has_what_real_ones_have(files: LabFiles) -> None:
    entries = list(RibReader(files.rib))
    assert {"0.0.0.0/0", "::/0"} <= {entry.prefix for entry in entries}
    assert any("{" in entry.as_path for entry in entries)
    paths = [entry.as_path.split() for entry in entries]
    assert any(len(path) > len(set(path)) for path in paths), "no prepending"
    assert max(len(set(path)) for path in paths) >= 5
    assert any(path[-1] == str(lab_files.PRIVATE_ASN) for path in paths)
    ballot = Ballot()
    ballot.add_rib(RibReader(files.rib))
    assert ballot.dropped == {"default route": 2}
    rows = ballot.rows(4)
    assert len(rows.low) > len(set(zip(rows.low.tolist(), rows.length.tolist(), strict=True))), "no MOAS"


def test_bgpdump_reads_the_same(files: LabFiles) -> None:
    bgpdump = shutil.which("bgpdump")
    if bgpdump is None:
        pytest.skip("bgpdump is not installed (apt-get install bgpdump)")
    said = subprocess.run([bgpdump, "-m", str(files.rib)], capture_output=True, text=True, check=True).stdout
    # type | time | B | peer address | peer AS | prefix | AS path | origin | ...
    lines = [line.split("|") for line in said.splitlines()]
    entries = [(e.peer_address, str(e.peer_asn), e.prefix, e.as_path) for e in RibReader(files.rib)]
    assert [(line[3], line[4], line[5], line[6]) for line in lines] == entries
    assert {line[7] for line in lines} == {"IGP"}


def test_organisations_read_back(name: str, files: LabFiles) -> None:
    organisations = as2org.Organisations()
    as2org.read(files.as_organisations, into=organisations)
    topology = load_topology(name)
    for organisation in topology.organisation:
        for asn in (organisation.asn, *organisation.siblings):
            held = organisations.get(asn)
            assert held is not None
            assert held.name == organisation.title
    assert any(organisation.siblings for organisation in topology.organisation)
    assert all(organisations.get(asn) for asn in (*lab_files.TRANSITS, *(peer.asn for peer in lab_files.PEERS)))
    providers = Providers(read_providers(), organisations)
    for organisation in topology.organisation:
        for asn in (organisation.asn, *organisation.siblings):
            assert providers.rule(asn).provider == organisation.provider


@pytest.mark.parametrize("version", ["ipv4", "ipv6"])
def test_upshift_map_gives_every_domain_the_provider_of_the_topology(
    name: str, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    runner = CliRunner()
    folder = tmp_path / "files"
    made = runner.invoke(lab_app, ["files", name, "-o", str(folder)])
    assert made.exit_code == 0, made.output
    topology = load_topology(name)
    plan = address_plan(topology)
    wanted: dict[str, tuple[str, str, str]] = {}
    with (tmp_path / "targets.csv").open("w", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow(["domain", "server_ip"])
        for server in topology.server:
            organisation = topology.organisation_of(server)
            for domain in server.domains or [f"{server.name}.example"]:
                wanted[domain] = (str(organisation.provider), str(organisation.asn), organisation.title)
                writer.writerow([domain, getattr(plan[server.name], version)])
        writer.writerow(["dns.example", plan["dns"].ipv4])
    argv = ["targets", str(tmp_path / "targets.csv"), "-o", str(tmp_path / "mapped.csv")]
    argv += ["--rib", str(folder / "rib.mrt.gz"), "--as2org", str(folder / "as-org2info.txt"), "--json"]
    result = runner.invoke(map_app, argv)
    assert result.exit_code == 0, result.output
    with (tmp_path / "mapped.csv").open(newline="") as handle:
        rows = {row["domain"]: row for row in csv.DictReader(handle)}
    assert rows.pop("dns.example")["provider"] == Provider.OTHER  # in the aggregate of unknown origin only
    assert {domain: (row["provider"], row["asn"], row["organisation"]) for domain, row in rows.items()} == wanted
    assert len({provider for provider, *_ in wanted.values()}) == {"anrw": 6, "cdn-iw": 4, "small": 3}[name]


def test_a_list_of_ones_own_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The output folder is the present one by default."""
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "list.csv"
    own.write_text("1,mine.example\n")
    done = CliRunner().invoke(lab_app, ["files", "small"])
    assert isinstance(done.exception, UsageError) and "list.csv: this is already there" in str(done.exception)
    assert own.read_text() == "1,mine.example\n" and list(tmp_path.iterdir()) == [own]
    own.unlink()
    for _ in range(2):
        assert CliRunner().invoke(lab_app, ["files", "small"]).exit_code == 0


def test_files_are_the_same_each_time_and_the_list_is_tranco(name: str, files: LabFiles, tmp_path: Path) -> None:
    again = write_files(load_topology(name), tmp_path / "again")
    assert again.rib.read_bytes() == files.rib.read_bytes()
    data = files.top_list.read_bytes()
    assert again.top_list.read_bytes() == data
    rows = [line.split(",") for line in data.decode().split("\r\n")[:-1]]
    assert [int(rank) for rank, _ in rows] == list(range(1, len(rows) + 1))
    topology = load_topology(name)
    everything = [domain for server in topology.server if server.fault is None for domain in server.domains]
    everything += [domain for site in topology.site for domain in site.domains]
    assert sorted(domain for _, domain in rows) == sorted(everything)
    assert [domain for _, domain in rows] != everything


def test_a_new_domain_leaves_the_others_in_their_order(tmp_path: Path) -> None:
    text = find_topology("anrw").read_text()
    path = tmp_path / "more.toml"
    path.write_text(text + '\n[[site]]\nkind = "unresolvable"\ndomain = "www.new.example"\n')
    before = write_files(load_topology("anrw"), tmp_path / "a").top_list.read_text().split()
    after = write_files(load_topology(path), tmp_path / "b").top_list.read_text().split()
    names = [line.partition(",")[2] for line in after]
    names.remove("www.new.example")
    assert names == [line.partition(",")[2] for line in before]
