"""Each quirk of the published pipeline, on made records: what it does, and that it moves nothing else."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from analysis import api
from analysis.measures import quirks, tables
from analysis.measures.dataset import Dataset, Record
from analysis.measures.quirks import Affects
from analysis.measures.rows import Metric, Size, Split, SplitBy, Verdict
from analysis.report import beside, published
from core.errors import UsageError
from core.paper import Paper
from tests.unit.analysis_factory import make_download, of_records, realistic, write_campaign
from upshift.cli import app

TCP = ("BL", "BL2", "SACK", "WS", "ALL")
CONFIGURATIONS = (*TCP, "aioquic", "quiche")
QUIC_ROWS = {"aioquic vs BL", "aioquic vs ALL", "quiche vs BL", "quiche vs ALL", "quiche vs aioquic"}
ALL_ROWS = {"BL2 vs BL", "SACK vs BL", "WS vs BL", "ALL vs BL", "ALL vs WS", *QUIC_ROWS}
TIMES = {"BL": 1.0, "BL2": 1.01, "SACK": 0.97, "WS": 0.8, "ALL": 0.75, "aioquic": 0.9, "quiche": 0.7}

KPIS: dict[str, Any] = {
    "ip_bytes_from_server": 1_100_000,
    "ip_bytes_from_client": 40_000,
    "packets_from_server": 800,
    "packets_from_client": 500,
    "true_retransmissions": 10,
    "retransmission_rate": 0.01,
    "ws_retransmissions": 4,
    "ws_fast_retransmissions": 3,
    "ws_spurious_retransmissions": 1,
    "ece_segments": 0,
    "cwr_segments": 0,
    "ecn_requested": False,
    "ecn": False,
    "ecn_fallback": False,
    "syn_packets": 1,
}
"""Of one download, whatever its configuration."""


def record(configuration: str = "BL", *, kpis: Mapping[str, Any] | None = None, **changes: Any) -> Record:
    """A download of `TIMES` with KPIs that fit."""
    time_s = changes.setdefault("last_byte_s", TIMES[configuration])
    rate = KPIS["ip_bytes_from_server"] * 8 / time_s / 1e6
    measured = {**KPIS, "mean_throughput": rate, "duration": time_s, **(kpis or {})}
    return Record(folder=0, download=make_download(configuration=configuration, **changes), kpis=measured)


def world(change: Callable[[dict[str, Any]], Any] = lambda _: None, *, iterations: int = 2) -> Dataset:
    """Every configuration on 12 domains; `change` gets the arguments of each record and may alter them."""
    records = []
    for domain, iteration, name in itertools.product(range(12), range(1, iterations + 1), CONFIGURATIONS):
        arguments: dict[str, Any] = {
            "configuration": name,
            "domain": f"d{domain:02}.example",
            "iteration": iteration,
            "last_byte_s": TIMES[name] * (1 + 0.01 * domain),
            "kpis": {},
        }
        change(arguments)
        records.append(record(**arguments))
    return dataset_of(records)


def dataset_of(records: Iterable[Record]) -> Dataset:
    return of_records(tuple(records), kpi_units={"mean_throughput": "Mbit/s"})


def moved(data: Dataset, name: str, *, metric: Metric = Metric.THROUGHPUT) -> dict[str, set[str]]:
    """What one quirk moves: row of Table 2, or `configuration NAME` -> columns."""
    found: dict[str, set[str]] = {}
    for effect in published.effects(data, metric=metric, chosen=[quirks.ALL[name]]).effects:
        row = effect.row if effect.table == "table2" else f"configuration {effect.row}"
        found[row] = {cell["column"] for cell in effect.cells()}
    return found


def one(name: str, *records: Record) -> list[Record]:
    """The records as this quirk changes them."""
    return list(quirks.with_quirks(dataset_of(records), [quirks.ALL[name]]).records)


def row_of(data: Dataset, name: str, *names: str) -> Any:
    """A row of Table 2 with these quirks."""
    read = quirks.with_quirks(data, [quirks.ALL[each] for each in names])
    return next(row for row in tables.table2(read, metric=Metric.THROUGHPUT) if row.comparison.name == name)


def test_what_depends_on_other_rows_is_not_an_effect() -> None:
    """A row whose q crosses 0.05 as another row's p moved loses its direction, size and split, too."""
    row = row_of(world(), "WS vs BL")
    split = Split(by=SplitBy.LIMITER, p=0.01, parts=())
    one = dataclasses.replace(row, q_bh=0.04, verdict=Verdict.FASTER, size=Size.AT_LEAST, margin=1.02)
    other = dataclasses.replace(
        row, q_bh=0.06, q_parts=0.04, verdict=Verdict.MIXED, size=None, split=split, margin=1.03
    )
    assert published.QuirkEffect(quirk="first-quic-run", without=one, changed=other).cells() == []


