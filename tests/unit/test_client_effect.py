"""What the client alone does: planted differences of clients and transports come out in their own rows only."""

from __future__ import annotations

import csv
import dataclasses
import io
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from analysis import api
from analysis.measures import dataset
from analysis.measures.client_effect import ClientEffectRow, Effect, against_tcp
from analysis.measures.rows import SpeedupRow, Unit
from analysis.report import plots, report
from analysis.report.findings import ReportFinding, client_effect_sentence
from core.domain import Comparison, Role, Transport
from core.files import campaign_json
from tests.unit.analysis_factory import make_download, write_campaign

CLIENTS = {
    # configuration: client, family, HTTP version
    "curl-h1": ("curl-h1", "curl", "1.1"),
    "curl-h2": ("curl-h2", "curl", "2"),
    "curl-h3": ("curl-h3", "curl", "3"),
    "aioquic": ("aioquic", "aioquic", "3"),
    "quiche": ("quiche", "quiche", "3"),
    "quiche2": ("quiche", "quiche", "3"),
}
COMPARISONS = (
    Comparison.of("quiche2", "quiche", Role.NOISE_FLOOR),
    Comparison.of("curl-h2", "curl-h1"),
    Comparison.of("curl-h3", "curl-h2"),
    Comparison.of("curl-h3", "curl-h1"),
    Comparison.of("quiche", "curl-h3"),
    Comparison.of("quiche", "curl-h2"),
    Comparison.of("aioquic", "curl-h1"),
)
DOMAINS, QUIC_FACTOR, NOISE = 12, 0.9, 0.003


def campaign(
    folder: Path,
    *,
    clients: tuple[str, ...] = tuple(CLIENTS),
    cut: tuple[str, ...] = (),
    failure: str = "time_budget",
    starved: int = 0,
    comparisons: Sequence[Comparison] = COMPARISONS,
    at_providers: tuple[float, ...] = (1.0,),
    **slower: float,
) -> dataset.Dataset:
    """A campaign in which QUIC takes 0.9 of TCP's time, and some clients a factor more than that; the first three of
    four downloads of those in `cut` run into their budgets at the end; aioquic waits for a CPU at the first `starved`
    domains; curl-h1 takes another factor more at each provider."""
    rng, rows = np.random.default_rng(5), []
    for index in range(DOMAINS):
        for iteration in range(1, 5):
            for position, name in enumerate(clients):
                client, _, http = CLIENTS[name]
                factor = (QUIC_FACTOR if http == "3" else 1.0) * slower.get(name.replace("-", "_"), 1.0)
                provider = index % len(at_providers)
                factor *= at_providers[provider] if name == "curl-h1" else 1.0
                time_s = (1 + index / 10) * factor * float(rng.lognormal(0, NOISE))
                changes = {"domain": f"d{index}.example", "iteration": iteration, "position": position + 1}
                changes["provider"] = f"P{provider}"
                if name in cut and iteration < 4:
                    changes |= {"outcome": "censored", "failure": failure, "budget_s": time_s}
                changes["run_delay_s"] = 0.3 * time_s if name == "aioquic" and index < starved else 0.0
                quic = {"transport": "quic", "tls_s": None} if http == "3" else {}
                rows.append(
                    make_download(
                        **changes, **quic, configuration=name, client=client, last_byte_s=time_s, client_http=http
                    )
                )
    known = [one for one in comparisons if {one.config, one.vs} <= set(clients)]
    write_campaign(folder, rows, comparisons=known)
    described = campaign_json.read(folder)
    told = [
        dataclasses.replace(one, family=CLIENTS[one.name][1], http=CLIENTS[one.name][2])
        for one in described.configurations
    ]
    campaign_json.write(folder, dataclasses.replace(described, configurations=tuple(told)))
    return dataset.load([folder])


def effects(data: dataset.Dataset) -> dict[tuple[Effect, str], ClientEffectRow]:
    return {(row.what, row.name): row for row in api.make_tables(data).client_effects}


def ratio(row: ClientEffectRow) -> float:
    value, low, high = row.median.value, row.median.low, row.median.high
    assert value is not None and low is not None and high is not None and low <= value <= high
    assert (row.n, row.domains) == (4 * DOMAINS, DOMAINS)
    return value


