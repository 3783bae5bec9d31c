//! QUIC as an observer sees it: long headers, then only the spin bit (RFC 8999, RFC 9000 sections 17.2 to 17.4).

use crate::answer::{BODY_BYTES, Response};
use crate::copies::Recent;
use crate::rtt::Summary;

/// Kinds of packets that an observer can tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Initial.
    Initial,
    /// 0-RTT.
    ZeroRtt,
    /// Handshake.
    Handshake,
    /// Retry.
    Retry,
    /// Version negotiation.
    Negotiation,
    /// 1-RTT (short header).
    Short,
}

/// A connection ID of at most 20 bytes (RFC 9000, section 17.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConnectionId {
    bytes: [u8; 20],
    length: u8,
}

impl ConnectionId {
    /// At most 20 bytes.
    fn new(bytes: &[u8]) -> Self {
        let mut id = Self {
            bytes: [0; 20],
            length: u8::try_from(bytes.len()).unwrap_or(0),
        };
        id.bytes[..bytes.len()].copy_from_slice(bytes);
        id
    }

    /// Lower-case hexadecimal digits.
    #[must_use]
    pub fn hex(&self) -> String {
        use std::fmt::Write;
        self.bytes[..usize::from(self.length)]
            .iter()
            .fold(String::new(), |mut text, byte| {
                let _ = write!(text, "{byte:02x}");
                text
            })
    }
}

/// A long header.
#[derive(Debug, Clone, Copy)]
pub struct LongHeader {
    /// Packet type.
    pub kind: Kind,
    /// Version; 0 is version negotiation.
    pub version: u32,
    /// Whether the QUIC bit is set. Where both ends agree, they set it at random (RFC 9287).
    pub has_quic_bit: bool,
    /// Destination connection ID.
    pub destination: ConnectionId,
    /// Source connection ID.
    pub source: ConnectionId,
    /// Offset of the next coalesced packet, if the header has a length.
    pub next: Option<usize>,
}

/// A datagram above this, what an Ethernet frame carries of IPv4 and UDP, is several that the host merged (GRO).
const FRAME_BYTES: u32 = 1472;
/// Datagrams below this carry acknowledgements and no part of a body.
pub const DATA_BYTES: u32 = 100;

/// Of a datagram with a short header, so many bytes tell it from others: 25 of header (RFC 9000, section 17.3.1), and
/// what is encrypted.
const TELLING_BYTES: usize = 48;

/// So many packets after another one show that it is lost and not only late (RFC 9002, section 6.1.1).
const REORDERED: u8 = 3;

/// RFC 9369.
const VERSION_2: u32 = 0x6b33_43cf;

fn is_known(version: u32) -> bool {
    matches!(version, 1 | VERSION_2)
        || version >> 8 == 0x00ff_0000
        || version & 0x0f0f_0f0f == 0x0a0a_0a0a
        || matches!(version >> 16, 0x5130 | 0x5430) // Google's Q0.. and T0..
        || version & 0xffff_ff00 == 0xface_b000
}

/// Whether a UDP payload of `length` bytes with this header begins a connection: a version that we know, or an Initial
/// as RFC 9000 (sections 7.2 and 14.1) wants it from a client, so that experimental versions are found too. Its QUIC
/// bit is set, or it may be anything.
#[must_use]
pub fn begins_connection(header: &LongHeader, length: u32) -> bool {
    let is_initial = header.kind == Kind::Initial && header.destination.length >= 8;
    header.has_quic_bit && (is_known(header.version) || is_initial && length >= 1200)
}

