"""`upshift map`: targets files, CNAMEs by a real name server on loopback, fetching from a real HTTP server."""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest import mock

import dns.message
import dns.rcode
import dns.rrset
import pytest
from typer.testing import CliRunner

from cdn_mapping import fetch, mapping, sources, table
from cdn_mapping.rib import RibEntry
from cdn_mapping.votes import Ballot
from core.domain import Target
from core.errors import IncompleteError, PlaceError, ReachError, UsageError
from core.files import store
from core.files.disk import write_json
from core.files.targets import MAPPED
from core.outreach import dns_wire
from core.reach import ENVIRONMENT_VARIABLE
from upshift.commands.map import app

AS2ORG = """\
# format:org_id|changed|org_name|country|source
GOGL|1|Google LLC|US|ARIN
ONE|1|One GmbH|DE|RIPE
# format:aut|changed|aut_name|org_id|opaque_id|source
15169|1|GOOGLE|GOGL|x|ARIN
36384|1|GOOGLE-IT|GOGL|x|ARIN
680|1|ONE|ONE|x|RIPE
"""


@pytest.fixture
def inputs(tmp_path: Path) -> list[str]:
    """Options that name a prefix table and an AS2Org file."""
    ballot = Ballot()
    paths = [
        ("8.8.0.0/16", "1 36384"),
        ("9.0.0.0/8", "1 680"),
        ("9.0.0.0/8", "2 680"),
        ("9.0.0.0/8", "3 15169"),
        ("10.9.0.0/16", "1 {1,2}"),
        ("2001:db8::/32", "1 15169"),
        ("2001:db8::/32", "1 36384"),
        ("12.0.0.0/8", "1 7018"),
    ]
    ballot.add_entries([RibEntry(prefix, None, path, 1, "192.0.2.1", None) for prefix, path in paths])
    table.build({v: ballot.rows(v) for v in (4, 6)}, {}).save(tmp_path / "t.npz")
    (tmp_path / "as2org.txt").write_text(AS2ORG)
    return ["--rib", str(tmp_path / "t.npz"), "--as2org", str(tmp_path / "as2org.txt")]


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=True)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_explain_says_prefix_origin_organisation_rule_and_dissent(inputs: list[str]) -> None:
    facts = json.loads(run("explain", "9.1.2.3", *inputs, "--json"))
    assert facts["prefix"] == "9.0.0.0/8"
    assert (facts["asn"], facts["organisation"], facts["provider"], facts["rule"]) == (680, "One GmbH", "other", "none")
    assert facts["votes"] == {"680": 2, "15169": 1}
    assert (facts["moas"], facts["rival_asns"]) == (True, [15169])
    assert facts["dissent"] == pytest.approx(1 / 3, abs=1e-3)
    text = run("explain", "2001:db8::1", *inputs)
    assert "AS15169 is a seed" in text
    assert "of no rival that is known" in text
    assert "same organisation as seed AS15169" in run("explain", "8.8.8.8", *inputs)
    assert "only AS_SETs" in run("explain", "10.9.1.1", *inputs)
    assert "no matching prefix in the table" in run("explain", "192.0.2.1", *inputs)
    with pytest.raises(UsageError, match="'nonsense' is not a valid IP address"):
        run("explain", "nonsense", *inputs)


def test_who_is_unknown_is_no_other_organisation(inputs: list[str]) -> None:
    facts = json.loads(run("explain", "9.1.2.3", *inputs[:2], "--json"))
    assert (facts["moas"], facts["organisation"], facts["rival_asns"]) == (True, None, [])


def test_two_networks_of_one_provider_are_no_rivals(tmp_path: Path) -> None:
    """Registries know providers by several ids, and each prefix with two of their origins counted as a conflict."""
    ballot = Ballot()
    paths = [(f"8.{n}.0.0/16", f"{peer} {asn}") for n in (8, 9) for peer, asn in ((1, 15169), (2, (43515, 680)[n - 8]))]
    ballot.add_entries([RibEntry(prefix, None, path, 1, "192.0.2.1", None) for prefix, path in paths])
    table.build({v: ballot.rows(v) for v in (4, 6)}, {}).save(tmp_path / "t.npz")
    (tmp_path / "as2org.txt").write_text(f"{AS2ORG}43515|1|YOUTUBE|ORG-GIL4|x|RIPE\n")
    options = ["--rib", str(tmp_path / "t.npz"), "--as2org", str(tmp_path / "as2org.txt")]
    for address, provider, rivals in (("8.8.8.8", "google", []), ("8.9.8.8", "other", [15169])):
        facts = json.loads(run("explain", address, *options, "--json"))
        assert (facts["moas"], facts["provider"], facts["rival_asns"]) == (True, provider, rivals)


