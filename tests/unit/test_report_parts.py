"""The report's values: forest plot, points for its drawings, series from captures, servers, the question."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import re
from collections import Counter
from importlib import resources
from pathlib import Path

import jinja2
import numpy as np
import pytest

from analysis.captures.limiter import Limiter
from analysis.measures import costs, dataset, tables
from analysis.measures.dataset import Dataset, Record
from analysis.measures.folders import Design
from analysis.measures.limiters import LimiterRow
from analysis.measures.rows import Median, Metric, PairShare, Split, SplitBy, SplitPart
from analysis.report import campaign, checks, figures, findings, plots, points, render, series, targets
from core.domain import Comparison, Role, Transport
from core.files.campaign_json import DescribedConfiguration
from tests.terminals import on_terminal
from tests.unit import pcap_writer
from tests.unit.analysis_factory import lab_path, make_download, make_kpis, of_records, write_campaign


def load(folder: Path, *, domains: int = 12, slow: float = 2.0) -> Dataset:
    """BL and BL2 in `slow` seconds, give or take 1 %, and WS in one."""
    downloads = [
        make_download(
            domain=f"d{i:02}", configuration=name, last_byte_s=seconds * (1 + 0.01 * ((i + len(name)) % 3 - 1))
        )
        for i in range(domains)
        for name, seconds in (("BL", slow), ("BL2", slow), ("WS", 1.0))
    ]
    return dataset.load([write_campaign(folder / "c", downloads)])


def pairs_of(data: Dataset) -> points.Points:
    return points.points(data, costs.samples(data, metric=Metric.TIME))


def plot(data: Dataset) -> plots.Forest:
    rows = tables.table2(data)
    return plots.forest(rows, findings.findings(rows))


def test_forest_places_medians_on_a_log_scale_beside_the_margin(tmp_path: Path) -> None:
    drawn = plot(load(tmp_path))
    by_name = {row.of.comparison.name: row for row in drawn.rows}
    faster, noise = by_name["WS vs BL"], by_name["BL2 vs BL"]
    assert faster.finding is not None and faster.finding.verdict == "faster"
    assert faster.finding.sentence.startswith("WS was faster than BL")
    assert noise.of.comparison.role is Role.NOISE_FLOOR and noise.finding is None and noise.words == ""
    places = {label: at for at, label in drawn.ticks}
    octave = (places["2"] - places["1"]) if "2" in places else (places["1.5"] - places["1"]) / math.log2(1.5)
    assert faster.at == pytest.approx(places["1"] + octave, abs=1.0)
    assert faster.low is not None and faster.at is not None and faster.high is not None
    assert faster.low <= faster.at <= faster.high
    assert faster.band is not None and faster.band[0] < drawn.one < faster.band[1] < faster.low
    assert faster.q == "<0.001" and noise.q == "" and noise.band is None
    assert places["1"] == pytest.approx(drawn.one)
    assert [at for at, _ in drawn.ticks] == sorted(places.values())


def test_the_first_screen_says_what_a_row_depends_on(tmp_path: Path) -> None:
    """WS against BL: 1.7 where the receive window limited BL, 1.0 where the path's rate did."""
    rng = np.random.default_rng(6)
    limiters = ("receive_window", "path_rate")
    downloads = [
        make_download(domain=f"d{i:02}", configuration=name, last_byte_s=float(rng.lognormal(0, 0.005)) / gain)
        for i in range(24)
        for name, gain in (("BL", 1.0), ("BL2", 1.0), ("WS", 1.7 if i % 2 == 0 else 1.0))
    ]
    texts = {
        "limiter": [limiters[int(d.domain[1:]) % 2] if d.configuration == "BL2" else "path_rate" for d in downloads]
    }
    drawn = plot(dataset.load([write_campaign(tmp_path / "c", downloads, texts=texts)]))
    row = next(row for row in drawn.rows if row.of.comparison.name == "WS vs BL")
    assert row.finding is not None and row.finding.verdict == "mixed"
    assert (row.words, row.of.domains, row.of.n) == ("mixed by limiter", 24, 24)
    assert "path rate 1.00 (12 domains, 12 runs), receive window 1.69 (12 domains, 12 runs)." in row.finding.why
    shown = " ".join(on_terminal(plots.FirstScreen(question="?", forest=drawn, noise=()).show, 120))
    assert "WS vs BL: Median by what limited BL2:" in " ".join(shown.split())


