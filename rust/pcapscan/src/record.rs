//! The record of a connection as named values: what Python and JSON get.

use crate::connection::{Connection, RoleSource};
use crate::rtt::Summary;
use crate::side::Side;
use crate::tcp::flag;
use crate::truth::TrueClass;
use crate::wireshark::WsClass;

/// A value of a record.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Unknown or not applicable.
    None,
    /// A flag.
    Bool(bool),
    /// A count, a size or a time in ns.
    Int(i64),
    /// A mean or a quantile.
    Float(f64),
    /// A name or an address.
    Text(String),
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}
impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Int(i64::try_from(value).unwrap_or(i64::MAX))
    }
}
impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}
impl From<u32> for Value {
    fn from(value: u32) -> Self {
        Self::Int(value.into())
    }
}
impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Float(value)
    }
}
impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::Text(value.into())
    }
}
impl From<String> for Value {
    fn from(value: String) -> Self {
        Self::Text(value)
    }
}
impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::None, Into::into)
    }
}

/// Receives the fields of a record in their fixed order.
pub trait Fields {
    /// Takes one field.
    fn field(&mut self, name: &'static str, value: Value);
}

impl Fields for Vec<(&'static str, Value)> {
    fn field(&mut self, name: &'static str, value: Value) {
        self.push((name, value));
    }
}

/// Passes each field of a record to `out`; `cut` says whether the file was.
pub fn visit(connection: &Connection, cut: bool, out: &mut impl Fields) {
    let client = &connection.sides[connection.client];
    let server = &connection.sides[connection.client ^ 1];
    identity(connection, cut, out);
    handshake(connection, client, server, out);
    quic(connection, out);
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
    client_side::all(client, out);
    server_side::all(server, out);
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

/// The same fields for both sides, with the side's name in front.
macro_rules! side_fields {
    ($function:ident, $prefix:literal) => {
        mod $function {
            use super::{Fields, Side, Summary, TrueClass, Value, WsClass};

            pub fn all(side: &Side, out: &mut impl Fields) {
                traffic(side, out);
                classes(side, out);
                times(side, out);
            }

            fn traffic(side: &Side, out: &mut impl Fields) {
                let mut put = |name: &'static str, value: Value| out.field(name, value);
                put(concat!($prefix, "packets"), side.packets.into());
                put(concat!($prefix, "ip_bytes"), side.ip_bytes.into());
                put(concat!($prefix, "payload_bytes"), side.payload_bytes.into());
                put(concat!($prefix, "data_packets"), side.data_packets.into());
                put(
                    concat!($prefix, "largest_payload"),
                    side.largest_payload.into(),
                );
                put(
                    concat!($prefix, "first_data_ns"),
                    (side.data_packets > 0).then_some(side.first_data_ns).into(),
                );
                put(
                    concat!($prefix, "last_data_ns"),
                    (side.data_packets > 0).then_some(side.last_data_ns).into(),
                );
                put(concat!($prefix, "ect0_packets"), side.ecn[2].into());
                put(concat!($prefix, "ect1_packets"), side.ecn[1].into());
                put(concat!($prefix, "ce_packets"), side.ecn[3].into());
                put(concat!($prefix, "ece_packets"), side.ece.into());
                put(concat!($prefix, "cwr_packets"), side.cwr.into());
                put(concat!($prefix, "ae_packets"), side.ae.into());
                put(
                    concat!($prefix, "acc_ecn_option"),
                    side.acc_ecn_option.into(),
                );
                put(concat!($prefix, "syn_packets"), side.syn.into());
                put(concat!($prefix, "fin_packets"), side.fin.into());
                put(concat!($prefix, "rst_packets"), side.rst.into());
                put(
                    concat!($prefix, "mss"),
                    side.options.mss.map(u32::from).into(),
                );
                put(
                    concat!($prefix, "window_scale"),
                    side.options.window_scale.map(u32::from).into(),
                );
                put(
                    concat!($prefix, "syn_window"),
                    (side.syn > 0)
                        .then_some(u32::from(side.options.window))
                        .into(),
                );
                put(
                    concat!($prefix, "sack_permitted"),
                    (side.syn > 0).then_some(side.options.sack_permitted).into(),
                );
                put(
                    concat!($prefix, "timestamps"),
                    (side.syn > 0).then_some(side.options.timestamps).into(),
                );
                // In bytes, as the wire means it.
                let window = u64::from(side.largest_window) << side.window_shift;
                put(concat!($prefix, "largest_window"), window.into());
                put(concat!($prefix, "sack_blocks"), side.sack_blocks.into());
                put(concat!($prefix, "dsack_blocks"), side.dsack_blocks.into());
            }

            fn classes(side: &Side, out: &mut impl Fields) {
                let mut put = |name: &'static str, value: Value| out.field(name, value);
                let ws = |class: WsClass| side.ws[class as usize].into();
                put(
                    concat!($prefix, "ws_retransmission"),
                    ws(WsClass::Retransmission),
                );
                put(
                    concat!($prefix, "ws_fast_retransmission"),
                    ws(WsClass::FastRetransmission),
                );
                put(
                    concat!($prefix, "ws_spurious_retransmission"),
                    ws(WsClass::SpuriousRetransmission),
                );
                put(concat!($prefix, "ws_out_of_order"), ws(WsClass::OutOfOrder));
                put(concat!($prefix, "ws_keep_alive"), ws(WsClass::KeepAlive));
                put(
                    concat!($prefix, "ws_keep_alive_ack"),
                    ws(WsClass::KeepAliveAck),
                );
                put(concat!($prefix, "ws_dup_ack"), ws(WsClass::DupAck));
                put(
                    concat!($prefix, "ws_zero_window_probe"),
                    ws(WsClass::ZeroWindowProbe),
                );
                put(
                    concat!($prefix, "ws_zero_window_probe_ack"),
                    ws(WsClass::ZeroWindowProbeAck),
                );
                put(
                    concat!($prefix, "ws_zero_window"),
                    side.marks.zero_window.into(),
                );
                put(
                    concat!($prefix, "ws_window_full"),
                    side.marks.window_full.into(),
                );
                put(
                    concat!($prefix, "ws_window_update"),
                    side.marks.window_update.into(),
                );
                put(
                    concat!($prefix, "ws_lost_segment"),
                    side.marks.lost_segment.into(),
                );
                put(
                    concat!($prefix, "ws_acked_unseen"),
                    side.marks.acked_unseen.into(),
                );
                let truth = |class: TrueClass| side.truth_counts[class as usize].into();
                put(concat!($prefix, "true_new"), truth(TrueClass::New));
                put(
                    concat!($prefix, "true_retransmission"),
                    truth(TrueClass::Retransmission),
                );
                put(
                    concat!($prefix, "true_reordered"),
                    truth(TrueClass::Reordered),
                );
                put(
                    concat!($prefix, "true_duplicate"),
                    truth(TrueClass::Duplicate),
                );
                put(
                    concat!($prefix, "true_keep_alive"),
                    truth(TrueClass::KeepAlive),
                );
                put(
                    concat!($prefix, "true_out_of_window"),
                    truth(TrueClass::OutOfWindow),
                );
                put(
                    concat!($prefix, "retransmitted_bytes"),
                    side.retransmitted_bytes.into(),
                );
                put(
                    concat!($prefix, "retransmitted_ip_bytes"),
                    side.retransmitted_ip_bytes.into(),
                );
                put(
                    concat!($prefix, "missing_bytes"),
                    side.truth.missing_bytes().into(),
                );
                put(
                    concat!($prefix, "truth_by_ip_id"),
                    side.truth.evidence.ip_id.into(),
                );
                put(
                    concat!($prefix, "truth_by_tsval"),
                    side.truth.evidence.tsval.into(),
                );
                put(
                    concat!($prefix, "truth_by_seen"),
                    side.truth.evidence.seen.into(),
                );
                put(
                    concat!($prefix, "truth_by_time"),
                    side.truth.evidence.time.into(),
                );
            }

            fn times(side: &Side, out: &mut impl Fields) {
                let mut put = |name: &'static str, value: Value| out.field(name, value);
                let quantile = |summary: &Summary, at: f64| Value::from(summary.quantile_ns(at));
                let some = |summary: &Summary, value: i64| {
                    Value::from((summary.count > 0).then_some(value))
                };
                let rtt = &side.rtt_timestamps;
                put(concat!($prefix, "rtt_ts_count"), rtt.count.into());
                put(concat!($prefix, "rtt_ts_min_ns"), some(rtt, rtt.min_ns));
                put(concat!($prefix, "rtt_ts_mean_ns"), rtt.mean_ns().into());
                put(concat!($prefix, "rtt_ts_p50_ns"), quantile(rtt, 0.5));
                put(concat!($prefix, "rtt_ts_p95_ns"), quantile(rtt, 0.95));
                put(concat!($prefix, "rtt_ts_p99_ns"), quantile(rtt, 0.99));
                put(concat!($prefix, "rtt_ts_max_ns"), some(rtt, rtt.max_ns));
                let rtt = &side.rtt_ack;
                put(concat!($prefix, "rtt_ack_count"), rtt.count.into());
                put(concat!($prefix, "rtt_ack_min_ns"), some(rtt, rtt.min_ns));
                put(concat!($prefix, "rtt_ack_mean_ns"), rtt.mean_ns().into());
                put(concat!($prefix, "rtt_ack_p50_ns"), quantile(rtt, 0.5));
                put(concat!($prefix, "rtt_ack_max_ns"), some(rtt, rtt.max_ns));
                let flight = &side.flight;
                let of = |sum: u64| {
                    Value::from((flight.count > 0).then(|| sum as f64 / flight.count as f64))
                };
                put(concat!($prefix, "flight_count"), flight.count.into());
                put(
                    concat!($prefix, "flight_lower_max"),
                    (flight.count > 0).then_some(flight.lower_max).into(),
                );
                put(
                    concat!($prefix, "flight_upper_max"),
                    (flight.count > 0).then_some(flight.upper_max).into(),
                );
                put(concat!($prefix, "flight_lower_mean"), of(flight.lower_sum));
                put(concat!($prefix, "flight_upper_mean"), of(flight.upper_sum));
                put(
                    concat!($prefix, "window_limited_share"),
                    of(flight.window_limited),
                );
            }
        }
    };
}

side_fields!(client_side, "client_");
side_fields!(server_side, "server_");
