"""Whether a download's client, or who else ran on its host, may have been the limit. Pure.

Both are shares of the transfer: from the first packet, with which the clock starts, to the last body byte.
"""

from __future__ import annotations

from upshift.domain import Download, Outcome

CPU_LIMIT = 0.7
"""Share of a core above which a client counts as CPU-bound."""

RUN_DELAY_LIMIT = 0.25
"""Share of the transfer that a client may wait for a CPU. Measured in the lab (4 MB at 40 Mbit/s and 20 ms, two CPUs)
with 0 to 4 busy loops beside it: on a quiet host 2 to 8 %; up to a quarter, downloads took at most 3.4 % longer, as the
kernel goes on receiving meanwhile; beyond, up to three times as long (aioquic at 90 %, with 7 % of a core)."""

RUN_DELAY_LEAST_S = 0.005
"""Shorter waits never count: client and capture may differ by as much (`upshift.compose.inspect.proof`)."""


def cpu_bound(download: Download) -> bool | None:
    """Whether the client used more than `CPU_LIMIT` of a core during the transfer; None: unknown, or not ok."""
    if download.outcome != Outcome.OK or not download.last_byte_s or download.transfer_cpu_s is None:
        return None
    return download.transfer_cpu_s / download.last_byte_s > CPU_LIMIT


def run_delay_share(download: Download) -> float | None:
    """Share of the transfer in which the client was ready to run and waited for a CPU; None: unknown, or not ok."""
    if download.outcome != Outcome.OK or not download.last_byte_s or download.run_delay_s is None:
        return None
    return download.run_delay_s / download.last_byte_s


def starved(download: Download) -> bool | None:
    """Whether the client waited for a CPU for more than `RUN_DELAY_LIMIT` of the transfer; None: unknown, or not ok."""
    share = run_delay_share(download)
    if share is None:
        return None
    return share > RUN_DELAY_LIMIT and (download.run_delay_s or 0.0) > RUN_DELAY_LEAST_S
