"""Explicit Congestion Notification (RFC 3168): routers mark packets instead of dropping them.

To add a factor of your own, copy this file, and change four things: what it is called, its levels, the kernel setting
behind each level, and what the handshake must look like. Nothing else has to be touched: the command line, campaign
files, permutations, the documentation's table and the contract tests find it here.
"""

from __future__ import annotations

from downloader.factor import ON_OFF, Factor, option_proof
from upshift.domain import Handshake, Setting, Sysctl


def _settings(level: str) -> tuple[Setting, ...]:
    # 1 asks for ECN and grants it (Documentation/networking/ip-sysctl.rst). The kernel's own default, 2, only grants:
    # a client would never ask. Values from 3 on are AccECN, another protocol.
    return (Sysctl(name="net.ipv4.tcp_ecn", value="1" if level == "on" else "0"),)


def _proof(level: str, handshake: Handshake) -> str | None:
    # An ECN-setup SYN has ECE and CWR, an ECN-setup SYN-ACK has ECE alone (RFC 3168, section 6.1.1).
    if level == "on" and handshake.syn_ecn and handshake.later_syn_without_ecn:
        return "the kernel fell back to a SYN without ECN after a loss (tcp_ecn_fallback)"
    return option_proof("ECN", asked=level == "on", syn=handshake.syn_ecn, synack=handshake.synack_ecn)


ECN = Factor(
    name="ecn",
    label="ECN",
    help="Explicit Congestion Notification (RFC 3168): congestion is marked, not only told by loss.",
    levels=ON_OFF,
    default="off",
    settings=_settings,
    proof=_proof,
)