def test_targets_get_their_columns(tmp_path: Path, inputs: list[str]) -> None:
    rows = [
        Target(domain="a.example", url="https://a.example/f", rank=1, server_ip="8.8.8.8", crawled_at=1.5),
        Target(domain="b.example", url="https://b.example/f", server_ip="9.1.1.1"),
        Target(domain="c.example", url="https://c.example/f", server_ip="10.9.0.1"),
        Target(domain="d.example", url="https://d.example/f", server_ip="192.0.2.1"),
        Target(domain="e.example", url="https://e.example/f"),
        Target(domain="f.example", url="https://f.example/f", server_ip="12.0.0.1"),
    ]
    store.write_rows(tmp_path / "in.parquet", "targets", rows)
    summary = json.loads(
        run("targets", str(tmp_path / "in.parquet"), "-o", str(tmp_path / "out.parquet"), *inputs, "--json")
    )
    assert summary == {
        "targets": 6,
        "providers": {"google": 1, "other": 5},
        "without_address": 1,
        "without_prefix": 1,
        "without_origin": 1,
        "without_organisation": 1,
        "rival_organisations": 1,
        "cname_opinions": 0,
        "cname_disagrees": 0,
        "cname_failed": {},
    }
    back = store.read_rows(tmp_path / "out.parquet", "targets", Target)
    assert [(t.provider, t.asn, t.organisation) for t in back] == [
        ("google", 36384, "Google LLC"),
        ("other", 680, "One GmbH"),
        ("other", None, None),
        ("other", None, None),
        ("other", None, None),
        ("other", 7018, None),
    ]
    assert (back[0].rank, back[0].crawled_at) == (1, 1.5)
    full = store.read_table(tmp_path / "out.parquet", "targets")
    assert full.column("rival_asns").to_pylist()[:2] == [None, "15169"]
    assert full.schema.field("size_bytes").metadata == {b"unit": b"B"}


def test_results_of_a_survey_are_mapped_likewise(tmp_path: Path, inputs: list[str]) -> None:
    import pyarrow as pa

    source, out = tmp_path / "in.parquet", tmp_path / "out.parquet"
    rows = {
        "domain": ["a.example", "b.example", "c.example"],
        "server_ip": ["8.8.8.8", None, None],
        "ecn": [True, None, None],
    }
    rows["provider"] = [None, None, "akamai"]
    store.write_table(source, "survey_options", pa.table(rows))
    run("targets", str(source), "-o", str(out), *inputs)
    mapped = store.read_table(out, "survey_options")
    # Who was not contacted has no address: what the survey's input knew stays.
    assert mapped.column("provider").to_pylist() == ["google", None, "akamai"]
    assert mapped.column("ecn").to_pylist() == [True, None, None]
    assert set(mapped.column_names) == {"domain", "server_ip", "ecn", *MAPPED}
    store.write_table(source, "kpis", pa.table(rows))
    with pytest.raises(UsageError, match="this holds kpis records of Upshift, not targets"):
        run("targets", str(source), "-o", str(out), *inputs)


