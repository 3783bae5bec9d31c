//! The record of a connection.

use super::fields::record;
use super::series::SeriesRecord;
use super::side::SideRecord;
use crate::connection::{Connection, Handshake, RoleSource};
use crate::quic::ConnectionId;
use crate::rounds::Round;
use crate::rtt::Summary;
use crate::side::SynOptions;
use crate::tcp::flag;

record! {
    /// One TCP or QUIC connection of a capture.
    Record(connection: &Connection, cut: bool) {
        let (key, handshake) = (&connection.key, &connection.handshake);
        let (by_client, by_server) = (connection.client, connection.client ^ 1);
        let (client, server) = (&connection.sides[by_client], &connection.sides[by_server]);
        let initial_rtt_ns = connection.wireshark.initial_rtt_ns();
        let ecn = Ecn::new(handshake);
        let are_synchronized = handshake.syn_ns.is_some() && handshake.syn_ack_ns.is_some();
        let both = |option: fn(&SynOptions) -> bool| {
            let has = [client, server].map(|side| side.options.known(option(&side.options)));
            // One side that is known to be without it is enough.
            let agreed = if has.contains(&Some(false)) { Some(false) } else { has[0].and(has[1]) };
            agreed.filter(|_| are_synchronized)
        };
        let quic = connection.quic.as_deref();
        let spin = quic.and_then(|quic| quic.spin[1].rtt());
        let hex = |id: Option<ConnectionId>| id.map(|id| id.hex());
        let is_answered = client.packets > 0 && server.data_packets > 0;
        // A capture that begins later may begin behind it.
        let is_begun = quic.is_some() || handshake.syn_ns.or(handshake.syn_ack_ns).is_some();
        let hello = Some(connection.hello).filter(|hello| is_answered && is_begun && hello.packets > 0);
        let answer = connection.answer();
        let has_answer = answer.bytes > 0;
        let rounds = connection.answer_rounds().filter(|_| has_answer);
        let by_round = |value: fn(&Round) -> u64| {
            let rounds = rounds.map_or(&[][..], |rounds| rounds.until(answer.last_ns));
            rounds.iter().map(value).collect()
        };
    }

    /// Index in the capture, from 0, in order of first packets.
    number: u32 = connection.number,
    /// `tcp` or `quic`.
    protocol: &'static str = if connection.quic.is_some() { "quic" } else { "tcp" },
    ip_version: u16 = key.kind >> 8,
    /// The client sent the SYN (for QUIC: the first Initial).
    client_ip: String = key.address(by_client).to_string(),
    client_port: u16 = key.port(by_client),
    server_ip: String = key.address(by_server).to_string(),
    server_port: u16 = key.port(by_server),
    /// Whether the handshake identified the client; else it was guessed from the port numbers.
    client_known: bool = connection.role_source == RoleSource::Handshake,
    /// Earliest packet.
    first_ns: i64 = connection.first_ns,
    /// Latest packet.
    last_ns: i64 = connection.last_ns,
    /// Packets with a time before that of their predecessor: the capture's clock went backwards.
    backwards_packets: u64 = connection.backwards,
    /// The capture file is truncated or damaged: the connection may have had more packets.
    truncated: bool = cut,
    /// Some packets are larger than on the wire: the host merged them (GRO, LRO) or had not yet split them (TSO).
    gro: bool = has_super_packets(connection),

