"""McNemar's test: did one configuration fail more often than the other? Pure.

Source: Q. McNemar, "Note on the sampling error of the difference between correlated proportions", 1947, exact. The
unit is the domain, as its runs fail together: a domain counts for the side that failed there more often. With one
run per domain it is McNemar's test itself.
"""

from __future__ import annotations

from analysis.measures.statistics.clusters import Floats
from analysis.measures.statistics.signed_rank import sign_test


def mcnemar(excess: Floats) -> float:
    """The exact two-sided p-value.

    Args:
        excess: per domain, the measurement runs in which only the configuration failed, less those in which only the
            reference failed.
    """
    return sign_test(excess, excess)
