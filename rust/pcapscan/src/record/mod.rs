//! The record of a connection as named values: what Python and JSON get.

mod sides;
mod value;

pub use value::{Fields, Value};

use crate::connection::{Connection, RoleSource};
use crate::rounds::Round;
use crate::rtt::Summary;
use crate::side::Side;
use crate::tcp::flag;

/// Passes each field of a record to `out`; `cut` says whether the file was.
pub fn visit(connection: &Connection, cut: bool, out: &mut impl Fields) {
    let client = &connection.sides[connection.client];
    let server = &connection.sides[connection.client ^ 1];
    identity(connection, cut, out);
    handshake(connection, client, server, out);
    quic(connection, out);
    let is_answered = client.packets > 0 && server.data_packets > 0;
    let hello = Some(connection.hello).filter(|hello| is_answered && hello.packets > 0);
    out.field("client_hello_bytes", hello.map(|hello| hello.bytes).into());
    out.field(
        "client_hello_packets",
        hello.map(|hello| hello.packets).into(),
    );
    let response = connection.answer();
    let seen = response.bytes > 0;
    out.field(
        "response_request_ns",
        (seen && response.request_ns != 0)
            .then_some(response.request_ns)
            .into(),
    );
    out.field(
        "response_first_ns",
        seen.then_some(response.first_ns).into(),
    );
    out.field("response_last_ns", seen.then_some(response.last_ns).into());
    out.field("response_bytes", response.bytes.into());
    out.field("response_first_bytes", response.first_bytes.into());
    rounds(connection, out);
    for (name, side) in [("client", client), ("server", server)] {
        out.enter(name);
        sides::all(side, out);
        out.leave();
    }
}

/// The answer by round trips: its last round ends with the answer, not with the round.
fn rounds(connection: &Connection, out: &mut impl Fields) {
    let answer = connection.answer_rounds();
    out.field("round_ns", answer.map(|answer| answer.round_ns).into());
    let dispersion = answer.and_then(|answer| answer.dispersion.quantile_ns(0.25));
    out.field("dispersion_ps_per_byte", dispersion.into());
    let mut put = |name: &'static str, of: fn(&Round) -> u64| {
        let rounds = answer.map_or(&[][..], |answer| &answer.list);
        let values: Vec<_> = rounds
            .iter()
            .map(|round| i64::try_from(of(round)).unwrap_or(i64::MAX))
            .collect();
        out.field(name, values.into());
    };
    put("round_bytes", |round| round.bytes);
    put("round_packets", |round| round.packets.into());
    put("round_window_limited", |round| round.window_limited.into());
    put("round_losses", |round| round.losses.into());
    put("round_silent_ns", |round| round.silent_ns);
    // 0 where there is no sample: a round trip takes longer.
    put("round_rtt_ns", |round| {
        round.rtt_sum_ns / u64::from(round.rtt_count).max(1)
    });
}

fn identity(connection: &Connection, cut: bool, out: &mut impl Fields) {
    let (key, client) = (&connection.key, connection.client);
    let is_quic = connection.quic.is_some();
    out.field("number", connection.number.into());
    out.field("protocol", if is_quic { "quic" } else { "tcp" }.into());
    out.field("ip_version", u32::from(key.kind >> 8).into());
    out.field("client_ip", key.address(client).to_string().into());
    out.field("client_port", u32::from(key.port(client)).into());
    out.field("server_ip", key.address(client ^ 1).to_string().into());
    out.field("server_port", u32::from(key.port(client ^ 1)).into());
    out.field(
        "client_known",
        (connection.role_source == RoleSource::Handshake).into(),
    );
    out.field("first_ns", connection.first_ns.into());
    out.field("last_ns", connection.last_ns.into());
    out.field("backwards_packets", connection.backwards.into());
    out.field("truncated", cut.into());
    out.field("gro", has_super_packets(connection).into());
}

/// Whether a host's receive or send offload made packets that no wire carried: larger than the other side's MSS (with
/// that side's options), or than an Ethernet frame where the handshake is missing.
fn has_super_packets(connection: &Connection) -> bool {
    (0..2).any(|direction| {
        let (side, other) = (
            &connection.sides[direction],
            &connection.sides[direction ^ 1],
        );
        match (connection.quic.is_some(), other.options.mss) {
            (false, Some(mss)) => side.largest_payload > u32::from(mss),
            _ => side.largest_packet > 1500,
        }
    })
}