/// Parses the long header at the start of `bytes`; `None` if it is not one. An unknown version is read as version 1.
/// The QUIC bit may have any value.
#[must_use]
pub fn long_header(bytes: &[u8]) -> Option<LongHeader> {
    let first = *bytes.first()?;
    if first & 0x80 == 0 {
        return None;
    }
    let version = u32::from_be_bytes(bytes.get(1..5)?.try_into().ok()?);
    let (destination, at) = connection_id(bytes, 5)?;
    let (source, mut at) = connection_id(bytes, at)?;
    let kind = match (version, (first >> 4) & 3) {
        (0, _) => Kind::Negotiation,
        (VERSION_2, number) => {
            [Kind::Retry, Kind::Initial, Kind::ZeroRtt, Kind::Handshake][usize::from(number)]
        }
        (_, number) => {
            [Kind::Initial, Kind::ZeroRtt, Kind::Handshake, Kind::Retry][usize::from(number)]
        }
    };
    let mut header = LongHeader {
        kind,
        version,
        has_quic_bit: first & 0x40 != 0,
        destination,
        source,
        next: None,
    };
    if kind == Kind::Initial {
        let Some((length, after)) = variable(bytes, at) else {
            return Some(header);
        };
        at = after.saturating_add(usize::try_from(length).unwrap_or(usize::MAX));
    }
    if !matches!(kind, Kind::Negotiation | Kind::Retry)
        && let Some((length, after)) = variable(bytes, at)
    {
        header.next = after.checked_add(usize::try_from(length).unwrap_or(usize::MAX));
    }
    Some(header)
}

fn connection_id(bytes: &[u8], at: usize) -> Option<(ConnectionId, usize)> {
    let length = usize::from(*bytes.get(at)?);
    if length > 20 {
        return None;
    }
    let end = at + 1 + length;
    Some((ConnectionId::new(bytes.get(at + 1..end)?), end))
}

/// A variable-length integer (RFC 9000, section 16) and where it ends.
fn variable(bytes: &[u8], at: usize) -> Option<(u64, usize)> {
    let first = *bytes.get(at)?;
    let length = 1usize << (first >> 6);
    let mut value = u64::from(first & 0x3f);
    for &byte in bytes.get(at + 1..at + length)? {
        value = value << 8 | u64::from(byte);
    }
    Some((value, at + length))
}

/// The spin bit of one direction (RFC 9000, section 17.4): its edges are a round trip apart, where it spins.
#[derive(Debug, Default)]
pub struct Spin {
    last: Option<bool>,
    packets: u64,
    flips: u64,
    /// The bit since the last edge, which came at this time.
    spun: Option<bool>,
    edge_ns: Option<i64>,
    /// Packets in a row with the other bit, and the time of the first.
    others: u8,
    other_ns: i64,
    rtt: Summary,
}

impl Spin {
    /// Takes a packet. Packets that are reordered at an edge flip the bit, too (RFC 9312, section 3.8.2): what flips
    /// sooner than half the handshake's round trip after an edge is one only if the next packets agree.
    fn packet(&mut self, bit: bool, handshake_ns: i64, now_ns: i64) -> Option<i64> {
        self.packets += 1;
        self.flips += u64::from(self.last.is_some_and(|last| last != bit));
        self.last = Some(bit);
        if *self.spun.get_or_insert(bit) == bit {
            self.others = 0;
            return None;
        }
        if self.others == 0 {
            self.other_ns = now_ns;
        }
        self.others += 1;
        let is_soon = |edge_ns| now_ns.saturating_sub(edge_ns) < handshake_ns / 2;
        let at_ns = match self.others {
            REORDERED.. => self.other_ns,
            _ if self.edge_ns.is_some_and(is_soon) => return None,
            _ => now_ns,
        };
        let sample = self.edge_ns.map(|before| at_ns.saturating_sub(before));
        (self.spun, self.edge_ns, self.others) = (Some(bit), Some(at_ns), 0);
        if let Some(rtt_ns) = sample {
            self.rtt.add(rtt_ns);
        }
        sample
    }

    /// Times between edges, where the bit spins. An endpoint that opts out leaves it alone, or sets it at random
    /// (RFC 9000, section 17.4), which flips it on every second packet.
    #[must_use]
    pub fn rtt(&self) -> Option<&Summary> {
        (self.rtt.count >= 2 && self.flips * 4 <= self.packets).then_some(&self.rtt)
    }
}