def test_a_direction_of_few_domains_has_no_size(tmp_path: Path) -> None:
    drawn = next(row for row in plot(load(tmp_path, domains=8)).rows if row.of.comparison.name == "WS vs BL")
    assert (drawn.words, drawn.interval, drawn.q) == ("faster", "", "0.008")
    assert drawn.finding is not None
    assert "by how much is open with fewer than 10 domains" in drawn.finding.sentence


def test_forest_cuts_what_is_outside_and_leaves_out_rows_without_pairs(tmp_path: Path) -> None:
    drawn = plot(load(tmp_path, slow=100.0))
    row = next(row for row in drawn.rows if row.of.comparison.name == "WS vs BL")
    assert row.at == 100.0 and row.cut_low and row.cut_high
    lone = dataset.load([write_campaign(tmp_path / "lone", [make_download()])])
    assert plot(lone).rows == ()


def test_points_split_a_download_into_its_parts() -> None:
    downloads = [
        make_download(),
        make_download(configuration="quiche"),
        make_download(configuration="WS", outcome="censored"),
        make_download(configuration="ALL"),
    ]
    # Not the client's: TLS gave the first one whole records.
    kpis = [{"time_to_answer": seconds} for seconds in (0.06, 0.06, 0.06, None)]
    downloads[0] = dataclasses.replace(downloads[0], first_byte_s=0.11)
    records = [Record(folder=0, download=d, kpis=row) for d, row in zip(downloads, kpis, strict=True)]
    took = points.parts(of_records(records, kpi_units={"time_to_answer": "s"}))
    expected = [(0.04, 0.02, 0.94), (0.02, 0.04, 0.94), (math.nan,) * 3, (0.04, math.nan, math.nan)]
    np.testing.assert_allclose(np.array(took).T, expected)


def test_the_transfer_of_table_2_begins_with_the_answer_s_first_packet() -> None:
    """TCP's client has the first byte with its TLS record, a round trip later; both answers take as long."""
    tcp, quic = (
        make_download(first_byte_s=0.11, last_byte_s=0.36),
        make_download(configuration="quiche", last_byte_s=0.34),
    )
    rows = [(tcp, {"time_to_answer": 0.06}), (quic, {"time_to_answer": 0.04})]
    records = [Record(folder=0, download=download, kpis=kpis) for download, kpis in rows]
    made = costs.samples(of_records(records, kpi_units={"time_to_answer": "s"}), metric=Metric.TIME)
    assert made.durations["transfer"].tolist() == pytest.approx([0.3, 0.3])
    assert made.durations["handshake"].tolist() == pytest.approx([0.04, 0.02])
    # Of a folder that was inspected before this KPI was there.
    records = [dataclasses.replace(record, kpis={"time_to_first_byte": 0.06}) for record in records]
    made = costs.samples(of_records(records, kpi_units={"time_to_first_byte": "s"}), metric=Metric.TIME)
    assert np.isnan(made.durations["transfer"]).all()


def test_points_are_the_pairs_of_table_2(tmp_path: Path) -> None:
    data = load(tmp_path)
    found = pairs_of(data)
    pairs = {row.comparison.name: row.n for row in tables.table2(data)}
    names = [one["name"] for one in found.document["comparisons"]]
    assert Counter(names[row[0]] for row in found.document["points"]) == pairs
    one = next(row for row in found.document["points"] if names[row[0]] == "WS vs BL")
    assert one[6] == one[7] == pytest.approx(2.0, rel=0.05)
    assert one[8] == 1.0 and one[10] == pytest.approx(2.0, rel=0.1)
    # 8 Mbit/s, the fastest download's, for 20 ms.
    assert one[11] == pytest.approx(20.0)
    assert one[13] == pytest.approx(8e6 / 8 * 0.02 / 65_535, rel=0.02)
    assert next(line for _, line in found.part_lines if line[0] == "WS vs BL")[2:4] == ["1.00", "1.00"]


