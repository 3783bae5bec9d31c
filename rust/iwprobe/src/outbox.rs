//! Packets to send: at once, or at a rate.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;

use crate::link::Link;
use crate::pace::Pace;
use crate::packet::{self, Peer};
use crate::segment::{Outgoing, Sink};

/// Packets in the order in which they were made. Memory is kept.
pub struct Outbox {
    bytes: Vec<u8>,
    /// End of each packet in `bytes`, and whether it is IPv6.
    ends: Vec<(usize, bool)>,
    /// Packets of which a connection is told that they have left, by their place in `ends`.
    told: VecDeque<(usize, Peer)>,
    sent: usize,
    pace: Option<Pace>,
}

impl Outbox {
    /// An empty one; `rate`: most packets in any second.
    #[must_use]
    pub fn new(rate: Option<f64>) -> Self {
        Self {
            bytes: Vec::new(),
            ends: Vec::new(),
            told: VecDeque::new(),
            sent: 0,
            pace: rate.map(Pace::new),
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
        let next = self.pace.as_ref().map_or(0, Pace::next);
        (!self.is_empty()).then_some(next)
    }

    /// A sink for one connection.
    pub fn to<'a>(&'a mut self, us: IpAddr, peer: &'a Peer) -> Sender<'a> {
        Sender {
            outbox: self,
            us,
            peer,
        }
    }

    /// Sends what may be sent now; `left` is told whose packets that were to be told of have left.
    ///
    /// # Errors
    /// The device is gone, or may not be used.
    pub fn flush(
        &mut self,
        links: &[Link],
        now: u64,
        mut left: impl FnMut(&Peer),
    ) -> io::Result<()> {
        while !self.is_empty() {
            let mut most = self.ends.len() - self.sent;
            if let Some(pace) = &self.pace {
                most = most.min(pace.allowed(now));
                if most == 0 {
                    return Ok(());
                }
            }
            let sent = self.send_some(links, most)?;
            if let Some(pace) = &mut self.pace {
                pace.took(now, sent);
            }
            self.sent += sent;
            while let Some(&(at, peer)) = self.told.front()
                && at < self.sent
            {
                left(&peer);
                self.told.pop_front();
            }
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

    fn tell_when_left(&mut self) {
        let last = self.outbox.ends.len() - 1;
        self.outbox.told.push_back((last, *self.peer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::ACK;

    #[test]
    fn who_waits_is_told_when_the_packet_leaves_however_late_the_host_wakes() {
        let us = "198.18.0.1".parse().unwrap();
        let peers = [1, 2, 3].map(|port| Peer {
            address: us,
            port,
            local_port: 9,
        });
        let mut outbox = Outbox::new(Some(10.0));
        for peer in &peers {
            let mut sink = outbox.to(us, peer);
            for flags in [ACK, 0] {
                sink.send(Outgoing {
                    seq: 1,
                    ack: 1,
                    flags,
                    window: 1,
                    syn: None,
                    payload: &[],
                });
                if flags == ACK && peer.port != 2 {
                    sink.tell_when_left();
                }
            }
        }
        let mut told = Vec::new();
        for at in 1_u64..=6 {
            let at = at * 3_000_000_000; // six packets a second are due
            outbox
                .flush(&[], at, |peer| told.push((at / 1_000_000_000, peer.port)))
                .unwrap();
        }
        assert_eq!((told, outbox.is_empty()), (vec![(3, 1), (15, 3)], true));
    }
}