/// What the packets of a connection tell beside their size.
#[derive(Debug, Default)]
pub struct State {
    /// Version of the last long header that named one.
    pub version: Option<u32>,
    /// Destination connection ID of the client's first Initial.
    pub original_destination: Option<ConnectionId>,
    /// The client's connection ID.
    pub client_id: Option<ConnectionId>,
    /// The server's connection ID.
    pub server_id: Option<ConnectionId>,
    server_ids: Vec<ConnectionId>,
    /// Retry packets.
    pub retries: u64,
    /// Version negotiation packets.
    pub negotiations: u64,
    /// 0-RTT packets.
    pub zero_rtt: u64,
    /// First Initial by the client, and first Initial or Handshake packet by the server, ns.
    pub initial_ns: [Option<i64>; 2],
    /// Last Initial of the client before the server's first, ns, and how many there were.
    pub last_client_initial_ns: Option<i64>,
    /// Initials of the client before the server's first answer.
    pub client_initials: u64,
    /// First 1-RTT packet by the client and by the server, ns.
    pub short_ns: [Option<i64>; 2],
    /// Spin bits of the client's and of the server's packets.
    pub spin: [Spin; 2],
    /// What either sent last.
    recent: [Recent; 2],
    /// The server's answer: from its first 1-RTT datagram with a body, after the client's first 1-RTT packet and probes
    /// of a larger MTU, to its last one that is more than an acknowledgement and came before the client's last
    /// datagram. All answers of a connection count as one.
    pub answer: Response,
    /// What came of it since the client's last datagram. A client that has the answer closes (RFC 9000, section 10.2):
    /// what comes then are probes of a server that waits for acknowledgements, or for a larger MTU.
    unanswered: Unanswered,
    /// How the answer began.
    opening: Opening,
}

/// The server's datagrams with a body before two of them came together. A server sends at least two packets before it
/// waits for an acknowledgement (RFC 9002, section 7.2), so one alone is a probe of a larger MTU, or all that it had.
#[derive(Debug, Default)]
struct Opening {
    /// The last one, as if the answer began with it.
    latest: Response,
    /// A smaller one with data came together with it: the first part of an answer ends so.
    has_rest: bool,
    /// Bytes of the answer before it.
    bytes_before: u64,
    /// The one before, B, and how long before, ns; 0 if none.
    lone_bytes: u64,
    lone_ns: i64,
    lone_has_rest: bool,
    /// What came together with a latest one that is larger, so that this may be a probe, too, B.
    behind_bytes: Option<u64>,
    /// Two came together, or one alone that is no larger than the one before it, or merged ones, or another request.
    is_over: bool,
}

/// Datagrams of an answer.
#[derive(Debug, Clone, Copy, Default)]
struct Unanswered {
    bytes: u64,
    last_ns: i64,
    ip_bytes: u64,
}

impl State {
    /// Whether a client's Initial belongs to another connection on the same 4-tuple.
    #[must_use]
    pub fn is_new_connection(&self, header: &LongHeader) -> bool {
        let (Some(client), Some(original)) = (self.client_id, self.original_destination) else {
            return false;
        };
        header.kind == Kind::Initial
            && (header.source != client
                || (header.destination != original
                    && !self.server_ids.contains(&header.destination)))
            && self.short_ns.iter().any(Option::is_some)
    }

    /// Whether a datagram came before. An endpoint sends no packet twice, as each has its own number (RFC 9000, section
    /// 12.3): what it retransmits is in a new one, and is encrypted anew. Where too little was captured, none is a copy.
    /// The arguments are those of [`State::datagram`].
    pub fn is_copy(&mut self, role: usize, bytes: &[u8], len: u32) -> bool {
        telling(bytes, len).is_some_and(|telling| self.recent[role].has(telling, len))
    }

    /// Takes a datagram of `len` bytes, of which `bytes` were captured; `role` is 0 for the client's. With it, its
    /// sender has sent `ip_bytes`. Returns a spin-bit sample, ns.
    pub fn datagram(
        &mut self,
        role: usize,
        bytes: &[u8],
        len: u32,
        ip_bytes: u64,
        now_ns: i64,
    ) -> Option<i64> {
        if role == 0 {
            self.count_answer();
            // Another request: what came before was an answer. The client probes for its MTU, too.
            let is_request = (DATA_BYTES..BODY_BYTES).contains(&len);
            self.opening.is_over |= is_request && self.answer.first_bytes > 0;
        } else if bytes.first().is_some_and(|first| first & 0x80 == 0) {
            self.note_answer(len, ip_bytes, now_ns);
        }
        let mut at = 0;
        // A datagram holds few coalesced packets; each step moves on.
        for _ in 0..8 {
            let rest = bytes.get(at..).filter(|rest| !rest.is_empty())?;
            if at > 0 && rest[0] & 0x40 == 0 {
                return None; // padding; at the start of a datagram the bit may be greased (RFC 9287)
            }
            if rest[0] & 0x80 == 0 {
                self.short_ns[role].get_or_insert(now_ns);
                let handshake_ns = self.handshake_ns().unwrap_or(0);
                return self.spin[role].packet(rest[0] & 0x20 != 0, handshake_ns, now_ns);
            }
            let header = long_header(rest)?;
            self.long(role, &header, now_ns);
            at = at.checked_add(header.next?)?;
        }
        None
    }

