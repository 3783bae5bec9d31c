"""Medians within clusters, e.g. of all measurement runs of a domain. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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


def cluster_medians(values: Floats, clusters: Ints, count: int) -> Floats:
    """The median of each cluster; of an even number of values, the mean of the middle two (of opposite infinities, 0).

    Args:
        values: one per pair, infinite ones allowed.
        clusters: code of the cluster of each pair; fastest if they are sorted.
        count: number of clusters.
    """
    if not len(values):
        return np.zeros(count)
    if (clusters[1:] < clusters[:-1]).any():
        values = values[order_within(np.arange(len(values)), clusters)]
    medians = np.empty(count)
    for members, places in blocks(np.bincount(clusters, minlength=count)):
        size = places.shape[1]
        block = values[places]
        block.sort(axis=1)
        with np.errstate(invalid="ignore"):
            medians[members] = (block[:, (size - 1) // 2] + block[:, size // 2]) / 2
    medians[np.isnan(medians)] = 0.0
    return medians


def blocks(sizes: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Clusters of the same size as the rows of a matrix, so that all of them are sorted at once.

    Args:
        sizes: the number of values of each cluster; values are in the order of clusters.

    Yields:
        Codes of clusters, and the positions of their values, clusters x size.
    """
    starts = np.cumsum(sizes) - sizes
    by_size = np.argsort(sizes, kind="stable")
    for members in np.split(by_size, np.flatnonzero(np.diff(sizes[by_size])) + 1):
        yield members, starts[members][:, None] + np.arange(int(sizes[members[0]]))


def numbered(keys: Ints) -> tuple[Ints, Ints]:
    """The number of each key among the different ones, in their order; and these. Fastest if the keys are sorted."""
    if (keys[1:] < keys[:-1]).any():
        different, numbers = np.unique(keys, return_inverse=True)
        return numbers.astype(np.int64, copy=False), different
    is_new = np.concatenate((np.ones(min(len(keys), 1), dtype=np.bool_), keys[1:] != keys[:-1]))
    return np.cumsum(is_new) - 1, keys[is_new]


def middle(values: Floats) -> float:
    """The median of all values (one or more), as of one cluster."""
    return float(cluster_medians(values, np.zeros(len(values), dtype=np.int64), 1)[0])


def codes(keys: Sequence[object]) -> tuple[Ints, int]:
    """Codes of hashable, sortable keys, in their order, and how many there are."""
    names = {key: index for index, key in enumerate(sorted(set(keys)))}  # type: ignore[type-var]
    return np.array([names[key] for key in keys], dtype=np.int64), len(names)
