"""Window scaling (RFC 7323): windows above 65,535 bytes, off or with a given shift count.

The kernel chooses the count by itself (net/ipv4/tcp_output.c, tcp_select_initial_window): with
N = max(initial buffer, tcp_rmem[2], net.core.rmem_max), bounded by the route's `window`, it is floor(log2 N) - 15,
at least 0 and at most 14. `net.core.rmem_max` is host-wide and is not changed, so a small count needs the
route attribute, and a large one needs tcp_rmem[2]. The initial buffer, tcp_rmem[1], is the same for every level.
"""

from __future__ import annotations

from core.domain import Dose, Refutation, RouteAttribute, Setting, Sysctl, TreatmentReason, Wire
from downloader.factors import Factor, option_proof
from downloader.factors.rmem import TCP_RMEM

MOST = 14
"""Largest shift count (RFC 7323, section 2.3)."""

_OFF = "off"


def _canonical(text: str) -> str | None:
    if text == _OFF:
        return _OFF
    return str(int(text)) if text.isascii() and text.isdecimal() and len(text) < 4 and int(text) <= MOST else None


def _settings(level: str) -> tuple[Setting, ...]:
    if level == _OFF:
        return (Sysctl(name="net.ipv4.tcp_window_scaling", value="0"), RouteAttribute(name="window", value=None))
    scale = int(level)
    # The largest window that the count can express; its floor(log2) is scale + 15. Count 14 is the kernel's upper
    # bound anyway, so there the route needs no attribute and tcp_rmem[2] is enough.
    window = None if scale == MOST else str(65_535 << scale)
    return (
        Sysctl(name="net.ipv4.tcp_window_scaling", value="1"),
        RouteAttribute(name="window", value=window),
        # 2^29 for 14. Counts up to 7 need no more than the kernel's own maximum of 6 MiB, and must not get less:
        # the buffer is not what this factor changes.
        Sysctl(name=TCP_RMEM, field=2, value=str(max(1 << (scale + 15), 6_291_456))),
    )


def _proof(level: str, wire: Wire) -> Refutation | None:
    offered = wire.client.syn_window_scale
    if level != _OFF and offered is not None and offered != int(level):
        detail = f"the first SYN offered window scale {offered}, {level} was requested"
        return Refutation(reason=TreatmentReason.WRONG_OFFER, detail=detail)
    return option_proof(
        "window scaling",
        requested=level != _OFF,
        wire=wire,
        carried=lambda at: (at.syn_window_scale, at.synack_window_scale),
    )


WINDOW_SCALING = Factor(
    name="window_scaling",
    label="WS",
    help="Window scaling (RFC 7323): receive windows above 65,535 bytes; the level is the shift count.",
    levels=(_OFF, "14"),
    default=_OFF,
    settings=_settings,
    proof=_proof,
    # What a large window can change is a download that the small one limited. More bytes in flight show no gain: where
    # the path's rate limits, they only wait in its queue.
    dose=Dose(kpi="limiter", above=0, words="receive window limiting", equals="receive_window"),
    canonical=_canonical,
    accepts="off, 0 to 14",
)
