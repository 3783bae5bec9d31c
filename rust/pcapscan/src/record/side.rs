//! The record of one side of a connection.

use super::fields::record;
use crate::side::Side;
use crate::truth::TrueClass;
use crate::wireshark::WsClass;

record! {
    /// What one side of a connection sent.
    SideRecord(side: &Side) {
        let has_data = side.data_packets > 0;
        let syn = (side.syn > 0).then_some(&side.options);
        // In bytes, as the wire means it.
        let scaled = |window: u16| u64::from(window) << side.window_shift;
        let ws = |class: WsClass| side.ws[class as usize];
        let truth = |class: TrueClass| side.truth_counts[class as usize];
        let (by_ts, by_ack, flight) = (&side.rtt_timestamps, &side.rtt_ack, &side.flight);
        let per_packet = |sum: u64| (flight.count > 0).then(|| sum as f64 / flight.count as f64);
    }

    packets: u64 = side.packets,
    /// IPv4 total length, IPv6 payload length + 40.
    ip_bytes: u64 = side.ip_bytes + side.copied_ip_bytes,
    /// TCP or UDP payload, retransmissions included; without copies (`true_class` is `duplicate`).
    payload_bytes: u64 = side.payload_bytes,
    /// Packets with payload.
    data_packets: u64 = side.data_packets,
    largest_payload: u32 = side.largest_payload,
    first_data_ns: Option<i64> = has_data.then_some(side.first_data_ns),
    last_data_ns: Option<i64> = has_data.then_some(side.last_data_ns),
    /// Packets with ECT(0) in the IP header.
    ect0_packets: u64 = side.ecn[2],
    /// Packets with ECT(1) in the IP header.
    ect1_packets: u64 = side.ecn[1],
    /// Packets with Congestion Experienced in the IP header.
    ce_packets: u64 = side.ecn[3],
    /// Packets with payload and ECT(0), ECT(1) or Congestion Experienced in the IP header.
    ecn_data_packets: u64 = side.ecn_data,
    /// Segments with ECE, without SYNs; not a congestion signal if accurate ECN is negotiated.
    ece_packets: u64 = side.ece,
    /// Segments with CWR, without SYNs; likewise.
    cwr_packets: u64 = side.cwr,
    /// Segments with AE, without SYNs.
    ae_packets: u64 = side.ae,
    /// A segment had an AccECN option (RFC 9768, section 3.2.3).
    acc_ecn_option: bool = side.acc_ecn_option,
    /// Without copies.
    syn_packets: u64 = side.syn,
    fin_packets: u64 = side.fin,
    rst_packets: u64 = side.rst,
    /// MSS option of the first SYN.
    mss: Option<u16> = side.options.mss,
    /// Window scale shift of the first SYN, 0 to 14.
    window_scale: Option<u8> = side.options.window_scale,
    /// Window of the first SYN, which is never scaled.
    syn_window: Option<u16> = syn.map(|syn| syn.window),
    /// SACK permitted in the first SYN; None where the capture ends before it.
    sack_permitted: Option<bool> = syn.and_then(|syn| syn.known(syn.sack_permitted)),
    /// Timestamps in the first SYN; likewise.
    timestamps: Option<bool> = syn.and_then(|syn| syn.known(syn.timestamps)),
    /// Largest window that this side announced, scaled if both SYNs have the option.
    largest_window: u64 = scaled(side.largest_window),
    /// Window of this side's first segment with data, SYNs apart, scaled likewise; None without such data.
    first_data_window: Option<u64> = side.first_data_window.map(scaled),
    /// Segments with SACK blocks, without those that have only a D-SACK block.
    sack_segments: u64 = side.sack_segments,
    /// SACK blocks, without D-SACK blocks.
    sack_blocks: u64 = side.sack_blocks,
    /// D-SACK blocks (RFC 2883).
    dsack_blocks: u64 = side.dsack_blocks,
    /// Segments by Wireshark's class, each in the most specific one (see `ws_class`).
    ws_retransmission: u64 = ws(WsClass::Retransmission),
    ws_fast_retransmission: u64 = ws(WsClass::FastRetransmission),
    ws_spurious_retransmission: u64 = ws(WsClass::SpuriousRetransmission),
    ws_out_of_order: u64 = ws(WsClass::OutOfOrder),
    ws_keep_alive: u64 = ws(WsClass::KeepAlive),
    ws_keep_alive_ack: u64 = ws(WsClass::KeepAliveAck),
    ws_dup_ack: u64 = ws(WsClass::DupAck),
    ws_zero_window_probe: u64 = ws(WsClass::ZeroWindowProbe),
    ws_zero_window_probe_ack: u64 = ws(WsClass::ZeroWindowProbeAck),
    /// Segments with `tcp.analysis.zero_window`: a count, not a class; so are the four below.
    ws_zero_window: u64 = side.marks.zero_window,
    ws_window_full: u64 = side.marks.window_full,
    ws_window_update: u64 = side.marks.window_update,
    ws_lost_segment: u64 = side.marks.lost_segment,
    ws_acked_unseen: u64 = side.marks.acked_unseen,
    /// Segments by what actually happened (see `true_class`).
    true_new: u64 = truth(TrueClass::New),
    true_retransmission: u64 = truth(TrueClass::Retransmission),
    true_reordered: u64 = truth(TrueClass::Reordered),
    true_duplicate: u64 = truth(TrueClass::Duplicate),
    true_keep_alive: u64 = truth(TrueClass::KeepAlive),
    true_out_of_window: u64 = truth(TrueClass::OutOfWindow),
    /// Retransmitted payload.
    retransmitted_bytes: u64 = side.retransmitted_bytes,
    /// IP bytes of packets with only retransmitted payload, and the retransmitted payload of others.
    retransmitted_ip_bytes: u64 = side.retransmitted_ip_bytes,
    /// Gaps that were not filled before the capture ended.
    missing_bytes: u64 = side.truth.missing_bytes(),
    /// Classified out-of-order segments by evidence: IP-ID order, TSval order, bytes seen before, time.
    truth_by_ip_id: u32 = side.truth.evidence.ip_id,
    truth_by_tsval: u32 = side.truth.evidence.tsval,
    truth_by_seen: u32 = side.truth.evidence.seen,
    truth_by_time: u32 = side.truth.evidence.time,
    /// Round trips from this side: its ACK of data with a new TSval, to the first data that echoes it.
    rtt_ts_count: u64 = by_ts.count,
    rtt_ts_min_ns: Option<i64> = (by_ts.count > 0).then_some(by_ts.min_ns),
    rtt_ts_mean_ns: Option<f64> = by_ts.mean_ns(),
    /// Percentiles are within 0.5 %.
    rtt_ts_p50_ns: Option<f64> = by_ts.quantile_ns(0.5),
    rtt_ts_p95_ns: Option<f64> = by_ts.quantile_ns(0.95),
    rtt_ts_p99_ns: Option<f64> = by_ts.quantile_ns(0.99),
    rtt_ts_max_ns: Option<i64> = (by_ts.count > 0).then_some(by_ts.max_ns),
    /// Times from this side's segments to the ACKs that end at them; without retransmitted segments, or behind a
    /// gap.
    rtt_ack_count: u64 = by_ack.count,
    rtt_ack_min_ns: Option<i64> = (by_ack.count > 0).then_some(by_ack.min_ns),
    rtt_ack_mean_ns: Option<f64> = by_ack.mean_ns(),
    rtt_ack_p50_ns: Option<f64> = by_ack.quantile_ns(0.5),
    rtt_ack_max_ns: Option<i64> = (by_ack.count > 0).then_some(by_ack.max_ns),
    /// Data packets of this side whose TSecr bounds what it had in flight.
    flight_count: u64 = flight.count,
    flight_lower_max: Option<u32> = (flight.count > 0).then_some(flight.lower_max),
    flight_upper_max: Option<u32> = (flight.count > 0).then_some(flight.upper_max),
    flight_lower_mean: Option<f64> = per_packet(flight.lower_sum),
    flight_upper_mean: Option<f64> = per_packet(flight.upper_sum),
    /// Those of them whose upper bound was within two of the largest segments of the window.
    window_limited_share: Option<f64> = per_packet(flight.window_limited),
}