def test_rounding_moves_no_pair_over_an_edge(tmp_path: Path) -> None:
    times = {"a": 1.0000004, "b": 1.09502}
    downloads = [
        make_download(domain=domain, configuration=name, last_byte_s=time)
        for domain, slow in times.items()
        for name, time in (("BL", slow), ("WS", 1.0))
    ]
    data = dataset.load([write_campaign(tmp_path / "c", downloads)])
    first, second = (row[6] for row in pairs_of(data).document["points"])
    assert first == 1.0000004, "1.00000 would be a tie"
    assert f"{second:.2f}" == "1.10", "1.095 would be printed as 1.09, where Table 2 has 1.10"


def test_each_configuration_is_explained(tmp_path: Path) -> None:
    names = dict(campaign.names(load(tmp_path).design))
    assert names["BL"].startswith("HTTP over TCP by requests, ") and "window scaling off" in names["BL"]
    assert names["WS"].startswith("BL with window scaling ") and "warmup" not in names


def test_configurations_that_differ_are_not_explained_alike() -> None:
    def one(name: str, client: str, http: str, **options: int) -> DescribedConfiguration:
        transport = Transport.QUIC if http == "3" else Transport.TCP
        return DescribedConfiguration(
            name=name, client=client, transport=transport, levels={}, options=options, http=http, family=client
        )

    configurations = (
        one("h2", "curl-h2", "2"),
        one("small", "quiche", "3", max_data=65_536, gso=1),
        one("large", "quiche", "3", max_data=1_000_000, gso=1),
    )
    comparisons = (Comparison.of("small", "h2"), Comparison.of("large", "small"))
    assert campaign.names(Design(configurations=configurations, comparisons=comparisons)) == [
        ("h2", "HTTP/2 over TCP by curl-h2"),
        ("small", "HTTP/3 over QUIC by quiche, max_data 65536"),
        ("large", "HTTP/3 over QUIC by quiche, max_data 1000000"),
    ]


def test_columns_of_outcomes_have_the_names_that_the_page_explains() -> None:
    page = (resources.files("analysis.report") / "templates" / "report.html.j2").read_text(encoding="utf-8")
    (note,) = [line for line in page.splitlines() if "<b>disturbed</b>" in line]
    assert set(re.findall(r"<b>(.*?)</b>", note)) <= set(render.configuration_cells([])[0])


def test_a_curve_of_many_downloads_is_the_whole_one_to_the_eye() -> None:
    rng = np.random.default_rng(4)
    for count in (2_000, 2_001, 54_321, 100_000):
        values = np.sort(rng.lognormal(1, 1, count))
        ranks = figures._ranks(count, figures.MOST_STEPS)
        assert len(ranks) == min(count, 2_000) and ranks[-1] == count
        # Both as steps: at each value, the share of the whole curve and of the one that is drawn.
        drawn = np.append(0, ranks)[np.searchsorted(values[ranks - 1], values, side="right")] / count
        shares = np.searchsorted(values, values, side="right") / count
        assert np.abs(shares - drawn).max() <= 1 / 2_000
        assert values[(count - 1) // 2] in values[ranks - 1], "the median is on it"


def test_a_hatched_part_of_many_downloads_is_one_part() -> None:
    values = np.linspace(1, 2, 100_000)
    curve = figures.Curve(values=values, near=(values > 1.25) & (values < 1.5) | (values > 1.75))
    (first, second) = figures._near(curve)
    assert [edge / len(values) for edge in (*first, *second)] == pytest.approx([0.25, 0.5, 0.75, 1], abs=0.005)
    few = figures.Curve(values=values[:5], near=np.array([False, True, True, False, True]))
    assert figures._near(few) == [(1, 2), (2, 3), (4, 5)]


def test_a_target_with_too_many_downloads_shows_runs_with_failures_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "MAX_DOWNLOADS", 4)
    downloads = [make_download(iteration=n, configuration=name) for n in range(1, 6) for name in ("BL", "WS")]
    downloads[5] = dataclasses.replace(downloads[5], outcome="failed", failure="tls_error", last_byte_s=None)
    downloads.append(make_download(domain="z"))
    (shown,), left_out = targets.views(dataset.load([write_campaign(tmp_path / "c", downloads)]), limit=9)
    assert left_out == 1 and (shown.ok, shown.planned, shown.left_out, shown.causes) == (9, 10, 6, {"tls_error": 1})
    assert [run.title.split(", ")[1] for run in shown.runs] == ["iteration 1", "iteration 3"]


