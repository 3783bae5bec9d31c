"""q-values of several tests: the false discovery rate at which each would be called. Pure.

Sources: Y. Benjamini and Y. Hochberg, "Controlling the false discovery rate", 1995; Y. Benjamini and D. Yekutieli, "The
control of the false discovery rate in multiple testing under dependency", 2001.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """q-values in the order of the p-values; for independent or positively dependent tests."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p)[::-1]
    ranks = np.arange(len(p), 0, -1)
    q = np.empty(len(p))
    q[order] = np.minimum.accumulate(np.minimum(p[order] * len(p) / ranks, 1.0))
    return [float(value) for value in q]


def benjamini_yekutieli(p_values: Sequence[float]) -> list[float]:
    """q-values in the order of the p-values, for any dependence."""
    factor = sum(1 / rank for rank in range(1, len(p_values) + 1))
    return [min(1.0, q * factor) for q in benjamini_hochberg(np.minimum(p_values, 1.0).tolist())]
