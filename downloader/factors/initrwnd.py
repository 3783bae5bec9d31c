"""Initial receive window (`ip route ... initrwnd N`): what the server may send before it sees the client's first ACK.

The kernel (net/ipv4/tcp_output.c, tcp_select_initial_window) announces at most N segments, and no more than the
receive buffer has room for: about half of tcp_rmem[1]. Above `MOST_BY_DEFAULT` segments the default buffer is too
small; then all configurations of the campaign get a larger one, as the buffer is not what this factor changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from core.domain import Configuration, Refutation, RouteAttribute, Setting, Sysctl, TreatmentReason, Wire
from downloader import factors
from downloader.factors import Factor, Preparation
from downloader.factors.rmem import RMEM, TCP_RMEM

LEAST, MOST = 10, 310
MOST_BY_DEFAULT = 44
"""Largest window of the default buffer of 128 KiB [segments]; also the largest one without window scaling."""

SEGMENT_BYTES = 1460

_DEFAULT = "default"


def _prepare(configurations: Sequence[Configuration]) -> Preparation | None:
    """All configurations with the initial buffer that the largest window among them needs."""
    levels = [level for c in configurations if (level := c.levels.get("initrwnd", _DEFAULT)) != _DEFAULT]
    most = max(map(int, levels), default=0)
    if most <= MOST_BY_DEFAULT:
        return None
    initial = 2 * most * SEGMENT_BYTES
    larger = [
        replace(c, levels={"rmem": f"{initial}/{max(initial, _largest_buffer(c))}", **c.levels}) for c in configurations
    ]
    note = f"a level of initrwnd needs a larger buffer: all configurations start with tcp_rmem[1] = {initial} bytes"
    return Preparation(configurations=larger, note=note)


def _largest_buffer(configuration: Configuration) -> int:
    """The maximum of tcp_rmem that a configuration has without our help [bytes]; its levels may raise the default."""
    levels = {"rmem": RMEM.default, **configuration.levels}
    settings = (setting for name, level in levels.items() for setting in factors.ALL[name].settings(level))
    return max(int(s.value) for s in settings if isinstance(s, Sysctl) and (s.name, s.field) == (TCP_RMEM, 2))


def _canonical(text: str) -> str | None:
    if text == _DEFAULT:
        return _DEFAULT
    is_number = text.isascii() and text.isdecimal() and len(text) < 4
    return str(int(text)) if is_number and LEAST <= int(text) <= MOST else None


def _settings(level: str) -> tuple[Setting, ...]:
    return (RouteAttribute(name="initrwnd", value=None if level == _DEFAULT else level),)


def _most_syn_window(level: str, mss: int) -> int | None:
    return None if level == _DEFAULT else int(level) * (mss - 12)


def _proof(level: str, wire: Wire) -> Refutation | None:
    if level == _DEFAULT:
        return None
    window, mss = wire.kpi("request_window"), wire.client.syn_mss or SEGMENT_BYTES
    if not isinstance(window, int):
        return Refutation(reason=TreatmentReason.NO_EVIDENCE, detail="no request of the client was captured")
    # The kernel counts segments without their options (12 bytes of timestamps), and a scaled window is a multiple of
    # 2^scale.
    step = 1 << (wire.client.syn_window_scale or 0)
    low, high = int(level) * (mss - 12) - step - mss, int(level) * mss + step + mss
    if low <= window <= high:
        return None
    detail = f"the window at the request was {window:,} bytes, not {level} segments of {mss}"
    return Refutation(reason=TreatmentReason.WRONG_OFFER, detail=detail)


INITRWND = Factor(
    name="initrwnd",
    label="IRW",
    help="Initial receive window (ip route initrwnd) in segments; above 44 all configurations get a larger buffer.",
    levels=(_DEFAULT, "44"),
    default=_DEFAULT,
    settings=_settings,
    proof=_proof,
    prepare=_prepare,
    most_syn_window=_most_syn_window,
    canonical=_canonical,
    accepts=f"{_DEFAULT}, {LEAST} to {MOST}",
)