def test_both_directions_move_rows_with_quic_only() -> None:
    tcp, quic = one("both-directions", record("ALL"), record("quiche"))
    assert tcp == record("ALL")
    assert quic.number("mean_throughput") == pytest.approx(1_140_000 * 8 / 0.7 / 1e6)
    # All QUIC downloads have the same share of client bytes, so they move against TCP and not against each other.
    assert set(moved(world(), "both-directions")) == QUIC_ROWS - {"quiche vs aioquic"}

    def more(arguments: dict[str, Any]) -> None:
        arguments["kpis"]["ip_bytes_from_client"] = 300_000 if arguments["configuration"] == "aioquic" else 0

    changed = moved(world(more), "both-directions")
    assert set(changed) == {"aioquic vs BL", "aioquic vs ALL", "quiche vs aioquic"}
    # 1.4 MB in 0.9 s instead of 1.1 MB: faster than ALL (0.75 s) in all runs instead of none.
    rows = [row_of(world(more), "aioquic vs ALL", *names) for names in ((), ("both-directions",))]
    assert [row.faster.share for row in rows] == [0.0, 1.0]


def test_ipv6_header_moves_rows_whose_packets_differ_in_size() -> None:
    v6 = {"server_ip": "fd00:198:18:1::2"}
    old, new = one("ipv6-payload", record("WS"), record("WS", iteration=2, **v6))
    assert old == record("WS")
    assert new.number("ip_bytes_from_server") == 1_100_000 - 800 * 40
    assert new.number("ip_bytes_from_client") == 40_000 - 500 * 40
    assert new.number("mean_throughput") == pytest.approx((1_100_000 - 32_000) * 8 / 0.8 / 1e6)

    def small_packets(arguments: dict[str, Any]) -> None:
        arguments |= v6
        arguments["kpis"]["packets_from_server"] = 950 if arguments["configuration"] in ("aioquic", "quiche") else 800

    assert set(moved(world(small_packets), "ipv6-payload")) == QUIC_ROWS - {"quiche vs aioquic"}
    assert moved(world(), "ipv6-payload") == {}
    # With both directions: neither side's header counts, whichever option came first.
    names = ("both-directions", "ipv6-payload")
    for order in (names, names[::-1]):
        quic = record("quiche", **v6)
        read = quirks.with_quirks(dataset_of([quic]), [quirks.ALL[name] for name in order]).records[0]
        expected = (1_100_000 - 800 * 40 + 40_000 - 500 * 40) * 8 / 0.7 / 1e6
        assert read.number("mean_throughput") == pytest.approx(expected)


def test_whole_connection_moves_rows_whose_connections_close_late() -> None:
    (late,) = one("whole-connection", record("WS", kpis={"duration": 1.6}))
    assert late.number("mean_throughput") == pytest.approx(1_100_000 * 8 / 1.6 / 1e6)

    def late_ws(arguments: dict[str, Any]) -> None:
        if arguments["configuration"] == "WS":
            arguments["kpis"]["duration"] = 2 * arguments["last_byte_s"]

    assert set(moved(world(late_ws), "whole-connection")) == {"WS vs BL", "ALL vs WS"}
    assert moved(world(), "whole-connection") == {}


