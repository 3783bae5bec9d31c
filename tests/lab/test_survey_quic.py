"""`upshift survey quic` against real QUIC servers of three makes, and against every kind of pretender.

All in one network namespace with nothing but loopback: Caddy (quic-go), aioquic's server, h3serve (quiche), Knot DNS.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme

from core.domain import Target
from core.files import store, targets
from core.system import process
from survey.quic.record import QuicRecord
from tests.cells import Repeats

pytestmark = [
    pytest.mark.lab,
    pytest.mark.usefixtures("root"),
]

HERE = Path(__file__).parent
REPOSITORY = HERE.parent.parent

RECORDS = {
    # name: (address, HTTPS record or None)
    "caddy": ("127.0.1.1", "1 . alpn=h3,h2 ipv4hint=127.0.1.1"),
    "aioquic": ("127.0.1.2", "1 . alpn=h3"),
    "quiche": ("127.0.1.3", None),
    "port": ("127.0.1.3", "1 . alpn=h3 port=8443"),
    "alias": ("127.0.1.1", "0 caddy.example."),
    "elsewhere": ("127.0.2.9", None),
    "hints": ("127.0.1.1", "1 . alpn=h3 ipv4hint=127.0.2.9"),
    "retry": ("127.0.1.4", "1 . alpn=h3"),
    "second": ("127.0.1.5", "1 . alpn=h3"),
    "fallback": ("127.0.1.1", "1 refused.example. alpn=h3"),
    "refused": ("127.0.3.1", "1 . alpn=h3"),
    "silent": ("127.0.2.1", "1 . alpn=h3"),
    "negotiates": ("127.0.2.2", "1 . alpn=h3"),
    "drafts": ("127.0.2.3", "1 . alpn=h3"),
    "othername": ("127.0.1.2", "1 . alpn=h3"),
    "untrusted": ("127.0.1.10", "1 . alpn=h3"),
    "unknown": ("127.0.1.1", "1 . alpn=h3"),
    "alpn": ("127.0.1.11", "1 . alpn=h3"),
    "broken": ("127.0.1.12", "1 . alpn=h3"),
    "stall": ("127.0.1.6", "1 . alpn=h3"),
    "reset": ("127.0.1.7", "1 . alpn=h3"),
    "closing": ("127.0.1.8", "1 . alpn=h3"),
    "bodiless": ("127.0.1.9", "1 . alpn=h3"),
    "garbage": ("127.0.2.4", "1 . alpn=h3"),
    "wrongid": ("127.0.2.5", "1 . alpn=h3"),
    "truncated": ("127.0.2.6", "1 . alpn=h3"),
    "echo": ("127.0.2.7", "1 . alpn=h3"),
    "reserved": ("127.0.2.8", "1 . alpn=h3"),
    "halfway": ("127.0.2.10", "1 . alpn=h3"),
    "older": ("127.0.2.9", "1 . alpn=h2"),
    "clear": ("127.0.2.9", None),
    "outside": ("10.0.0.1", "1 . alpn=h3"),
    "blocked": ("127.0.2.9", "1 . alpn=h3"),
    "prefix": ("127.0.5.1", "1 . alpn=h3"),
}

ALT_SVC = {
    "caddy": 'h3=":443"; ma=2592000',
    "quiche": 'h3-29=":443"; ma=1, h3=":443"; ma=2592000',
    "elsewhere": 'h2=":443", h3="caddy.example:443"; persist=1',
    "fallback": 'h3="caddy.example:443"',
    "clear": "clear",
}

# In the certificate of the honest servers.
COVERED = sorted(set(RECORDS) - {"othername", "unknown"})

EXPECTED = {
    **dict.fromkeys(
        ("caddy", "aioquic", "quiche", "port", "alias", "elsewhere", "hints", "retry", "second", "fallback"), "ok"
    ),
    **dict.fromkeys(("refused", "silent"), "advertised_only"),
    "negotiates": "version_negotiation_only",
    **dict.fromkeys(("drafts", "reserved"), "version_mismatch"),
    **dict.fromkeys(("othername", "untrusted"), "certificate"),
    "unknown": "tls_alert",
    "alpn": "alpn",
    **dict.fromkeys(("broken", "stall", "reset", "bodiless"), "http_error"),
    **dict.fromkeys(("closing", "garbage", "wrongid", "truncated", "echo"), "transport_error"),
    "halfway": "handshake_timeout",
    **dict.fromkeys(("older", "clear"), "no_candidate"),
    "missing": "dns_error",
    "outside": "address_refused",
    **dict.fromkeys(("blocked", "prefix"), "blocked"),
}

MANY = [f"d{number}.many.example" for number in range(60)]


@dataclass
class World:
    folder: Path
    inside: list[str]
    h3serve: str

    def command(self, source: Path, out: Path, *more: str) -> list[str]:
        upshift = [sys.executable, "-m", "upshift.cli"] if not _installed() else [_installed()]
        words = ["survey", "quic", str(source), "-o", str(out), "--contact", "test@example.org", *more]
        return [*self.inside, *upshift, *words, "--nameserver", "127.0.0.1", "--ca", str(self.folder / "ca.pem")]

    def survey(self, source: Path, out: Path, *more: str) -> process.Completed:
        return process.run(self.command(source, out, *more), timeout_s=120)

    def log(self) -> list[list[str]]:
        return [line.split() for line in (self.folder / "servers.log").read_text().splitlines()]


def _installed() -> str:
    beside = Path(sys.executable).with_name("upshift")
    return str(beside) if beside.exists() else ""


def write_certificates(folder: Path) -> None:
    ca, stranger = trustme.CA(), trustme.CA()
    ca.cert_pem.write_to_path(folder / "ca.pem")
    names = [f"{name}.example" for name in COVERED]
    for file, authority in (("good", ca), ("stranger", stranger)):
        certificate = authority.issue_cert(*names, "six.example", "*.many.example")
        certificate.private_key_pem.write_to_path(folder / f"{file}.key")
        for blob in certificate.cert_chain_pems:
            blob.write_to_path(folder / f"{file}.pem", append=True)


def write_dns(folder: Path) -> None:
    lines = ["$TTL 30", ". IN SOA ns. host. 1 3600 600 86400 30", ". IN NS ns.", "ns. IN A 127.0.0.1"]
    for name, (address, service) in RECORDS.items():
        lines.append(f"{name}.example. IN A {address}")
        if service is not None:
            lines.append(f"{name}.example. IN HTTPS {service}")
    lines += ["mapped.example. IN AAAA ::ffff:127.0.1.2", "mapped.example. IN HTTPS 1 . alpn=h3"]
    lines += ["far.example. IN AAAA fd00:198:18:7::7", "far.example. IN HTTPS 1 . alpn=h3"]
    lines += ["six.example. IN AAAA ::1", "six.example. IN HTTPS 1 . alpn=h3 ipv6hint=::1"]
    lines += ["closed.example. IN AAAA ::1", "closed.example. IN HTTPS 1 . alpn=h3 port=444"]
    lines += ["*.many.example. IN A 127.0.1.2", "*.many.example. IN HTTPS 1 . alpn=h3"]
    (folder / "root.zone").write_text("\n".join(lines) + "\n")
    (folder / "knot.conf").write_text(
        f'server:\n    rundir: "{folder}"\n    listen: ["127.0.0.1@53"]\n    udp-workers: 1\n    tcp-workers: 1\n'
        f'database:\n    storage: "{folder}"\n    journal-db-max-size: 1M\nlog:\n  - target: stderr\n    any: warning\n'
        f'template:\n  - id: default\n    storage: "{folder}"\n    zonefile-sync: -1\n    journal-content: none\n'
        f'zone:\n  - domain: "."\n    file: "{folder}/root.zone"\n'
    )


def write_targets(path: Path, names: Sequence[str]) -> None:
    """A targets file as a crawl and a mapping leave it."""
    rows = [
        Target(
            domain=name,
            url=f"https://{name}/f",
            rank=rank,
            provider="other",
            asn=64500,
            alt_svc=ALT_SVC.get(name.partition(".")[0]),
        )
        for rank, name in enumerate(names, 1)
    ]
    targets.write_rows(path, rows)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("quic")
    h3serve = process.find_program("h3serve")
    assert h3serve is not None, "make setup builds it"
    namespace = f"upsq{os.getpid()}"
    process.run(["ip", "netns", "add", namespace]).check(doing="making a namespace")
    try:
        inside = ["nsenter", f"--net=/run/netns/{namespace}"]
        process.run([*inside, "ip", "link", "set", "lo", "up"]).check(doing="setting lo up")
        write_certificates(folder)
        write_dns(folder)
        (folder / "Caddyfile").write_text(
            "{\n admin off\n auto_https off\n servers {\n protocols h1 h2 h3\n }\n}\n"
            + ", ".join(f"https://{name}.example:443" for name in COVERED)
            + f" {{\n bind 127.0.1.1\n tls {folder}/good.pem {folder}/good.key\n respond hello\n}}\n"
        )
        env = {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
        caddy = ["caddy", "run", "--adapter", "caddyfile", "--config", str(folder / "Caddyfile")]
        knot = ["knotd", "-c", str(folder / "knot.conf")]
        python = [sys.executable, str(HERE / "_quic_servers.py"), str(folder / "good.pem"), str(folder / "good.key")]
        quiche = [
            ("127.0.1.3:443", "good", []),
            ("127.0.1.3:8443", "good", ["--bytes", "100000"]),
            ("127.0.1.10:443", "stranger", []),
            ("127.0.1.11:443", "good", ["--alpn", "hq-interop"]),
            ("127.0.1.12:443", "good", ["--status", "500"]),
        ]
        with ExitStack() as stack:
            stack.enter_context(process.start(caddy, prefix=inside, stderr=folder / "caddy.log", env=env))
            stack.enter_context(process.start(knot, prefix=inside, stderr=folder / "knot.log"))
            ready = [([*python, str(folder / "servers.log")], "ready")]
            for listen, certificate, more in quiche:
                files = ["--cert", f"{folder}/{certificate}.pem", "--key", f"{folder}/{certificate}.key"]
                ready.append(([h3serve, "--listen", listen, *files, *more], f"listening {listen}"))
            for argv, word in ready:
                child = stack.enter_context(process.start(argv, prefix=inside, stdout=True))
                assert child.stdout is not None and child.stdout.readline() == word + "\n"
            until = time.monotonic() + 20
            while True:
                udp = process.run([*inside, "ss", "-lun"]).stdout
                if "127.0.1.1:443" in udp and "127.0.0.1:53" in udp:
                    break
                assert time.monotonic() < until, (folder / "caddy.log").read_text() + (folder / "knot.log").read_text()
                time.sleep(0.05)
            yield World(folder, inside, h3serve)
    finally:
        process.run(["ip", "netns", "del", namespace]).check(doing="removing the namespace")


@dataclass
class Survey:
    rows: dict[str, QuicRecord]
    facts: dict[str, Any]
    targets: dict[str, bool | None]
    log: list[list[str]]
    seconds: float


@pytest.fixture(scope="module")
def surveyed(world: World) -> Survey:
    """One survey of all."""
    source, out, filled = (world.folder / name for name in ("targets.parquet", "quic.parquet", "filled.parquet"))
    write_targets(source, [f"{name}.example" for name in [*RECORDS, "missing"]])
    blocks = world.folder / "blocks.txt"
    blocks.write_text("blocked.example\n127.0.5.0/24\n")
    before = len(world.log())
    more = ["--targets-out", str(filled), "--block-list", str(blocks), "--unpadded", "--timeout", "2", "--json"]
    started = time.monotonic()
    completed = world.survey(source, out, *more)
    seconds = time.monotonic() - started
    assert completed.returncode == 0, completed.stderr
    assert "Traceback" not in completed.stderr
    rows = store.read_rows(out, "survey_quic", QuicRecord)
    table = store.read_table(filled, "targets")
    quic = dict(zip(table.column("domain").to_pylist(), table.column("quic").to_pylist(), strict=True))
    facts = json.loads(completed.stdout)
    return Survey({r.domain.partition(".")[0]: r for r in rows}, facts, quic, world.log()[before:], seconds)


@pytest.mark.parametrize("name", EXPECTED)
def test_each_host_is_told_for_what_it_is(surveyed: Survey, name: str) -> None:
    assert surveyed.rows[name].cause == EXPECTED[name], surveyed.rows[name]


def test_every_domain_once_and_in_order(surveyed: Survey) -> None:
    assert list(surveyed.rows) == [*RECORDS, "missing"]
    assert set(EXPECTED) == set(surveyed.rows)


def test_what_the_three_makes_offer(surveyed: Survey) -> None:
    caddy, aioquic, quiche = (surveyed.rows[name] for name in ("caddy", "aioquic", "quiche"))
    assert caddy.versions is not None and caddy.versions.startswith("00000001") and caddy.versions_greased
    assert aioquic.versions == "00000001,6b3343cf" or aioquic.versions == "6b3343cf,00000001"
    assert quiche.versions == "00000001" and not quiche.versions_greased
    assert (caddy.server, aioquic.server, quiche.server) == ("Caddy", "aioquic", "h3serve")
    assert (caddy.http_status, aioquic.http_status, quiche.http_status) == (200, 204, 200)
    for row in (caddy, aioquic, quiche):
        assert (row.alpn, row.negotiation, row.endpoints) == ("h3", "versions", 1)
        assert row.handshake_s is not None and 0 < row.handshake_s < 2
        assert row.negotiation_s is not None and 0 < row.negotiation_s < 2
        assert row.tls_cipher is not None and row.tls_cipher.startswith("TLS_")
    assert aioquic.alt_svc == 'h3=":443"; ma=60', "of the final response, not of the 103 before it"


def test_transport_parameters_are_those_that_the_servers_are_configured_with(surveyed: Survey) -> None:
    quiche, aioquic = surveyed.rows["quiche"], surveyed.rows["aioquic"]
    # rust/h3serve/src/endpoint.rs
    assert (quiche.max_idle_timeout_ms, quiche.max_udp_payload_size_bytes) == (30_000, 1_452)
    assert (quiche.initial_max_data_bytes, quiche.initial_max_streams_bidi) == (1 << 20, 100)
    assert quiche.initial_max_stream_data_bidi_remote_bytes == 1 << 18
    assert quiche.disable_active_migration is True
    # aioquic's defaults
    assert (aioquic.max_idle_timeout_ms, aioquic.initial_max_data_bytes) == (60_000, 1 << 20)
    for row in (quiche, aioquic):
        document = json.loads(row.transport_parameters or "")
        assert document["initial_max_data"] == document["initial_max_data"] if "initial_max_data" in document else True
        assert document["max_idle_timeout_ms"] == row.max_idle_timeout_ms
        assert not document.get("stateless_reset_token")
    assert surveyed.rows["stall"].initial_max_data_bytes == 1 << 20, "known although the response never came"


def test_offers_and_where_they_lead(surveyed: Survey) -> None:
    rows = surveyed.rows
    sources = {name: (rows[name].https_record_h3, rows[name].alt_svc_h3, rows[name].source) for name in RECORDS}
    assert sources["caddy"] == (True, True, "https_record")
    assert sources["quiche"] == (False, True, "alt_svc")
    assert sources["aioquic"] == (True, False, "https_record"), "others have a header, so the list was crawled"
    assert sources["older"] == (False, False, None)
    assert (rows["quiche"].alt_svc_protocols, rows["older"].https_record_alpn) == ("h3-29,h3", "h2,http/1.1")
    assert (rows["port"].host, rows["port"].port, rows["port"].server_ip) == ("port.example", 8443, "127.0.1.3")
    assert (rows["alias"].host, rows["alias"].server_ip) == ("caddy.example", "127.0.1.1")
    assert (rows["elsewhere"].host, rows["elsewhere"].server_ip) == ("caddy.example", "127.0.1.1")
    assert (rows["fallback"].source, rows["fallback"].endpoints) == ("alt_svc", 2)
    assert (rows["hints"].hints_differ, rows["caddy"].hints_differ, rows["aioquic"].hints_differ) == (True, False, None)


def test_retry_and_version_2(surveyed: Survey) -> None:
    assert surveyed.rows["retry"].retry is True and surveyed.rows["aioquic"].retry is False
    assert (surveyed.rows["second"].versions, surveyed.rows["second"].version) == ("6b3343cf", "6b3343cf")


def test_answers_to_the_negotiation(surveyed: Survey) -> None:
    rows = surveyed.rows
    answers = {name: (row.negotiation, row.negotiation_flaw) for name, row in rows.items()}
    assert answers["refused"] == ("refused", None)
    assert answers["silent"] == ("silent", None)
    assert answers["wrongid"] == ("flawed", "wrong_connection_id")
    assert answers["truncated"] == ("flawed", "truncated")
    assert answers["echo"] == ("flawed", "echoed_version")
    assert answers["reserved"] == ("flawed", "no_version")
    assert answers["garbage"][0] == "flawed"
    assert rows["negotiates"].versions == "00000001,ff00001d"
    assert rows["negotiates"].versions_duplicated and rows["negotiates"].versions_greased
    assert rows["silent"].negotiation_probes == 2
    # RFC 9000, section 5.2.2. What Caddy and quiche do right, an impostor does not.
    assert rows["caddy"].answers_unpadded is False and rows["quiche"].answers_unpadded is False
    assert rows["negotiates"].answers_unpadded is True


def test_details_say_what_went_wrong(surveyed: Survey) -> None:
    rows = surveyed.rows
    assert "othername.example" in (rows["othername"].detail or "")
    assert "alert 120" in (rows["alpn"].detail or "")
    assert rows["broken"].http_status == 500 and "500" in (rows["broken"].detail or "")
    assert "no response" in (rows["stall"].detail or "")
    assert "0x10b" in (rows["reset"].detail or "")
    assert "go away" in (rows["closing"].detail or "")
    assert "10.0.0.1" in (rows["outside"].detail or "")
    assert "blocks.txt" in (rows["blocked"].detail or "")


def test_no_packet_goes_where_none_may_go(surveyed: Survey) -> None:
    contacted = {words[0] for words in surveyed.log}
    assert "127.0.2.1" in contacted, "the log sees probes"
    assert not contacted & {"127.0.2.9", "127.0.5.1"}


def test_probes_are_padded_reserved_and_few(surveyed: Survey) -> None:
    probes = [words for words in surveyed.log if words[0] == "127.0.2.1"]
    negotiations = [words for words in probes if int(words[3], 16) & 0x0F0F0F0F == 0x0A0A0A0A]
    assert [int(words[2]) for words in negotiations] == [1_200, 1_200]
    assert {words[3] for words in probes} - {words[3] for words in negotiations} == {"00000001"}, "then a handshake"
    head = [words[1:] for words in surveyed.log if words[0] == "127.0.1.2" and len(words) == 3]
    assert ["HEAD", "aioquic.example"] in head


def test_targets_are_filled_in(surveyed: Survey) -> None:
    for name, cause in EXPECTED.items():
        unknown = cause in ("dns_error", "address_refused", "blocked")
        # It speaks HTTP/3, and only its start page is not to be had; 421 says that it does not for this name.
        unknown |= cause == "http_error" and surveyed.rows[name].http_status != 421
        unknown |= name in ("alias", "elsewhere", "fallback")  # only another host was asked
        assert surveyed.targets[f"{name}.example"] is (None if unknown else cause == "ok" and name != "port"), name


def test_the_figures_add_up(surveyed: Survey) -> None:
    facts = surveyed.facts
    assert facts["domains"] == len(EXPECTED) and facts["asked"] == len(EXPECTED) - 4
    assert sum(share["count"] for share in facts["causes"].values()) == len(EXPECTED)
    everybody = facts["shares"]["all"]
    assert everybody["http/3"]["count"] == list(EXPECTED.values()).count("ok")
    assert everybody["https record"]["count"] == sum(
        " alpn=h3" in (service or "") or name == "alias"
        for name, (_, service) in RECORDS.items()
        if EXPECTED[name] not in ("address_refused", "blocked")
    )
    assert facts["usable_of_offered"]["n"] == everybody["offered"]["count"]
    assert everybody["http/3"]["low"] < everybody["http/3"]["share"] < everybody["http/3"]["high"]
    assert facts["dropped"] == 0
    assert surveyed.seconds < 30


def test_all_probes_those_that_offer_nothing(world: World) -> None:
    source, out = world.folder / "guess.txt", world.folder / "guess.parquet"
    source.write_text("quiche.example\nolder.example\nsilent.example\n")
    assert world.survey(source, out, "--all", "--timeout", "0.5").returncode == 0
    rows = {row.domain.partition(".")[0]: row for row in store.read_rows(out, "survey_quic", QuicRecord)}
    assert (rows["quiche"].cause, rows["quiche"].source) == ("ok", "guess")
    assert (rows["older"].cause, rows["silent"].cause) == ("no_answer", "advertised_only")
    again = world.survey(source, out, "--all", "--timeout", "0.6")
    assert again.returncode == 2 and "timeout changed" in again.stderr
    refused = world.survey(source, world.folder / "x.parquet", "--targets-out", str(world.folder / "y.parquet"))
    assert refused.returncode == 2 and "--targets-out" in refused.stderr


def test_ipv6(world: World) -> None:
    source, out = world.folder / "six.txt", world.folder / "six.parquet"
    source.write_text("six.example\nclosed.example\ncaddy.example\nmapped.example\n")
    assert world.survey(source, out, "--ipv6").returncode == 0
    six, closed, caddy, mapped = store.read_rows(out, "survey_quic", QuicRecord)
    assert (six.cause, six.server_ip, six.server, six.hints_differ) == ("ok", "::1", "aioquic", False)
    assert (closed.cause, closed.negotiation) == ("advertised_only", "refused")
    assert caddy.cause == mapped.cause == "dns_error", "they have no IPv6 address"


@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
def test_an_alternative_at_an_address_of_the_other_family_is_not_contacted(world: World, family: str) -> None:
    source, out = world.folder / f"{family}.parquet", world.folder / f"{family}-r.parquet"
    alternative = "[fd00:198:18:7::7]" if family == "ipv4" else "127.0.1.2"
    targets.write_rows(source, [Target(domain="othername.test", url="https://x/", alt_svc=f'h3="{alternative}:443"')])
    done = world.survey(source, out, *(["--ipv6"] if family == "ipv6" else []))
    assert done.returncode == 0, done.stderr
    [record] = store.read_rows(out, "survey_quic", QuicRecord)
    assert (record.cause, record.negotiation, record.server_ip) == ("address_refused", None, None)


def test_a_host_without_ipv6_is_no_verdict_about_servers(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPSHIFT_ALLOWED_PREFIXES", "127.0.0.0/8,fd00:198:18::/48")
    source, out = world.folder / "none.txt", world.folder / "none.parquet"
    source.write_text("far.example\n")
    done = world.survey(source, out, "--ipv6")
    assert done.returncode == 75, store.read_rows(out, "survey_quic", QuicRecord)
    assert "this host has no route to any IPv6 address that may be contacted" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_killed_and_resumed_every_domain_once(world: World, repeats: Repeats) -> None:
    source, out = world.folder / "many.txt", world.folder / "many.parquet"
    source.write_text("".join(f"{rank},{name}\n" for rank, name in enumerate(MANY, 1)))
    ledger = out.with_name(out.name + ".ledger.sqlite")
    command = world.command(source, out, "--address-rate", "20", "--timeout", "10")
    before = len(world.log())
    chance = random.Random(4)
    finished: dict[str, int] = {}
    kills = 0
    while kills < repeats(quick=2, soak=5):
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            asked, most = len(world.log()), chance.randint(5, 12)
            until = time.monotonic() + 30
            while len(world.log()) < asked + most and child.poll() is None:
                assert time.monotonic() < until
                time.sleep(0.01)
            assert child.poll() is None, "it was killed in the middle"
            child.send_signal(signal.SIGKILL)
        finally:
            child.kill()
            child.wait()
        kills += 1
        now = len(world.log())
        with closing(sqlite3.connect(ledger)) as db:
            done = [name for (name,) in db.execute("SELECT domain FROM domains WHERE outcome IS NOT NULL")]
        finished.update({name: now for name in done if name not in finished})
    assert 0 < len(finished) < len(MANY)
    assert process.run(command, timeout_s=120).returncode == 0
    rows = store.read_rows(out, "survey_quic", QuicRecord)
    assert [row.domain for row in rows] == MANY and {row.cause for row in rows} == {"ok"}
    assert [row.rank for row in rows] == list(range(1, len(MANY) + 1))
    log = world.log()
    for number, words in enumerate(log[before:], before):
        assert number < finished.get(words[2], len(log)), f"{words[2]} was done, and asked again"
    assert {words[2] for words in log[before:]} == set(MANY)