    /// First SYN.
    syn_ns: Option<i64> = handshake.syn_ns,
    /// Last SYN before the first SYN-ACK.
    last_syn_ns: Option<i64> = handshake.last_syn_ns,
    syn_ack_ns: Option<i64> = handshake.syn_ack_ns,
    /// First segment of the client after the SYN-ACK.
    handshake_ack_ns: Option<i64> = handshake.ack_ns,
    /// Whether the SYN-ACK echoes the TSval of the first SYN.
    syn_ack_answers_first_syn: Option<bool> = handshake.answers_first,
    /// Wireshark's iRTT: first segment with ACK and without SYN, minus the last SYN.
    initial_rtt_ns: Option<i64> = (initial_rtt_ns != 0).then_some(initial_rtt_ns),
    /// The *first* SYN had ECE and CWR (RFC 3168, section 6.1.1).
    ecn_requested: Option<bool> = ecn.requested,
    /// The SYN-ACK accepted ECN, classic or accurate, and the SYN that it answers had requested it. None, as for
    /// accurate ECN, unless both are in the capture.
    ecn_accepted: Option<bool> = ecn.accepted,
    /// The first SYN had AE, ECE and CWR (RFC 9768, section 3.1.1).
    acc_ecn_requested: Option<bool> = ecn.accurate_requested,
    /// The SYN-ACK accepted accurate ECN: from then on ECE, CWR and AE form a counter.
    acc_ecn_accepted: Option<bool> = ecn.accurate_accepted,
    /// The first SYN requested ECN and a later one before the SYN-ACK did not.
    ecn_fallback: Option<bool> = ecn.fallback,
    /// Both SYNs permit SACK. None, as for the two below, without the SYNs, or where the capture ends inside one.
    sack_accepted: Option<bool> = both(|syn| syn.sack_permitted),
    /// Both SYNs have the window scale option.
    window_scale_accepted: Option<bool> = both(|syn| syn.window_scale.is_some()),
    /// Both SYNs have the timestamps option.
    timestamps_accepted: Option<bool> = both(|syn| syn.timestamps),

    /// Version of the last long header.
    quic_version: Option<u32> = quic.and_then(|quic| quic.version),
    /// Destination connection ID of the client's first Initial, hexadecimal.
    quic_original_dcid: Option<String> = hex(quic.and_then(|quic| quic.original_destination)),
    quic_client_cid: Option<String> = hex(quic.and_then(|quic| quic.client_id)),
    quic_server_cid: Option<String> = hex(quic.and_then(|quic| quic.server_id)),
    quic_retries: Option<u64> = quic.map(|quic| quic.retries),
    quic_version_negotiations: Option<u64> = quic.map(|quic| quic.negotiations),
    quic_zero_rtt_packets: Option<u64> = quic.map(|quic| quic.zero_rtt),
    /// Initials of the client before the server's first.
    quic_client_initials: Option<u64> = quic.map(|quic| quic.client_initials),
    /// First Initial of the client.
    quic_client_initial_ns: Option<i64> = quic.and_then(|quic| quic.initial_ns[0]),
    /// Last Initial of the client before the server's first.
    quic_last_client_initial_ns: Option<i64> = quic.and_then(|quic| quic.last_client_initial_ns),
    quic_server_initial_ns: Option<i64> = quic.and_then(|quic| quic.initial_ns[1]),
    /// First 1-RTT packet of the client: it has the keys, so its handshake is complete.
    quic_client_short_ns: Option<i64> = quic.and_then(|quic| quic.short_ns[0]),
    quic_server_short_ns: Option<i64> = quic.and_then(|quic| quic.short_ns[1]),
    /// Samples of the spin bit in the server's packets; 0 if it does not spin (RFC 9000, section 17.4).
    quic_spin_rtt_count: Option<u64> = quic.map(|_| spin.map_or(0, |rtt| rtt.count)),
    quic_spin_rtt_min_ns: Option<i64> = spin.map(|rtt| rtt.min_ns),
    quic_spin_rtt_mean_ns: Option<f64> = spin.and_then(Summary::mean_ns),
    quic_spin_rtt_p50_ns: Option<f64> = spin.and_then(|rtt| rtt.quantile_ns(0.5)),