def test_csv_in_and_out_with_cnames_that_disagree(tmp_path: Path, inputs: list[str]) -> None:
    (tmp_path / "in.csv").write_bytes(
        b"\xef\xbb\xbfdomain,rank,server_ip,cname_chain,mine\r\n"
        b"a.example,1,8.8.8.8,a.ghs.googlehosted.com,x\r\n\r\n"
        b"b.example,,9.1.1.1,b.example.edgekey.net e.akamaiedge.net,\r\n"
        b"c.example,,9.1.1.1,,\r\n"
    )
    said = run("targets", str(tmp_path / "in.csv"), "-o", str(tmp_path / "out.csv"), *inputs)
    assert "CNAME against AS: 1 of 2 disagree" in said
    with (tmp_path / "out.csv").open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert [(r["provider"], r["cname_provider"], r["cname_agrees"]) for r in rows] == [
        ("google", "google", "true"),
        ("other", "akamai", "false"),
        ("other", "", ""),
    ]
    assert rows[0]["url"] == "https://a.example/"
    assert [row["mine"] for row in rows] == ["x", "", ""]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: the column domain is missing"),
        ("domain,url\n", "line 1: the column server_ip is missing"),
        ("domain,server_ip\na,1.1.1.1,3\n", "line 2: the row has another number of columns than the header"),
        ("domain,server_ip\na,\nb,1.1.1.999\n", "line 3: server_ip '1.1.1.999' is not an IP address"),
        ("domain,server_ip,rank\na,,first\n", "line 2: rank 'first' is not a whole number"),
        ("domain,server_ip,ecn\na,,perhaps\n", "line 2: ecn 'perhaps' is not true or false"),
        ("domain,server_ip\n,1.1.1.1\n", "line 2: the domain is missing"),
        ('domain,server_ip\n"a,1.1.1.1\n', "line 2: unexpected end of data"),
    ],
)
def test_malformed_csv_names_line_and_column(tmp_path: Path, inputs: list[str], text: str, said: str) -> None:
    (tmp_path / "in.csv").write_text(text)
    with pytest.raises(UsageError, match=said) as caught:
        run("targets", str(tmp_path / "in.csv"), "-o", str(tmp_path / "o.csv"), *inputs)
    assert str(tmp_path / "in.csv") in caught.value.sentence()
    assert not (tmp_path / "o.csv").exists()


@pytest.mark.thorough
def test_table_and_its_json(tmp_path: Path, shared_data: Path) -> None:
    rib = shared_data / "bgp" / "bview.20020722.2337.gz"
    facts = json.loads(run("table", str(rib), "-o", str(tmp_path / "x.npz"), "--json"))
    assert facts["routes"] == 115_521
    assert facts["prefixes_v4"] > 100_000
    assert facts["sources"][0]["truncated_at"] is None
    with pytest.raises(UsageError, match="no RIB given"):
        run("table", "-o", str(tmp_path / "x.npz"))
    with pytest.raises(UsageError, match="--collector needs BGPStream"):
        run("table", "--collector", "rrc00")
    with pytest.raises(UsageError, match=r"--time: --collector needs the time of a RIB; add it"):
        run("table", "--collector", "rrc00", "--backend", "bgpstream")
    with pytest.raises(UsageError, match="is not a valid time"):
        run("table", "--collector", "rrc00", "--backend", "bgpstream", "--time", "noon")
    with pytest.raises(ReachError, match="UPSHIFT_ALLOWED_PREFIXES is set"):
        run("table", "--collector", "rrc00", "--backend", "bgpstream", "--time", "2026-11-01T08:00")


class NameServer:
    """Answers A questions on a loopback UDP port, as its table says; a name that it lacks gets no answer."""

    def __init__(self, chains: dict[str, list[str] | None]) -> None:
        self._chains = chains
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.questions: list[str] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> NameServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._socket.sendto(b"stop", ("127.0.0.1", self.port))
        self._thread.join(5)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            data, peer = self._socket.recvfrom(4096)
            if data == b"stop":
                return
            query = dns.message.from_wire(data)
            name = query.question[0].name.to_text(omit_final_dot=True)
            self.questions.append(name)
            if name not in self._chains:
                continue
            answer = dns.message.make_response(query)
            chain = self._chains[name]
            if chain is None:
                answer.set_rcode(dns.rcode.NXDOMAIN)
            else:
                names = [name, *chain]
                links = [
                    dns.rrset.from_text(f"{left}.", 60, "IN", "CNAME", f"{right}.")
                    for left, right in itertools.pairwise(names)
                ]
                last = dns.rrset.from_text(f"{names[-1]}.", 60, "IN", "A", "192.0.2.7")
                answer.answer = [last, *reversed(links)] if names[1:] else [last]
            self._socket.sendto(answer.to_wire(), peer)


