//! IPv4 and IPv6 headers down to the transport layer.

/// IP protocol number of TCP.
pub const TCP: u8 = 6;
/// IP protocol number of UDP.
pub const UDP: u8 = 17;

/// Tunnels of IP in IP that are followed; more means a crafted packet.
const MOST_NESTED: usize = 4;

/// A whole (unfragmented) datagram.
#[derive(Debug, Clone, Copy, Default)]
pub struct Datagram<'a> {
    /// IP version in the high byte, transport protocol in the low: stored and loaded as one.
    pub kind: u16,
    /// Source; an IPv4 address in the low 32 bits.
    pub source: u128,
    /// Destination.
    pub destination: u128,
    /// The two ECN bits (RFC 3168, section 5).
    pub ecn: u8,
    /// Identification field, IPv4 only.
    pub id: Option<u16>,
    /// IP bytes: IPv4 total length, IPv6 payload length + 40.
    pub ip_bytes: u32,
    /// Transport header and payload in bytes, by the IP header; the frame's length if that is 0 (TSO).
    pub length: u32,
    /// As much of them as was captured.
    pub bytes: &'a [u8],
}

impl Datagram<'_> {
    /// Transport protocol.
    #[inline]
    #[must_use]
    pub fn protocol(&self) -> u8 {
        self.kind.to_be_bytes()[1]
    }
}

/// Why a packet has no usable transport header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Skip {
    /// Not IP, or a header that is cut or bogus.
    NotIp,
    /// A fragment of a datagram.
    Fragment,
    /// Another transport protocol (ICMP among them, with the packets that it quotes).
    OtherProtocol,
}

/// Parses an IP packet whose frame has `original` bytes from here on.
///
/// It fills a datagram instead of returning one: copies of it would cost more than the parsing.
///
/// # Errors
/// Why a packet is not analysed.
#[inline]
pub fn parse<'a>(bytes: &'a [u8], original: u32, datagram: &mut Datagram<'a>) -> Result<(), Skip> {
    layer(bytes, original, datagram)?;
    if matches!(datagram.protocol(), TCP | UDP) {
        return Ok(());
    }
    inner(datagram)
}

/// Follows tunnels of IP in IP (RFC 2003, RFC 4213).
#[cold]
fn inner(datagram: &mut Datagram<'_>) -> Result<(), Skip> {
    for _ in 0..MOST_NESTED {
        match datagram.protocol() {
            TCP | UDP => return Ok(()),
            4 | 41 => layer(datagram.bytes, datagram.length, datagram)?,
            _ => return Err(Skip::OtherProtocol),
        }
    }
    Err(Skip::OtherProtocol)
}

/// A length as the 32 bits that packets have for it.
#[inline]
#[must_use]
pub fn saturated(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

#[inline]
fn layer<'a>(bytes: &'a [u8], original: u32, datagram: &mut Datagram<'a>) -> Result<(), Skip> {
    match bytes.first().map(|first| first >> 4) {
        Some(4) => ipv4(bytes, original, datagram),
        Some(6) => ipv6(bytes, original, datagram),
        _ => Err(Skip::NotIp),
    }
}

#[inline]
fn ipv4<'a>(bytes: &'a [u8], original: u32, datagram: &mut Datagram<'a>) -> Result<(), Skip> {
    let Some(head) = bytes.first_chunk::<20>() else {
        return Err(Skip::NotIp);
    };
    let header = usize::from(head[0] & 0x0f) * 4;
    let mut total = u32::from(u16::from_be_bytes([head[2], head[3]]));
    if total == 0 {
        total = original; // TSO: the network card would have filled it in
    }
    if header < 20 || (total as usize) < header || bytes.len() < header {
        return Err(Skip::NotIp);
    }
    if u16::from_be_bytes([head[6], head[7]]) & 0x3fff != 0 {
        return Err(Skip::Fragment);
    }
    // A packet can be no longer than its frame, and what follows it is padding.
    let length = total.min(original).saturating_sub(saturated(header));
    let rest = &bytes[header..];
    datagram.source = u128::from(u32::from_be_bytes([head[12], head[13], head[14], head[15]]));
    datagram.destination = u128::from(u32::from_be_bytes([head[16], head[17], head[18], head[19]]));
    datagram.kind = 4 << 8 | u16::from(head[9]);
    datagram.ecn = head[1] & 3;
    datagram.id = Some(u16::from_be_bytes([head[4], head[5]]));
    datagram.ip_bytes = total;
    datagram.length = length;
    datagram.bytes = &rest[..rest.len().min(length as usize)];
    Ok(())
}

fn ipv6<'a>(bytes: &'a [u8], original: u32, datagram: &mut Datagram<'a>) -> Result<(), Skip> {
    let Some(head) = bytes.first_chunk::<40>() else {
        return Err(Skip::NotIp);
    };
    let mut payload = u32::from(u16::from_be_bytes([head[4], head[5]]));
    if payload == 0 {
        payload = original.saturating_sub(40); // TSO, or a jumbogram (RFC 2675)
    }
    let length = payload.min(original.saturating_sub(40));
    let mut rest = &bytes[40..];
    rest = &rest[..rest.len().min(length as usize)];
    let (mut protocol, mut left) = (head[6], length);
    // Extension headers (RFC 8200, section 4). Each takes at least 8 bytes, so this ends.
    loop {
        let size = match protocol {
            0 | 43 | 60 | 135 | 139 | 140 => {
                (usize::from(*rest.get(1).ok_or(Skip::NotIp)?) + 1) * 8
            }
            51 => (usize::from(*rest.get(1).ok_or(Skip::NotIp)?) + 2) * 4,
            44 => {
                let offset = [
                    *rest.get(2).ok_or(Skip::NotIp)?,
                    *rest.get(3).ok_or(Skip::NotIp)?,
                ];
                // An atomic fragment (RFC 6946) is whole.
                if u16::from_be_bytes(offset) & 0xfff9 != 0 {
                    return Err(Skip::Fragment);
                }
                8
            }
            _ => break,
        };
        if rest.len() < size {
            return Err(Skip::NotIp);
        }
        protocol = rest[0];
        rest = &rest[size..];
        left = left.saturating_sub(saturated(size));
    }
    datagram.source = u128::from_be_bytes(head[8..24].try_into().expect("16 bytes"));
    datagram.destination = u128::from_be_bytes(head[24..40].try_into().expect("16 bytes"));
    datagram.kind = 6 << 8 | u16::from(protocol);
    datagram.ecn = (head[1] >> 4) & 3;
    datagram.id = None;
    datagram.ip_bytes = payload + 40;
    datagram.length = left;
    datagram.bytes = rest;
    Ok(())
}
