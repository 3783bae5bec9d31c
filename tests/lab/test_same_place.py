"""Same object, same place: servers that swap the file, miss, or answer from elsewhere are each caught under their own
reason, and honest servers are never accused.

The servers of the first campaign are edges with the header fields of a CDN that are honest in all but one thing
(vantage/programs/fault_server.py), and pages in place of the file. Those of the second are the lab's ordinary ones over
TCP and QUIC: files, and an edge with nginx's cache before a far origin.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.api import make_tables
from analysis.measures import dataset
from analysis.measures.selection import Selection
from core.domain import Download, Failure, IdentityFlag
from tests.cells import Repeats
from tests.lab import _fault_world as campaigns
from tests.lab.noise import skip_if_void
from tests.topologies import server, topology
from tests.unit.analysis_factory import of_records

pytestmark = pytest.mark.lab

FLAGGED = {
    "always_miss": IdentityFlag.MISS,
    "other_age": IdentityFlag.AGE,
    "other_edge": IdentityFlag.EDGE,
    "other_etag": IdentityFlag.ETAG,
    "resized": IdentityFlag.OBJECT,
    "swapped": IdentityFlag.OBJECT,
}
PAGES = {
    "block": (Failure.BLOCK_PAGE, "status 403 by the edge itself (server: AkamaiGHost)"),
    "challenge": (Failure.CHALLENGE_PAGE, "cf-mitigated: challenge"),
    "html_page": (Failure.CHALLENGE_PAGE, " bytes of text/html instead of 100000 bytes of a .bin file"),
}
TCP = "".join(
    f'[[configurations]]\nname = "{name}"\nclient = "requests"\nlevels = {{ {levels} }}\n'
    for name, levels in (
        ("BL", 'sack = "off"'),
        ("BL2", 'sack = "off"'),
        ("SACK", 'sack = "on"'),
        ("WS", "window_scaling = 14"),
        ("TS", 'timestamps = "off"'),
    )
)
MIXED = TCP + "".join(f'[[configurations]]\nname = "{name}"\nclient = "{name}"\n' for name in ("aioquic", "quiche"))

Runs = dict[tuple[str, int], list[Download]]
"""Domain and iteration -> the downloads of that measurement run, in order."""


@pytest.fixture(scope="module")
def world(lab_host: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    made = campaigns.World(tmp_path_factory.mktemp("same-place"))
    yield made
    made.clean()


def measurement_runs(out: Path) -> Runs:
    found: Runs = defaultdict(list)
    for row in sorted(campaigns.rows(out), key=lambda row: row.position):
        found[row.domain, row.iteration].append(row)
    return found


@pytest.fixture(scope="module")
def faulty(world: Any, repeats: Repeats) -> Runs:
    """Campaigns of one target per fault."""
    kinds = (*FLAGGED, *PAGES)
    names = {kind: kind.replace("_", "-") for kind in kinds}
    servers = [server(name, f"{name}.example", more=f'fault = "{kind}"') for kind, name in names.items()]
    lab = world.write("swapping-lab.toml", topology("swapping", *servers, seed=3))
    table = [f"{name}.example,https://{name}.example/a.bin,other,100000" for name in names.values()]
    world.write("t.csv", "\n".join(["domain,url,provider,size_bytes", *table]) + "\n")
    more = f'targets = "t.csv"\niterations = {repeats(quick=1, soak=10)}'
    file = world.campaign(lab, more=more, configurations=TCP, name="swapping")
    done = world.upshift("run", file, "--out", "swapping", "--json", timeout_s=1800)
    skip_if_void(done.returncode, done.stderr)
    assert done.returncode == 0, done.stderr
    return measurement_runs(world.folder / "swapping")


@pytest.mark.parametrize("kind", FLAGGED)
def test_each_run_of_an_edge_that_differs_is_caught_under_its_own_reason(
    faulty: Runs, kind: str, repeats: Repeats
) -> None:
    runs = [run for (domain, _), run in faulty.items() if domain == f"{kind.replace('_', '-')}.example"]
    assert len(runs) == repeats(quick=1, soak=10)
    for run in runs:
        warmup, *measured = run
        assert warmup.identity_flags is None
        flags = {flag for row in measured for flag in json.loads(row.identity_flags or "[]")}
        assert flags == {FLAGGED[kind]}, [row.identity_detail for row in measured]
        for row in measured:
            differs = FLAGGED[kind] in json.loads(row.identity_flags or "[]")
            changed = Failure.CONTENT_CHANGED if differs and kind in ("swapped", "resized") else None
            assert row.failure == changed, (row.failure, row.failure_detail)
            assert row.http_status == 200 and row.edge in ("MUC50-P2", "FRA56-P1") and row.etag


@pytest.mark.parametrize("kind", PAGES)
def test_a_page_in_place_of_the_file_has_its_own_cause(faulty: Runs, kind: str) -> None:
    failure, detail = PAGES[kind]
    rows = [row for (domain, _), run in faulty.items() if domain == f"{kind.replace('_', '-')}.example" for row in run]
    assert rows and {(row.outcome, row.failure) for row in rows} == {("failed", failure)}
    assert all(detail in (row.failure_detail or "") for row in rows)
    assert {row.identity_flags for row in rows} <= {None, "[]"}, "all got the same"


def test_only_hits_leaves_out_the_edge_that_never_has_the_file(world: Any, faulty: Runs) -> None:
    loaded = dataset.load([world.folder / "swapping"])
    # Of two reasons the first is told: that the host was late comes before a cache's miss.
    records = [replace(one, download=replace(one.download, host_disturbance=None)) for one in loaded.records]
    data = of_records(records, kpi_units=loaded.kpi_units, design=loaded.design)
    for only_hits in (False, True):
        made = make_tables(data, selection=Selection(only_hits=only_hits))
        [row] = [row for row in made.table2 if row.comparison.name == "WS vs BL"]
        missed = sum("in a run with a cache miss" in why for why in row.excluded)
        assert missed == only_hits, row.excluded
    report = world.upshift("report", "swapping", "--only-hits")
    assert report.returncode == 0, report.stderr
    page = (world.folder / "swapping" / "report" / "index.html").read_text(encoding="utf-8")
    runs, flagged = (
        len(faulty),
        sum(domain.removesuffix(".example").replace("-", "_") in FLAGGED for domain, _ in faulty),
    )
    assert f"{runs - flagged} of {runs} measurement runs have no flag" in page
    assert "Only cache hits (--only-hits): " in page and "edge_differs: FRA56-P1, most of the run had MUC50-P2" in page


def test_honest_servers_are_never_accused(world: Any, repeats: Repeats) -> None:
    """Over TCP and QUIC; in a soak 200 runs and more."""
    times = repeats(quick=1, soak=67)
    servers = [
        server("plain", "www.plain.example"),
        server("large", "www.large.example", size="1 MB", path="rtt_ms = 20, rate_mbit = 50"),
        server("edge", "www.edge.example", more="edge = { rtt_ms = 30, rate_mbit = 50 }"),
    ]
    lab = world.write("honest-lab.toml", topology("honest", *servers, seed=3))
    file = world.campaign(lab, more=f"iterations = {times}", configurations=MIXED, name="honest")
    done = world.upshift("run", file, "--out", "honest", "--json", timeout_s=3000)
    skip_if_void(done.returncode, done.stderr)
    assert done.returncode == 0, done.stderr
    runs = measurement_runs(world.folder / "honest")
    assert len(runs) == 3 * times
    for (domain, iteration), run in runs.items():
        assert [row.configuration for row in run[:2]] == ["warmup", "warmup-quic"]
        assert {row.identity_flags for row in run[2:]} == {"[]"}, [row.identity_detail for row in run]
        assert all(row.outcome == "ok" for row in run), [(row.configuration, row.failure_detail) for row in run]
        # A first attempt that the host made void filled the cache.
        first = "miss" if iteration == 1 and run[0].attempts == 1 else "hit"
        wanted = [first] + ["hit"] * (len(run) - 1) if domain == "www.edge.example" else ["unknown"] * len(run)
        assert [row.cache_state for row in run] == wanted
