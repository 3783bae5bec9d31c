//! Paths that change headers: what bleaching routers and option-stripping middleboxes do, behind the bottleneck.
//!
//! Every checksum that was right stays right (RFC 1624), so the ends cannot tell. What such boxes do in the wild:
//! Honda et al., "Is it still possible to extend TCP?" (IMC 2011); Mandalari et al., "Measuring ECN++" (2018).

use crate::packet::{Ecn, ecn_of, set_ecn, tcp_header, update_checksum};
use crate::syn::{ACK, CHECKSUM, CWR, ECE, FLAGS, SYN, Syn, kind, options};
use serde::Deserialize;

/// One thing that a path does to packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// Every packet becomes Not-ECT.
    BleachEct,
    /// CE becomes ECT(0).
    CeToEct0,
    /// CE becomes Not-ECT.
    CeToNotEct,
    /// Not-ECT becomes ECT(0).
    MarkEct0,
    /// An ECN-setup SYN is lost.
    DropEcnSyn,
    /// SYN and SYN-ACK lose ECE and CWR.
    StripEcn,
    /// SYN and SYN-ACK lose SACK permitted.
    StripSack,
    /// SYN and SYN-ACK lose the window scale.
    StripWindowScale,
    /// SYN and SYN-ACK lose timestamps.
    StripTimestamps,
    /// A SYN-ACK gets ECE.
    ForgeEcn,
    /// A SYN-ACK gets SACK permitted, where two NOPs leave room.
    ForgeSack,
    /// The window scale of SYN and SYN-ACK is one less, where it is above 0.
    LowerWindowScale,
}

/// Whether these rules lose the packet.
#[must_use]
pub fn is_lost(rules: &[Rule], packet: &[u8]) -> bool {
    rules.contains(&Rule::DropEcnSyn)
        && Syn::read(packet).is_some_and(|syn| syn.ecn)
        && tcp_header(packet).is_some_and(|at| packet[at][FLAGS] & ACK == 0)
}

/// Changes a packet in place, rule by rule.
pub fn apply(rules: &[Rule], packet: &mut [u8]) {
    for &rule in rules {
        match rule {
            Rule::BleachEct => set_ecn(packet, Ecn::NotEct),
            Rule::CeToEct0 if ecn_of(packet) == Some(Ecn::Ce) => set_ecn(packet, Ecn::Ect0),
            Rule::CeToNotEct if ecn_of(packet) == Some(Ecn::Ce) => set_ecn(packet, Ecn::NotEct),
            Rule::MarkEct0 if ecn_of(packet) == Some(Ecn::NotEct) => set_ecn(packet, Ecn::Ect0),
            Rule::CeToEct0 | Rule::CeToNotEct | Rule::MarkEct0 | Rule::DropEcnSyn => {}
            _ => change_syn(rule, packet),
        }
    }
}

fn change_syn(rule: Rule, packet: &mut [u8]) {
    let Some(at) = tcp_header(packet) else {
        return;
    };
    let header = &mut packet[at];
    let is_syn_ack = header[FLAGS] & ACK != 0;
    if header[FLAGS] & SYN == 0 {
        return;
    }
    let before = header.to_vec();
    match rule {
        Rule::StripEcn => header[FLAGS] &= !(ECE | CWR),
        Rule::StripSack => blank(header, kind::SACK_PERMITTED),
        Rule::StripWindowScale => blank(header, kind::WINDOW_SCALE),
        Rule::StripTimestamps => blank(header, kind::TIMESTAMPS),
        Rule::ForgeEcn if is_syn_ack => header[FLAGS] = header[FLAGS] & !CWR | ECE,
        Rule::ForgeSack if is_syn_ack => permit_sack(header),
        Rule::LowerWindowScale => {
            for (_, option) in options(&before).filter(|(kind, _)| *kind == kind::WINDOW_SCALE) {
                if let [_, _, shift] = &mut header[option] {
                    *shift = shift.saturating_sub(1);
                }
            }
        }
        _ => {}
    }
    correct_checksum(&before, header);
}

/// NOPs instead of an option.
fn blank(header: &mut [u8], unwanted: u8) {
    for (kind, at) in options(header) {
        if kind == unwanted {
            header[at].fill(kind::NOP);
        }
    }
}

fn permit_sack(header: &mut [u8]) {
    let all: Vec<_> = options(header).collect();
    let room = all.windows(2).find_map(|pair| match pair {
        [(kind::NOP, first), (kind::NOP, _)] => Some(first.start),
        _ => None,
    });
    if let Some(at) = room {
        header[at..at + 2].copy_from_slice(&[kind::SACK_PERMITTED, 2]);
    }
}

/// The TCP checksum after a change of the header, word by word. It covers no IP field that these rules change.
fn correct_checksum(before: &[u8], header: &mut [u8]) {
    let word = |bytes: &[u8], at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let mut sum = word(header, CHECKSUM);
    for at in (0..before.len()).step_by(2) {
        if before[at..at + 2] != header[at..at + 2] {
            sum = update_checksum(sum, word(before, at), word(header, at));
        }
    }
    header[CHECKSUM..CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
}

#[cfg(test)]
#[path = "rewrite_tests.rs"]
mod tests;
