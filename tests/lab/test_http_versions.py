"""Servers that do not speak a client's version of HTTP: no download by another one counts, and none is unexplained."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

import pytest

from analysis import api
from core.domain import Failure, Outcome, TreatmentReason
from tests.lab.campaigns import Silent, open_bench
from tests.topologies import server, topology
from upshift.campaign import run_file

pytestmark = pytest.mark.lab

PORT, BODY = 8443, 60_000
STEADY = str(Path(__file__).with_name("_steady_server.py"))
TOPOLOGY = topology(
    "http-versions", server("s", "www.s.example", more="quic = false", path="rtt_ms = 4, rate_mbit = 50")
)
CAMPAIGN = """name = "versions"
lab = "./lab.toml"
targets = "targets.csv"
budget = 3
configurations = [
  { name = "h1", client = "curl-h1" }, { name = "h2", client = "curl-h2" }, { name = "h3", client = "curl-h3" },
]
"""


def test_a_server_without_http_2_that_drops_udp(lab_host: Path, tmp_path: Path) -> None:
    path = tmp_path / "lab.toml"
    path.write_text(TOPOLOGY)
    target = f"domain,url,provider\nwww.s.example,https://www.s.example:{PORT}/a.bin,other\n"
    (tmp_path / "targets.csv").write_text(target)
    (tmp_path / "c.toml").write_text(CAMPAIGN)
    with open_bench(path, tmp_path) as bench, closing(bench.lab.place("s")) as there:
        address = bench.lab.plan.addresses["s"].ipv4
        keys = [str(bench.lab.folder.root / "certificates" / f"s.{end}") for end in ("pem", "key")]
        rules = "add table inet t; add chain inet t in { type filter hook input priority 0; }; "
        rules += f"add rule inet t in udp dport {PORT} drop"
        there.run(["nft", rules]).check(doing="dropping UDP")
        steady = [sys.executable, STEADY, address, str(PORT), *keys, str(BODY), "20000", "0.001"]
        with there.start(steady, stdout=True) as child:
            assert child.stdout is not None and child.stdout.readline() == "ready\n"
            run_file(tmp_path / "c.toml", tmp_path / "out", progress=Silent())
    made = api.make_tables(api.dataset.load([tmp_path / "out"]))
    rows = [one for one in made.data.records if not one.download.is_warmup]
    found = {
        (d.configuration, d.outcome, d.failure, d.http_version, d.treatment_reason) for d in (r.download for r in rows)
    }
    assert found == {
        ("h1", Outcome.OK, None, "1.1", None),
        ("h2", Outcome.OK, None, "1.1", TreatmentReason.HTTP_VERSION),
        ("h3", Outcome.FAILED, Failure.CONNECT_TIMEOUT, None, TreatmentReason.NO_EVIDENCE),
    }
    assert {row.comparison.name: row.n for row in made.table2 if "h2" in row.comparison.name} == dict.fromkeys(
        ("h2 vs h1", "h3 vs h2"), 0
    )