def test_files_of_a_domain_and_campaigns_are_told_apart(tmp_path: Path) -> None:
    files = [f"https://d.example/{name}" for name in "ab"]
    data = dataset.load([write_campaign(tmp_path, [make_download(domain="d.example", url=file) for file in files])])
    [target], _ = targets.views(data, limit=5)
    assert [run.title for run in target.runs] == [f"MUC, iteration 1, {file}, server 198.18.1.1" for file in files]
    later = make_download(domain="d.example", url=files[0], started_at=1.9e9)
    other = write_campaign(tmp_path / "other", [later])
    [target], _ = targets.views(dataset.load([tmp_path, other]), limit=5)
    assert [run.title.partition(": MUC")[0] for run in target.runs] == [str(tmp_path)] * 2 + [str(other)]
    facts = dict(campaign.facts(data))
    assert (facts["Domains"], facts["Measurement runs"]) == ("1", "2")


def test_curves_that_cover_each_other_stand_apart(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    axis = Figure().subplots()
    one, near, far = np.array([[1.0, 2.0, 3.0], [1.01, 2.0, 3.0], [10.0, 20.0, 30.0]])
    placed = figures._apart(axis, {0: one, 1: near, 2: far})
    at = {index: transform.transform((2.0, 0.5)) for index, transform in placed.items()}
    plain = axis.transData.transform((2.0, 0.5))
    assert at[0][0] < plain[0] < at[1][0] and at[0][1] > plain[1] > at[1][1]
    assert list(at[2]) == pytest.approx(list(plain))


def test_a_censored_pair_is_a_bound_in_the_page(tmp_path: Path) -> None:
    censored = make_download(outcome="censored", failure="time_budget", last_byte_s=9.9)
    data = dataset.load([write_campaign(tmp_path / "c", [censored, make_download(configuration="WS")])])
    found = pairs_of(data)
    (row,) = found.document["points"]
    assert [line[1:] for _, line in found.part_lines] == [["0", "–", "–", "–"]]
    assert found.runs_left_out == 0 and row[6:8] == [10.0, None] and row[8:11] == [None, None, None]


def test_a_pair_cut_at_the_same_byte_is_drawn_and_not_called_a_bound(tmp_path: Path) -> None:
    cut = {"outcome": "censored", "failure": "byte_budget"}
    downloads = [make_download(last_byte_s=2.0, **cut), make_download(configuration="WS", last_byte_s=1.0, **cut)]
    data = dataset.load([write_campaign(tmp_path / "c", downloads)])
    (row,) = pairs_of(data).document["points"]
    assert row[6:8] == [2.0, 2.0]
    (words,) = (words for title, words, *_ in checks.lists(data) if title == "Censored")
    page = (resources.files("analysis.report") / "templates" / "report.html.j2").read_text()
    told = re.findall(r"[^<>]*?A censored download (?:leaves only|would have)[^<>]*", page)
    assert len(told) == 2 and all("the same byte" in sentence for sentence in (words, *told))


def test_the_unit_of_intervals_is_said_as_it_is() -> None:
    assert "the provider where effects may differ" in findings.method_sentences([])[0]


def test_a_share_of_which_more_may_be_part_is_a_lower_bound() -> None:
    open_, known = PairShare(count=6, n=12, possible=8), PairShare(count=6, n=12, possible=6)
    assert [render.or_more(share) for share in (open_, known)] == ["≥50", "50"]
    assert render.escape_latex("≥50") == r"$\geq$50"
    assert findings._share(open_) == "at least 50 %" and findings._share(known) == "50 %"


def test_a_margin_is_said_to_a_tenth_of_a_per_cent() -> None:
    words = [render.margin_text(margin) for margin in (1.02, 1.0312, 1.106, 2.5, math.inf)]
    assert words == ["2 %", "3.1 %", "10.6 %", "150 %", "the noise floor"]


def test_points_are_limited_by_whole_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = load(tmp_path)
    count = len(pairs_of(data).document["points"])
    monkeypatch.setattr(points, "MAX_POINTS", 12)
    found = pairs_of(data)
    told, left_out = found.document, found.runs_left_out
    assert len(told["points"]) <= 12 and left_out > 0
    assert len(told["points"]) == count / 12 * (12 - left_out)
    assert len(range(0, 12, found.every)) == 12 - left_out


def test_what_filters_count_again_is_said_to_be_a_sample() -> None:
    page = (resources.files("analysis.report") / "templates" / "report.html.j2").read_text(encoding="utf-8")
    note = jinja2.Template(next(line for line in page.splitlines() if "when-filtered" in line))
    said = {every: note.render(points_every=every, max_points="40,000") for every in (1, 3)}
    assert "medians and shares. Typical speed-ups, intervals" in said[1]
    assert "medians and shares, of one in 3 measurement runs, evenly spaced" in said[3]


def captured(folder: Path) -> Dataset:
    """One download with a capture of it, in which segments 5 and 6 came again; and one without its capture."""
    segments = pcap_writer.download(packets=200, lose=frozenset((5, 6)))
    captures = folder / "vantage" / "MUC" / "captures"
    captures.mkdir(parents=True)
    frames = ((segment.time_ns, pcap_writer.ipv4(segment)) for segment in segments)
    (captures / "run.pcap").write_bytes(pcap_writer.pcap(frames))
    ends = {"server_ip": "198.18.0.2", "local_port": 40000}
    downloads = [
        make_download(capture="vantage/MUC/captures/run.pcap", **ends),
        make_download(domain="gone", capture="vantage/MUC/captures/gone.pcap", **ends),
    ]
    return dataset.load([write_campaign(folder, downloads)])


def test_series_come_from_the_capture(tmp_path: Path) -> None:
    data = captured(tmp_path / "c")
    found = series.of_run(data.records[:1], tmp_path / "c")["BL"]
    assert found.payload_bytes.sum() == 200_000
    assert found.end_bytes.max() == 200_000 + 1
    assert found.retransmitted.sum() == 2
    assert found.time_s[0] == pytest.approx(0.0202, abs=0.02)
    rate = series.throughput(found, bin_s=0.02)
    widths = np.full(len(rate), 0.02)
    widths[-1] = max(found.time_s.max() - 0.02 * (len(rate) - 1), 0.005)
    assert float((rate * widths).sum()) * 1e6 / 8 == pytest.approx(200_000)


def test_runs_without_their_capture_are_counted(tmp_path: Path) -> None:
    data = captured(tmp_path / "c")
    runs = [record.run for record in data.records]
    members = {record.run: [record] for record in data.records}
    drawn, without = series.documents(members, data.folders)
    assert list(drawn) == runs[:1] and without == 1
    (download,) = drawn[runs[0]]["downloads"]
    assert download["name"] == "BL" and len(download["retransmitted"]) == 2
    assert len(download["sequence"]) <= 120
    (tmp_path / "c" / "vantage" / "MUC" / "captures" / "gone.pcap").write_bytes(b"not a capture")
    assert series.documents(members, data.folders)[1] == 1


def test_series_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = captured(tmp_path / "c")
    monkeypatch.setattr(series, "MAX_DOWNLOADS", 0)
    assert series.documents({record.run: [record] for record in data.records}, data.folders) == ({}, 2)


def test_what_targets_had_to_support_is_said() -> None:
    said = [campaign.composition_sentence({"require": name, "seed": 7}) for name in ("quic", "none")]
    assert said == [
        "Eligible targets had to support HTTP/3; the draw has the seed 7.",
        "Eligible targets did not have to support any option; the draw has the seed 7.",
    ]


def test_what_was_kept_of_an_earlier_set_is_not_drawn() -> None:
    share = {"seen": 20, "eligible": 11, "kept_from_earlier_set": 80, "chosen": 90, "dropped": {"not drawn": 1}}
    account = {"providers": {"google": share}, "require": "quic", "seed": 1, "kept_without_support": ["a", "b"]}
    assert campaign.composition_cells(account) == [
        ("provider", "kept from an earlier set", "other files found", "eligible", "in the set", "why"),
        ("google", "80", "20", "11", "90", "1 not drawn"),
    ]
    assert campaign.composition_sentence(account).endswith(" Of the earlier set, 2 do not meet this, and are kept.")


def test_servers_tell_what_is_known(tmp_path: Path) -> None:
    downloads = [
        make_download(configuration="BL", tls_version="TLSv1.3"),
        make_download(configuration="quiche", tls_version="TLSv1.3", tls_group="X25519"),
        make_download(domain="b", provider="amazon", vantage="SFO", http_version=None, outcome="failed"),
    ]
    lab = {"schema": 1, "topology": "x", "paths": [lab_path(initcwnd=32)]}
    data = dataset.load([write_campaign(tmp_path / "c", downloads, lab=lab)])
    (heading, first, second), left_out = campaign.server_cells(data)
    known = dict(zip(heading, first, strict=True))
    assert left_out == 0 and known["HTTP"] == "1.1, 3" and known["TLS"] == "1.3" and known["group"] == "X25519 (QUIC)"
    assert known["initial window"] == "32" and known["handshake RTT ms"] == "20.0" and known["MB"] == "1.00"
    assert dict(zip(heading, second, strict=True))["initial window"] == "–"
    for unit, size, text in (("bytes", 83_000, "83 kB"), ("rfc3390", None, "RFC 3390")):
        path = lab_path(initcwnd=2000) | {"initial_window_unit": unit, "initial_window": size}
        lab = {"schema": 1, "topology": "x", "paths": [path]}
        data = dataset.load([write_campaign(tmp_path / unit / text / str(size), downloads[:2], lab=lab)])
        (_, row), _ = campaign.server_cells(data)
        assert dict(zip(heading, row, strict=True))["initial window"] == text


def test_times_that_are_no_dates_are_left_out(tmp_path: Path) -> None:
    downloads = [make_download(domain=f"d{i}", started_at=at) for i, at in enumerate((1e30, math.nan, -1.0))]
    facts = dict(campaign.facts(dataset.load([write_campaign(tmp_path / "a", downloads)])))
    assert facts["Measured"] == "? UTC"
    downloads += [make_download(domain=f"e{i}", started_at=1.8e9 + 86_400 * i) for i in range(2)]
    facts = dict(campaign.facts(dataset.load([write_campaign(tmp_path / "b", downloads)])))
    assert facts["Measured"] == "2027-01-15 08:00 to 2027-01-16 08:00 UTC"


def test_surveyed_windows_fill_the_table_of_servers(tmp_path: Path) -> None:
    downloads = [make_download(domain=name) for name in "abcd"]
    folder = write_campaign(tmp_path / "c", downloads, lab={"schema": 1, "paths": [lab_path(domain="d", initcwnd=32)]})
    (folder / "targets").mkdir(exist_ok=True)
    windows = {
        "a": {"iw_kind": "segments", "iw_segments": 100, "iw_bytes": 146_000, "paced": True},
        "b": {"iw_kind": "bytes", "iw_segments": None, "iw_bytes": 64_000, "paced": False},
        "c": {"iw_segments": "many"},
        "d": {"iw_kind": "segments", "iw_segments": 10, "iw_bytes": 14_600, "paced": None},
    }
    (folder / "targets" / "windows.json").write_text(json.dumps(windows))
    (heading, *rows), _ = campaign.server_cells(dataset.load([folder]))
    found = [dict(zip(heading, row, strict=True)) for row in rows]
    assert [(row["domain"], row["initial window"]) for row in found] == [
        ("a", "100, paced"),
        ("b", "64 kB"),
        ("c", "–"),
        ("d", "32"),  # what the lab planted is the truth
    ]


def test_servers_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "MAX_SERVERS", 5)
    cells, left_out = campaign.server_cells(load(tmp_path))
    assert len(cells) == 1 + 5 and left_out == 12 - 5