def test_equal_clients_have_no_range_and_the_transport_is_that_of_the_family(tmp_path: Path) -> None:
    found = effects(campaign(tmp_path / "c"))
    assert [what for what, _ in found] == [*[Effect.CLIENT] * 3, Effect.RANGE, Effect.TRANSPORT, Effect.NOISE_FLOOR]
    transport = found[Effect.TRANSPORT, "curl-h3"]
    assert transport.over == "curl-h2" and ratio(transport) == pytest.approx(QUIC_FACTOR, abs=0.005)
    for (what, _), row in found.items():
        if what is not Effect.TRANSPORT:
            assert ratio(row) == pytest.approx(1.0, abs=0.005), row


def test_a_slower_client_moves_its_own_row_and_not_the_transports(tmp_path: Path) -> None:
    plain, planted = effects(campaign(tmp_path / "a")), effects(campaign(tmp_path / "b", aioquic=1.1))
    assert ratio(planted[Effect.CLIENT, "aioquic"]) == pytest.approx(1.1, abs=0.006)
    found = planted[Effect.RANGE, "aioquic"]
    assert ratio(found) == pytest.approx(1.1, abs=0.006) and found.over in ("quiche", "curl-h3")
    for key in ((Effect.TRANSPORT, "curl-h3"), (Effect.CLIENT, "quiche"), (Effect.CLIENT, "curl-h3")):
        assert ratio(planted[key]) == pytest.approx(ratio(plain[key]), rel=0.005)
    assert ratio(planted[Effect.NOISE_FLOOR, "quiche2"]) == ratio(plain[Effect.NOISE_FLOOR, "quiche2"])


def test_a_client_of_which_only_a_bound_is_known_is_the_slowest(tmp_path: Path) -> None:
    made = api.make_tables(campaign(tmp_path / "a", cut=("aioquic",), aioquic=5.0, quiche=1.1))
    (found,) = [row for row in made.client_effects if row.what is Effect.RANGE]
    assert (found.name, found.over, found.median.value) == ("aioquic", "curl-h3", None)
    assert found.median.least == pytest.approx(5.0, abs=0.05)
    assert re.search(
        r"client > \+(39|40)\d\.\d % \(aioquic, the slowest of 3", client_effect_sentence(made.client_effects)
    )
    # If two are cut, or one that may also be in the middle, nobody knows which is the slowest.
    for number, cut in enumerate((("aioquic", "quiche"), ("curl-h3",))):
        assert Effect.RANGE not in {what for what, _ in effects(campaign(tmp_path / f"{number}", cut=cut, quiche=1.1))}


def test_downloads_that_end_at_the_same_byte_are_as_good_as_whole_ones(tmp_path: Path) -> None:
    whole = effects(campaign(tmp_path / "a", aioquic=1.1))
    assert effects(campaign(tmp_path / "b", cut=tuple(CLIENTS), failure="byte_budget", aioquic=1.1)) == whole


def test_what_a_busy_host_slowed_is_said_to_be_the_hosts(tmp_path: Path) -> None:
    """As in Table 2: where in more than a tenth of the runs one of two clients waited for a CPU."""
    made = {count: api.make_tables(campaign(tmp_path / f"{count}", aioquic=1.6, starved=count)) for count in (1, 2)}
    for count, tables in made.items():
        rows = {(row.what, row.name): row for row in tables.client_effects}
        assert {key for key, row in rows.items() if row.starved} == {
            *((Effect.CLIENT, name) for name in ("curl-h3", "aioquic", "quiche")),
            (Effect.RANGE, "aioquic"),
        }
        assert rows[Effect.RANGE, "aioquic"].starved == rows[Effect.CLIENT, "quiche"].starved == 4 * count
        for text in (client_effect_sentence(tables.client_effects), tables.markdown("client_effects")):
            assert ("], host too busy" in text) == (count == 2)


def test_a_run_without_one_of_the_clients_has_no_median_of_clients(tmp_path: Path) -> None:
    data = campaign(tmp_path / "c", clients=("curl-h2", "curl-h3"))
    assert [what for what, _ in effects(data)] == [Effect.TRANSPORT], "one QUIC client has no others"
    assert effects(campaign(tmp_path / "d", clients=("quiche", "quiche2"))) == {}


