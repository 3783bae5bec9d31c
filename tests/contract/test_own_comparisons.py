"""A campaign of `requests` and an invented client, with comparisons of its own, from its file to tables and report.

The client is one new file and its program; nothing else in the packages changes, analysis least of all.
"""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from core.domain import Download
from core.files import store
from tests.contract._package_copy import REPOSITORY, copy_packages, run_campaign, upshift
from tests.lab.noise import measured
from tests.topologies import server, topology

CLIENT = '''"""HTTP/1.1 by a bare TLS socket."""

from downloader.client import Client
from core.domain import Transport

FAKE = Client(
    name="fake", help="A bare TLS socket.", transport=Transport.TCP, http="1.1", program="downloader.programs.fake_get"
)
'''

PROGRAM = '''"""The program of the client `fake`."""

import argparse
import hashlib
import json
import socket
import ssl
import time
from urllib.parse import urlsplit


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser()
    for name in ("--url", "--address", "--port", "--ca", "--budget-s", "--max-bytes", "--expected-bytes"):
        parser.add_argument(name)
    parser.add_argument("--user-agent")
    parser.add_argument("--allow", action="append")
    given = parser.parse_args(argv)
    url = urlsplit(given.url)
    context = ssl.create_default_context(cafile=given.ca)
    request = f"GET {url.path} HTTP/1.1\\r\\nHost: {url.hostname}\\r\\nUser-Agent: {given.user_agent}\\r\\n"
    started_at, start = time.time(), time.perf_counter()
    times = {}
    plain = socket.create_connection((given.address, int(given.port)), timeout=float(given.budget_s))
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    times["connect_s"] = time.perf_counter() - start
    with context.wrap_socket(plain, server_hostname=url.hostname) as tls:
        times["tls_s"] = time.perf_counter() - start
        tls.sendall(f"{request}Connection: close\\r\\n\\r\\n".encode())
        received = b""
        while data := tls.recv(65_536):
            times["last_byte_s"] = time.perf_counter() - start
            times.setdefault("first_byte_s", times["last_byte_s"])
            received += data
        local_ip, local_port = tls.getsockname()[:2]
        version, cipher = tls.version(), tls.cipher()[0]
    head, _, body = received.partition(b"\\r\\n\\r\\n")
    print(json.dumps({
        "schema": 1, "client": "fake", "client_version": "0", "outcome": "ok", "failure": None, "failure_detail": None,
        "http_status": int(head.split()[1]), "http_version": "1.1", "started_at": started_at, **times,
        "content_length": len(body), "body_bytes": len(body), "body_sha256": hashlib.sha256(body).hexdigest(),
        "local_ip": local_ip, "local_port": local_port, "server_ip": given.address, "server_port": int(given.port),
        "tls_version": version, "tls_cipher": cipher,
    }))
    return 0
'''

FILES = {"downloader/clients/fake.py": CLIENT, "downloader/programs/fake_get.py": PROGRAM}

TOPOLOGY = topology("own", server("s", "www.own.example", size="300 kB", path="rtt_ms = 10, rate_mbit = 50"))

CAMPAIGN = """name = "own"
lab = "./own.toml"
targets = "lab"
max_attempts = 8
iterations = 2

[[configurations]]
name = "plain"
client = "requests"

[[configurations]]
name = "plain-again"
client = "requests"

[[configurations]]
name = "invented"
client = "fake"

[[comparisons]]
config = "plain-again"
vs = "plain"
role = "noise_floor"

[[comparisons]]
name = "invented against Python"
config = "invented"
vs = "plain"

[[comparisons]]
config = "warmup"
vs = "plain"
role = "cache"
"""

