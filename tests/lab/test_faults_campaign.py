"""Faults in one campaign: bad servers, a domain without DNS, an address outside; each is a record with its cause.

Proven through the command line: the campaign goes on past every fault and ends with 0, the causes are those of the
closed vocabulary, not one packet leaves for a refused address, Table 1 counts and the report names every fault, and a
second run on the folder does nothing again.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from core.domain import Failure, Outcome
from tests.lab import _fault_world as campaigns
from tests.lab.noise import skip_if_void
from tests.plain_captures import plain
from tests.topologies import server, topology

pytestmark = pytest.mark.lab


OUTSIDE = "203.0.113.1"
"""TEST-NET-3 (RFC 5737): nobody's address, and outside the lab's prefixes."""

FAULTS = {
    "missing.example": ("status_404", Outcome.FAILED, Failure.HTTP_STATUS),
    "reset.example": ("reset", Outcome.FAILED, Failure.CONNECTION_RESET),
    "stall.example": ("stall", Outcome.CENSORED, Failure.STALLED),
    "short.example": ("truncate", Outcome.FAILED, Failure.TRUNCATED_BODY),
}
NOWHERE = {
    "nodns.example": (Outcome.FAILED, Failure.DNS_ERROR),
    "outside.example": (Outcome.FAILED, Failure.ADDRESS_REFUSED),
    "closed.example": (Outcome.FAILED, Failure.CONNECTION_REFUSED),
}
GOOD = ("good.example", "alias.example")
CONFIGURATIONS = """
[[configurations]]
name = "BL"
client = "requests"
[[configurations]]
name = "WS"
client = "requests"
levels = { window_scaling = 14 }
"""


@pytest.fixture(scope="module")
def world(lab_host: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    made = campaigns.World(tmp_path_factory.mktemp("faults"))
    yield made
    made.clean()


@pytest.fixture(scope="module")
def finished(world: Any) -> Path:
    """A campaign with every fault, in a lab that is up, so that its DNS can be given a record that leads outside."""
    servers = [
        server(f"bad-{n}", domain, more=f'fault = "{kind}"') for n, (domain, (kind, *_)) in enumerate(FAULTS.items())
    ]
    servers += [server(f"good-{n}", domain) for n, domain in enumerate(GOOD)]
    lab = world.write("faulty.toml", topology("faulty", *servers, seed=3))
    assert world.upshift("lab", "up", lab).returncode == 0
    _lead_outside(world)
    table = [f"{domain},https://{domain}/a.bin,other" for domain in (*FAULTS, *GOOD, "nodns.example")]
    table += ["closed.example,https://good.example:4443/a.bin,other"]
    table += ["outside.example,https://outside.example/a.bin,other"]
    world.write("t.csv", "\n".join(["domain,url,provider", *table]) + "\n")
    file = world.campaign(lab, more='targets = "t.csv"\nbudget = 2', configurations=CONFIGURATIONS)
    done = world.upshift("run", file, "--out", "out", "--json")
    skip_if_void(done.returncode, done.stderr)
    assert done.returncode == 0, done.stderr
    assert campaigns.summary(done)["complete"] and campaigns.summary(done)["recorded"] == 3 * 9
    return world.folder / "out"


def _lead_outside(world: Any) -> None:
    """Adds a record to the lab's zone; knotd reads its zones anew on SIGHUP (knotd(8))."""
    zone = world.state / "s" / "lab" / "faulty" / "dns" / "root.zone"
    text = zone.read_text().replace("hostmaster.lab. 1 ", "hostmaster.lab. 2 ")
    zone.write_text(text + f"outside.example. IN A {OUTSIDE}\n")
    subprocess.run(["kill", "-HUP", str(world.find("knotd"))], check=True)

    def known() -> bool:
        asked = world.upshift("lab", "exec", "V", "--", "getent", "ahostsv4", "outside.example")
        return OUTSIDE in asked.stdout

    assert campaigns.wait_until(known)


def test_every_download_has_its_cause(finished: Path) -> None:
    found = campaigns.assert_each_once(finished, 27)
    seen = Counter((r.domain, r.outcome, r.failure) for r in found)
    expected = {(domain, outcome, failure): 3 for domain, (_, outcome, failure) in FAULTS.items()}
    expected |= {(domain, outcome, failure): 3 for domain, (outcome, failure) in NOWHERE.items()}
    expected |= {(domain, Outcome.OK, None): 3 for domain in GOOD}
    assert seen == expected, [(r.domain, r.failure, r.failure_detail) for r in found]


def test_each_record_tells_more(finished: Path) -> None:
    found = {r.domain: r for r in campaigns.rows(finished) if r.configuration == "WS"}
    assert found["missing.example"].http_status == 404
    for domain in ("short.example", "reset.example", "stall.example"):
        assert 0 < found[domain].body_bytes < found[domain].content_length == 100_000
    assert OUTSIDE in found["outside.example"].failure_detail
    for domain in ("outside.example", "nodns.example"):
        assert found[domain].capture is None and found[domain].local_port is None, "no packet but the look-up's"
    budgeted = found["stall.example"]
    assert budgeted.budget_s == 2.0 and budgeted.last_byte_s < 2.0


def test_no_capture_knows_the_refused_address(finished: Path) -> None:
    captures = list(finished.glob("vantage/V/captures/*.pcap.zst"))
    assert len(captures) >= 7
    for path in captures:
        shown = subprocess.run(["tcpdump", "-nr", str(plain(path))], capture_output=True, text=True, check=True)
        assert "198.19." in shown.stdout and OUTSIDE not in shown.stdout


def test_tables_and_report_show_them(world: Any, finished: Path) -> None:
    tables = world.upshift("tables", "out")
    assert tables.returncode == 0, tables.stderr
    (row,) = [line for line in (finished / "tables" / "table1.csv").read_text().splitlines() if line.startswith("V,")]
    assert re.fullmatch(r"V,other,tcp,18,4,0\.2222\d*,12,2", row), f"18 without warm-ups: 4 ok, 12 failed, 2 cut: {row}"
    report = world.upshift("report", "out")
    assert report.returncode == 0, report.stderr
    html = (finished / "report" / "index.html").read_text()
    pages = html + "".join(path.read_text() for path in (finished / "report").rglob("*.html"))
    for failure in Counter(r.failure for r in campaigns.rows(finished) if r.failure):
        assert failure in html, f"the report does not name {failure}"
    for domain in (*FAULTS, *NOWHERE, *GOOD):
        assert domain in pages


def test_a_second_run_does_nothing_again(world: Any, finished: Path) -> None:
    before = campaigns.rows(finished)
    done = world.upshift("run", "c.toml", "--out", "out")
    assert done.returncode == 0, done.stderr
    assert campaigns.rows(finished) == before
    for failure in {failure for *_, failure in (*FAULTS.values(), *NOWHERE.values())}:
        assert f"{failure} 3" in done.stdout
