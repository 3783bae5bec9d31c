"""TCP timestamps (RFC 7323): round-trip times from every packet. On in all of the paper's configurations."""

from __future__ import annotations

from core.domain import Refutation, Setting, Sysctl, Wire
from downloader.factors import ON_OFF, Factor, option_proof


def _settings(level: str) -> tuple[Setting, ...]:
    return (Sysctl(name="net.ipv4.tcp_timestamps", value="1" if level == "on" else "0"),)


def _proof(level: str, wire: Wire) -> Refutation | None:
    return option_proof(
        "timestamps", requested=level == "on", wire=wire, carried=lambda at: (at.syn_timestamps, at.synack_timestamps)
    )


TIMESTAMPS = Factor(
    name="timestamps",
    label="TS",
    help="TCP timestamps (RFC 7323): 10 to 12 bytes per packet that let both ends measure the round-trip time.",
    levels=ON_OFF,
    default="on",
    settings=_settings,
    proof=_proof,
)
