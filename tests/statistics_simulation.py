"""Made-up campaigns with known truth, for simulations of tests and intervals with the functions that tables use."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import numpy as np

from analysis.measures.columns import Ints, Texts
from analysis.measures.pairs import Pairs, PlannedPairs
from analysis.measures.rows import SpeedupRow, SplitBy
from analysis.measures.speedup import row_of
from analysis.measures.statistics.intervals import Floats
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


def as_pairs(
    logs: Floats, splits: Mapping[SplitBy, Ints] | None = None, described: Collection[SplitBy] = ()
) -> tuple[Pairs, PlannedPairs]:
    """Pairs of these log speed-ups, domains x iterations, none of which failed.

    Args:
        splits: the part of each, domains x iterations.
        described: those that are not tested.
    """
    domains, iterations = logs.shape
    speedups = np.exp(logs).ravel()
    domain = np.repeat(np.arange(domains), iterations)
    parts = {by: Texts(codes.ravel(), PARTS[by]) for by, codes in (splits or {}).items()}
    pairs = Pairs(
        low=speedups, high=speedups, domain=domain, domains=domains, splits=parts, described=frozenset(described)
    )
    none = np.zeros(len(speedups), dtype=np.int64)
    return pairs, PlannedPairs(pairs=pairs, config_failed=none, vs_failed=none)


ANRW = ("BL", "BL2", "ECN", "SACK", "WS", "ALL", "aioquic", "quiche")
PARTS = {
    SplitBy.LIMITER: ("receive_window", "path_rate", "congestion"),
    SplitBy.PROVIDER: tuple(f"provider {number}" for number in range(30)),
    SplitBy.VANTAGE: ("MUC", "SFO", "SGP"),
}
"""What the runs of a made-up campaign are split by."""


def campaign(
    rng: np.random.Generator,
    domains: int,
    iterations: int,
    *,
    noise: float,
    faster: Mapping[str, float] | None = None,
    only: int | None = None,
    others: float = 1.0,
    lossy: float = 1.0,
    luck: tuple[float, float] | None = None,
) -> list[SpeedupRow]:
    """Table 2 of the paper's comparisons: every download's time has log-normal noise of this standard deviation.

    The receive window limits 30 % of the domains, the path's rate 40 %, congestion 30 %; iterations come from vantage
    points in turn.

    Args:
        faster: configuration -> by how much it is faster; the others are all equal.
        only: index of the limiter whose domains alone gain that; None: all do.
        others: the speed-up of the other domains, by the same configurations.
        lossy: factor of the noise where congestion limits.
        luck: probability of a loss, which makes a download so many times as slow, and its limiter congestion; the
            limiter of a row is then that of the reference's twin (`analysis.measures.pairs`).
    """
    limiter, provider = rng.choice(3, domains, p=(0.3, 0.4, 0.3)), rng.choice(6, domains)
    gains = np.zeros((domains, len(ANRW)))
    for name, speedup in (faster or {}).items():
        gains[:, ANRW.index(name)] = np.where((only is None) | (limiter == only), np.log(speedup), np.log(others))
    spread = noise * np.where(limiter == 2, lossy, 1.0)[:, None, None]
    logs = spread * rng.normal(size=(domains, iterations, len(ANRW))) - gains[:, None, :]
    lost = np.zeros(logs.shape, dtype=np.bool_)
    if luck is not None:
        lost = rng.random(logs.shape) < luck[0]
        logs = logs + np.log(luck[1]) * lost
    shape = (domains, iterations)
    splits = {
        SplitBy.LIMITER: np.broadcast_to(limiter[:, None], shape),
        SplitBy.PROVIDER: np.broadcast_to(provider[:, None], shape),
        SplitBy.VANTAGE: np.broadcast_to(np.arange(iterations) % 3, shape),
    }
    rows = []
    for comparison in COMPARISONS:
        if comparison.role is not Role.CACHE:
            config, vs = ANRW.index(comparison.config), ANRW.index(comparison.vs)
            twin = {"BL": ANRW.index("BL2"), "BL2": ANRW.index("BL")}.get(comparison.vs, vs)
            own = {SplitBy.LIMITER} if luck is not None and twin in (config, vs) else set()
            if luck is not None:
                splits[SplitBy.LIMITER] = np.where(lost[:, :, twin], 2, 1)
            rows.append(row_of(*as_pairs(logs[:, :, vs] - logs[:, :, config], splits, own), comparison))
    return judge(rows)
