"""Initial receive window (`ip route ... initrwnd N`): what the server may send before it sees the client's first ACK.

The kernel (net/ipv4/tcp_output.c, tcp_select_initial_window) announces at most N segments, and no more than the
receive buffer has room for: about half of tcp_rmem[1]. Above `MOST_BY_DEFAULT` segments the default buffer is too
small; `downloader.campaign` then gives a larger one to all configurations of the campaign (`buffer_bytes`).
"""

from __future__ import annotations

from core.domain import Refutation, RouteAttribute, Setting, TreatmentReason, Wire
from downloader.factor import Factor

LEAST, MOST = 10, 310
MOST_BY_DEFAULT = 44
"""Largest window of the default buffer of 128 KiB [segments]; also the largest one without window scaling."""

SEGMENT_BYTES = 1460

_DEFAULT = "default"


def buffer_bytes(level: str) -> int | None:
    """The initial buffer, tcp_rmem[1], that a level needs [bytes]; None if the default one is enough."""
    if level == _DEFAULT or int(level) <= MOST_BY_DEFAULT:
        return None
    return 2 * int(level) * SEGMENT_BYTES


def _canonical(text: str) -> str | None:
    if text == _DEFAULT:
        return _DEFAULT
    is_number = text.isascii() and text.isdecimal() and len(text) < 4
    return str(int(text)) if is_number and LEAST <= int(text) <= MOST else None


def _settings(level: str) -> tuple[Setting, ...]:
    return (RouteAttribute(name="initrwnd", value=None if level == _DEFAULT else level),)


def _proof(level: str, wire: Wire) -> Refutation | None:
    window, mss = wire.request_window, wire.client.syn_mss or SEGMENT_BYTES
    if level == _DEFAULT:
        return None
    if window is None:
        return Refutation(reason=TreatmentReason.NO_EVIDENCE, detail="no request of the client was captured")
    # The kernel counts segments without their options (12 bytes of timestamps), and a scaled window is a multiple of
    # 2^scale.
    step = 1 << (wire.client.syn_window_scale or 0)
    low, high = int(level) * (mss - 12) - step - mss, int(level) * mss + step + mss
    if low <= window <= high:
        return None
    said = f"the window at the request was {window:,} bytes, not {level} segments of {mss}"
    return Refutation(reason=TreatmentReason.WRONG_OFFER, detail=said)


INITRWND = Factor(
    name="initrwnd",
    label="IRW",
    help="Initial receive window (ip route initrwnd) in segments; above 44 all configurations get a larger buffer.",
    levels=(_DEFAULT, "44"),
    default=_DEFAULT,
    settings=_settings,
    proof=_proof,
    canonical=_canonical,
    accepts=f"{_DEFAULT}, {LEAST} to {MOST}",
)
