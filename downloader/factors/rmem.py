"""TCP receive buffer (`tcp_rmem`): the initial size, and the largest one.

The same in all of the paper's configurations: the initial window must not change with the factor under study.
`window_scaling` may set the maximum as well; `downloader.campaign.configurations` defines the precedence.
"""

from __future__ import annotations

from core.domain import Refutation, Setting, Sysctl, TreatmentReason, Wire
from downloader import factors
from downloader.factors import Factor

TCP_RMEM = "net.ipv4.tcp_rmem"
"""Three numbers [bytes]: least, initial, most (Documentation/networking/ip-sysctl.rst)."""

_LEAST, _MOST = 4096, (1 << 31) - 1


def _canonical(text: str) -> str | None:
    initial, slash, most = text.partition("/")
    if not slash or not all(part.isascii() and part.isdecimal() and len(part) < 12 for part in (initial, most)):
        return None
    if not _LEAST <= int(initial) <= int(most) <= _MOST:
        return None
    return f"{int(initial)}/{int(most)}"


def _settings(level: str) -> tuple[Setting, ...]:
    initial, _, most = level.partition("/")
    return (Sysctl(name=TCP_RMEM, field=1, value=initial), Sysctl(name=TCP_RMEM, field=2, value=most))


def _proof(level: str, wire: Wire) -> Refutation | None:
    # The maximum never shows in a handshake. The initial buffer does, as the SYN's window: half of the buffer, as the
    # other half is the kernel's bookkeeping (tcp_adv_win_scale, later the scaling ratio), at most 65,535 bytes
    # (RFC 7323: the window of a SYN is not scaled), rounded down to whole segments.
    # Levels of other factors may limit it further.
    initial, mss = int(level.partition("/")[0]), wire.client.syn_mss or 1460
    limits = [
        limit
        for name, other in wire.levels.items()
        if (most_of := factors.ALL[name].most_syn_window) is not None and (limit := most_of(other, mss)) is not None
    ]
    most = min(initial, 65_535)
    least = min(initial // 2, 65_535, *limits) - mss
    window = wire.client.syn_window
    if least <= window <= most:
        return None
    wrong = "larger than the initial buffer allows" if window > most else "smaller than the initial buffer gives"
    detail = f"the first SYN's window of {window} bytes is {wrong}"
    return Refutation(reason=TreatmentReason.WRONG_OFFER, detail=detail)


RMEM = Factor(
    name="rmem",
    label="RMEM",
    help="TCP receive buffer (tcp_rmem): initial/maximum size in bytes.",
    levels=("131072/6291456",),
    default="131072/6291456",
    settings=_settings,
    proof=_proof,
    canonical=_canonical,
    accepts="initial/maximum in bytes, such as 131072/6291456 (at least 4096, at most 2147483647)",
)
