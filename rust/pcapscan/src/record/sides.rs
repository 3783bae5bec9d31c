//! The fields of each side.

use super::{Fields, Value};
use crate::rtt::Summary;
use crate::side::Side;
use crate::truth::TrueClass;
use crate::wireshark::WsClass;

/// Passes each field of a side to `out`.
pub(super) fn all(side: &Side, out: &mut impl Fields) {
    traffic(side, out);
    classes(side, out);
    times(side, out);
}

fn traffic(side: &Side, out: &mut impl Fields) {
    let mut put = |name: &'static str, value: Value| out.field(name, value);
    put("packets", side.packets.into());
    put("ip_bytes", side.ip_bytes.into());
    put("payload_bytes", side.payload_bytes.into());
    put("data_packets", side.data_packets.into());
    put("largest_payload", side.largest_payload.into());
    put(
        "first_data_ns",
        (side.data_packets > 0).then_some(side.first_data_ns).into(),
    );
    put(
        "last_data_ns",
        (side.data_packets > 0).then_some(side.last_data_ns).into(),
    );
    put("ect0_packets", side.ecn[2].into());
    put("ect1_packets", side.ecn[1].into());
    put("ce_packets", side.ecn[3].into());
    put("ecn_data_packets", side.ecn_data.into());
    put("ece_packets", side.ece.into());
    put("cwr_packets", side.cwr.into());
    put("ae_packets", side.ae.into());
    put("acc_ecn_option", side.acc_ecn_option.into());
    put("syn_packets", side.syn.into());
    put("fin_packets", side.fin.into());
    put("rst_packets", side.rst.into());
    put("mss", side.options.mss.map(u32::from).into());
    put(
        "window_scale",
        side.options.window_scale.map(u32::from).into(),
    );
    put(
        "syn_window",
        (side.syn > 0)
            .then_some(u32::from(side.options.window))
            .into(),
    );
    put(
        "sack_permitted",
        (side.syn > 0).then_some(side.options.sack_permitted).into(),
    );
    put(
        "timestamps",
        (side.syn > 0).then_some(side.options.timestamps).into(),
    );
    // In bytes, as the wire means it.
    let window = u64::from(side.largest_window) << side.window_shift;
    put("largest_window", window.into());
    put(
        "first_data_window",
        side.first_data_window
            .map(|raw| u64::from(raw) << side.window_shift)
            .into(),
    );
    put("sack_segments", side.sack_segments.into());
    put("sack_blocks", side.sack_blocks.into());
    put("dsack_blocks", side.dsack_blocks.into());
}

fn classes(side: &Side, out: &mut impl Fields) {
    let mut put = |name: &'static str, value: Value| out.field(name, value);
    let ws = |class: WsClass| side.ws[class as usize].into();
    put("ws_retransmission", ws(WsClass::Retransmission));
    put("ws_fast_retransmission", ws(WsClass::FastRetransmission));
    put(
        "ws_spurious_retransmission",
        ws(WsClass::SpuriousRetransmission),
    );
    put("ws_out_of_order", ws(WsClass::OutOfOrder));
    put("ws_keep_alive", ws(WsClass::KeepAlive));
    put("ws_keep_alive_ack", ws(WsClass::KeepAliveAck));
    put("ws_dup_ack", ws(WsClass::DupAck));
    put("ws_zero_window_probe", ws(WsClass::ZeroWindowProbe));
    put("ws_zero_window_probe_ack", ws(WsClass::ZeroWindowProbeAck));
    put("ws_zero_window", side.marks.zero_window.into());
    put("ws_window_full", side.marks.window_full.into());
    put("ws_window_update", side.marks.window_update.into());
    put("ws_lost_segment", side.marks.lost_segment.into());
    put("ws_acked_unseen", side.marks.acked_unseen.into());
    let truth = |class: TrueClass| side.truth_counts[class as usize].into();
    put("true_new", truth(TrueClass::New));
    put("true_retransmission", truth(TrueClass::Retransmission));
    put("true_reordered", truth(TrueClass::Reordered));
    put("true_duplicate", truth(TrueClass::Duplicate));
    put("true_keep_alive", truth(TrueClass::KeepAlive));
    put("true_out_of_window", truth(TrueClass::OutOfWindow));
    put("retransmitted_bytes", side.retransmitted_bytes.into());
    put("retransmitted_ip_bytes", side.retransmitted_ip_bytes.into());
    put("missing_bytes", side.truth.missing_bytes().into());
    put("truth_by_ip_id", side.truth.evidence.ip_id.into());
    put("truth_by_tsval", side.truth.evidence.tsval.into());
    put("truth_by_seen", side.truth.evidence.seen.into());
    put("truth_by_time", side.truth.evidence.time.into());
}

fn times(side: &Side, out: &mut impl Fields) {
    let mut put = |name: &'static str, value: Value| out.field(name, value);
    let quantile = |summary: &Summary, at: f64| Value::from(summary.quantile_ns(at));
    let some = |summary: &Summary, value: i64| Value::from((summary.count > 0).then_some(value));
    let rtt = &side.rtt_timestamps;
    put("rtt_ts_count", rtt.count.into());
    put("rtt_ts_min_ns", some(rtt, rtt.min_ns));
    put("rtt_ts_mean_ns", rtt.mean_ns().into());
    put("rtt_ts_p50_ns", quantile(rtt, 0.5));
    put("rtt_ts_p95_ns", quantile(rtt, 0.95));
    put("rtt_ts_p99_ns", quantile(rtt, 0.99));
    put("rtt_ts_max_ns", some(rtt, rtt.max_ns));
    let rtt = &side.rtt_ack;
    put("rtt_ack_count", rtt.count.into());
    put("rtt_ack_min_ns", some(rtt, rtt.min_ns));
    put("rtt_ack_mean_ns", rtt.mean_ns().into());
    put("rtt_ack_p50_ns", quantile(rtt, 0.5));
    put("rtt_ack_max_ns", some(rtt, rtt.max_ns));
    let flight = &side.flight;
    let of = |sum: u64| Value::from((flight.count > 0).then(|| sum as f64 / flight.count as f64));
    put("flight_count", flight.count.into());
    put(
        "flight_lower_max",
        (flight.count > 0).then_some(flight.lower_max).into(),
    );
    put(
        "flight_upper_max",
        (flight.count > 0).then_some(flight.upper_max).into(),
    );
    put("flight_lower_mean", of(flight.lower_sum));
    put("flight_upper_mean", of(flight.upper_sum));
    put("window_limited_share", of(flight.window_limited));
}