def test_cname_chains_from_a_real_name_server(tmp_path: Path, inputs: list[str]) -> None:
    chains = {
        "a.example": ["a.example.edgekey.net", "e1.a.akamaiedge.net"],
        "b.example": [],
        "gone.example": None,
        "loop.example": ["x.example", "loop.example"],
    }
    domains = [*chains, "silent.example", "bad..name", "a.example"]
    with NameServer(chains) as server:
        mapping.look_up(["b.example", "b.example"], nameserver="127.0.0.1", port=server.port, timeout_s=30)
        assert server.questions == ["b.example"], "each name once"
        found = mapping.look_up(domains, nameserver="127.0.0.1", port=server.port, timeout_s=0.2, rate_per_s=1000)
    assert found.of_domain["a.example"] == ("a.example.edgekey.net", "e1.a.akamaiedge.net")
    assert found.of_domain["b.example"] == ()
    assert len(found.of_domain["loop.example"]) == dns_wire.LONGEST_CHAIN
    assert found.failed == {"NXDOMAIN": 1, "timeout": 1, "not a valid name": 1}
    assert server.questions.count("silent.example") == 2

    rows = [
        "domain,server_ip,cname_chain",
        "a.example,9.1.1.1,",
        "b.example,9.1.1.1,b.old.net",
        "gone.example,,g.old.net",
    ]
    (tmp_path / "in.csv").write_text("\n".join([*rows, ""]))
    with NameServer(chains) as server:
        options = ["--cname-lookups", "--nameserver", "127.0.0.1", "--nameserver-port", str(server.port)]
        said = run("targets", str(tmp_path / "in.csv"), "-o", str(tmp_path / "out.csv"), *inputs, *options)
    assert "CNAME against AS: 1 of 1 disagree" in said
    assert "CNAME look-ups failed: 1 NXDOMAIN" in said
    with (tmp_path / "out.csv").open(newline="") as handle:
        known = [row["cname_chain"] for row in csv.DictReader(handle)]
    assert known == ["a.example.edgekey.net e1.a.akamaiedge.net", "", "g.old.net"], "a failed look-up knows nothing new"


def test_the_host_of_the_url_is_asked_for_its_cnames(tmp_path: Path, inputs: list[str]) -> None:
    """A crawl with `--start https://www.{domain}/` had found a CDN's name, and the domain's empty chain replaced it."""
    chains: dict[str, list[str] | None] = {"a.example": [], "www.a.example": ["e1.a.akamaiedge.net"]}
    rows = ["domain,url,server_ip,cname_chain", "a.example,https://www.a.example/f,9.1.1.1,old.akamaiedge.net"]
    (tmp_path / "in.csv").write_text("\n".join([*rows, ""]))
    with NameServer(chains) as server:
        options = ["--cname-lookups", "--nameserver", "127.0.0.1", "--nameserver-port", str(server.port)]
        run("targets", str(tmp_path / "in.csv"), "-o", str(tmp_path / "out.csv"), *inputs, *options)
    with (tmp_path / "out.csv").open(newline="") as handle:
        found = [(row["cname_chain"], row["cname_provider"]) for row in csv.DictReader(handle)]
    assert (server.questions, found) == (["www.a.example"], [("e1.a.akamaiedge.net", "akamai")])


def test_an_address_has_no_cname(tmp_path: Path, inputs: list[str]) -> None:
    """A list of addresses was asked for as names, and each counted as a failed look-up."""
    rows = ["domain,url,server_ip", "9.1.1.1,,9.1.1.1", "a.example,https://[2001:db8::1]/f,2001:db8::1", "b.example,,"]
    (tmp_path / "in.csv").write_text("\n".join([*rows, ""]))
    with NameServer({"b.example": []}) as server:
        options = ["--cname-lookups", "--nameserver", "127.0.0.1", "--nameserver-port", str(server.port)]
        said = run("targets", str(tmp_path / "in.csv"), "-o", str(tmp_path / "out.csv"), *inputs, *options)
    assert server.questions == ["b.example"] and "failed" not in said


def test_a_name_server_outside_is_refused() -> None:
    with pytest.raises(ReachError, match=r"192.0.2.1 is outside"):
        mapping.look_up(["a.example"], nameserver="192.0.2.1")


