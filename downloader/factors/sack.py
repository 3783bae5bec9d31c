"""Selective acknowledgements (RFC 2018): the receiver names what it has, the sender repeats only what is missing."""

from __future__ import annotations

from downloader.factor import ON_OFF, Factor, option_proof
from upshift.domain import Handshake, Setting, Sysctl


def _settings(level: str) -> tuple[Setting, ...]:
    return (Sysctl(name="net.ipv4.tcp_sack", value="1" if level == "on" else "0"),)


def _proof(level: str, handshake: Handshake) -> str | None:
    return option_proof("SACK", asked=level == "on", syn=handshake.syn_sack, synack=handshake.synack_sack)


SACK = Factor(
    name="sack",
    label="SACK",
    help="Selective acknowledgements (RFC 2018): only what is missing is sent again.",
    levels=ON_OFF,
    default="off",
    settings=_settings,
    proof=_proof,
)
