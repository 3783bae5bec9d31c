//! The table of connections in memory.

use crate::connection::{Connection, Key, Phase};
use std::ops::{Index, IndexMut};

/// Connections by slot. A connection's number counts all that there were; its slot is used again once it has left.
#[derive(Debug, Default)]
pub struct Slots {
    places: Vec<Option<Box<Connection>>>,
    free: Vec<u32>,
    /// Connections so far.
    created: u32,
}

/// The rank of a connection: whether it is active, its latest packet, its number; and its slot.
pub type Rank = (Phase, i64, u32, u32);

impl Slots {
    /// How many connections are held.
    pub fn held(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Adds the connection that begins now. Returns its slot.
    pub fn add(&mut self, key: Key, now_ns: i64, with_series: bool) -> u32 {
        let connection = Box::new(Connection::new(key, self.created, now_ns, with_series));
        self.created = self.created.saturating_add(1);
        if let Some(slot) = self.free.pop() {
            self.places[slot as usize] = Some(connection);
            return slot;
        }
        self.places.push(Some(connection));
        u32::try_from(self.places.len() - 1).unwrap_or(u32::MAX)
    }

    /// The connection of a slot, if there is one.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is part of the fast path")]
    pub fn find(&mut self, slot: u32) -> Option<&mut Connection> {
        self.places.get_mut(slot as usize)?.as_deref_mut()
    }

    /// Takes a connection out of its slot.
    pub fn take(&mut self, slot: u32) -> Option<Box<Connection>> {
        let taken = self.places.get_mut(slot as usize)?.take();
        if taken.is_some() {
            self.free.push(slot);
        }
        taken
    }

    /// Takes all connections, in no order.
    #[expect(clippy::vec_box, reason = "they are handed over as they are")]
    pub fn take_all(&mut self) -> Vec<Box<Connection>> {
        self.free.clear();
        self.places.drain(..).flatten().collect()
    }

    /// All connections, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Connection> {
        self.places.iter().filter_map(Option::as_deref)
    }

    /// The rank of each connection, in no order.
    pub fn ranked(&self, now_ns: i64) -> Vec<Rank> {
        let slots = self.places.iter().zip(0u32..);
        slots
            .filter_map(|(held, slot)| {
                let connection = held.as_ref()?;
                Some((
                    connection.phase(now_ns),
                    connection.last_ns,
                    connection.number,
                    slot,
                ))
            })
            .collect()
    }
}

impl Index<u32> for Slots {
    type Output = Connection;

    #[inline]
    fn index(&self, slot: u32) -> &Connection {
        self.places[slot as usize]
            .as_ref()
            .expect("the look-up names slots that are taken")
    }
}

impl IndexMut<u32> for Slots {
    #[inline]
    fn index_mut(&mut self, slot: u32) -> &mut Connection {
        self.places[slot as usize]
            .as_mut()
            .expect("the look-up names slots that are taken")
    }
}
