"""What a study's repetitions are said to show: cells, claims, expected values, figures and the page."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from matplotlib.axes import Axes
from scipy import stats
from typer.testing import CliRunner

from analysis.study import claims, expected, figures, page
from analysis.study.claims import ClaimVerdict, Spread, connected, mean_half_width, verdict
from analysis.study.flows import CELL_COLUMNS, Flows, Sample, cell_rows, read
from core.errors import UsageError
from core.files.study import Cell, Study
from core.files.study_terms import METRICS
from core.pictures import canvas
from tests.unit.study_samples import COMPETING, EMPTY, slow_start, study, write_flows
from upshift.commands.study import app

BOTH = """
schema = 1
name = "two"
source = "<script>alert(1)</script>"
repetitions = 30
[fixed]
rtt_ms = 100
objects = [14480]
[[cells]]
iw = [4, 10]
rate_mbit = [10]
[[figure]]
metric = "time_ms"
draw = { x = "iw" }
[[claim]]
id = "mean"
text = "<b>faster</b>"
a = { iw = 10 }
b = { iw = 4 }
ratio = [0, 1]
[[claim]]
id = "difference"
text = "by 50 ms at most"
a = { iw = 10 }
b = { iw = 4 }
difference = [-50, 0]
[[claim]]
id = "spread"
text = "less spread"
a = { iw = 10 }
b = { iw = 4 }
of = "sd"
ratio = [0, 1]
"""


def flows(made: Study, times: Mapping[str, np.ndarray], **samples: int) -> Flows:
    """The results of a study with a column `iw`, from times by window."""
    found = {}
    for cell in made.cells:
        own = times[cell.texts["iw"]]
        ok = {name: own if name == "time_ms" else np.zeros(len(own)) for name in METRICS}
        found[cell.key] = Sample(ok=ok, repetitions=tuple(range(len(own))), disturbed=samples.get("disturbed", 0))
    return Flows(study=made, samples=found)


RANDOM = np.random.default_rng(3)
SLOW, FAST = RANDOM.normal(400, 30, 30), RANDOM.normal(330, 10, 28)


def judged(times: Mapping[str, np.ndarray], text: str = BOTH) -> dict[str, claims.Judged]:
    return {one.claim.id: one for one in claims.judge(flows(study(text), times))}


@pytest.mark.parametrize(
    ("low", "high", "is_called"),
    [
        (0.5, 1, ClaimVerdict.HOLDS),
        (0, 0, ClaimVerdict.HOLDS),
        (1, 1.1, ClaimVerdict.UNDECIDED),
        (1.01, 1.1, ClaimVerdict.FAILS),
        (-0.5, -0.1, ClaimVerdict.FAILS),
        (-math.inf, math.inf, ClaimVerdict.UNDECIDED),
    ],
)
def test_a_verdict_is_where_the_interval_lies(low: float, high: float, is_called: ClaimVerdict) -> None:
    assert verdict(low, high, (0, 1)) is is_called


def test_the_interval_of_two_cells_is_welchs() -> None:
    half = mean_half_width([(1, FAST), (-1, SLOW)], 0.99, logarithms=False)
    theirs = stats.ttest_ind(FAST, SLOW, equal_var=False).confidence_interval(0.99)
    assert half == pytest.approx((theirs.high - theirs.low) / 2)
    assert mean_half_width([(1, np.full(9, 3.0)), (-1, np.full(9, 4.0))], 0.99, logarithms=True) == 0


def test_claims_have_values_verdicts_and_counts() -> None:
    found = judged({"4": SLOW, "10": FAST})
    mean, difference, spread = (found[name] for name in ("mean", "difference", "spread"))
    assert mean.value == pytest.approx(FAST.mean() / SLOW.mean())
    assert (mean.verdict, mean.pairs, mean.agree) == (ClaimVerdict.HOLDS, 1, 1)
    assert (mean.a, mean.b) == (pytest.approx(FAST.mean()), pytest.approx(SLOW.mean()))
    assert difference.value == pytest.approx(FAST.mean() - SLOW.mean())
    assert (difference.verdict, difference.agree) == (ClaimVerdict.FAILS, 0)
    assert spread.value == pytest.approx(FAST.std(ddof=1) / SLOW.std(ddof=1))
    assert spread.verdict is ClaimVerdict.HOLDS
    assert spread.low is not None and spread.high is not None and spread.low < spread.value < spread.high < 1  # type: ignore[operator]


def test_the_same_flows_give_the_same_verdicts() -> None:
    assert judged({"4": SLOW, "10": FAST}) == judged({"4": SLOW, "10": FAST})


@pytest.mark.parametrize(
    ("slow", "note"),
    [
        (SLOW[:1], "1 of 2 cells with fewer than two repetitions"),
        (SLOW[:0], "1 of 2 cells with fewer than two repetitions"),
        (SLOW * 0, "a mean of 0 has no ratio"),
    ],
)
def test_a_claim_without_an_interval_says_why(slow: np.ndarray, note: str) -> None:
    one = judged({"4": slow, "10": FAST})["mean"]
    assert (one.verdict, one.value, one.note) == (ClaimVerdict.UNDECIDED, None, note)


def test_a_ratio_of_almost_nothing_has_no_upper_end() -> None:
    """Two gains of about 0 ms, in the quick form: there was a traceback, and no report at all."""
    one = judged({"4": np.array([100.0, 100.0]), "10": np.array([-0.48, 0.5])})["mean"]
    assert (one.low, one.high, one.verdict) == (pytest.approx(0), math.inf, ClaimVerdict.UNDECIDED)
    assert one.value == pytest.approx(0.0001)


def test_timeouts_that_the_sender_does_not_tell_are_unknown() -> None:
    """Linux before 6.7 does not, nor does iwprobe."""
    made, times = study(BOTH), {"4": SLOW, "10": FAST}
    for unknown, shown in (((), "1:0"), (("4",), "–:0"), (("4", "10"), "–:–")):
        data = flows(made, times)
        for cell in made.cells:
            own = data.samples[cell.key].ok["timeouts"]
            own[0] = math.nan if cell.texts["iw"] in unknown else cell.texts["iw"] == "4"
        one = {judged.claim.id: judged for judged in claims.judge(data)}["mean"]
        swapped = dataclasses.replace(one, a_timeouts=one.b_timeouts, b_timeouts=one.a_timeouts)
        assert page.claim_cells([swapped])[1][9] == shown
        assert (claims.record(one)["b_timeouts"] is None) == ("4" in unknown)


def test_beside_no_spread_at_all_a_difference_of_spreads_is_undecided() -> None:
    text = BOTH.replace('of = "sd"\nratio = [0, 1]', 'of = "sd"\ndifference = [-50, 0]')
    same = np.full(30, 400.0)
    for fast in (FAST, same):
        one = judged({"4": same, "10": fast}, text)["spread"]
        assert (one.verdict, one.value, one.note.partition(",")[0]) == (ClaimVerdict.UNDECIDED, None, "b has no spread")
    assert judged({"4": FAST, "10": same}, text)["spread"].verdict is ClaimVerdict.HOLDS


def test_few_repetitions_say_nothing_of_a_spread() -> None:
    one = judged({"4": SLOW[:3], "10": FAST[:3]})["spread"]
    assert (one.low, one.high, one.verdict) == (0, math.inf, ClaimVerdict.UNDECIDED)


def test_a_censored_repetition_leaves_means_unknown() -> None:
    data = flows(study(BOTH), {"4": SLOW, "10": FAST})
    cell = next(cell for cell in data.study.cells if cell.texts["iw"] == "4")
    late = dataclasses.replace(data.sample(cell), censored_ms=(60_000.0,))
    data = dataclasses.replace(data, samples={**data.samples, cell.key: late})
    assert claims.judge(data)[0].note == "1 of 2 cells with censored repetitions"
    row = data.rows["time_ms", cell.key]
    assert (row.n, row.censored, row.mean) == (30, 1, pytest.approx(SLOW.mean()))
    assert row.median == pytest.approx(np.median([*SLOW, 60_000]))
    assert all(len(sample.ok["time_ms"]) for sample in data.samples.values())


@pytest.mark.parametrize("lost", [{"censored_ms": (60_000.0,) * 30}, {"disturbed": 30}])
def test_a_cell_of_which_no_repetition_ended_well_has_its_row(lost: dict[str, Any]) -> None:
    """It was in no table, as if the study had no such cell."""
    data = flows(study(BOTH), {"4": SLOW, "10": FAST})
    cell = next(cell for cell in data.study.cells if cell.texts["iw"] == "4")
    data = dataclasses.replace(data, samples={**data.samples, cell.key: Sample(**lost)})
    (row,) = [row for row in cell_rows(data) if row.cell == cell and row.metric == "time_ms"]
    assert (row.n, row.open, row.disturbed + row.censored) == (0, 0, 30) and math.isnan(row.mean)


def test_a_median_that_censored_repetitions_leave_open_is_unknown() -> None:
    data = flows(study(BOTH), {"4": SLOW, "10": FAST})
    cell = data.study.cells[0]
    ok = {name: np.zeros(6) for name in METRICS}
    ok |= {"time_ms": np.linspace(300, 400, 6), "drops": np.linspace(4, 14, 6)}

    def medians(censored: int, *metrics: str) -> list[float]:
        sample = Sample(ok=ok, repetitions=tuple(range(6)), censored_ms=(60_000.0,) * censored)
        changed = dataclasses.replace(data, samples={**data.samples, cell.key: sample})
        return [changed.rows[metric, cell.key].median for metric in metrics]

    assert medians(0, "time_ms", "drops") == [350, 9]
    assert medians(4, "time_ms") == [390], "whatever they took"
    assert medians(4, "timeouts") == [0] and np.isnan(medians(4, "drops")).all(), "0, and anything from 5 to 13"
    assert np.isnan(medians(6, "time_ms", "drops")).all()
    assert page.number(medians(6, "time_ms")[0]) == "–"


def test_a_claim_that_the_quick_form_lacks_is_undecided(tmp_path: Path) -> None:
    made = study(COMPETING).form(quick=True)
    write_flows(made, tmp_path, slow_start)
    found = {one.claim.id: one for one in claims.judge(read(made, tmp_path))}
    assert (found["C2"].verdict, found["C2"].note) == (ClaimVerdict.UNDECIDED, "no cells in the quick form")
    assert found["C9"].pairs == 2 * 2


def test_the_chance_of_a_spread_is_that_of_all_permutations() -> None:
    """With four values a side there are 70 ways to share eight residuals."""
    a, b = np.array([1.0, 2, 4, 9]), np.array([1.0, 1.5, 2.2, 3])
    residuals = np.concatenate((a - np.median(a), b - np.median(b)))
    seen = abs(math.log(a.std() / b.std()))
    all_ways = []
    for places in itertools.combinations(range(8), 4):
        one, other = residuals[list(places)], np.delete(residuals, places)
        all_ways.append(abs(math.log(one.std() / other.std())) >= seen * (1 - 1e-9))
    spread = Spread([(1, a), (-1, b)], [0, 0], np.random.default_rng(1), logarithms=True)
    assert spread.chance(0) == pytest.approx(np.mean(all_ways), abs=0.03)


def test_the_difference_of_spreads_has_their_unit() -> None:
    spread = Spread([(1, 10 * SLOW), (-1, 10 * FAST)], [0, 0], np.random.default_rng(1), logarithms=False)
    low, high = spread.interval(0.99)
    assert spread.value == pytest.approx(10 * (SLOW.std(ddof=1) - FAST.std(ddof=1)))
    assert 0 < low < spread.value < high < 1000


def test_cells_of_a_pair_are_one_group_across_pairs() -> None:
    keys = [(("a",), ("x",)), (("b",), ("x",)), (("c",), ("y",)), (("d",), ("a",))]
    groups = connected(keys)
    assert len({groups["a",], groups["b",], groups["d",], groups["x",]}) == 1
    assert groups["c",] == groups["y",] != groups["a",]


def good(made: Study) -> Flows:
    """Results that are as `EMPTY` expects."""
    times = {("14480", "3"): 310.0, ("14480", "10"): 240.0, ("72400", "3"): 710.0, ("72400", "10"): 640.0}
    samples = {}
    for cell in made.cells:
        objects, iw = cell.texts["objects"], cell.texts["iw"]
        noise = np.linspace(-3, 3, 8)
        flights = {("14480", "3"): 3.0, ("14480", "10"): 1.0}.get((objects, iw), 2.0)
        ok = {name: np.zeros(8) for name in METRICS}
        ok |= {"time_ms": times.get((objects, iw), 400.0 - int(iw)) + noise, "flights": np.full(8, flights)}
        samples[cell.key] = Sample(ok=ok, repetitions=tuple(range(8)))
    return Flows(study=made, samples=samples)


def test_expected_values_are_compared_cell_by_cell() -> None:
    rows = expected.compare(good(study(EMPTY)))
    assert all(row.within for row in rows)
    by_metric = [(row.metric, row.expected, row.n) for row in rows if row.cell.texts["objects"] == "14480"]
    assert by_metric[:3] == [("iw3_ms", 310, 8), ("iw10_ms", 240, 8), ("gain_ms", 70, 8)]
    assert [row.expected for row in rows if row.metric == "flights"] == [3, 1], "an empty cell expects nothing"
    assert len([row for row in rows if row.metric == "retransmissions"]) == 8


@pytest.mark.parametrize(
    ("metric", "change", "outside"),
    [
        ("time_ms", lambda own: own + 5.5, {("iw10_ms", "14480")}),
        ("time_ms", lambda own: own + 7.5, {("iw10_ms", "14480"), ("gain_ms", "14480")}),
        ("time_ms", lambda own: own + 4.5, set()),
        ("flights", lambda own: own + (np.arange(8) == 7), {("flights", "14480")}),
        ("drops", lambda own: own + 1, {("drops", "14480"), ("retransmissions", "14480")}),
        ("flights", lambda own: own[:0], {("flights", "14480")}),
    ],
)
def test_a_value_outside_of_its_tolerance_is_seen(metric: str, change, outside: set[tuple[str, str]]) -> None:
    data = good(study(EMPTY))
    key = ("segments", "1.2", "14480", "10")
    sample = data.samples[key]
    worse = dataclasses.replace(sample, ok={**sample.ok, metric: change(sample.ok[metric])})
    rows = expected.compare(dataclasses.replace(data, samples={**data.samples, key: worse}))
    wrong = {(row.metric, row.cell.texts["objects"]) for row in rows if not row.within}
    assert wrong == outside


def test_a_censored_repetition_is_not_as_expected() -> None:
    data = good(study(EMPTY))
    key = ("segments", "1.2", "14480", "10")
    sample = data.samples[key]
    ok = {name: values[:7] for name, values in sample.ok.items()}
    cut = Sample(ok=ok, repetitions=sample.repetitions[:7], censored_ms=(60_000.0,))
    gone = Sample(censored_ms=(60_000.0,) * 8)
    for one, n, wrong in ((cut, 7, 1), (gone, 0, 8)):
        rows = expected.compare(dataclasses.replace(data, samples={**data.samples, key: one}))
        outside = {row.metric: (row.n, row.wrong, row.censored) for row in rows if row.verdict == "outside"}
        means = dict.fromkeys(("iw10_ms", "gain_ms"), (n, 1, 8 - n))
        each = dict.fromkeys(("retransmissions", "drops", "flights"), (n, wrong, 8 - n))
        assert outside == means | each and len([row for row in rows if not row.within]) == 5


def test_a_gain_pairs_repetitions_of_equal_number() -> None:
    data = good(study(EMPTY))
    key = ("segments", "1.2", "14480", "10")
    sample = data.samples[key]
    fewer = Sample(ok={name: own[1:] for name, own in sample.ok.items()}, repetitions=sample.repetitions[1:])
    data = dataclasses.replace(data, samples={**data.samples, key: fewer})
    cell = next(cell for cell in data.study.cells_of("gain_ms") if cell.texts["objects"] == "14480")
    assert data.values("gain_ms", cell) == pytest.approx(np.full(7, 70.0))
    assert data.values("gain_percent", cell).mean() == pytest.approx(100 * 70 / 310, rel=0.01)
    assert data.values("iw3_ms", cell).mean() == pytest.approx(310)
    assert {row.metric for row in cell_rows(data)} > {"gain_ms", "gain_percent", "iw3_ms", "iw10_ms", "time_ms"}


def test_two_equal_senders_have_no_gain() -> None:
    """Gains repetition by repetition, of the time of one repetition, had a mean of -15 % here."""
    made, random = study(EMPTY), np.random.default_rng(1)
    found = []
    for _ in range(200):
        times = {cell.key: random.lognormal(6, math.sqrt(math.log(1 + 0.4**2)), 30) for cell in made.cells}
        samples = {key: Sample(ok={"time_ms": own}, repetitions=tuple(range(30))) for key, own in times.items()}
        data = Flows(study=made, samples=samples)
        found.append(data.rows["gain_percent", made.cells_of("gain_percent")[0].key])
    assert abs(np.mean([row.mean for row in found])) < 2
    assert sum(not (row.low or 0) <= 0 <= (row.high or 0) for row in found) < 20, "intervals of 95 %"


def test_a_gain_in_per_cent_has_no_median(tmp_path: Path) -> None:
    """27 of 30 repetitions are alike on both sides, yet the median of what each adds to the gain was 25 of 50 %."""
    made = study(EMPTY)
    times = {"3": np.array([100.0] * 27 + [1100.0] * 3), "10": np.full(30, 100.0)}
    ok = {cell.key: {"time_ms": times.get(cell.texts["iw"], times["10"])} for cell in made.cells}
    samples = {key: Sample(ok=own, repetitions=tuple(range(30))) for key, own in ok.items()}
    data = Flows(study=made, samples=samples)
    cell = made.cells_of("gain_percent")[0]
    row = data.rows["gain_percent", cell.key]
    assert (row.mean, data.rows["gain_ms", cell.key].median) == (pytest.approx(50), 0)
    assert row.low is not None and row.low < 50
    assert np.isnan([row.median, row.median_low, row.median_high]).all()
    page._write_rows(tmp_path / "cells.csv", (), CELL_COLUMNS, [row])
    with (tmp_path / "cells.csv").open() as stream:
        [written] = csv.DictReader(stream)
    assert (written["median"], written["median_low"], written["median_high"]) == ("", "", "")


@pytest.mark.parametrize("times", [[], [math.nan] * 3, [0.0, 0.0, 0.0]])
def test_a_gain_of_no_time_is_unknown(times: list[float]) -> None:
    made = study(EMPTY)
    sample = Sample(ok={"time_ms": np.array(times)}, repetitions=tuple(range(len(times))))
    data = Flows(study=made, samples={cell.key: sample for cell in made.cells})
    assert not len(data.values("gain_percent", made.cells_of("gain_percent")[0]))


def test_the_interval_of_a_cell_is_students() -> None:
    data = flows(study(BOTH), {"4": SLOW, "10": FAST}, disturbed=2)
    row = data.rows["time_ms", data.study.cells[0].key]
    theirs = stats.t.interval(0.95, 29, SLOW.mean(), stats.sem(SLOW))
    assert (row.low, row.high) == pytest.approx(theirs)
    assert (row.n, row.disturbed, row.sd) == (30, 2, pytest.approx(SLOW.std(ddof=1)))
    assert row.median_low < row.median < row.median_high


@pytest.mark.thorough
@pytest.mark.parametrize("text", [COMPETING, EMPTY])
def test_a_figure_has_a_mark_for_each_cell(tmp_path: Path, text: str) -> None:
    made = study(text).form(quick=True)
    write_flows(made, tmp_path, slow_start)
    plots = figures.plan(read(made, tmp_path))
    assert [plot.name for plot in plots] == [f"figure-{number}" for number in range(1, len(made.figures) + 1)]
    for plot in plots:
        cells = [cell for cell in made.cells_of(plot.figure.metric) if cell.matches(plot.figure.only)]
        assert len(plot.rows) == len(cells)
        assert figures.draw(plot, "png")["png"].startswith(b"\x89PNG")


def watched(drawn: list[Axes]) -> Callable[..., AbstractContextManager[object]]:
    """`canvas`, which lists the axes of what is drawn."""

    @contextmanager
    def watching(*arguments: object, **options: object) -> Iterator[object]:
        with canvas(*arguments, **options) as (figure, out):  # type: ignore[arg-type]
            yield figure, out
            drawn.extend(figure.axes)

    return watching


LINES = """
schema = 1
name = "lines"
source = "a test"
repetitions = 6
gain = { iw = [3, 10] }
[fixed]
rtt_ms = 50
[[cells]]
iw = [3, 10]
objects = [1000, 2000, 3000]
rate_mbit = [1, 2]
[[figure]]
metric = "time_ms"
only = { rate_mbit = 1 }
draw = { kind = "lines", x = "objects", colour = "iw", error = "ci95" }
[[figure]]
metric = "gain_ms"
draw = { kind = "lines", x = "rate_mbit", columns = "objects" }
"""


def test_lines_are_in_the_study_s_order_and_one_repetition_has_no_interval(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = study(LINES)
    repetitions = {("3", "2000"): 0, ("10", "3000"): 1}

    def sample(cell: Cell) -> Sample:
        count = repetitions.get((cell.texts["iw"], cell.texts["objects"]), 6)
        times = {"time_ms": 100.0 + np.arange(count)}
        return Sample(ok=times, repetitions=tuple(range(count))) if count else Sample()

    plots = figures.plan(Flows(study=made, samples={cell.key: sample(cell) for cell in made.cells}))
    assert list(plots[0].places) == ["1000", "2000", "3000"]
    drawn = []
    monkeypatch.setattr(figures, "canvas", watched(drawn))
    errors = []
    plain = Axes.errorbar

    def errorbar(axis: Axes, *arguments: Any, yerr: list[float], **look: Any) -> object:
        errors.append([math.isnan(one) for one in yerr])
        return plain(axis, *arguments, yerr=yerr, **look)

    monkeypatch.setattr(Axes, "errorbar", errorbar)
    figures.draw(plots[0], "png")
    assert errors == [[False, False], [False, False, True]]
    drawn.clear()
    monkeypatch.setattr(Axes, "errorbar", plain)
    figures.draw(plots[1], "png")
    right = [axis for axis in drawn if axis.yaxis.get_ticks_position() == "right"]
    assert len(right) == 2  # no gain at 2,000 bytes
    for axis in right:  # each of a scale of its own
        assert axis.spines["right"].get_visible()
        assert all(tick.label2.get_visible() for tick in axis.yaxis.get_major_ticks())


def test_panels_that_share_an_axis_show_all_of_their_bars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second row of panels is taller than the first."""
    made = study(
        BOTH.replace("rate_mbit = [10]", "rate_mbit = [10, 0.1]").replace('x = "iw"', 'x = "iw", rows = "rate_mbit"')
    )
    write_flows(made, tmp_path, slow_start)
    drawn: list[Axes] = []
    monkeypatch.setattr(figures, "canvas", watched(drawn))
    figures.draw(figures.plan(read(made, tmp_path))[0], "png")
    assert len(drawn) == 2
    for axis in drawn:
        assert len(axis.patches) == 2
        assert all(0 < bar.get_height() < axis.get_ylim()[1] for bar in axis.patches)


