"""Whether a download's client, or who else ran on its host, may have been the limit. Pure.

Both are shares of the transfer: from the first packet, with which the clock starts, to the last body byte.
"""

from __future__ import annotations

import numpy as np

from analysis.captures.limiter import CPU_LIMIT
from analysis.measures.arrays import Flags, Floats, Mask

RUN_DELAY_LIMIT = 0.25
"""Share of the transfer that a client may wait for a CPU. Measured in the lab (4 MB at 40 Mbit/s and 20 ms, two CPUs)
with 0 to 4 busy loops beside it: on a quiet host 2 to 8 %; up to a quarter, downloads took at most 3.4 % longer, as the
kernel goes on receiving meanwhile; beyond, up to three times as long (aioquic at 90 %, with 7 % of a core)."""

RUN_DELAY_LEAST_S = 0.005
"""Shorter waits never count: client and capture may differ by as much (`analysis.evidence.proof`)."""


def cpu_bound(is_ok: Mask, last_byte_s: Floats, transfer_cpu_s: Floats) -> Flags:
    """Whether clients used more than `CPU_LIMIT` of a core during the transfer; -1: unknown, or not ok.

    Args:
        is_ok: whether the outcome is ok.
        last_byte_s, transfer_cpu_s: see `core.domain.Download`; NaN: unknown.
    """
    return _above(is_ok, last_byte_s, transfer_cpu_s, CPU_LIMIT, 0.0)


def starved(is_ok: Mask, last_byte_s: Floats, run_delay_s: Floats) -> Flags:
    """Whether clients waited for a CPU for more than `RUN_DELAY_LIMIT` of the transfer; -1: unknown, or not ok.

    The arguments are as those of `cpu_bound`.
    """
    return _above(is_ok, last_byte_s, run_delay_s, RUN_DELAY_LIMIT, RUN_DELAY_LEAST_S)


def _above(is_ok: Mask, last_byte_s: Floats, part_s: Floats, limit: float, least_s: float) -> Flags:
    known = is_ok & (last_byte_s != 0) & ~np.isnan(last_byte_s) & ~np.isnan(part_s)
    share = np.divide(part_s, last_byte_s, out=np.zeros(len(part_s)), where=known)
    return np.where(known, (share > limit) & (part_s > least_s), -1).astype(np.int8)