RIB = bytes(range(256)) * 400


class Mirror(BaseHTTPRequestHandler):
    """RouteViews and CAIDA as they are laid out; `/cut/` breaks off half way, `/away/` redirects."""

    seen: list[tuple[str, str | None]] = []  # noqa: RUF012 - one list for all requests of a test

    def do_GET(self) -> None:
        self.seen.append((self.path, self.headers.get("Range")))
        parts = self.path.strip("/").split("/")
        if self.path.endswith("/RIBS/"):
            names = ["rib.20261101.0000.bz2", "rib.20261101.0200.bz2", "rib.20261031.2200.bz2", "README"]
            self._send(200, "".join(f'<a href="{n}">{n}</a>' for n in names) if "2026.10" not in parts else "")
        elif parts == ["caida"]:
            names = ["20261001.as-org2info.jsonl.gz", "20261001.as-org2info.txt.gz", "20260901.as-org2info.jsonl.gz"]
            self._send(200, "".join(f'<a href="{n}">' for n in names))
        elif parts[0] == "away":
            self._send(302, "", Location="http://192.0.2.1/x")
        elif parts[0] == "round":
            self._send(302, "", Location="/round/")
        elif parts[0].startswith("signed?"):
            self._send(302, "", Location="/caida/rib.20261101.0200.bz2?key=2")
        elif parts[-1].startswith(("rib.", "2026")):
            self._file(cut=parts[0] == "cut" and self.headers.get("Range") is None)
        else:
            self._send(404, "")

    def _file(self, *, cut: bool) -> None:
        start = 0
        given = self.headers.get("Range")
        if given and self.headers.get("If-Range") == '"v1"':
            start = int(given.removeprefix("bytes=").rstrip("-"))
        if start >= len(RIB):
            return self._send(416, "")
        self.send_response(206 if start else 200)
        self.send_header("ETag", '"v1"')
        self.send_header("Content-Length", str(len(RIB) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(RIB) - 1}/{len(RIB)}")
        self.end_headers()
        self.wfile.write(RIB[start : len(RIB) // 2] if cut else RIB[start:])
        self.close_connection = True
        return None

    def _send(self, status: int, text: str, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def mirror() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Mirror)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    Mirror.seen.clear()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join(5)


NOW = datetime(2026, 11, 21, tzinfo=UTC)


def test_the_newest_files_are_named_and_fetched(mirror: str, tmp_path: Path) -> None:
    options = ["--routeviews", mirror + "mirrored", "--caida", mirror + "caida", "-o", str(tmp_path / "f")]
    named = json.loads(run("fetch", "--name-only", "--json", *options))
    assert named["rib"]["url"].startswith(mirror + "mirrored/bgpdata/")
    assert named["rib"]["url"].endswith("/RIBS/rib.20261101.0200.bz2")
    assert named["as2org"]["url"] == mirror + "caida/20261001.as-org2info.jsonl.gz"
    assert not (tmp_path / "f").exists()
    assert "rib.20261101.0200.bz2 -> " in run("fetch", *options)
    assert sorted(p.name for p in (tmp_path / "f").iterdir()) == [
        "20261001.as-org2info.jsonl.gz",
        "rib.20261101.0200.bz2",
    ]
    assert (tmp_path / "f" / "rib.20261101.0200.bz2").read_bytes() == RIB
    refused = CliRunner().invoke(app, ["fetch", "--what", "all", *options])
    assert refused.exit_code == 2 and "'rib', 'as2org', 'both'" in refused.output


def test_last_months_folder_where_this_months_is_missing(mirror: str) -> None:
    url = fetch.newest_rib(mirror, collector="rv.sg", now=datetime(2026, 11, 1, tzinfo=UTC))
    assert url == mirror + "rv.sg/bgpdata/2026.11/RIBS/rib.20261101.0200.bz2"
    with pytest.raises(IncompleteError, match="no as-org2info file is listed"):
        fetch.newest_as2org(mirror + "none/")


def test_the_query_of_an_address_and_of_a_redirect_is_kept(mirror: str, tmp_path: Path) -> None:
    assert fetch.download(mirror + "signed?key=1", tmp_path).path.read_bytes() == RIB
    assert [path for path, _ in Mirror.seen] == ["/signed?key=1", "/caida/rib.20261101.0200.bz2?key=2"]


def test_an_interrupted_fetch_goes_on_and_shows_no_half_file(mirror: str, tmp_path: Path) -> None:
    url = mirror + "cut/rib.20261101.0200.bz2"
    with pytest.raises(IncompleteError, match=r"51200 of 102400 bytes received; run the same command again"):
        fetch.download(url, tmp_path)
    assert not (tmp_path / "rib.20261101.0200.bz2").exists()
    fetched = fetch.download(url, tmp_path)
    assert (fetched.resumed_at, fetched.size_bytes) == (51_200, 102_400)
    assert Mirror.seen[-1][1] == "bytes=51200-"
    assert fetched.path.read_bytes() == RIB
    assert [p.name for p in tmp_path.iterdir()] == ["rib.20261101.0200.bz2"]


def test_what_an_earlier_try_left_is_used_only_if_it_fits(mirror: str, tmp_path: Path) -> None:
    url = mirror + "rib.20261101.0200.bz2"
    part, note = tmp_path / ".rib.20261101.0200.bz2.part", tmp_path / ".rib.20261101.0200.bz2.part.json"
    for validator, size in (('"v0"', 100), ('"v1"', len(RIB))):  # another version; all of it
        part.write_bytes(b"x" * size)
        note.write_text(json.dumps({"url": url, "validator": validator}))
        assert fetch.download(url, tmp_path).path.read_bytes() == RIB
    part.write_bytes(b"x" * 100)
    note.write_text("broken")
    assert fetch.download(url, tmp_path).path.read_bytes() == RIB


def test_killed_between_note_and_file_no_two_versions_are_mixed(
    mirror: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = mirror + "rib.20261101.0200.bz2"
    (tmp_path / ".rib.20261101.0200.bz2.part").write_bytes(b"x" * 100)
    (tmp_path / ".rib.20261101.0200.bz2.part.json").write_text(json.dumps({"url": url, "validator": '"v0"'}))

    def killed(path: Path, document: object) -> None:
        write_json(path, document)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(fetch, "write_json", killed)
        fetch.download(url, tmp_path)
    assert fetch.download(url, tmp_path).path.read_bytes() == RIB


def test_of_two_fetches_of_one_file_the_second_is_refused(mirror: str, tmp_path: Path) -> None:
    """It began anew in the other's file, of which half was then called complete."""
    url, said = mirror + "rib.20261101.0200.bz2", "another upshift map fetch is fetching this file; wait for it"

    def again(*_: int) -> None:
        with pytest.raises(PlaceError, match=f"rib.20261101.0200.bz2: {said}"):
            fetch.download(url, tmp_path)

    assert fetch.download(url, tmp_path, on_read=again).path.read_bytes() == RIB
    fetch.download(url, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["rib.20261101.0200.bz2"]


def test_a_lock_of_a_file_that_is_gone_holds_nobody_off(
    mirror: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fetch that had it ended between our opening and our locking; a third one may have begun."""

    def taken(_: int) -> bool:
        (tmp_path / ".rib.20261101.0200.bz2.lock").unlink()
        return True

    monkeypatch.setattr(fetch, "take_lock", taken)
    with pytest.raises(PlaceError, match="another upshift map fetch"):
        fetch.download(mirror + "rib.20261101.0200.bz2", tmp_path)


@pytest.mark.parametrize(
    ("etag", "modified", "validator"),
    [('"v1"', "Sun, 01 Nov 2026", '"v1"'), ('W/"v1"', "Sun, 01 Nov 2026", "Sun, 01 Nov 2026"), ('W/"v1"', None, None)],
)
def test_a_weak_etag_is_no_condition_of_a_range(etag: str, modified: str | None, validator: str | None) -> None:
    headers = {"ETag": etag, "Last-Modified": modified}
    assert fetch._validator(mock.Mock(headers=headers)) == validator


def test_nothing_outside_is_contacted(mirror: str, tmp_path: Path) -> None:
    with pytest.raises(ReachError, match=rf"archive\.routeviews\.org is no address, and {ENVIRONMENT_VARIABLE} is set"):
        run("fetch", "--name-only")
    with pytest.raises(ReachError, match=r"192.0.2.1 is outside"):
        fetch.read_index(mirror + "away/")
    with pytest.raises(IncompleteError, match="more than 5 redirects"):
        fetch.read_index(mirror + "round/")
    with pytest.raises(UsageError, match="the URL is not https or http://HOST/"):
        fetch.read_index("ftp://127.0.0.1/")
    with pytest.raises(IncompleteError, match="the server answered 404"):
        fetch.download(mirror + "nothing", tmp_path)


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("/\xc3\xa9/", "characters that must be percent-encoded"),
        ("http://[::1/", "Invalid IPv6 URL"),
        ("http://127.0.0.1:99999/", "Port out of range"),
        ("ftp://127.0.0.1/", "the URL is not https or http"),
    ],
)
def test_a_redirect_to_what_cannot_be_requested_is_one_sentence(
    mirror: str, monkeypatch: pytest.MonkeyPatch, place: str, said: str
) -> None:
    monkeypatch.setattr(Mirror, "do_GET", lambda self: self._send(302, "", Location=place))
    with pytest.raises(IncompleteError, match=f"{mirror}: it redirects to .*{said}"):
        fetch.read_index(mirror)


@pytest.mark.parametrize(
    ("asked", "places", "said"),
    [
        ("https://a.example/", ["https://b.example/"], "127.0.0.1 is not a public address"),
        ("https://a.example/", ["http://c.example/"], "it is not encrypted"),
        ("https://a.example/", ["https://c.example/"], None),
        ("http://b.example/", ["http://b.example/x"], None),
        ("http://a.example/", ["https://c.example/", "http://c.example/"], "it is not encrypted"),
        ("http://b.example/", ["http://a.example/", "http://b.example/"], "127.0.0.1 is not a public address"),
        ("http://b.example/", ["http://a.example/", "https://a.example/"], None),
    ],
)
def test_a_redirect_leads_neither_inwards_nor_to_what_is_not_encrypted(
    monkeypatch: pytest.MonkeyPatch, asked: str, places: list[str], said: str | None
) -> None:
    """Neither does any redirect after the first."""
    addresses = {"a.example": "8.8.8.8", "b.example": "127.0.0.1", "c.example": "8.8.4.4"}
    connected: list[str] = []

    class Connection(mock.Mock):
        def __init__(self, host: str, *_: object) -> None:
            super().__init__()
            connected.append(host)
            place = places[len(connected) - 1] if len(connected) <= len(places) else None
            self.getresponse.return_value = mock.Mock(status=302 if place else 200, headers={"Location": place})

        def _get_child_mock(self, **arguments: object) -> mock.Mock:
            return mock.Mock(**arguments)

    monkeypatch.setattr(fetch, "_Pinned", Connection)
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *_, **__: [(0, 0, 0, "", (addresses[host], 0))])
    monkeypatch.delenv(ENVIRONMENT_VARIABLE)
    refused = pytest.raises(IncompleteError, match=f"{asked}: it redirects to '{places[-1]}': {said}")
    with refused if said else contextlib.nullcontext():
        fetch._request(asked, {})
    assert len(connected) == len(places) + (said is None)


def test_a_name_that_dns_cannot_have(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise UnicodeError("label empty or too long")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.delenv(ENVIRONMENT_VARIABLE)
    with pytest.raises(PlaceError, match=r"a\.\.example cannot be resolved"):
        fetch.checked_address("a..example", 443)


def test_a_file_that_cannot_be_written_is_not_a_broken_connection(mirror: str, tmp_path: Path) -> None:
    (tmp_path / ".rib.20261101.0200.bz2.part").mkdir()
    with pytest.raises(IsADirectoryError):
        fetch.download(mirror + "rib.20261101.0200.bz2", tmp_path)


def test_a_url_without_a_file_name(mirror: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the URL names no file"):
        fetch.download(mirror, tmp_path)
    assert Mirror.seen == []


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/rib"
        with pytest.raises(IncompleteError, match="the server does not answer"):
            fetch.download(url, tmp_path)


def test_the_cache_follows_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert sources.cache_folder() == Path("/x/upshift/prefix-tables")