@pytest.mark.thorough
def test_the_page_has_everything_and_runs_nothing(tmp_path: Path) -> None:
    made = study(BOTH)
    write_flows(made, tmp_path, slow_start)
    report = page.report(tmp_path)
    html = report.path.read_text()
    assert "<script" not in html
    assert "&lt;b&gt;faster&lt;/b&gt;" in html
    assert html.count("<svg") == 1
    assert "http:" not in html and "https:" not in html
    assert (tmp_path / "figures" / "figure-1.svg").is_file()
    with (tmp_path / "claims.csv").open() as handle:
        rows = list(csv.DictReader(handle))
    assert [(row["id"], row["verdict"]) for row in rows] == [(one.claim.id, one.verdict) for one in report.claims]
    with (tmp_path / "cells.csv").open() as handle:
        assert {row["metric"] for row in csv.DictReader(handle)} >= {"time_ms", "drops"}
    files = {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()}
    page.report(tmp_path)
    assert files == {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()}


@pytest.mark.thorough
def test_a_run_that_was_stopped_is_reported_as_far_as_it_got(tmp_path: Path) -> None:
    """One cell has half of its repetitions, one of another rate has none."""
    made = study(
        BOTH.replace("rate_mbit = [10]", "rate_mbit = [10, 20]").replace('x = "iw"', 'x = "iw", rows = "rate_mbit"')
    )
    write_flows(made, tmp_path, slow_start)
    table = pq.read_table(tmp_path / "flows.parquet")
    slow, small, number = (table[name].to_numpy() for name in ("rate_mbit", "iw", "repetition"))
    pq.write_table(table.filter((slow == 10) & ((small == 10) | (number < 15))), tmp_path / "flows.parquet")
    report = page.report(tmp_path)
    by_cell = {tuple(row.cell.texts.values()): row for row in report.cells if row.metric == "time_ms"}
    assert {key: (row.n, row.open) for key, row in by_cell.items()} == {
        ("4", "10"): (15, 15),
        ("4", "20"): (0, 30),
        ("10", "10"): (30, 0),
        ("10", "20"): (0, 30),
    }
    with (tmp_path / "cells.csv").open() as handle:
        empty = [row for row in csv.DictReader(handle) if row["n"] == "0" and row["metric"] == "time_ms"]
    assert empty and all(row["open"] == "30" and not row["mean"] and not row["median_low"] for row in empty)
    assert report.flows.left == "75 flows of 3 of 4 cells"
    assert "75 flows of 3 of 4 cells" in report.path.read_text()
    result = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert "Still to be made: 75 flows of 3 of 4 cells. The same upshift study run makes them." in result.output


