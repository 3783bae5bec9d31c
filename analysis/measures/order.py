"""Whether the order within measurement runs shows in the times: effects of position and of predecessor. Pure.

The model is that of crossover trials with first-order carry-over (B. Jones and M. G. Kenward, Design and Analysis of
Cross-Over Trials, 3rd edition 2014, chapters 1 and 5): a measurement run is the subject, the position the period,

    log time = run + configuration + position + predecessor + error,

where what comes first after the warm-ups has no carry-over. Each of the two effects is tested adjusted for the other
and for configurations. The tests are of ranks within runs, after the median effect of each configuration is taken away
(aligned ranks), so that single slow downloads do not decide.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.measures.columns import Codes, Downloads, Floats, Ints
from analysis.measures.statistics.intervals import cluster_medians, renumbered
from core.domain import Outcome

MINIMUM_RUNS = 10
"""With fewer measurement runs nothing is tested."""

MOST_RUNS = 20_000
"""The most measurement runs that are tested; of more, so many are drawn: with 10 % noise they show effects of 0.2 %,
in a second and 40 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderEffect:
    """Position or predecessor."""

    p: float | None
    """p-value of the F test; None if there are too few runs, or if the order does not tell it from configurations."""
    medians: Mapping[str, float]
    """Position or predecessor -> median of time / time that configuration and run let expect, by the same median of
    all downloads; 1.02 is 2 % slower."""
    counts: Mapping[str, int]
    """Position or predecessor -> downloads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderEffects:
    """Both effects, and on how many measurement runs they rest."""

    runs: int
    position: OrderEffect
    predecessor: OrderEffect


_NOTHING = OrderEffects(
    runs=0,
    position=OrderEffect(p=None, medians={}, counts={}),
    predecessor=OrderEffect(p=None, medians={}, counts={}),
)


def order_effects(downloads: Downloads, *, unproven: bool) -> OrderEffects:
    """The effects of order on the downloads that may enter speed-ups and are ok, or ended at the same byte.

    Args:
        unproven: include downloads whose treatment could not be determined.
    """
    drawn = np.ones(len(downloads.runs), dtype=np.bool_)
    if len(drawn) > MOST_RUNS:
        drawn[:] = False
        drawn[np.random.default_rng(1).choice(len(drawn), MOST_RUNS, replace=False)] = True
    rows = np.flatnonzero(~downloads.is_warmup & drawn[downloads.run])
    last_byte_s = downloads.last_byte_s[rows]
    is_timed = downloads.outcome.are(Outcome.OK) | downloads.ended_at_byte
    counts = (is_timed & downloads.usable(unproven=unproven))[rows]
    counts &= (last_byte_s > 0) & (last_byte_s < np.inf)
    configuration = downloads.configuration
    return effects(
        downloads.run[rows],
        configuration.codes[rows],
        downloads.position[rows],
        np.where(counts, last_byte_s, 0.0),
        configuration.names,
    )


def effects(run: Codes, configuration: Codes, position: Codes, time_s: Floats, names: Sequence[str]) -> OrderEffects:
    """The effects of order.

    Args:
        run: number of the measurement run of each download.
        configuration: index into `names` of each.
        position: of each, from 1.
        time_s: of each; 0 where it is not known, or must not count. Such a download is still a predecessor.
    """
    known = time_s > 0
    if not known.any():
        return _NOTHING
    before = _predecessors(run, configuration, position)
    known &= np.bincount(run[known], minlength=int(run.max()) + 1)[run] > 1
    if not known.any():
        return _NOTHING
    run = np.unique(run[known], return_inverse=True)[1].astype(np.int64)
    configuration, before = configuration[known].astype(np.int64), before[known]
    position = position[known].astype(np.int64)
    within = _centred(run, np.log(time_s[known]))
    present, count = renumbered(configuration)
    residual = _centred(run, within - cluster_medians(within, present, count)[present])
    factors = {"configuration": configuration, "position": position, "predecessor": before + 1}
    runs = int(run.max()) + 1
    p = _tests(run, factors, _ranks(run, residual)) if runs >= MINIMUM_RUNS else {}
    places = {str(place): place for place in np.unique(position).tolist()}
    followed = dict(sorted((names[code], code) for code in np.unique(before).tolist() if code >= 0))
    # Times are skewed, so most are below the mean of their run: by it all positions may seem fast.
    shown = residual - np.median(residual)
    return OrderEffects(
        runs=runs,
        position=_effect(p.get("position"), shown, position, places),
        predecessor=_effect(p.get("predecessor"), shown, before, followed),
    )


def _predecessors(run: Codes, configuration: Codes, position: Codes) -> Ints:
    """The configuration that came before each download; -1 after the warm-ups, or if it is not recorded."""
    order = np.lexsort((position, run))
    follows = (np.diff(run[order]) == 0) & (np.diff(position[order]) == 1)
    before = np.full(len(run), -1, dtype=np.int64)
    before[order[1:][follows]] = configuration[order[:-1][follows]]
    return before


def _effect(p: float | None, shown: Floats, codes: Ints, names: Mapping[str, int]) -> OrderEffect:
    own = {name: shown[codes == code] for name, code in names.items()}
    return OrderEffect(
        p=p,
        medians={name: math.exp(float(np.median(values))) for name, values in own.items()},
        counts={name: len(values) for name, values in own.items()},
    )


def _centred(run: Ints, values: Floats) -> Floats:
    """The values less the mean of their run."""
    means = np.bincount(run, values) / np.bincount(run)
    centred: Floats = values - means[run]
    return centred


def _ranks(run: Ints, values: Floats) -> Floats:
    """Ranks within each run, from 1, divided by the number of its values; ties are broken by order."""
    order = np.lexsort((values, run))
    sizes = np.bincount(run)
    starts = np.cumsum(sizes) - sizes
    ranks = np.empty(len(values))
    ranks[order] = np.arange(len(values)) - starts[run[order]] + 1
    scaled: Floats = ranks / sizes[run]
    return scaled


def _tests(run: Ints, factors: Mapping[str, Ints], values: Floats) -> dict[str, float]:
    """F test of position and predecessor, each adjusted for the other factors; runs are absorbed.

    With two configurations the predecessor follows from configuration and position. Then, as usual for that design,
    the position is tested as if there were no carry-over. What other factors determine, as in a fixed order, has no
    test.
    """
    spans: dict[str, range] = {}
    width = 0
    for name, code in factors.items():
        spans[name] = range(width, width + int(code.max()) + 1)
        width = spans[name].stop
    equations = _normal_equations(run, list(factors.values()), values, width)
    freedom = len(values) - int(run.max()) - 1
    columns = {name: [*spans["configuration"], *spans[name]] for name in ("position", "predecessor")}
    both = [*columns["position"], *spans["predecessor"]]
    p_values = {
        "position": _f_test(equations, both, columns["predecessor"], freedom),
        "predecessor": _f_test(equations, both, columns["position"], freedom),
    }
    if p_values["position"] is None:
        p_values["position"] = _f_test(equations, columns["position"], [*spans["configuration"]], freedom)
    return {name: p for name, p in p_values.items() if p is not None}


def _f_test(
    equations: tuple[Floats, Floats, float], columns: Sequence[int], fewer: Sequence[int], freedom: int
) -> float | None:
    """The p-value of the columns that are not in `fewer`; None if the others determine them.

    Args:
        freedom: degrees of freedom without any column.
    """
    from scipy.special import fdtrc

    gram, moments, square = equations
    full, rank = _residual(gram[np.ix_(columns, columns)], moments[columns], square)
    less, rank_less = _residual(gram[np.ix_(fewer, fewer)], moments[fewer], square)
    if rank == rank_less or freedom <= rank:
        return None
    error = max(full, 1e-12 * square) / (freedom - rank)  # never 0: an exact fit is a very small p-value
    ratio = max(less - full, 0.0) / (rank - rank_less) / error
    return float(fdtrc(rank - rank_less, freedom - rank, ratio))


def _normal_equations(run: Ints, factors: Sequence[Ints], values: Floats, width: int) -> tuple[Floats, Floats, float]:
    """X'X, X'y and y'y, where X has an indicator of each level of each factor; all are centred within runs."""
    indicators = np.zeros((len(run), width))
    offset = 0
    for factor in factors:
        indicators[np.arange(len(run)), offset + factor] = 1.0
        offset += int(factor.max()) + 1
    for column in indicators.T:
        column[:] = _centred(run, column)
    centred = _centred(run, values)
    return indicators.T @ indicators, indicators.T @ centred, float(centred @ centred)


def _residual(gram: Floats, moments: Floats, square: float) -> tuple[float, int]:
    """Residual sum of squares and rank of the least-squares fit; columns may depend on each other."""
    sizes, vectors = np.linalg.eigh(gram)
    used = sizes > 1e-9 * max(float(sizes[-1]), 1e-300)
    along = vectors[:, used].T @ moments
    return max(square - float(np.sum(along**2 / sizes[used])), 0.0), int(np.count_nonzero(used))