def test_whole_connection_is_the_published_throughput() -> None:
    """With the other quirks of throughput, too: bytes of the chosen sides over the whole time."""
    made = record("quiche", kpis={"duration": 2.0, "throughput_published": 4.4})
    read = quirks.with_quirks(dataset_of([made]), [quirks.ALL["whole-connection"]]).records[0]
    assert read.number("mean_throughput") == pytest.approx(4.4)
    both = quirks.with_quirks(
        dataset_of([made]), [quirks.ALL[n] for n in ("whole-connection", "both-directions")]
    ).records[0]
    assert both.number("mean_throughput") == pytest.approx(4.4 * 114 / 110)


def test_packet_rates_move_the_rate_of_retransmissions_only() -> None:
    (read,) = one("packet-rates", record())
    assert read.number("retransmission_rate") == pytest.approx(10 / 800)
    changed = moved(world(), "packet-rates")
    assert changed == {f"configuration {name}": {"retransmission_rate"} for name in TCP}


def test_wireshark_verdicts_move_the_number_of_retransmissions_only() -> None:
    (read,) = one("wireshark-verdicts", record())
    assert read.number("true_retransmissions") == 4 + 3 + 1
    changed = moved(world(), "wireshark-verdicts")
    assert changed == {f"configuration {name}": {"retransmissions"} for name in TCP}

    def same_verdict(arguments: dict[str, Any]) -> None:
        if arguments["configuration"] != "SACK":
            arguments["kpis"]["ws_retransmissions"] = 6

    assert set(moved(world(same_verdict), "wireshark-verdicts")) == {"configuration SACK"}


def test_fast_and_spurious_retransmissions_count_twice() -> None:
    (read,) = one("double-retransmissions", record())
    assert read.number("true_retransmissions") == 10 + 3 + 1
    changed = moved(world(), "double-retransmissions")
    assert changed == {f"configuration {name}": {"retransmissions"} for name in TCP}


def test_all_retransmission_quirks_together_are_the_published_counts() -> None:
    """total_retransmissions = each verdict, fast and spurious once more; get_packet_loss counts each packet once."""
    made = record(kpis={"retransmission_rate_packets": 8 / 800})
    read = quirks.with_quirks(dataset_of([made]), quirks.ALL.values()).records[0]
    assert read.number("true_retransmissions") == (4 + 3 + 1) + 3 + 1
    assert read.number("retransmission_rate") == read.number("retransmission_rate_packets")


@pytest.mark.parametrize(
    ("kpis", "ece", "cwr"),
    [
        ({"ecn_requested": True, "ecn": True}, 5 + 2, 2 + 1),
        ({"ecn_requested": True, "ecn": True, "syn_packets": 3}, 5 + 4, 2 + 3),
        ({"ecn_requested": True, "ecn": False}, 5 + 1, 2 + 1),
        ({"ecn_requested": True, "ecn": False, "ecn_fallback": True, "syn_packets": 2}, 5 + 1, 2 + 1),
        ({"ecn_requested": False}, 5, 2),
    ],
)
def test_syns_count_among_ece_and_cwr(kpis: dict[str, Any], ece: int, cwr: int) -> None:
    (read,) = one("syn-flags", record(kpis={"ece_segments": 5, "cwr_segments": 2, **kpis}))
    assert (read.number("ece_segments"), read.number("cwr_segments")) == (ece, cwr)


def test_syn_flags_move_configurations_with_ecn_only() -> None:
    def ecn(arguments: dict[str, Any]) -> None:
        if arguments["configuration"] == "ALL":
            arguments["kpis"] |= {"ecn_requested": True, "ecn": True}

    assert moved(world(ecn), "syn-flags") == {"configuration ALL": {"ece", "cwr"}}
    # With accurate ECN there is no count to add to.
    accurate = record(kpis={"ecn_requested": True, "ecn": True, "ece_segments": None, "cwr_segments": None})
    assert one("syn-flags", accurate) == [accurate]


