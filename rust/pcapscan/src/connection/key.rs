//! What names a connection on the wire.

use crate::ip::Datagram;

/// Two endpoints and a protocol. Direction 0 of a connection is from the greater endpoint to the lesser.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    /// The greater endpoint's address, IPv4 in the low 32 bits.
    pub greater: u128,
    /// The lesser endpoint's address.
    pub lesser: u128,
    /// The ports, the greater endpoint's in the high half.
    pub ports: u32,
    /// IP version in the high half, transport protocol in the low.
    pub kind: u16,
}

impl Key {
    /// The key of a packet, and the packet's direction.
    #[inline]
    #[must_use]
    pub fn of(
        datagram: &Datagram<'_>,
        (source_port, destination_port): (u16, u16),
    ) -> (Self, usize) {
        let from_greater =
            (datagram.source, source_port) > (datagram.destination, destination_port);
        let ports = |high: u16, low: u16| u32::from(high) << 16 | u32::from(low);
        let kind = datagram.kind;
        if from_greater {
            let ports = ports(source_port, destination_port);
            (
                Self {
                    greater: datagram.source,
                    lesser: datagram.destination,
                    ports,
                    kind,
                },
                0,
            )
        } else {
            let ports = ports(destination_port, source_port);
            (
                Self {
                    greater: datagram.destination,
                    lesser: datagram.source,
                    ports,
                    kind,
                },
                1,
            )
        }
    }

    /// The direction of a packet if it is of this connection.
    #[inline]
    #[must_use]
    pub fn direction(&self, datagram: &Datagram<'_>, ports: (u16, u16)) -> Option<usize> {
        if self.kind != datagram.kind {
            return None;
        }
        let (here, there) = (u32::from(ports.0), u32::from(ports.1));
        let (source, destination) = (datagram.source, datagram.destination);
        // An endpoint that talks to itself has direction 1, as in `of`.
        if source == self.lesser && destination == self.greater && self.ports == there << 16 | here
        {
            return Some(1);
        }
        (source == self.greater && destination == self.lesser && self.ports == here << 16 | there)
            .then_some(0)
    }

    /// Port of the sender of this direction's packets.
    #[must_use]
    pub fn port(&self, direction: usize) -> u16 {
        let [a, b, c, d] = self.ports.to_be_bytes();
        if direction == 0 {
            u16::from_be_bytes([a, b])
        } else {
            u16::from_be_bytes([c, d])
        }
    }

    /// Address of the sender of this direction's packets.
    #[must_use]
    pub fn address(&self, direction: usize) -> std::net::IpAddr {
        let value = if direction == 0 {
            self.greater
        } else {
            self.lesser
        };
        if self.kind >> 8 == 6 {
            std::net::IpAddr::V6(value.into())
        } else {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "an IPv4 address is in the low 32 bits"
            )]
            std::net::IpAddr::V4((value as u32).into())
        }
    }

    /// Which direction is the client's without a handshake: the server has the lower port below 1024 or one of
    /// the usual ones, else the lower port.
    pub(super) fn guess_client(&self) -> usize {
        const USUAL: [u16; 6] = [3128, 4433, 5001, 8000, 8080, 8443];
        let rank = |port: u16| (port >= 1024 && !USUAL.contains(&port), port);
        usize::from(rank(self.port(0)) < rank(self.port(1)))
    }
}
