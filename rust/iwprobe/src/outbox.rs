//! Packets to send: at once, or at a rate.

#![allow(
    clippy::cast_possible_truncation, // times and counts as numbers with a fraction, never negative
    clippy::cast_sign_loss
)]

use std::io;
use std::net::IpAddr;

use crate::link::Link;
use crate::packet::{self, Peer};
use crate::segment::{Outgoing, Sink};

const SECOND: f64 = 1e9;
/// Packets that may be sent together, as a share of a second.
const TOGETHER: f64 = 0.002;

/// Packets in the order in which they were made. Memory is kept.
pub struct Outbox {
    bytes: Vec<u8>,
    /// End of each packet in `bytes`, and whether it is IPv6.
    ends: Vec<(usize, bool)>,
    sent: usize,
    pace: Option<Pace>,
}

struct Pace {
    interval: f64,
    together: f64,
    /// Time from which the next packet may leave [ns].
    next: f64,
}

impl Outbox {
    /// An empty one; `rate`: most packets in any second.
    #[must_use]
    pub fn new(rate: Option<f64>) -> Self {
        let pace = rate.map(|rate| {
            let together = (rate * TOGETHER).floor().max(1.0);
            Pace {
                interval: SECOND / (rate - together).max(1.0),
                together,
                next: 0.0,
            }
        });
        Self {
            bytes: Vec::new(),
            ends: Vec::new(),
            sent: 0,
            pace,
        }
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sent == self.ends.len()
    }

    /// Whether there is a rate.
    #[must_use]
    pub fn is_paced(&self) -> bool {
        self.pace.is_some()
    }

    /// When the next packet may leave [ns]; `None`: nothing waits.
    #[must_use]
    pub fn wake(&self) -> Option<u64> {
        let next = self.pace.as_ref().map_or(0.0, |pace| pace.next);
        (!self.is_empty()).then_some(next as u64)
    }

    /// A sink for one connection.
    pub fn to<'a>(&'a mut self, us: IpAddr, peer: &'a Peer) -> Sender<'a> {
        Sender {
            outbox: self,
            us,
            peer,
        }
    }

    /// Sends what may be sent now.
    ///
    /// # Errors
    /// The device is gone, or may not be used.
    pub fn flush(&mut self, links: &[Link], now: u64) -> io::Result<()> {
        while !self.is_empty() {
            let mut most = self.ends.len() - self.sent;
            if let Some(pace) = &self.pace {
                most = most.min(pace.allowed(now as f64));
                if most == 0 {
                    return Ok(());
                }
            }
            let sent = self.send_some(links, most)?;
            if let Some(pace) = &mut self.pace {
                pace.took(now as f64, sent);
            }
            self.sent += sent;
        }
        self.bytes.clear();
        self.ends.clear();
        self.sent = 0;
        Ok(())
    }

    /// Sends the next packets of one family; how many. One that the device has no room for is lost.
    fn send_some(&self, links: &[Link], most: usize) -> io::Result<usize> {
        const BATCH: usize = 64;
        let waiting = &self.ends[self.sent..self.sent + most.min(BATCH)];
        let ipv6 = waiting[0].1;
        let mut batch: [&[u8]; BATCH] = [&[]; BATCH];
        let mut count = 0;
        let mut start = match self.sent {
            0 => 0,
            sent => self.ends[sent - 1].0,
        };
        for &(end, _) in waiting.iter().take_while(|packet| packet.1 == ipv6) {
            batch[count] = &self.bytes[start..end];
            start = end;
            count += 1;
        }
        let Some(link) = links.iter().find(|link| link.us.is_ipv6() == ipv6) else {
            return Ok(count);
        };
        match link.send(&batch[..count]) {
            Ok(sent) => Ok(sent.max(1)),
            Err(error) => match error.raw_os_error() {
                Some(libc::ENOBUFS | libc::EAGAIN | libc::EMSGSIZE) => Ok(1),
                Some(libc::EINTR) => Ok(0),
                _ => Err(error),
            },
        }
    }
}

impl Pace {
    fn allowed(&self, now: f64) -> usize {
        if now < self.next {
            return 0;
        }
        let credit = 1.0 + (now - self.next) / self.interval;
        credit.min(self.together) as usize
    }

    fn took(&mut self, now: f64, count: usize) {
        let oldest = now - (self.together - 1.0) * self.interval;
        self.next = self.next.max(oldest) + count as f64 * self.interval;
    }
}

/// Writes a connection's segments into an outbox.
pub struct Sender<'a> {
    outbox: &'a mut Outbox,
    us: IpAddr,
    peer: &'a Peer,
}

impl Sink for Sender<'_> {
    fn send(&mut self, segment: Outgoing<'_>) {
        packet::write(self.us, self.peer, &segment, &mut self.outbox.bytes);
        let end = self.outbox.bytes.len();
        self.outbox.ends.push((end, self.us.is_ipv6()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_second_has_more_packets_than_the_rate() {
        for rate in [1.0_f64, 10.0, 400.0, 5_000.0] {
            let mut pace = Outbox::new(Some(rate)).pace.unwrap();
            let mut sent = Vec::new();
            let mut now = 5e9;
            for step in 0..300_000 {
                now += if step % 5_000 == 4_999 { 2e9 } else { 37_000.0 }; // with pauses
                let count = pace.allowed(now);
                pace.took(now, count);
                sent.extend(std::iter::repeat_n(now, count));
            }
            let mut first = 0;
            for last in 0..sent.len() {
                while sent[last] - sent[first] >= SECOND {
                    first += 1;
                }
                assert!((last - first + 1) as f64 <= rate, "{rate}");
            }
            assert!(
                sent.len() as f64 > 0.5 * rate * 10.0,
                "{rate}: {}",
                sent.len()
            );
        }
    }
}
