//! Datagrams that leave together (UDP segmentation offload).

use std::net::SocketAddr;

use nix::errno::Errno;

use crate::socket::Socket;

/// UDP payload of a full packet: 1500 bytes with an IPv6 header, as the lab's TCP servers fill their segments.
pub const DATAGRAM_BYTES: usize = 1_452;
/// Datagrams for one send call; the kernel takes at most 64, and 65,507 bytes.
pub const BURST: usize = 45;

/// Datagrams of one size for one address, which leave by one system call.
pub struct Burst<'a> {
    data: &'a mut [u8],
    filled: usize,
    count: usize,
    segment: usize,
    socket: &'a Socket,
    to: SocketAddr,
    /// System calls so far.
    pub calls: usize,
}

impl<'a> Burst<'a> {
    pub fn new(data: &'a mut [u8], socket: &'a Socket, to: SocketAddr) -> Self {
        Self {
            data,
            filled: 0,
            count: 0,
            segment: 0,
            socket,
            to,
            calls: 0,
        }
    }

    /// Where the next datagram is to be written.
    pub fn room(&mut self) -> &mut [u8] {
        &mut self.data[self.filled..self.filled + DATAGRAM_BYTES]
    }

    /// Takes the datagram that was written to `room`.
    pub fn add(&mut self, size: usize, to: SocketAddr) -> Result<(), Errno> {
        if self.count > 0 && (size > self.segment || to != self.to) {
            // Only the last one may be shorter than the others: this one begins another burst.
            let start = self.filled;
            self.send()?;
            self.data.copy_within(start..start + size, 0);
        }
        if self.count == 0 {
            self.segment = size;
            self.to = to;
        }
        self.filled += size;
        self.count += 1;
        if size < self.segment || self.count == BURST {
            self.send()?;
        }
        Ok(())
    }

    pub fn send(&mut self) -> Result<(), Errno> {
        if self.count > 0 {
            self.socket
                .send(&self.data[..self.filled], self.segment, self.to)?;
            self.calls += 1;
        }
        (self.filled, self.count) = (0, 0);
        Ok(())
    }
}