def test_rtts_of_tcp_and_quic_are_compared_by_handshake(tmp_path: Path) -> None:
    downloads = [make_download(), make_download(configuration="quiche")]
    data = dataset.load([write_campaign(tmp_path / "c", downloads, kpis=lambda d: make_kpis(d, rtt_mean=500.0))])
    _, (label, values) = figures.plan(data)[1].panels.items()
    assert label == "handshake RTT [ms]"
    assert values.tolist() == pytest.approx([20.0, 20.0])


def test_the_question_names_each_reference_once(tmp_path: Path) -> None:
    assert (
        campaign.question(load(tmp_path))
        == "How much faster do downloads from 12 domains to MUC get with WS instead of BL?"
    )


def test_runs_without_a_pair_have_their_reasons(tmp_path: Path) -> None:
    failed = make_download(configuration="WS", outcome="failed", failure="unknown", last_byte_s=None)
    data = dataset.load([write_campaign(tmp_path / "c", [make_download(), failed])])
    assert checks.excluded_cells(tables.table2(data))[1] == ["WS vs BL", "0", "1", "WS failed 1"]
    assert checks.excluded_cells(tables.table2(load(tmp_path))) == []


def test_summary_draws_the_forest_in_characters(tmp_path: Path) -> None:
    drawn = plot(load(tmp_path))
    stream = io.StringIO()
    plots.FirstScreen(question="How much?", forest=drawn, noise=("Noise floor: none.",)).show(stream)
    text = stream.getvalue()
    assert text.startswith("How much?") and "Noise floor: none." in text
    names = ("comparison", "WS vs BL", "BL2 vs BL")
    lines = {name: next(line for line in text.splitlines() if line.startswith(name)) for name in names}
    assert "faster" in lines["WS vs BL"] and "<0.001" in lines["WS vs BL"]
    ruler, faster, noise = (lines[name] for name in names)
    # The dot of a speed-up of 2 is below the label 2, that of the noise below 1.
    assert abs(faster.index("●") - ruler.rindex("2")) <= 1 and abs(noise.index("●") - ruler.index("1")) <= 1
    stream = io.StringIO()
    plots.FirstScreen(question="How much?", forest=dataclasses.replace(drawn, rows=()), noise=()).show(stream)
    assert "No two configurations could be compared." in stream.getvalue()


