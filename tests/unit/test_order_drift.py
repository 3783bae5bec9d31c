"""Simulation: a drift of 2 % per position, planted in campaigns without any effect, must not make rows of Table 2.

With our own plan, and the intervals that tables print.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from core.domain import Target
from downloader.campaign.campaign import Campaign, from_document
from downloader.campaign.plan import PlannedRun, make_plan
from tests.cells import Repeats, cells
from tests.unit.samples import Sample, table2

DRIFT = 0.02
"""Each position is slower than the one before by this factor."""


def campaign(seed: int, iterations: int, order: str = "balanced") -> Campaign:
    document = {"name": "t", "lab": "anrw", "targets": "lab", "seed": seed, "iterations": iterations, "order": order}
    return from_document(document, Path("t.toml"))


def samples(plan: tuple[PlannedRun, ...], noise: float, seed: int, drift: float) -> list[Sample]:
    generator = np.random.default_rng(seed)
    found = []
    for run in plan:
        for position, name in zip(run.positions, run.configurations, strict=True):
            cost = (1 + drift) ** position * float(generator.lognormal(0.0, noise))
            found.append(
                Sample(run=run.number, domain=run.target.domain, configuration=name, low=cost, high=cost, group="")
            )
    return found


def excluded(plan: tuple[PlannedRun, ...], declared: Campaign, noise: float, seed: int) -> list[bool]:
    """For each row but those of the warm-ups, which have fixed positions: whether its interval excludes 50 %."""
    warmups = {warmup.name for warmup in declared.warmups}
    asked = [c for c in declared.comparisons if not warmups & {c.config, c.vs}]
    rows = table2(samples(plan, noise, seed, DRIFT), asked)
    assert all(row.faster.low is not None and row.faster.high is not None for row in rows)
    return [not (row.faster.low or 0.0) <= 0.5 <= (row.faster.high or 1.0) for row in rows]


def targets(domains: int) -> list[Target]:
    return [Target(domain=f"d{n}.example", url=f"https://d{n}.example/") for n in range(domains)]


@pytest.mark.thorough
@cells(
    "domains,iterations,noise", every=[(48, 1, 0.02), (48, 1, 0.1), (16, 3, 0.05), (200, 1, 0.1)], quick=[(48, 1, 0.02)]
)
def test_a_drift_by_position_excludes_no_more_than_chance(
    domains: int, iterations: int, noise: float, repeats: Repeats
) -> None:
    found: list[bool] = []
    for seed in range(repeats(quick=30, soak=300)):
        declared = campaign(seed, iterations)
        plan = make_plan(declared, targets(domains), vantage="MUC", index=0, vantage_points=1)
        found += excluded(plan, declared, noise, seed)
    print(f"{domains} domains, {iterations} iterations, noise {noise:g}: {np.mean(found):.4f} of {len(found)} rows")
    assert np.mean(found) <= 0.05


def test_the_same_drift_shows_in_a_fixed_order() -> None:
    declared = campaign(1, 1, order="published")
    plan = make_plan(declared, targets(48), vantage="MUC", index=0, vantage_points=1)
    assert np.mean(excluded(plan, declared, 0.02, 1)) > 0.5