def test_unequal_budgets_censor_quic_after_15_s_and_tcp_after_45_s() -> None:
    slow = {"last_byte_s": 20.0, "budget_s": 60.0}
    quic, tcp, slower = one(
        "unequal-budgets", record("quiche", **slow), record("BL", **slow), record("WS", last_byte_s=50.0, budget_s=60.0)
    )
    assert (quic.download.outcome, quic.download.failure, quic.download.budget_s) == ("censored", "time_budget", 15.0)
    assert quic.download.last_byte_s == 15.0
    assert tcp == record("BL", **slow)
    assert (slower.download.outcome, slower.download.budget_s) == ("censored", 45.0)
    waiting = record("quiche", outcome="censored", failure="stalled", last_byte_s=2.0, budget_s=60.0)
    (cut,) = one("unequal-budgets", waiting)
    assert (cut.download.budget_s, cut.download.last_byte_s) == (15.0, 2.0)

    def slow_domain(arguments: dict[str, Any]) -> None:
        if arguments["domain"] == "d03.example":
            arguments |= {"last_byte_s": 20 * TIMES[arguments["configuration"]], "budget_s": 60.0}

    # Of the QUIC downloads only aioquic's takes longer than 15 s there (18 s); none over TCP takes 45 s.
    data = world(slow_domain)
    changed = moved(data, "unequal-budgets", metric=Metric.TIME)
    assert set(changed) == {"aioquic vs BL", "aioquic vs ALL", "quiche vs aioquic"}
    assert "bounds" in changed["aioquic vs BL"]
    assert moved(world(), "unequal-budgets") == {}

    def slow_configuration(arguments: dict[str, Any]) -> None:
        arguments |= {"last_byte_s": 50.0, "budget_s": 60.0} if arguments["configuration"] == "BL" else {}

    # No download of BL is left whose retransmissions count.
    changed = moved(world(slow_configuration), "unequal-budgets", metric=Metric.TIME)
    assert {"downloads", "retransmissions", "ece"} < changed["configuration BL"]


def test_dropped_timeouts_move_rows_with_censored_downloads_only() -> None:
    cut = {"outcome": "censored", "failure": "time_budget"}
    timed_out, too_large = one(
        "dropped-timeouts", record("WS", **cut), record("WS", iteration=2, outcome="censored", failure="byte_budget")
    )
    assert timed_out.download.outcome == "failed"
    assert too_large.download.outcome == "censored"

    def censored(arguments: dict[str, Any]) -> None:
        if arguments["configuration"] == "WS" and arguments["domain"] == "d03.example":
            arguments |= {**cut, "last_byte_s": 30.0, "budget_s": 30.0}

    data = world(censored)
    changed = moved(data, "dropped-timeouts", metric=Metric.TIME)
    assert set(changed) == {"WS vs BL", "ALL vs WS"}
    assert (row_of(data, "WS vs BL").n, row_of(data, "WS vs BL", "dropped-timeouts").n) == (24, 22)
    # Killed after 15 s, then dropped: together they act in this order.
    slow = record("quiche", last_byte_s=20.0, budget_s=60.0)
    read = quirks.with_quirks(dataset_of([slow]), [quirks.ALL["dropped-timeouts"], quirks.ALL["unequal-budgets"]])
    assert read.records[0].download.outcome == "failed"


def test_first_quic_run_stands_in_for_the_later_ones() -> None:
    second, first = one(
        "first-quic-run",
        record("quiche", iteration=2, last_byte_s=5.0, local_port=2),
        record("quiche", iteration=1, last_byte_s=1.0, local_port=1),
    )
    assert (second.download.iteration, second.download.last_byte_s, second.download.local_port) == (2, 1.0, 1)
    assert second.kpis == first.kpis
    tcp = [record("BL", iteration=1), record("BL", iteration=2, last_byte_s=2.0)]
    assert one("first-quic-run", *tcp) == tcp
    apart = [record("quiche", iteration=n, domain=f"d{n}.example", last_byte_s=float(n)) for n in (1, 2)]
    assert one("first-quic-run", *apart) == apart

    def slower_later(arguments: dict[str, Any]) -> None:
        if arguments["iteration"] == 2:
            arguments["last_byte_s"] *= 1.3

    changed = moved(world(slower_later), "first-quic-run")
    assert set(changed) == QUIC_ROWS - {"quiche vs aioquic"}
    assert moved(world(slower_later, iterations=1), "first-quic-run") == {}