def test_limiters_of_all_providers_are_one_bar() -> None:
    def row(provider: str, n: int, **shares: float) -> LimiterRow:
        downloads = {name: shares.get(name, 0.0) for name in Limiter}
        return LimiterRow(configuration="BL", provider=provider, n=n, missing=0, downloads=downloads, time=downloads)

    rows = [row("akamai", 3, congestion=1.0), row("amazon", 1, client_cpu=1.0), row("other", 0)]
    (bar,), names = plots.bars(rows)
    assert bar.n == 4 and names == [Limiter.CLIENT_CPU, Limiter.CONGESTION]
    assert bar.parts == ((Limiter.CLIENT_CPU, 0.0, 25.0), (Limiter.CONGESTION, 25.0, 75.0))
    assert plots.bars([row("akamai", 0)]) == ([], [])


@pytest.mark.parametrize(
    ("medians", "p", "is_told"), [((1.77, 1.0), 0.064, True), ((1.05, 1.0), 0.2, False), ((1.05, 1.0), 0.01, True)]
)
def test_medians_that_are_far_apart_are_told_whatever_the_test_says(
    medians: tuple[float, float], p: float, is_told: bool, tmp_path: Path
) -> None:
    """As seen: WS was 1.77 times as fast in seven domains and 0.59 in one with a short queue, so p was 0.064."""
    parts = tuple(
        SplitPart(name=name, n=20, domains=8, median=Median(value=value, least=value, most=value))
        for name, value in zip(("receive_window", "path_rate"), medians, strict=True)
    )
    [faster] = [row for row in tables.table2(load(tmp_path)) if row.comparison.name == "WS vs BL"]
    row = dataclasses.replace(faster, splits=(Split(by=SplitBy.LIMITER, p=p, parts=parts),), split=None)
    (one,) = findings.findings([row])
    assert ("receive window" in one.why) == is_told