def test_a_claim_says_that_its_cells_are_not_complete() -> None:
    found = claims.judge(flows(study(BOTH), {"4": SLOW, "10": FAST}))
    assert {one.note for one in found} == {"1 of 2 cells are not complete yet"}
    found = claims.judge(flows(study(BOTH), {"4": SLOW, "10": FAST}, disturbed=2))
    assert not {one.note for one in found} - {""}, "what was disturbed is not open"


@pytest.mark.thorough
def test_the_exit_code_is_that_of_expected_values(tmp_path: Path) -> None:
    write_flows(study(BOTH), tmp_path / "claims", slow_start)
    result = CliRunner().invoke(app, ["report", str(tmp_path / "claims")])
    assert result.exit_code == 0, result.output
    assert "fails" in result.output, "a claim that fails is a finding"
    write_flows(study(EMPTY), tmp_path / "expected", slow_start)
    result = CliRunner().invoke(app, ["report", str(tmp_path / "expected")])
    assert result.exit_code == 1
    assert "outside" in result.output


def test_a_folder_without_a_study_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="this folder has no results of a study; name the folder"):
        page.report(tmp_path)
    with pytest.raises(UsageError, match="folder not found"):
        page.report(tmp_path / "none")


def test_a_cell_that_the_study_lacks_is_one_sentence(tmp_path: Path) -> None:
    write_flows(study(BOTH), tmp_path, slow_start)
    (tmp_path / "study" / "study.toml").write_text(BOTH.replace("[10]", "[20]"))
    with pytest.raises(UsageError, match="the study has no cell 4, 10"):
        page.report(tmp_path)


@pytest.mark.parametrize("value", [math.inf, math.nan, 1e308])
def test_a_value_that_cannot_be_is_one_sentence(tmp_path: Path, value: float) -> None:
    """Logarithms and squares of it ended in a traceback."""
    write_flows(study(BOTH), tmp_path, lambda knobs, random: {**slow_start(knobs, random), "time_ms": value})
    with pytest.raises(UsageError, match=r"time_ms is \S+ in a row of the cell 4, 10"):
        page.report(tmp_path)


def test_every_shipped_study_can_be_read_and_listed() -> None:
    result = CliRunner().invoke(app, ["list"])
    assert result.exit_code == 0, result.output
    rows = {line.split()[0]: line.split()[1:6] for line in result.output.splitlines() if line and line[0].isalpha()}
    assert rows["fct-competing"] == ["1008", "30240", "288", "23", "0"]
    # The expected values that a report counts: a row of a table may have several, and one rule holds for several cells.
    assert rows["fct-empty"] == ["72", "576", "144", "2", "120"]
    assert (rows["rfc6928"][4], rows["slow-links"][4]) == ("160", "16")
