"""Every client at every QUIC server of the lab on one clean path, and what a slower client does to the tables.

A QUIC server's congestion control, its first window and its buffer make a factor of 13; clients differ by 1 to 3 %.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Mapping
from pathlib import Path

import pytest

from analysis.captures.limiter import Limiter
from analysis.measures import costs, dataset
from analysis.measures.client_effect import Effect, client_effects
from analysis.measures.limiters import limiter_of
from analysis.measures.rows import Metric
from core.domain import Comparison, Outcome, Role
from tests.campaigns import Silent
from tests.lab.campaigns import ALL, Measured, open_bench
from tests.lab.noise import host_noise, measured
from tests.lab.test_nginx_http3 import need_nginx
from tests.topologies import server, topology
from upshift.campaign import run_file

pytestmark = [pytest.mark.lab, pytest.mark.measures, pytest.mark.soak]

RTT_S = 0.1
CLEAN = f"rtt_ms = {RTT_S * 1e3:g}, rate_mbit = 100"
SERVERS = {
    "quiche": 'quic_server = "quiche"',
    "caddy": 'quic_server = "caddy"',
    "wide": 'quic_server = "nginx"\nquic_stream_buffer = "4 MiB"',
    "nginx": 'quic_server = "nginx"',
}
TCP, QUIC = ("requests", "curl-h1", "curl-h2"), ("quiche", "quinn", "curl-h3")
EXPECTED_S = {
    "quiche": {"quiche": 2.01, "quinn": 2.02, "curl-h3": 2.04},
    "caddy": {"quiche": 1.87, "quinn": 1.87, "curl-h3": 1.89},
    "wide": {"quiche": 1.71, "quinn": 1.72, "curl-h3": 1.73},
    "nginx": {"quiche": 23.3, "quinn": 23.3, "curl-h3": 23.3},
}
"""Server -> QUIC client -> time of 15 MB; over TCP it is the same server, and `TCP_S`."""
TCP_S = 2.10
WITHIN = 0.02
"""Of the expected time."""
FIRST_BYTE_WITHIN_S = 0.015
TIMES = 4
TABLE = topology(
    "table", *(server(name, f"{name}.example", size="15 MB", path=CLEAN, more=more) for name, more in SERVERS.items())
)


def wrong_cells(found: Measured) -> list[str]:
    """Cells that differ from the table, and first bytes that come too early or too late."""
    wrong = []
    rows = [d for d in found.downloads if not d.is_warmup and d.accepted and d.outcome == Outcome.OK]
    for name in SERVERS:
        for client in (*TCP, *QUIC):
            cell = [d for d in rows if (d.domain, d.configuration) == (f"{name}.example", client)]
            took_s = statistics.median(d.last_byte_s or 0.0 for d in cell)
            first_s = statistics.median(d.first_byte_s or 0.0 for d in cell)
            expected_s = EXPECTED_S[name].get(client, TCP_S)
            least_s = (3 if client in TCP else 2) * RTT_S
            said = (
                f"{client} from {name}: {took_s:.3f} s of {expected_s:g}, first byte after {first_s:.4f} s, {len(cell)}"
            )
            print(said)
            if abs(took_s / expected_s - 1) > WITHIN or not least_s <= first_s < least_s + FIRST_BYTE_WITHIN_S:
                wrong.append(said)
    return wrong


def test_each_cell_of_the_table(lab_host: Path, tmp_path: Path) -> None:
    need_nginx()
    (tmp_path / "table.toml").write_text(TABLE, encoding="utf-8")
    configurations: dict[str, Mapping[str, str] | str] = {
        **{name: {"client": name, **ALL} for name in TCP},
        **{name: name for name in QUIC},
    }
    with open_bench(tmp_path / "table.toml", tmp_path) as bench:
        found = bench.judge(lambda: bench.measure("table", configurations, times=TIMES), wrong_cells)
    held = [r for r in found.data.records if r.download.domain == "nginx.example" and r.download.configuration in QUIC]
    assert len(held) == TIMES * len(QUIC) >= 10
    assert {limiter_of(record) for record in held} == {Limiter.SENDER}, [r.kpis["limiter_evidence"] for r in held]


SLOW_WINDOW = 190_000
"""Of the slow client: [bytes]. A tenth slower than without a limit, on the path below."""
SLOWER = 1.10
PATH = "rtt_ms = 40, rate_mbit = 40"
CAMPAIGN = f"""name = "planted"
lab = "./lab.toml"
targets = "lab"
iterations = 12
configurations = [
  {{ name = "curl-h2", client = "curl-h2", levels = {{ ecn = "on", sack = "on", window_scaling = "14" }} }},
  {{ name = "aioquic", client = "aioquic" }}, {{ name = "quiche", client = "quiche" }},
  {{ name = "quinn", client = "quinn" }}, {{ name = "curl-h3", client = "curl-h3" }},
  {{ name = "quiche2", client = "quiche" }},
  {{ name = "slow", client = "quinn", options = {{ max_data = {SLOW_WINDOW}, max_stream_data = {SLOW_WINDOW} }} }},
]
"""
DOMAINS = 4
COMPILED = ("quiche", "curl-h3")
"""The others without Python's, which a busy host slows down, and with it the median of few clients."""


def rows_with(found: Measured, *quic: str) -> dict[tuple[Effect, str], float]:
    """The rows of a campaign with these QUIC clients only."""
    compared = [Comparison.of("quiche2", "quiche", Role.NOISE_FLOOR), *(Comparison.of(c, "curl-h2") for c in quic)]
    design = dataclasses.replace(found.data.design, comparisons=tuple(compared))
    rows = client_effects(design, costs.samples(found.data, metric=Metric.TIME))
    print(*quic, {f"{row.what} {row.name} over {row.over}": row.median.value for row in rows})
    return {(row.what, row.name): row.median.value or 0.0 for row in rows}


def misplaced(found: Measured) -> list[str]:
    """Whether the slow client in place of quinn moves its own row by a tenth, and the transport's row by nothing."""
    plain, slow = rows_with(found, *COMPILED, "quinn"), rows_with(found, *COMPILED, "slow")
    own = slow[Effect.CLIENT, "slow"] / plain[Effect.CLIENT, "quinn"]
    transport = slow[Effect.TRANSPORT, "curl-h3"] / plain[Effect.TRANSPORT, "curl-h3"]
    (whole,) = (
        value for (what, _), value in rows_with(found, "aioquic", *COMPILED, "quinn").items() if what is Effect.RANGE
    )
    said = f"its own row moved by {own:.3f}, the transport's by {transport:.4f}; range over clients {whole:.3f}"
    return [] if abs(own - SLOWER) < 0.02 and abs(transport - 1) < 0.01 and whole < 1.05 else [said]


def test_a_slower_client_moves_its_own_row_alone(lab_host: Path, tmp_path: Path) -> None:
    servers = (server(f"s{n}", f"s{n}.example", size="3 MB", path=PATH) for n in range(DOMAINS))
    (tmp_path / "lab.toml").write_text(topology("planted", *servers), encoding="utf-8")
    (tmp_path / "c.toml").write_text(CAMPAIGN, encoding="utf-8")
    runs = itertools.count()
    with open_bench(tmp_path / "lab.toml", tmp_path):

        def measure() -> Measured:
            out = tmp_path / f"out{next(runs)}"
            with host_noise() as noise:
                run_file(tmp_path / "c.toml", out, progress=Silent())
            return Measured(out=out, data=dataset.load([out]), noise=noise[0])

        found = measured(measure, misplaced, excuse=lambda one: one.excuse)
    assert not [d for d in found.downloads if d.treatment_ok is not True]