def test_equal_weight_moves_intervals_and_the_number_of_clusters_only() -> None:
    def varied(arguments: dict[str, Any]) -> None:
        # Between domains they differ, within each they do not: clusters matter.
        if arguments["configuration"] == "BL" and arguments["domain"] > "d07":
            arguments["last_byte_s"] *= 0.5

    data = world(varied)
    changed = moved(data, "equal-weight")
    assert {"WS vs BL", "quiche vs BL"} <= set(changed) <= ALL_ROWS
    estimates = {"n", "faster", "slower", "tie", "undecided", "bounds", "excluded", "median"}
    assert not [column for columns in changed.values() for column in columns if column in estimates]
    plain, equal = row_of(data, "WS vs BL"), row_of(data, "WS vs BL", "equal-weight")
    assert (plain.domains, equal.domains) == (12, 24)
    assert equal.faster.high - equal.faster.low < plain.faster.high - plain.faster.low


def test_first_iteration_counts_domains_in_table_1_only() -> None:
    def failed(arguments: dict[str, Any]) -> None:
        # One domain with a failed download beside good ones, one without any that is good in the first iteration.
        lost = arguments["domain"] == "d01.example" or arguments["configuration"] == "WS"
        if arguments["iteration"] == 1 and arguments["domain"] < "d02" and lost:
            arguments |= {"outcome": "failed", "failure": "connection_reset"}

    data = world(failed)
    plain = api.make_tables(data, metric=Metric.THROUGHPUT)
    read = api.make_tables(data, metric=Metric.THROUGHPUT, quirks=[quirks.ALL["first-iteration"]])
    assert [(row.transport, row.ok, row.planned) for row in plain.table1] == [("tcp", 114, 120), ("quic", 46, 48)]
    assert [(row.transport, row.ok, row.planned) for row in read.table1] == [("tcp", 11, 12), ("quic", 11, 12)]
    assert (read.table2, read.dose, read.configurations) == (plain.table2, plain.dose, plain.configurations)


@pytest.mark.thorough
def test_every_quirk_leaves_the_tables_alone_that_it_does_not_name() -> None:
    """On records that every quirk concerns."""

    def everything(arguments: dict[str, Any]) -> None:
        arguments |= {"server_ip": "fd00:198:18:1::2", "budget_s": 60.0}
        number = int(arguments["domain"][1:3])
        name = arguments["configuration"]
        arguments["last_byte_s"] *= (1 + 0.3 * arguments["iteration"]) * (20 if number == 5 else 1)
        arguments["kpis"] |= {"packets_from_server": 800 + 100 * (name == "quiche"), "duration": 2.0 + number}
        arguments["kpis"] |= {"ecn_requested": name == "ALL", "ecn": name == "ALL"}
        if number == 7 and name == "WS":
            arguments |= {"outcome": "censored", "failure": "time_budget"}

    data = world(everything)
    seen = {name: moved(data, name) for name in quirks.ALL}
    for name, variant in quirks.ALL.items():
        of_counts = {row for row in seen[name] if row.startswith("configuration")}
        if variant.affects is Affects.TABLE1:
            assert not seen[name], name
        elif variant.affects is Affects.COUNTS:
            assert of_counts == set(seen[name]) != set(), name
        elif variant.affects in (Affects.THROUGHPUT, Affects.INTERVALS):
            assert seen[name], name
            assert not of_counts, name
        else:
            assert set(seen[name]) - of_counts, name


def test_the_order_of_the_options_does_not_matter() -> None:
    data = world(lambda arguments: arguments.update(server_ip="fd00:198:18:1::2", budget_s=60.0))
    members = list(quirks.ALL.values())
    assert quirks.with_quirks(data, members).records == quirks.with_quirks(data, members[::-1]).records
    assert quirks.with_quirks(data, []) == data


