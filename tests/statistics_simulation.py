"""Made-up campaigns with known truth, for simulations of tests and intervals with the functions that tables use."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from analysis.measures.pairs import Pairs, PlannedPairs
from analysis.measures.rows import SpeedupRow
from analysis.measures.speedup import row_of
from analysis.measures.statistics.clusters import Floats
from analysis.measures.verdicts import judge
from core.domain import Role
from core.paper import COMPARISONS

Draw = Callable[[np.random.Generator, tuple[int, ...]], Floats]


def _normal(rng: np.random.Generator, size: tuple[int, ...]) -> Floats:
    return rng.normal(0.03, 0.1, size)


def _bimodal(rng: np.random.Generator, size: tuple[int, ...]) -> Floats:
    """Window scaling in a demo: a speed-up of 1.5 for one domain of four, and of 1 for the others."""
    return np.log(1.5) * (rng.random(size) < 0.25) + rng.normal(0.0, 0.02, size)


def _heavy(rng: np.random.Generator, size: tuple[int, ...]) -> Floats:
    """Student's t with two degrees of freedom: its variance is infinite."""
    return 0.03 + 0.07 * rng.standard_t(2, size)


DISTRIBUTIONS: Mapping[str, Draw] = {"normal": _normal, "bimodal": _bimodal, "heavy": _heavy}
"""Name -> log speed-ups of domains."""

NOISE = {"normal": 0.1, "bimodal": 0.03, "heavy": 0.05}
"""Standard deviation of the log speed-ups of one domain's runs; `heavy` has Student's t there, too."""


def draw(name: str, rng: np.random.Generator, domains: int, iterations: int) -> Floats:
    """Log speed-ups, domains x iterations: those of one domain depend on each other."""
    runs = rng.standard_t(2, (domains, iterations)) if name == "heavy" else rng.normal(size=(domains, iterations))
    return DISTRIBUTIONS[name](rng, (domains, 1)) + NOISE[name] * runs


def as_pairs(logs: Floats) -> tuple[Pairs, PlannedPairs]:
    """Pairs of these log speed-ups, domains x iterations, none of which failed."""
    domains, iterations = logs.shape
    speedups = np.exp(logs).ravel()
    domain = np.repeat(np.arange(domains), iterations)
    pairs = Pairs(low=speedups, high=speedups, domain=domain, domains=domains)
    none = np.zeros(len(speedups), dtype=np.int64)
    return pairs, PlannedPairs(pairs=pairs, config_failed=none, vs_failed=none)


ANRW = ("BL", "BL2", "ECN", "SACK", "WS", "ALL", "aioquic", "quiche")


def campaign(
    rng: np.random.Generator, domains: int, iterations: int, *, noise: float, faster: Mapping[str, float] | None = None
) -> list[SpeedupRow]:
    """Table 2 of the paper's comparisons: every download's time has log-normal noise of this standard deviation.

    Args:
        faster: configuration -> by how much it is faster; the others are all equal.
    """
    gains = np.array([np.log((faster or {}).get(name, 1.0)) for name in ANRW])
    logs = rng.normal(0.0, noise, (domains, iterations, len(ANRW))) - gains
    rows = []
    for comparison in COMPARISONS:
        if comparison.role is not Role.CACHE:
            config, vs = ANRW.index(comparison.config), ANRW.index(comparison.vs)
            rows.append(row_of(*as_pairs(logs[:, :, vs] - logs[:, :, config]), comparison))
    return judge(rows)
