"""Medians within clusters, e.g. of all measurement runs of a domain. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def order_within(order: Ints, clusters: Ints) -> Ints:
    """The order by cluster, and within each as before: `numpy.lexsort` with a faster sort.

    Args:
        order: positions of the pairs in the order of their values.
        clusters: code of the cluster of each pair.
    """
    keys = clusters[order]
    if len(keys) and keys.max() < 1 << 16:
        keys = keys.astype(np.uint16)  # numpy sorts these by radix, in linear time
    sorted_order: Ints = order[np.argsort(keys, kind="stable")]
    return sorted_order


def cluster_medians(values: Floats, clusters: Ints, count: int, *, order: Ints | None = None) -> Floats:
    """The median of each cluster; of an even number of values, the mean of the middle two (of opposite infinities, 0).

    Args:
        values: one per pair, infinite ones allowed.
        clusters: code of the cluster of each pair.
        count: number of clusters.
        order: the positions of the values in their order, if they are known.
    """
    ordered = values[order_within(np.argsort(values) if order is None else order, clusters)]
    sizes = np.bincount(clusters, minlength=count)
    starts = np.cumsum(sizes) - sizes
    with np.errstate(invalid="ignore"):
        medians: Floats = (ordered[starts + (sizes - 1) // 2] + ordered[starts + sizes // 2]) / 2
    medians[np.isnan(medians)] = 0.0
    return medians


def middle(values: Floats) -> float:
    """The median of all values, as of one cluster."""
    return float(cluster_medians(values, np.zeros(len(values), dtype=np.int64), 1)[0])


def codes(keys: Sequence[object]) -> tuple[Ints, int]:
    """Codes of hashable, sortable keys, in their order, and how many there are."""
    names = {key: index for index, key in enumerate(sorted(set(keys)))}  # type: ignore[type-var]
    return np.array([names[key] for key in keys], dtype=np.int64), len(names)