def test_what_the_rows_of_table_2_differ_in(tmp_path: Path) -> None:
    data = campaign(tmp_path / "c")
    made = api.make_tables(data)
    assert {row.comparison.name: row.differs_in for row in made.table2} == {
        "quiche2 vs quiche": "",
        "curl-h2 vs curl-h1": "HTTP version",
        "curl-h3 vs curl-h2": "transport",
        "curl-h3 vs curl-h1": "transport, HTTP version",
        "quiche vs curl-h3": "client",
        "quiche vs curl-h2": "client, transport",
        "aioquic vs curl-h1": "client, transport, HTTP version",
    }
    assert "| differs in |" in made.markdown("table2") and "| transport, HTTP version |" in made.markdown("table2")
    assert {one.vs for one in against_tcp(data.design)} == {"curl-h2"}


@pytest.mark.thorough
def test_table_csv_and_report(tmp_path: Path) -> None:
    data = campaign(tmp_path / "c", aioquic=1.1)
    made = api.make_tables(data)
    rows = list(csv.DictReader(io.StringIO(made.csv("client_effects"))))
    assert [row["what"] for row in rows] == [*["client"] * 3, "range", "transport", "noise_floor"]
    assert float(rows[4]["ratio"]) == pytest.approx(QUIC_FACTOR, abs=0.005)
    screen = io.StringIO()
    made.show(screen, ["client_effects"])
    words = " ".join(screen.getvalue().split())
    assert "Time of a download: transport -10." in words and "(curl-h3 over curl-h2, the same program); client" in words
    page = api.make_all([tmp_path / "c"]).report.read_text(encoding="utf-8")
    assert "What the client alone does" in page and "the slowest of 3 QUIC clients" in page
    assert page.count('class="forest') == 2 and "speed-up over curl-h2" in page
    assert all(one.transport is Transport.QUIC for one in data.design.configurations if one.http == "3")


@pytest.mark.thorough
@pytest.mark.usefixtures("undrawn")
def test_the_plot_of_clients_knows_the_noise_floor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Sequence[SpeedupRow]] = []
    forest = plots.forest

    def kept(rows: Sequence[SpeedupRow], found: Sequence[ReportFinding]) -> plots.Forest:
        drawn.append(rows)
        return forest(rows, found)

    monkeypatch.setattr(plots, "forest", kept)
    page = report.build(campaign(tmp_path / "c", quiche2=1.2), report.ReportOptions())
    (clients,) = [rows for rows in drawn if all(row.comparison.vs == "curl-h2" for row in rows)]
    assert {row.comparison.config for row in clients} == {"curl-h3", "aioquic", "quiche"} and len(clients) == 3
    assert all(row.margin == pytest.approx(1.2, abs=0.006) for row in clients)
    # Its rows are in no family of tests, so one comparison has one q on the page.
    assert page.count('class="number">q</span>') == 1


@pytest.mark.usefixtures("undrawn")
def test_the_plot_of_clients_has_the_numbers_of_table_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row of a TCP client, which is only in Table 2, decides that the others with its reference count providers."""
    own = [Comparison.of(name, "curl-h2") for name in ("curl-h1", "curl-h3", "quiche")]
    clients = ("curl-h2", "curl-h1", "curl-h3", "quiche")
    data = campaign(tmp_path / "c", comparisons=own, clients=clients, at_providers=(1.0, 1.1, 1.2, 1.3))
    drawn: list[Sequence[SpeedupRow]] = []

    def kept(rows: Sequence[SpeedupRow], found: Sequence[ReportFinding]) -> plots.Forest:
        drawn.append(rows)
        return forest(rows, found)

    forest = plots.forest
    monkeypatch.setattr(plots, "forest", kept)
    report.build(data, report.ReportOptions())
    plot, table = ({row.comparison.config: row.typical for row in rows} for rows in sorted(drawn, key=len))
    assert set(plot) == {"curl-h3", "quiche"} and set(table) == {*plot, "curl-h1"}
    assert {(plot[name].unit, (plot[name].p_providers or 0) > 0.4) for name in plot} == {(Unit.PROVIDER, True)}
    assert all(plot[name] == table[name] for name in plot)
