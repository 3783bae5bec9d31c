"""Selective acknowledgements (RFC 2018): the receiver reports what it has; only missing data is retransmitted."""

from __future__ import annotations

from core.domain import Dose, Refutation, Setting, Sysctl, Wire
from downloader.factors import ON_OFF, Factor, option_proof


def _settings(level: str) -> tuple[Setting, ...]:
    return (Sysctl(name="net.ipv4.tcp_sack", value="1" if level == "on" else "0"),)


def _proof(level: str, wire: Wire) -> Refutation | None:
    return option_proof("SACK", requested=level == "on", wire=wire, carried=lambda at: (at.syn_sack, at.synack_sack))


SACK = Factor(
    name="sack",
    label="SACK",
    help="Selective acknowledgements (RFC 2018): only missing data is retransmitted.",
    levels=ON_OFF,
    default="off",
    settings=_settings,
    proof=_proof,
    dose=Dose(kpi="sack_blocks", above=0, words="SACK blocks seen"),
)