fn handshake(connection: &Connection, client: &Side, server: &Side, out: &mut impl Fields) {
    const ECN: u16 = flag::ECE | flag::CWR;
    let handshake = &connection.handshake;
    let syn = handshake.syn_ns.map(|_| handshake.syn_flags);
    let answer = handshake.syn_ack_ns.map(|_| handshake.syn_ack_flags);
    let acc_requested = |flags: u16| flags & (ECN | flag::AE) == ECN | flag::AE;
    // RFC 9768, table 2: what a SYN-ACK may say to an AccECN SYN; all else is classic ECN or none.
    let acc_accepted = |flags: u16| {
        flags & (flag::AE | flag::CWR) == flag::CWR || flags & (flag::AE | flag::ECE) == flag::AE
    };
    let is_acc = acc_requested(handshake.last_syn_flags) && answer.is_some_and(acc_accepted);
    let classic = |flags: u16| flags & ECN == flag::ECE && flags & flag::AE == 0;
    let asked = handshake.last_syn_flags & ECN == ECN;
    let fell_back =
        syn.is_some_and(|flags| flags & ECN == ECN) && handshake.last_syn_flags & ECN != ECN;
    let both = |option: fn(&Side) -> bool| {
        (answer.is_some() && syn.is_some()).then(|| option(client) && option(server))
    };
    out.field("syn_ns", handshake.syn_ns.into());
    out.field("last_syn_ns", handshake.last_syn_ns.into());
    out.field("syn_ack_ns", handshake.syn_ack_ns.into());
    out.field("handshake_ack_ns", handshake.ack_ns.into());
    out.field("syn_ack_answers_first_syn", handshake.answers_first.into());
    let initial = connection.wireshark.initial_rtt_ns();
    out.field("initial_rtt_ns", (initial != 0).then_some(initial).into());
    out.field("ecn_requested", syn.map(|flags| flags & ECN == ECN).into());
    out.field(
        "ecn_accepted",
        answer
            .map(|flags| asked && (classic(flags) || is_acc))
            .into(),
    );
    out.field("acc_ecn_requested", syn.map(acc_requested).into());
    out.field("acc_ecn_accepted", answer.map(|_| is_acc).into());
    out.field("ecn_fallback", syn.map(|_| fell_back).into());
    out.field(
        "sack_accepted",
        both(|side| side.options.sack_permitted).into(),
    );
    out.field(
        "window_scale_accepted",
        both(|side| side.options.window_scale.is_some()).into(),
    );
    out.field(
        "timestamps_accepted",
        both(|side| side.options.timestamps).into(),
    );
}

fn quic(connection: &Connection, out: &mut impl Fields) {
    let state = connection.quic.as_deref();
    out.field("quic_version", state.and_then(|state| state.version).into());
    out.field(
        "quic_original_dcid",
        state
            .and_then(|state| state.original_destination.map(|id| id.hex()))
            .into(),
    );
    out.field(
        "quic_client_cid",
        state
            .and_then(|state| state.client_id.map(|id| id.hex()))
            .into(),
    );
    out.field(
        "quic_server_cid",
        state
            .and_then(|state| state.server_id.map(|id| id.hex()))
            .into(),
    );
    out.field("quic_retries", state.map(|state| state.retries).into());
    out.field(
        "quic_version_negotiations",
        state.map(|state| state.negotiations).into(),
    );
    out.field(
        "quic_zero_rtt_packets",
        state.map(|state| state.zero_rtt).into(),
    );
    out.field(
        "quic_client_initials",
        state.map(|state| state.client_initials).into(),
    );
    out.field(
        "quic_client_initial_ns",
        state.and_then(|state| state.initial_ns[0]).into(),
    );
    out.field(
        "quic_last_client_initial_ns",
        state.and_then(|state| state.last_client_initial_ns).into(),
    );
    out.field(
        "quic_server_initial_ns",
        state.and_then(|state| state.initial_ns[1]).into(),
    );
    out.field(
        "quic_client_short_ns",
        state.and_then(|state| state.short_ns[0]).into(),
    );
    out.field(
        "quic_server_short_ns",
        state.and_then(|state| state.short_ns[1]).into(),
    );
    let spin = state.and_then(|state| state.spin[1].rtt());
    out.field(
        "quic_spin_rtt_count",
        state.map(|_| spin.map_or(0, |rtt| rtt.count)).into(),
    );
    out.field("quic_spin_rtt_min_ns", spin.map(|rtt| rtt.min_ns).into());
    out.field(
        "quic_spin_rtt_mean_ns",
        spin.and_then(Summary::mean_ns).into(),
    );
    out.field(
        "quic_spin_rtt_p50_ns",
        spin.and_then(|rtt| rtt.quantile_ns(0.5)).into(),
    );
}