    /// Round trip of the handshake, ns: from the last Initial of the client before the server's first. Those before
    /// were lost, or answered by a Retry.
    #[must_use]
    pub fn handshake_ns(&self) -> Option<i64> {
        self.initial_ns[1]?.checked_sub(self.last_client_initial_ns?)
    }

    fn note_answer(&mut self, len: u32, ip_bytes: u64, now_ns: i64) {
        if !self.opening.is_over && len >= BODY_BYTES {
            self.note_opening(len, ip_bytes, now_ns);
        } else if len >= DATA_BYTES && !self.is_alone(now_ns) {
            self.opening.has_rest = true;
        }
        if self.answer.first_bytes > 0 && len >= DATA_BYTES {
            self.unanswered.last_ns = now_ns;
            self.unanswered.ip_bytes = ip_bytes;
            self.unanswered.bytes += u64::from(len);
        }
    }

    /// Whether more than a quarter of a round trip has passed since the latest datagram with a body.
    fn is_alone(&self, now_ns: i64) -> bool {
        let rtt_ns = self.handshake_ns().unwrap_or(0);
        rtt_ns > 0 && now_ns.saturating_sub(self.opening.latest.first_ns) > rtt_ns / 4
    }

    /// Begins the answer; once more behind probes of a larger MTU (RFC 9000, section 14.4). Each comes alone and is
    /// larger than the one before, and than what follows; once acknowledged, a round trip later, that may be as large.
    /// The last of several may come together with the body, so that the next one tells how large that is. Merged ones
    /// (GRO) have no size to compare.
    fn note_opening(&mut self, len: u32, ip_bytes: u64, now_ns: i64) {
        let Some(request_ns) = self.short_ns[0] else {
            return;
        };
        let is_alone = self.opening.behind_bytes.is_none() && self.is_alone(now_ns);
        let rtt_ns = self.handshake_ns().unwrap_or(0);
        let opening = &mut self.opening;
        let (is_merged, len, latest) = (len > FRAME_BYTES, u64::from(len), opening.latest);
        let is_growing = opening.lone_bytes < latest.first_bytes;
        if latest.first_bytes == 0 || is_alone && is_growing {
            opening.lone_bytes = latest.first_bytes;
            opening.lone_ns = now_ns.saturating_sub(latest.first_ns);
            opening.lone_has_rest = std::mem::take(&mut opening.has_rest);
            opening.is_over = is_merged;
            opening.bytes_before = self.answer.bytes + self.unanswered.bytes;
            opening.latest = Response {
                first_ns: now_ns,
                last_ns: now_ns,
                ip_bytes,
                first_bytes: len,
                request_ns,
                ..Response::default()
            };
            if self.answer.first_bytes == 0 {
                self.answer = opening.latest;
            }
            return;
        }
        let one_bytes = if is_merged { 0 } else { len };
        let (lone, behind) = (opening.lone_bytes, opening.behind_bytes);
        let largest = one_bytes.max(behind.unwrap_or(latest.first_bytes));
        let is_acknowledged = opening.lone_ns >= rtt_ns && !opening.lone_has_rest;
        let is_probe = lone > largest || lone == largest && is_acknowledged;
        let is_open = lone > 0 && behind.is_none() && len < latest.first_bytes;
        opening.is_over = is_probe || is_alone || !is_open;
        opening.behind_bytes = Some(len);
        if is_probe && !is_alone {
            let (before, found) = (opening.bytes_before, self.answer);
            self.answer = latest;
            self.unanswered.bytes -= before.saturating_sub(found.bytes);
            if found.bytes > before {
                self.answer.bytes = found.bytes - before;
                (self.answer.last_ns, self.answer.ip_bytes) = (found.last_ns, found.ip_bytes);
            }
        }
    }