    /// Payload that the client sent before the server's first answer (TCP's handshake apart), without
    /// retransmissions of TCP; None without an answer, and without TCP's handshake.
    client_hello_bytes: Option<u64> = hello.map(|hello| hello.bytes),
    /// Segments or datagrams of it.
    client_hello_packets: Option<u64> = hello.map(|hello| hello.packets),
    /// Last data of the client before the server's largest answer.
    response_request_ns: Option<i64> = (has_answer && answer.request_ns != 0).then_some(answer.request_ns),
    /// First packet of the answer with the most bytes that has 1,000 bytes of payload or more; of TCP its first one, if
    /// none of its first 8 KiB is as long. QUIC: the server's first such 1-RTT datagram after the client's first 1-RTT
    /// packet, and after probes of a larger MTU.
    response_first_ns: Option<i64> = has_answer.then_some(answer.first_ns),
    /// Its last one. What the client had already does not count, nor segments as long as a TLS `close_notify` (23, 24,
    /// 31, 53, 57, 69 or 85 bytes); of QUIC neither datagrams of fewer than 100 bytes, which carry acknowledgements,
    /// nor what came after the client's last datagram.
    response_last_ns: Option<i64> = has_answer.then_some(answer.last_ns),
    /// IP bytes of the server from the connection's first packet to that one, without copies (`true_class` is
    /// `duplicate`).
    response_ip_bytes: Option<u64> = has_answer.then_some(answer.ip_bytes),
    /// Its payload, of TCP without retransmissions; includes TLS records or QUIC packet headers, and HTTP headers.
    response_bytes: u64 = answer.bytes,
    /// Payload up to and with that packet; of QUIC of that packet alone.
    response_first_bytes: u64 = answer.first_bytes,
    /// Length of a round of that answer: the initial round-trip time (of TCP that of ACKs, if the SYN was slow), or a
    /// multiple of it by a power of two, so that there are at most 64 rounds. None without an answer.
    round_ns: Option<i64> = rounds.map(|rounds| rounds.round_ns),
    /// Time per byte of payload within four full packets in a row; a quarter took less [ps/B].
    dispersion_ps_per_byte: Option<f64> = rounds.and_then(|rounds| rounds.dispersion.quantile_ns(0.25)),
    /// New payload by round; the last round ends with the answer. So do the others below.
    round_bytes: Vec<u64> = by_round(|round| round.bytes),
    round_packets: Vec<u64> = by_round(|round| round.packets.into()),
    /// Data packets as in `Side.window_limited_share`; 0 for QUIC.
    round_window_limited: Vec<u64> = by_round(|round| round.window_limited.into()),
    /// Retransmissions, and packets with Congestion Experienced.
    round_losses: Vec<u64> = by_round(|round| round.losses.into()),
    /// Time in which nothing came for more than 1.5 initial round trips; it counts in the round in which it ends.
    round_silent_ns: Vec<u64> = by_round(|round| round.silent_ns),
    /// Mean round-trip time by timestamps; 0: no sample.
    round_rtt_ns: Vec<u64> = by_round(|round| round.rtt_sum_ns / u64::from(round.rtt_count).max(1)),

    /// What the client sent.
    client: SideRecord = SideRecord::new(client),
    /// What the server sent.
    server: SideRecord = SideRecord::new(server),
    /// Time series, if requested (see `docs/design/kpi-engine.md`).
    series: Option<SeriesRecord> = connection.series.as_ref().map(|series| SeriesRecord::new(series, by_client)),
}

/// What SYN and SYN-ACK say about ECN; none without them.
struct Ecn {
    requested: Option<bool>,
    accepted: Option<bool>,
    accurate_requested: Option<bool>,
    accurate_accepted: Option<bool>,
    fallback: Option<bool>,
}

impl Ecn {
    fn new(handshake: &Handshake) -> Self {
        const ECN: u16 = flag::ECE | flag::CWR;
        let requested = |flags: u16| flags & ECN == ECN;
        let accurate_requested = |flags: u16| flags & (ECN | flag::AE) == ECN | flag::AE;
        // RFC 9768, table 2: what a SYN-ACK may say to an AccECN SYN; all else is classic ECN or none.
        let accurate_answer = |flags: u16| {
            flags & (flag::AE | flag::CWR) == flag::CWR
                || flags & (flag::AE | flag::ECE) == flag::AE
        };
        let classic_answer = |flags: u16| flags & ECN == flag::ECE && flags & flag::AE == 0;
        let last_syn = handshake.last_syn_flags;
        // By its TSecr; the last one where that tells nothing.
        let answered_syn = match handshake.answers_first {
            Some(true) => handshake.syn_flags,
            _ => last_syn,
        };
        let syn = handshake.syn_ns.map(|_| handshake.syn_flags);
        // Without the SYN nothing tells what its bits accept.
        let answer = handshake
            .syn_ack_ns
            .and(syn)
            .map(|_| handshake.syn_ack_flags);
        let is_accurate = accurate_requested(answered_syn) && answer.is_some_and(accurate_answer);
        Self {
            requested: syn.map(requested),
            accepted: answer
                .map(|flags| requested(answered_syn) && (classic_answer(flags) || is_accurate)),
            accurate_requested: syn.map(accurate_requested),
            accurate_accepted: answer.map(|_| is_accurate),
            fallback: syn.map(|flags| requested(flags) && !requested(last_syn)),
        }
    }
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