def command(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["tables", *map(str, arguments)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


@pytest.mark.thorough
def test_output_without_quirks_is_that_of_the_command_without_the_option(tmp_path: Path) -> None:
    """Bytes on standard output and in files, in every format, before and after other readings of the same folder."""
    downloads, lab = realistic(domains=12)
    folder = write_campaign(tmp_path / "c", downloads, lab=lab)
    formats = (["--format", "text"], ["--format", "csv"], ["--format", "markdown"], ["--json"])

    def everything() -> tuple[list[str], dict[str, bytes]]:
        said = [command(folder, "--metric", "throughput", *arguments)[1] for arguments in formats]
        return said, {path.name: path.read_bytes() for path in (folder / "tables").glob("*.*")}

    plain = everything()
    assert len(plain[1]) == 2 * len(api.TABLES) + 1, "each as CSV and Markdown, and the pairs"
    assert not any(word in text for text in plain[0] for word in ("with its quirks", '"quirks"', "retransmissions"))
    for arguments in (["--as-published"], ["--quirk-effects"], ["--beside", "anrw23"]):
        assert command(folder, *arguments)[0] == 0
    assert everything() == plain
    # The same way through the code with a quirk that concerns none of these downloads: they are all over IPv4.
    command(folder, "--quirk", "ipv6-payload")
    published_folder = folder / "tables" / "published"
    written = {name: data for name, data in plain[1].items() if name != "pairs.parquet"}  # not made with quirks
    assert {name: (published_folder / name).read_bytes() for name in written} == written
    effects = published.effects(world(), metric=Metric.THROUGHPUT).effects
    without = {e.row: e.without for e in effects if e.quirk == "equal-weight"}
    assert set(without) == ALL_ROWS
    rows = {row.comparison.name: row for row in tables.table2(world(), metric=Metric.THROUGHPUT)}
    assert without == rows


@pytest.mark.thorough
def test_effects_are_printed_and_written(tmp_path: Path) -> None:
    def with_kpis(download: Any) -> dict[str, Any]:
        rate = KPIS["ip_bytes_from_server"] * 8 / download.last_byte_s / 1e6
        return {"mean_throughput": rate, "ip_bytes_from_server": 1_100_000.0, "ip_bytes_from_client": 40_000.0}

    downloads, _ = realistic(domains=12)
    folder = write_campaign(tmp_path / "c", downloads, kpis=with_kpis)
    code, text = command(folder, "--quirk-effects")
    assert code == 0
    assert "both-directions quiche vs ALL" in " ".join(text.split())
    assert "Nothing moves by: throughput instead of time, double-retransmissions, " in " ".join(text.split())
    lines = list(
        csv.DictReader((folder / "tables/published/quirk_effects.csv").read_text(encoding="utf-8").splitlines())
    )
    assert tuple(lines[0]) == published.EFFECTS_CSV
    ours = [line for line in lines if line["quirk"] == "both-directions"]
    assert {line["row"] for line in ours} == QUIC_ROWS - {"quiche vs aioquic"}
    median = next(line for line in ours if (line["row"], line["column"]) == ("quiche vs ALL", "median"))
    assert float(median["with"]) / float(median["without"]) == pytest.approx(114 / 110, rel=1e-4)
    assert float(median["moved"]) == pytest.approx(float(median["with"]) - float(median["without"]), abs=1e-5)
    together = [line for line in lines if line["quirk"] == published.TOGETHER]
    assert median["with"] in {line["with"] for line in together if line["column"] == "median"}
    code, text = command(folder, "--quirk-effects", "--json")
    names = json.loads(text)["quirks"]
    assert (names[0], names[-1]) == (published.METRIC, published.TOGETHER)


@pytest.mark.thorough
def test_all_together_is_the_published_way_against_our_table_of_times() -> None:
    """The metric itself is a part: bytes of headers count as speed, so QUIC's smaller packets gain."""

    def headers(arguments: dict[str, Any]) -> None:
        if arguments["configuration"] == "quiche":
            arguments["kpis"]["mean_throughput"] = 1.2 * KPIS["ip_bytes_from_server"] * 8 / 1e6

    data = world(headers)
    found = published.effects(data, metric=Metric.THROUGHPUT).effects
    by_metric = {effect.row for effect in found if effect.quirk == published.METRIC}
    assert by_metric == {"quiche vs BL", "quiche vs ALL", "quiche vs aioquic"}
    (row,) = [e for e in found if (e.quirk, e.row) == (published.TOGETHER, "quiche vs BL")]
    names = [one for one in quirks.ALL.values() if one.affects is not Affects.TABLE1]
    read = quirks.with_quirks(data, names)
    ours, theirs = (
        {r.comparison.name: r for r in tables.table2(one, metric=metric)}["quiche vs BL"]
        for one, metric in ((data, Metric.TIME), (read, Metric.THROUGHPUT))
    )
    assert (row.without, row.changed) == (ours, theirs)


@pytest.mark.thorough
def test_as_published_is_all_quirks(tmp_path: Path) -> None:
    downloads, _ = realistic(domains=12)
    folder = write_campaign(tmp_path / "c", downloads)
    _, text = command(folder, "--as-published", "--json")
    document = json.loads(text)
    assert document["quirks"] == list(quirks.ALL)
    assert document["metric"] == "throughput"
    assert [row["configuration"] for row in document["congestion"]][:2] == ["BL", "BL2"]
    _, text = command(folder, "--quirk", "equal-weight", "--quirk", "equal-weight", "--table", "2")
    assert "with its quirks equal-weight." in text
    assert "Table 2" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--quirk", "both-direction"], "--quirk: unknown quirk 'both-direction'"),
        (["--metric", "time", "--quirk", "both-directions"], "--metric time: both-directions changes throughputs"),
        (["--metric", "time", "--as-published"], "--metric time: --as-published changes throughputs"),
        (["--quirk-effects", "--as-published"], "--quirk-effects: --as-published cannot be given with it"),
        (["--quirk-effects", "--beside", "anrw23"], "--quirk-effects: --beside cannot be given with it"),
        (["--beside", "anrw23", "--by", "vantage"], "--beside: --by cannot be given with it"),
        (["--beside", "anrw23", "--table", "2"], "--beside: --table cannot be given with it"),
        (["--quirk-effects", "--table", "2"], "--quirk-effects: --table cannot be given with it"),
        (["--beside", "anrw23", "--latex"], "--beside: --latex cannot be given with it"),
        (["--json", "--latex"], "--json: --latex cannot be given with it"),
        (["--json", "--format", "csv"], "--json: --format cannot be given with it"),
        (["--latex", "--format", "csv"], "--latex: --format cannot be given with it"),
        (["--pairs", "--as-published"], "--pairs: pairs are written as they are, without quirks"),
    ],
)
def test_contradicting_options_are_refused(tmp_path: Path, arguments: list[str], said: str) -> None:
    folder = write_campaign(tmp_path / "c", [make_download()])
    with pytest.raises(UsageError, match=said.replace("(", "\\(")):
        command(folder, *arguments)
    assert not (folder / "tables").exists()