    fn count_answer(&mut self) {
        let Unanswered {
            bytes,
            last_ns,
            ip_bytes,
        } = std::mem::take(&mut self.unanswered);
        if bytes > 0 {
            self.answer.last_ns = last_ns;
            self.answer.ip_bytes = ip_bytes;
            self.answer.bytes += bytes;
        }
    }

    fn long(&mut self, role: usize, header: &LongHeader, now_ns: i64) {
        if header.version != 0 {
            self.version = Some(header.version);
        }
        match header.kind {
            Kind::Retry => self.retries += 1,
            Kind::Negotiation => self.negotiations += 1,
            Kind::ZeroRtt => self.zero_rtt += 1,
            Kind::Initial => {
                self.initial_ns[role].get_or_insert(now_ns);
                if role == 0 && self.initial_ns[1].is_none() {
                    self.last_client_initial_ns = Some(now_ns);
                    self.client_initials += 1;
                }
            }
            // The server's Initial may be lost alone: what came right behind it answers the client, too.
            Kind::Handshake if role == 1 => {
                self.initial_ns[1].get_or_insert(now_ns);
            }
            Kind::Handshake | Kind::Short => {}
        }
        if role == 0 {
            self.original_destination.get_or_insert(header.destination);
            self.client_id = Some(header.source);
        } else if header.kind != Kind::Negotiation {
            self.server_id = Some(header.source);
            if !self.server_ids.contains(&header.source) && self.server_ids.len() < 4 {
                self.server_ids.push(header.source);
            }
        }
    }
}

