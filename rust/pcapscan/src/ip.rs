//! IPv4 and IPv6 headers down to the transport layer.

/// IP protocol number of TCP.
pub const TCP: u8 = 6;
/// IP protocol number of UDP.
pub const UDP: u8 = 17;

/// Tunnels of IP in IP that are followed; more means a crafted packet.
const MOST_NESTED: usize = 4;

/// A whole (unfragmented) datagram.
#[derive(Debug, Clone, Copy)]
pub struct Datagram<'a> {
    /// 4 or 6.
    pub version: u8,
    /// Source; an IPv4 address in the low 32 bits.
    pub source: u128,
    /// Destination.
    pub destination: u128,
    /// Transport protocol.
    pub protocol: u8,
    /// The two ECN bits (RFC 3168, section 5).
    pub ecn: u8,
    /// Identification field, IPv4 only.
    pub id: Option<u16>,
    /// IP bytes: IPv4 total length, IPv6 payload length + 40.
    pub ip_bytes: u32,
    /// Transport header and payload in bytes, as the IP header says; the frame's length where that is 0 (TSO).
    pub length: u32,
    /// As much of them as was captured.
    pub bytes: &'a [u8],
}

/// Why a packet has no transport header for us.
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
/// # Errors
/// The reason why there is nothing to analyse.
#[inline]
pub fn parse(bytes: &[u8], original: u32) -> Result<Datagram<'_>, Skip> {
    let mut datagram = layer(bytes, original)?;
    for _ in 0..MOST_NESTED {
        match datagram.protocol {
            TCP | UDP => return Ok(datagram),
            // IP in IP (RFC 2003, RFC 4213).
            4 | 41 => datagram = layer(datagram.bytes, datagram.length)?,
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
fn layer(bytes: &[u8], original: u32) -> Result<Datagram<'_>, Skip> {
    match bytes.first().map(|first| first >> 4) {
        Some(4) => ipv4(bytes, original),
        Some(6) => ipv6(bytes, original),
        _ => Err(Skip::NotIp),
    }
}

#[inline]
fn ipv4(bytes: &[u8], original: u32) -> Result<Datagram<'_>, Skip> {
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
    Ok(Datagram {
        version: 4,
        source: u128::from(u32::from_be_bytes([head[12], head[13], head[14], head[15]])),
        destination: u128::from(u32::from_be_bytes([head[16], head[17], head[18], head[19]])),
        protocol: head[9],
        ecn: head[1] & 3,
        id: Some(u16::from_be_bytes([head[4], head[5]])),
        ip_bytes: total,
        length,
        bytes: &rest[..rest.len().min(length as usize)],
    })
}

fn ipv6(bytes: &[u8], original: u32) -> Result<Datagram<'_>, Skip> {
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
    Ok(Datagram {
        version: 6,
        source: u128::from_be_bytes(head[8..24].try_into().expect("16 bytes")),
        destination: u128::from_be_bytes(head[24..40].try_into().expect("16 bytes")),
        protocol,
        ecn: (head[1] >> 4) & 3,
        id: None,
        ip_bytes: payload + 40,
        length: left,
        bytes: rest,
    })
}