ROWS = [
    ("plain-again vs plain", "noise_floor", "plain-again", "plain"),
    ("invented against Python", "effect", "invented", "plain"),
    ("warmup vs plain", "cache", "warmup", "plain"),
]


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The copy of the packages after the campaign; its folder is `out`.

    A host that was busy may leave a download unproven or void, and then no pair: such a campaign is made again.
    """
    folder = tmp_path_factory.mktemp("own")
    copy_packages(folder, FILES)
    (folder / "own.toml").write_text(TOPOLOGY)
    (folder / "c.toml").write_text(CAMPAIGN)

    def measure() -> list[Download]:
        shutil.rmtree(folder / "out", ignore_errors=True)
        run_campaign(folder, may_be_void=True)
        return store.read_rows(folder / "out/downloads.parquet", "downloads", Download)

    measured(measure, lambda rows: [unusable(d) for d in rows if d.accepted is not True], excuse=held_up)
    yield folder


def unusable(download: Download) -> str:
    said = download.host_disturbance_detail or download.void_detail or download.treatment_detail
    return f"{download.configuration}: {said or 'unproven'}"


def held_up(rows: Sequence[Download]) -> str | None:
    """The host's fault, where each download that cannot be used is one."""
    bad = [d for d in rows if d.accepted is not True]
    disturbed = all(d.void_reason is not None or d.host_disturbance is not None for d in bad)
    return "; ".join(map(unusable, bad)) if disturbed else None


@pytest.mark.lab
def test_its_downloads_are_judged(campaign: Path) -> None:
    rows = store.read_rows(campaign / "out/downloads.parquet", "downloads", Download)
    clients = {"warmup": "requests", "plain": "requests", "plain-again": "requests", "invented": "fake"}
    told = [(d.configuration, d.client, d.outcome, d.failure_detail) for d in rows]
    assert sorted(told) == sorted(2 * [(name, client, "ok", None) for name, client in clients.items()])
    assert all(download.treatment_ok is True for download in rows), rows


@pytest.mark.lab
def test_tables_and_csv_show_its_rows(campaign: Path) -> None:
    shown = upshift(campaign, "tables", "out")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("Treatment: proven for ") and "unproven for 0, not" in shown.stdout
    table2 = shown.stdout[shown.stdout.index("Table 2") :].partition("Table 2 by what limited")[0]
    for name, *_ in ROWS:
        assert len([line for line in table2.splitlines() if line.startswith(f"{name} ")]) == 1
    assert "Noise floor: plain-again vs plain." in table2
    with (campaign / "out/tables/table2.csv").open(encoding="utf-8", newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert [(row["comparison"], row["role"], row["config"], row["vs"]) for row in rows] == ROWS
    assert [int(row["n"]) + int(row["excluded"]) for row in rows] == [2, 2, 2], "the iterations"
    markdown = (campaign / "out/tables/table2.md").read_text(encoding="utf-8")
    shares, evidence = markdown.split("\n\n")
    for table in (shares, evidence):
        assert [line.split(" | ")[0] for line in table.splitlines()[2:]] == [f"| {name}" for name, *_ in ROWS]
    document = json.loads((campaign / "out/campaign.json").read_text(encoding="utf-8"))
    assert [row["name"] for row in document["comparisons"]] == [name for name, *_ in ROWS]


@pytest.mark.lab
def test_the_report_shows_its_rows(campaign: Path) -> None:
    made = upshift(campaign, "report", "out")
    assert made.returncode == 0, made.stderr
    page = (campaign / "out/report/index.html").read_text(encoding="utf-8")
    for name, *_ in ROWS:
        assert f'<th scope="row">{name}</th>' in page
    assert "invented was typically" in page
    assert "two identical configurations (plain-again and plain)" in page


@pytest.mark.lab
def test_a_comparison_is_added_to_the_finished_campaign(campaign: Path) -> None:
    """One line in the file and the same command: nothing is downloaded again, and the tables have one row more."""
    before = (campaign / "out/downloads.parquet").read_bytes()
    (campaign / "c.toml").write_text(CAMPAIGN + '\n[[comparisons]]\nconfig = "invented"\nvs = "plain-again"\n')
    run_campaign(campaign)
    assert (campaign / "out/downloads.parquet").read_bytes() == before
    shown = upshift(campaign, "tables", "out", "--format", "csv", "--table", "2")
    assert "\ninvented vs plain-again,effect,invented,plain-again," in shown.stdout


def test_no_line_of_analysis_was_touched(campaign: Path) -> None:
    for path in (REPOSITORY / "analysis").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            copied = campaign / path.relative_to(REPOSITORY)
            assert copied.read_bytes() == path.read_bytes()
            assert "fake" not in path.read_text(encoding="utf-8")
