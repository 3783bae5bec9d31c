"""McNemar's test: did one configuration fail more often than the other? Pure.

Source: Q. McNemar, "Note on the sampling error of the difference between correlated proportions", 1947, exact. The
unit is the domain, as its runs fail together: a domain counts for the side that failed there more often. With one
run per domain it is McNemar's test itself.
"""

from __future__ import annotations

import numpy as np

from analysis.measures.statistics.clusters import Floats, Ints
from analysis.measures.statistics.signed_rank import sign_test


def mcnemar(config_only: Ints, reference_only: Ints) -> float:
    """The exact two-sided p-value.

    Args:
        config_only: per domain, the measurement runs in which only the configuration failed.
        reference_only: per domain, those in which only the reference failed.
    """
    excess: Floats = (config_only - reference_only).astype(np.float64)
    return sign_test(excess, excess)
