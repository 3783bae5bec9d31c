//! Which connection a packet belongs to.

use crate::connection::Key;
use crate::ip::{self, Datagram};
use crate::plain::Plain;
use rustc_hash::FxHashMap;

/// Entries for connections that were met lately. Interleaved flows are few, and a look-up here is cheaper than hashing.
const RECENT_BITS: u32 = 7;
const PLAIN_BITS: u32 = 9;

/// One direction of a connection, as its packets have it on the wire.
#[derive(Debug, Clone, Copy, Default)]
struct PlainSlot {
    addresses: u64,
    ports: u32,
    /// Number of the connection, then one bit for the direction; shifted by one entry, so that 0 means no connection.
    target: u32,
}

/// Connections by their endpoints; of several on the same endpoints the newest.
pub struct Lookup {
    by_key: FxHashMap<Key, u32>,
    /// Those that were met lately, by a cheap hash.
    recent: Box<[Option<(Key, u32)>; 1 << RECENT_BITS]>,
    plain: Box<[PlainSlot; 1 << PLAIN_BITS]>,
    has_plain: bool,
}

impl Lookup {
    /// Without connections. `has_plain` says whether [`Lookup::plain`] may find any.
    #[must_use]
    pub fn new(has_plain: bool) -> Self {
        Self {
            by_key: FxHashMap::default(),
            recent: Box::new([None; 1 << RECENT_BITS]),
            plain: Box::new([PlainSlot::default(); 1 << PLAIN_BITS]),
            has_plain,
        }
    }

    /// Number of the connection of a plain segment and the segment's direction, where it was met lately.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is part of the fast path")]
    #[must_use]
    pub fn plain(&self, segment: Plain<'_>) -> Option<(u32, usize)> {
        let (addresses, ports) = (segment.addresses(), segment.ports());
        let slot = &self.plain[Plain::slot(addresses, ports, PLAIN_BITS)];
        if slot.addresses != addresses || slot.ports != ports {
            return None;
        }
        let target = slot.target.checked_sub(2)?;
        Some((target >> 1, (target & 1) as usize))
    }

    /// Number of the connection of a packet, and the packet's direction.
    #[inline]
    pub fn find(&mut self, datagram: &Datagram<'_>, ports: (u16, u16)) -> Option<(u32, usize)> {
        let at = slot(datagram.source, datagram.destination, ports);
        if let Some((key, number)) = self.recent[at]
            && let Some(direction) = key.direction(datagram, ports)
        {
            self.note_plain(&key, number);
            return Some((number, direction));
        }
        let (key, direction) = Key::of(datagram, ports);
        let number = *self.by_key.get(&key)?;
        self.recent[at] = Some((key, number));
        self.note_plain(&key, number);
        Some((number, direction))
    }

    /// Adds a connection, which takes the place of another with the same key; that one is returned.
    pub fn insert(&mut self, key: Key, number: u32) -> Option<u32> {
        let earlier = self.by_key.insert(key, number);
        let at = slot(key.greater, key.lesser, (key.port(0), key.port(1)));
        self.recent[at] = Some((key, number));
        self.note_plain(&key, number);
        earlier
    }

    /// Removes a connection, unless another has taken its place. Call [`Lookup::forget_recent`] before the next look-up.
    pub fn remove(&mut self, key: &Key, number: u32) {
        if self.by_key.get(key) == Some(&number) {
            self.by_key.remove(key);
        }
    }

    /// Forgets what was met lately.
    pub fn forget_recent(&mut self) {
        self.recent.fill(None);
        self.plain.fill(PlainSlot::default());
    }

    /// Lets plain segments of this connection find it.
    fn note_plain(&mut self, key: &Key, number: u32) {
        const TCP_ON_IPV4: u16 = 4 << 8 | ip::TCP as u16;
        if key.kind != TCP_ON_IPV4 || number >= u32::MAX / 2 - 1 || !self.has_plain {
            return;
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "IPv4 addresses are in the low 32 bits"
        )]
        let (greater, lesser) = (key.greater as u32, key.lesser as u32);
        let ends = [
            (greater, lesser, key.ports),
            (lesser, greater, key.ports.rotate_left(16)),
        ];
        // An endpoint that talks to itself has direction 1, which is written last.
        for (direction, (from, to, ports)) in (0..).zip(ends) {
            let addresses = u64::from(from) << 32 | u64::from(to);
            let target = (number << 1 | direction) + 2;
            self.plain[Plain::slot(addresses, ports, PLAIN_BITS)] = PlainSlot {
                addresses,
                ports,
                target,
            };
        }
    }
}

/// Where a connection stands in [`Lookup::recent`]: the same for both directions.
#[inline]
fn slot(one: u128, other: u128, ports: (u16, u16)) -> usize {
    const MIX: u64 = 0x9e37_79b9_7f4a_7c15; // 2^64 / golden ratio
    let addresses = one ^ other;
    #[expect(
        clippy::cast_possible_truncation,
        reason = "halves are folded, all bits count"
    )]
    let folded = (addresses >> 64) as u64 ^ addresses as u64 ^ u64::from(ports.0 ^ ports.1) << 32;
    (folded.wrapping_mul(MIX) >> (64 - RECENT_BITS)) as usize
}
