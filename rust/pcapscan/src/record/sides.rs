//! The fields of each side.

/// The same fields for both sides, with the side's name in front.
macro_rules! side_fields {
    ($function:ident, $prefix:literal) => {
        pub mod $function {
            use super::super::{Fields, Value};
            use crate::rtt::Summary;
            use crate::side::Side;
            use crate::truth::TrueClass;
            use crate::wireshark::WsClass;

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

side_fields!(client, "client_");
side_fields!(server, "server_");
