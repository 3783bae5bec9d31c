"""One program over three versions of HTTP: what each saves, and servers that do not speak a client's version."""

from __future__ import annotations

import itertools
import statistics
import sys
from contextlib import closing
from pathlib import Path

import pytest

from analysis import api
from core.domain import Failure, Outcome, TreatmentReason
from tests.campaigns import Silent
from tests.cells import Repeats, cells
from tests.lab.campaigns import Measured, open_bench
from tests.lab.noise import host_noise, measured
from tests.topologies import server, topology
from upshift.campaign import run_file

pytestmark = pytest.mark.lab

PORT, BODY = 8443, 60_000
STEADY = str(Path(__file__).with_name("_steady_server.py"))
TOPOLOGY = topology(
    "http-versions", server("s", "www.s.example", more="quic = false", path="rtt_ms = 4, rate_mbit = 50")
)
RTTS_MS = (10, 30, 100)
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


def misplaced(found: Measured, rtt_ms: int) -> list[str]:
    """Pairs of versions whose medians differ by other than what the path says: HTTP/3 saves one round trip."""
    times_s = {
        name: statistics.median(d.last_byte_s or 0.0 for d in found.downloads if d.configuration == name and d.accepted)
        for name in ("curl-h1", "curl-h2", "curl-h3")
    }
    saved_ms = 1e3 * (times_s["curl-h2"] - times_s["curl-h3"])
    versions = times_s["curl-h2"] / times_s["curl-h1"]
    print(f"{rtt_ms} ms: {times_s}, HTTP/3 saves {saved_ms:.1f} ms, h2/h1 {versions:.3f}")
    if abs(saved_ms - rtt_ms) > 0.15 * rtt_ms + 3 or abs(versions - 1) > 0.02:
        return [f"at {rtt_ms} ms HTTP/3 saves {saved_ms:.1f} ms, h2/h1 is {versions:.3f}"]
    return []


@pytest.mark.measures
@cells("rtt_ms", every=RTTS_MS, quick=[30])
def test_http_3_saves_one_round_trip_and_http_2_nothing(
    lab_host: Path, tmp_path: Path, repeats: Repeats, rtt_ms: int
) -> None:
    path = server("s", "www.s.example", size="500 kB", path=f"rtt_ms = {rtt_ms}, rate_mbit = 30")
    (tmp_path / "lab.toml").write_text(topology("versions", path))
    campaign = 'name = "v"\nlab = "./lab.toml"\ntargets = "lab"\nconfigurations = "http-versions"\niterations = '
    (tmp_path / "c.toml").write_text(campaign + str(repeats(quick=4, soak=16)))
    with open_bench(tmp_path / "lab.toml", tmp_path):
        runs = itertools.count()

        def measure() -> Measured:
            with host_noise() as noise:
                out = tmp_path / f"out{next(runs)}"
                run_file(tmp_path / "c.toml", out, progress=Silent())
            return Measured(out=out, data=api.dataset.load([out]), noise=noise[0])

        found = measured(measure, lambda one: misplaced(one, rtt_ms), excuse=lambda one: one.excuse)
    assert not [d for d in found.downloads if d.treatment_ok is not True], "all as requested, and all versions told"
