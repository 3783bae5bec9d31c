"""Whether a download's client, or who else ran on its host, may have been the limit. Pure.

Both are shares of the transfer: from the first packet, with which the clock starts, to the last body byte.
"""

from __future__ import annotations

from analysis.captures.limiter import CPU_LIMIT, RUN_DELAY_LEAST_S, RUN_DELAY_LIMIT
from upshift.domain import Download, Outcome


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
