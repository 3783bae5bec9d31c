"""Explicit Congestion Notification (RFC 3168): routers mark packets instead of dropping them.

To add your own factor, copy this file, and change five things: its name, its levels, the kernel settings of each
level, the check of the connection, and the KPI that shows that the option took effect. Nothing else has to be
changed: the command line, campaign files, permutations, the documentation's table and the contract tests find
it here.
"""

from __future__ import annotations

from core.domain import Dose, EcnDelivery, Refutation, Setting, Sysctl, TreatmentReason, Wire
from downloader.factors import ON_OFF, Factor, option_proof

ENOUGH_PACKETS = 50
"""With fewer data packets, their marks are not judged."""

DELIVERED_SHARE = 0.1
"""Below this share of marks ECN was not delivered. Retransmissions are Not-ECT (RFC 3168, section 6.1.5), so not every
packet has one."""


def _settings(level: str) -> tuple[Setting, ...]:
    # 1 requests ECN and accepts it (Documentation/networking/ip-sysctl.rst). The kernel's default, 2, only accepts it:
    # a client would never request it. Values from 3 on are AccECN, another protocol.
    return (Sysctl(name="net.ipv4.tcp_ecn", value="1" if level == "on" else "0"),)


def _proof(level: str, wire: Wire) -> Refutation | None:
    # An ECN-setup SYN has ECE and CWR, an ECN-setup SYN-ACK has ECE alone (RFC 3168, section 6.1.1).
    # A retransmitted SYN has neither, but the kernel takes an ECN-setup SYN-ACK that answers the first one.
    fell_back = wire.client.syn_ecn and wire.client.later_syn_without_ecn and not wire.client.synack_ecn
    if level == "on" and fell_back:
        fallback = "the kernel fell back to a SYN without ECN after a loss (tcp_ecn_fallback)"
        return Refutation(reason=TreatmentReason.FELL_BACK, detail=fallback)
    refuted = option_proof("ECN", requested=level == "on", wire=wire, carried=lambda at: (at.syn_ecn, at.synack_ecn))
    if refuted is None and level == "on" and wire.ecn is not None:
        return _not_delivered(wire.ecn)
    return refuted


def _not_delivered(ecn: EcnDelivery) -> Refutation | None:
    """Why ECN was negotiated but did not reach the client's side of the path; None if it did."""
    # Packets marked on the path may have lost both CE and ECT: the counts of CE are compared below.
    if ecn.data >= ENOUGH_PACKETS and ecn.marked < DELIVERED_SHARE * (ecn.data - (ecn.ce_set or 0)):
        detail = f"ECN was negotiated, and {ecn.marked} of {ecn.data} data packets arrived with ECT or CE"
        if ecn.sent_marked is not None and ecn.sent_marked < DELIVERED_SHARE * ecn.data:
            detail += f" ({ecn.sent_marked} left the server with it)"
            return Refutation(reason=TreatmentReason.SERVER_REFUSED, detail=detail)
        return Refutation(reason=TreatmentReason.BLEACHED, detail=detail)
    if ecn.ce_set and ecn.ce < DELIVERED_SHARE * ecn.ce_set:
        detail = f"{ecn.ce_set} packets were marked CE on the way, and {ecn.ce} arrived with CE"
        return Refutation(reason=TreatmentReason.CE_CLEARED, detail=detail)
    return None


ECN = Factor(
    name="ecn",
    label="ECN",
    help="Explicit Congestion Notification (RFC 3168): routers mark packets instead of dropping them.",
    levels=ON_OFF,
    default="off",
    settings=_settings,
    proof=_proof,
    dose=Dose(kpi="ce_packets", above=0, words="CE seen"),
)