def test_beside_puts_the_papers_cells_next_to_ours() -> None:
    data = world()
    made = beside.beside(Paper.ANRW23, data, tables.table2(data, metric=Metric.THROUGHPUT))
    rows = {(row["comparison"], row["of"]): row for row in made.table2}
    assert (rows["WS vs BL", "paper"]["faster"], rows["WS vs BL", "paper"][">2"]) == (pytest.approx(0.903), 0.38)
    assert (rows["WS vs BL", "ours"]["n"], rows["WS vs BL", "ours"]["1.2-1.3"]) == (24, 1.0)
    # A row of the paper that the campaign does not have stands alone; the paper has no BL2.
    assert ("ECN vs BL", "paper") in rows
    assert ("ECN vs BL", "ours") not in rows
    assert ("BL2 vs BL", "ours") not in rows
    assert sum(of == "paper" for _, of in rows) == 10
    for row in made.table2:
        assert row["faster"] + row["slower"] == pytest.approx(1)
    heading, *lines = made.table1
    assert heading[3:] == ["akamai", "amazon", "cloudflare", "google", "microsoft", "other", "total"]
    # Domains of the first iteration, not downloads: 12, not 12 x 2 x 5.
    assert lines[0] == ["ours", "MUC", "TCP", "12", "0", "0", "0", "0", "0", "12"]
    assert lines[2] == ["paper", "MUC", "TCP", "167", "150", "170", "147", "172", "873", "1679"]
    assert lines[-1] == ["paper", "SGP", "QUIC", "3", "13", "276", "2", "0", "201", "495"]
    for line in lines:
        assert sum(map(int, line[3:-1])) == int(line[-1])
    assert made.files("csv").count("paper") == 6 + 10
