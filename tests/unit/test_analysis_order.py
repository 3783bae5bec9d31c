"""Effects of position and predecessor: found where planted, with the nominal error where not, and said in words."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from analysis.measures import dataset
from analysis.measures.order import OrderEffects, effects, order_effects
from analysis.report.campaign import order_cells, order_sentence
from core.domain import Download, Target
from core.paper import CONFIGURATIONS as PAPER
from downloader.campaign.campaign import from_document
from downloader.campaign.plan import PlannedRun, make_plan
from tests.cells import Repeats
from tests.unit.analysis_factory import make_download, write_campaign

NAMES = sorted(c.name for c in PAPER)


def plan(domains: int, seed: int, *, order: str = "balanced", iterations: int = 1) -> tuple[PlannedRun, ...]:
    document = {"name": "t", "lab": "anrw", "targets": "lab", "seed": seed, "order": order, "iterations": iterations}
    targets = [Target(domain=f"d{n}.example", url=f"https://d{n}.example/") for n in range(domains)]
    campaign = from_document(document, Path("t.toml"))
    return make_plan(campaign, targets, vantage="A", index=0, vantage_points=1)


def measured(
    runs: tuple[PlannedRun, ...], seed: int, *, drift: float = 0.0, after_quiche: float = 0.0, noise: float = 0.1
) -> OrderEffects:
    """Log-normal times in which WS is faster, by another factor for each domain."""
    generator = np.random.default_rng(seed)
    helped = {run.target.domain: generator.normal(0.4, 0.3) for run in runs}
    rows: list[tuple[int, int, int, float]] = []
    for run in runs:
        common, previous = generator.normal(0, 1), ""
        for position, name in zip(run.positions, run.configurations, strict=True):
            if position > 0:
                log = (
                    common + drift * position + after_quiche * (previous == "quiche") + noise * generator.standard_t(3)
                )
                log -= helped[run.target.domain] * (name == "WS")
                rows.append((run.number, NAMES.index(name), position, float(np.exp(log))))
                previous = name
    run_numbers, codes, positions, times = (np.array(column) for column in zip(*rows, strict=True))
    return effects(run_numbers, codes, positions, times, NAMES)


@pytest.mark.thorough
def test_without_an_effect_the_tests_have_their_nominal_error(repeats: Repeats) -> None:
    count = repeats(quick=100, soak=2000)
    found = [measured(plan(24, seed, iterations=2), seed) for seed in range(count)]
    for name in ("position", "predecessor"):
        p = np.array([getattr(one, name).p for one in found])
        # 0.05, three standard errors and what the approximation of the F test by ranks may add.
        assert np.mean(p < 0.05) < 0.06 + 3 * np.sqrt(0.05 * 0.95 / count), name
        assert 0.35 < np.median(p) < 0.7, name


def test_a_planted_drift_is_the_position_s() -> None:
    found = measured(plan(200, 1), 1, drift=0.02)
    assert found.position.p is not None and found.position.p < 1e-6
    assert found.predecessor.p is not None and found.predecessor.p > 0.01
    steps = [found.position.medians[str(n)] for n in range(1, 9)]
    assert np.polyfit(range(8), np.log(steps), 1)[0] == pytest.approx(0.02, rel=0.25)
    assert found.position.counts == dict.fromkeys(map(str, range(1, 9)), 200)


def test_a_planted_carry_over_is_the_predecessor_s() -> None:
    found = measured(plan(200, 2), 2, after_quiche=0.1)
    assert found.predecessor.p is not None and found.predecessor.p < 1e-6
    assert found.position.p is not None and found.position.p > 0.01
    medians = dict(found.predecessor.medians)
    assert medians.pop("quiche") > 1.05 > max(medians.values())
    assert "" not in found.predecessor.medians and len(medians) == len(NAMES) - 1


def test_single_slow_downloads_do_not_make_all_positions_fast() -> None:
    """They raise the mean of their run, which most downloads are then below."""
    generator, shape = np.random.default_rng(5), (300, 8)
    times = generator.lognormal(0.0, 0.02, shape) * np.where(generator.random(shape) < 0.15, 3.0, 1.0)
    run, position = (grid.ravel() for grid in np.indices(shape))
    configuration = generator.permuted(position.reshape(shape), axis=1).ravel()
    found = effects(run, configuration, position + 1, times.ravel(), NAMES)
    for effect in (found.position, found.predecessor):
        assert all(abs(median - 1) < 0.02 for median in effect.medians.values()), effect.medians


def test_a_fixed_order_cannot_tell() -> None:
    found = measured(plan(50, 1, order="published"), 1, drift=0.02)
    assert found.position.p is None and found.predecessor.p is None
    assert "effect of the position cannot be told from that of the configuration" in order_sentence(found)


def test_what_failed_is_no_time_but_still_a_predecessor() -> None:
    run = np.repeat(np.arange(20), 3)
    position = np.tile([1, 2, 3], 20)
    configuration = np.array([0, 1, 2, 2, 1, 0] * 10)
    times = np.where(position == 2, 0.0, 1.0)
    found = effects(run, configuration, position, times, ["A", "B", "C"])
    assert found.runs == 20 and set(found.position.medians) == {"1", "3"}
    assert found.predecessor.counts == {"B": 20}
    alone = effects(run, configuration, position, np.where(position == 1, 1.0, 0.0), ["A", "B", "C"])
    assert alone.runs == 0, "a single time in a run cannot be compared"


def rows(count: int) -> list[Download]:
    found = []
    for number in range(count):
        order = ["BL", "WS"] if number % 2 else ["WS", "BL"]
        for position, name in enumerate(["warmup", *order]):
            changes = {"domain": f"d{number}.example", "position": position, "last_byte_s": 1.0 + 0.1 * position}
            found.append(make_download(configuration=name, **changes))
    return found


def test_records_of_a_folder(tmp_path: Path) -> None:
    found = order_effects(dataset.load([write_campaign(tmp_path, rows(40))]).downloads, unproven=False)
    assert found.runs == 40 and set(found.position.medians) == {"1", "2"}, "warm-ups are no positions"
    assert found.position.medians["2"] / found.position.medians["1"] == pytest.approx(1.2 / 1.1)
    assert set(found.predecessor.counts) == {"BL", "WS"}
    sentence = order_sentence(found)
    assert "the position has an effect (p < 0.001; median time position 1 -4.3 %, position 2 +4.4 %)" in sentence
    assert order_cells(found)[1:] == [
        ["position 1", "40", "-4.3 %"],
        ["position 2", "40", "+4.4 %"],
        ["after BL", "20", "+4.4 %"],
        ["after WS", "20", "+4.4 %"],
    ]
    assert "the effect of the predecessor cannot be told" in sentence, "with two configurations it follows"
    cut = [dataclasses.replace(one, outcome="censored", failure="byte_budget") for one in rows(40)]
    same = order_effects(dataset.load([write_campaign(tmp_path / "cut", cut)]).downloads, unproven=False)
    assert same == found, "all of a run ended after the same byte"


def test_too_little_is_said(tmp_path: Path) -> None:
    few = order_effects(dataset.load([write_campaign(tmp_path, rows(9))]).downloads, unproven=False)
    assert few.position.p is None and order_sentence(few).startswith("Order: with fewer than 10 measurement runs")
    failed = [dataclasses.replace(one, outcome="failed") for one in rows(9)]
    none = order_effects(dataset.load([write_campaign(tmp_path / "b", failed)]).downloads, unproven=False)
    assert none.runs == 0 and order_sentence(none) == order_sentence(few)