/// What tells a datagram from others; none of Retry and version negotiation, which have no number and may be repeated.
fn telling(bytes: &[u8], len: u32) -> Option<&[u8]> {
    let is_whole = usize::try_from(len).is_ok_and(|len| bytes.len() >= len);
    if bytes.first()? & 0x80 == 0 {
        return bytes.get(..TELLING_BYTES).or(is_whole.then_some(bytes));
    }
    let kind = long_header(bytes)?.kind;
    (is_whole && !matches!(kind, Kind::Negotiation | Kind::Retry)).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn initial(destination: &[u8], source: &[u8], rest: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0xc3, 0, 0, 0, 1, u8::try_from(destination.len()).unwrap()];
        bytes.extend(destination);
        bytes.push(u8::try_from(source.len()).unwrap());
        bytes.extend(source);
        bytes.extend(rest);
        bytes
    }

    #[test]
    fn coalesced_packets_are_walked() {
        let mut bytes = initial(&[1; 8], &[2, 3], &[0, 2, 9, 9]);
        bytes.extend([0x60, 1, 2, 3]);
        let header = long_header(&bytes).unwrap();
        assert_eq!(
            (header.kind, header.version, header.next),
            (Kind::Initial, 1, Some(bytes.len() - 4))
        );
        assert_eq!(header.source.hex(), "0203");
        let mut state = State::default();
        state.datagram(0, &bytes, u32::try_from(bytes.len()).unwrap(), 0, 7);
        assert_eq!((state.initial_ns[0], state.short_ns[0]), (Some(7), Some(7)));
    }

    #[test]
    fn a_greased_quic_bit_hides_no_packet_and_padding_is_none() {
        for greased in [0, 0x40] {
            let mut state = State::default();
            state.datagram(0, &[greased; 40], 90, 0, 1);
            state.datagram(1, &[greased; 40], 1200, 0, 2);
            state.datagram(0, &[greased; 40], 30, 0, 3);
            assert_eq!((state.short_ns[0], state.answer.bytes), (Some(1), 1200));
            let mut bytes = initial(&[1; 8], &[2, 3], &[0, 2, 9, 9]);
            bytes[0] ^= greased;
            bytes.resize(1200, 0);
            assert!(begins_connection(&long_header(&bytes).unwrap(), 1200) == (greased == 0));
            let mut state = State::default();
            state.datagram(0, &bytes, 1200, 0, 7);
            assert_eq!((state.initial_ns[0], state.short_ns[0]), (Some(7), None));
        }
    }

    #[test]
    fn what_has_no_number_or_was_cut_is_no_copy() {
        let again = |bytes: &[u8], len| {
            let mut state = State::default();
            assert!(!state.is_copy(0, bytes, len));
            !state.is_copy(1, bytes, len) && state.is_copy(0, bytes, len)
        };
        let long = initial(&[1; 8], &[2, 3], &[0, 2, 9, 9]);
        assert!(again(&long, 20), "an Initial");
        assert!(!again(&long, 1200), "cut");
        let mut unnumbered = long.clone();
        unnumbered[0] = 0xf3;
        assert!(!again(&unnumbered, 20), "Retry");
        (unnumbered[0], unnumbered[4]) = (0xc3, 0);
        assert!(!again(&unnumbered, 20), "version negotiation");
        assert!(again(&[0x41; 60], 1200), "1-RTT");
        assert!(again(&[0x41; 30], 30), "an acknowledgement");
        assert!(
            !again(&[0x41; 30], 1200),
            "its header may fill what was captured"
        );
        assert!(!again(&[], 0));
    }

    #[test]
    fn cuts_are_harmless() {
        let bytes = initial(&[1; 8], &[2, 3], &[0, 0x80, 0, 0, 4, 1, 2, 3, 4]);
        for length in 0..bytes.len() {
            let _ = long_header(&bytes[..length]);
            State::default().datagram(0, &bytes[..length], 1200, 0, 1);
        }
    }

    #[test]
    fn an_answer_begins_with_a_body_after_the_request_and_ends_before_acknowledgements_and_probes()
    {
        let mut state = State::default();
        let short = [0x41; 30];
        state.datagram(1, &short, 1300, 1000, 1); // before the request: no answer to it
        state.datagram(0, &short, 90, 2000, 2);
        state.datagram(1, &short, 300, 3000, 3); // settings
        assert_eq!(state.answer.bytes, 0);
        state.datagram(1, &short, 1200, 4000, 4);
        state.datagram(1, &short, 35, 5000, 5);
        state.datagram(1, &short, 700, 6000, 6);
        state.datagram(1, &short, 35, 7000, 7);
        state.datagram(0, &short, 30, 8000, 8); // CONNECTION_CLOSE
        state.datagram(1, &short, 1400, 9000, 9); // a probe
        let answer = state.answer;
        assert_eq!(
            (answer.request_ns, answer.first_ns, answer.last_ns),
            (2, 4, 6)
        );
        assert_eq!((answer.bytes, answer.first_bytes), (1900, 1200));
        assert_eq!(answer.ip_bytes, 6000);
    }

    /// Time of an answer's first byte, its bytes and the size of its first datagram. The handshake takes 50 ms; the
    /// server sends datagrams of these sizes at these times (ms), and the client answers each with so many bytes.
    fn began(datagrams: &[(i64, u32)], answer_bytes: u32) -> (i64, u64, u64) {
        const MS: i64 = 1_000_000;
        let mut state = State::default();
        let short = [0x41; 30];
        let long = |to, from| initial(&[to; 8], &[from; 8], &[0, 2, 9, 9]);
        state.datagram(0, &long(1, 2), 1200, 0, 0);
        state.datagram(1, &long(2, 3), 1200, 0, 50 * MS);
        state.datagram(0, &short, 90, 0, 50 * MS);
        for &(at, len) in datagrams {
            state.datagram(1, &short, len, 0, at * MS);
            state.datagram(0, &short, answer_bytes, 0, at * MS);
        }
        let answer = state.answer;
        (answer.first_ns / MS, answer.bytes, answer.first_bytes)
    }

    #[test]
    fn a_probe_of_a_larger_mtu_begins_no_answer() {
        let body = [(400, 1250), (401, 1250), (402, 700)];
        for probes in [
            &[(100, 300)][..],           // settings
            &[(100, 1350)],              // lost, or not yet acknowledged
            &[(100, 1350), (101, 300)],  // with tickets behind it
            &[(100, 1250)],              // acknowledged: the body is as large
            &[(100, 1200), (150, 1250)], // one after the other
            &[(360, 1350)],              // less than a round trip before the body
        ] {
            let datagrams = [probes, &body].concat();
            for answer_bytes in [30, 1252] {
                assert_eq!(
                    began(&datagrams, answer_bytes),
                    (400, 3200, 1250),
                    "{probes:?}"
                );
            }
        }
    }

    #[test]
    fn the_last_of_several_probes_may_come_together_with_the_body() {
        let probes = [(100, 1200), (150, 1300), (395, 1350)];
        let datagrams = [&probes[..], &[(400, 1250), (401, 1250), (402, 700)]].concat();
        for answer_bytes in [30, 1252] {
            assert_eq!(began(&datagrams, answer_bytes), (395, 4550, 1350));
        }
        let of_two = [(100, 1350), (400, 1250), (401, 1050)];
        assert_eq!(began(&of_two, 30), (400, 2300, 1250));
    }

    #[test]
    fn what_is_no_probe_begins_an_answer() {
        for datagrams in [
            &[(100, 1250), (100, 1100)][..],
            &[(100, 1250), (150, 1100)], // a body of two, over two round trips
            &[(100, 1250), (150, 1100), (400, 1250), (401, 1250)], // and another one
            &[(100, 1100), (400, 1250), (401, 1250)], // headers before the server thinks
            &[(100, 1100), (400, 1250), (401, 1050)],
            &[(100, 1100), (400, 1350), (401, 1250), (402, 1250)],
            &[(100, 1250), (100, 450), (400, 1250), (401, 1250)], // a head of two
            &[(100, 12500), (150, 5000), (151, 5000)],            // merged by the host
            &[
                (100, 1250),
                (120, 1250),
                (140, 1250),
                (200, 1250),
                (201, 1250),
            ], // a slow path
            &[(100, 1250), (140, 1250), (141, 1250)],
        ] {
            let bytes = datagrams.iter().map(|&(_, len)| u64::from(len)).sum();
            let first = u64::from(datagrams[0].1);
            assert_eq!(began(datagrams, 30), (100, bytes, first), "{datagrams:?}");
        }
        let requests = [(100, 1250), (400, 1250), (401, 1250)];
        assert_eq!(began(&requests, 300), (100, 3750, 1250));
    }

    #[test]
    fn a_spinning_bit_gives_round_trips_and_a_random_one_none() {
        let (mut spinning, mut random) = (Spin::default(), Spin::default());
        for n in 0..1000i64 {
            spinning.packet(n / 50 % 2 == 1, 50_000_000, n * 1_000_000);
            random.packet(n * n % 7 < 3, 50_000_000, n * 1_000_000);
        }
        let rtt = spinning.rtt().unwrap();
        assert_eq!((rtt.min_ns, rtt.max_ns), (50_000_000, 50_000_000));
        assert!(random.rtt().is_none());
    }

    #[test]
    fn packets_reordered_at_an_edge_are_no_round_trip() {
        let mut state = State::default();
        state.datagram(0, &initial(&[1; 8], &[2], &[0, 2, 9, 9]), 1200, 1228, 1); // lost
        let sent_ns = 1_000_000_000;
        state.datagram(
            0,
            &initial(&[1; 8], &[2], &[0, 2, 9, 9]),
            1200,
            2456,
            sent_ns,
        );
        let began_ns = sent_ns + 50_000_000;
        state.datagram(1, &initial(&[2], &[3], &[0, 2, 9, 9]), 1200, 1228, began_ns);
        for n in 0..1000i64 {
            let sent = match n {
                149 | 399 | 649 => n + 1,
                150 | 400 | 650 => n - 1,
                _ => n,
            };
            let first = 0x40 | u8::from(sent / 50 % 2 == 1) << 5;
            state.datagram(1, &[first; 30], 1200, 1228, began_ns + n * 1_000_000);
        }
        let rtt = state.spin[1].rtt().unwrap();
        assert_eq!(
            (rtt.count, rtt.min_ns, rtt.max_ns),
            (18, 49_000_000, 51_000_000)
        );
    }

    #[test]
    fn a_path_that_is_faster_than_its_handshake_keeps_its_round_trips() {
        let mut spin = Spin::default();
        for n in 0..1000i64 {
            spin.packet(n / 10 % 2 == 1, 50_000_000, n * 1_000_000);
        }
        let rtt = spin.rtt().unwrap();
        assert_eq!((rtt.min_ns, rtt.max_ns), (10_000_000, 10_000_000));
    }
}
