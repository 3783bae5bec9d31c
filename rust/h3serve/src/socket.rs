//! UDP sockets: one per address, non-blocking, with merged datagrams in both directions.

use std::cell::Cell;
use std::io::{IoSlice, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, sendmsg, setsockopt,
    sockopt,
};
use nix::sys::time::TimeSpec;

/// Asked for both buffers. Without the privilege to exceed `net.core.rmem_max` and `wmem_max` the kernel grants less.
const BUFFER_BYTES: usize = 16 << 20;
/// How long to wait for room in the send buffer before datagrams are given up; QUIC then sends their content again.
const SEND_PATIENCE: Duration = Duration::from_millis(20);
/// The largest thing that one receive call can give.
pub const RECEIVE_SIZE: usize = 65_535;

/// A socket that is bound to one address.
#[derive(Debug)]
pub struct Socket {
    inner: UdpSocket,
    pub local: SocketAddr,
    /// Whether the kernel cuts one send into datagrams (udp(7), `UDP_SEGMENT`); found out by the first that fails.
    segments: Cell<bool>,
}

/// What one receive call gave: datagrams of `segment` bytes, save the last, which may be shorter.
#[derive(Debug, Clone, Copy)]
pub struct Batch {
    pub bytes: usize,
    pub segment: usize,
    pub from: SocketAddr,
}

impl Socket {
    pub fn bind(address: SocketAddr) -> std::io::Result<Self> {
        let inner = UdpSocket::bind(address)?;
        inner.set_nonblocking(true)?;
        // Each option is a help, not a need.
        if setsockopt(&inner, sockopt::RcvBufForce, &BUFFER_BYTES).is_err() {
            let _ = setsockopt(&inner, sockopt::RcvBuf, &BUFFER_BYTES);
        }
        if setsockopt(&inner, sockopt::SndBufForce, &BUFFER_BYTES).is_err() {
            let _ = setsockopt(&inner, sockopt::SndBuf, &BUFFER_BYTES);
        }
        let _ = setsockopt(&inner, sockopt::UdpGroSegment, &true);
        let local = inner.local_addr()?;
        Ok(Self {
            inner,
            local,
            segments: Cell::new(true),
        })
    }

    /// Takes what is waiting; `None` when nothing is.
    pub fn receive(&self, buffer: &mut [u8]) -> Result<Option<Batch>, Errno> {
        let mut slices = [IoSliceMut::new(buffer)];
        let mut control = nix::cmsg_space!(i32);
        let descriptor = self.inner.as_raw_fd();
        let flags = MsgFlags::empty();
        let message =
            match recvmsg::<SockaddrStorage>(descriptor, &mut slices, Some(&mut control), flags) {
                Ok(message) => message,
                // An ICMP error of a client that no longer exists comes as ECONNREFUSED.
                Err(Errno::EAGAIN | Errno::EINTR | Errno::ECONNREFUSED) => return Ok(None),
                Err(error) => return Err(error),
            };
        let segment = message.cmsgs().into_iter().flatten().find_map(|control| {
            if let ControlMessageOwned::UdpGroSegments(size) = control {
                usize::try_from(size).ok().filter(|size| *size > 0)
            } else {
                None
            }
        });
        let Some(from) = message.address.as_ref().and_then(standard_address) else {
            return Ok(None);
        };
        Ok(Some(Batch {
            bytes: message.bytes,
            segment: segment.unwrap_or(message.bytes).max(1),
            from,
        }))
    }

    /// Sends datagrams of `segment` bytes, save the last, which may be shorter. What finds no room for a while is
    /// dropped, as it would be on any path.
    pub fn send(&self, data: &[u8], segment: usize, to: SocketAddr) -> Result<(), Errno> {
        if data.len() > segment && self.segments.get() {
            match self.send_once(data, u16::try_from(segment).ok(), to) {
                // Kernels before 6.11 cut only for devices that compute checksums.
                Err(Errno::EIO | Errno::EINVAL | Errno::EOPNOTSUPP) => self.segments.set(false),
                done => return done,
            }
        }
        data.chunks(segment)
            .try_for_each(|datagram| self.send_once(datagram, None, to))
    }

    fn send_once(&self, data: &[u8], segment: Option<u16>, to: SocketAddr) -> Result<(), Errno> {
        let slices = [IoSlice::new(data)];
        let gso = segment.as_ref().map(ControlMessage::UdpGsoSegments);
        let control: &[ControlMessage<'_>] = gso.as_slice();
        let address = SockaddrStorage::from(to);
        let descriptor = self.inner.as_raw_fd();
        for _ in 0..2 {
            match sendmsg(
                descriptor,
                &slices,
                control,
                MsgFlags::empty(),
                Some(&address),
            ) {
                Ok(_) | Err(Errno::ENOBUFS | Errno::ECONNREFUSED) => return Ok(()),
                Err(Errno::EAGAIN) => self.wait_writable()?,
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn wait_writable(&self) -> Result<(), Errno> {
        let mut descriptors = [PollFd::new(self.inner.as_fd(), PollFlags::POLLOUT)];
        match ppoll(
            &mut descriptors,
            Some(TimeSpec::from_duration(SEND_PATIENCE)),
            None,
        ) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

fn standard_address(address: &SockaddrStorage) -> Option<SocketAddr> {
    if let Some(address) = address.as_sockaddr_in() {
        return Some(SocketAddr::V4((*address).into()));
    }
    address
        .as_sockaddr_in6()
        .map(|address| SocketAddr::V6((*address).into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_arrives_as_its_datagrams() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let socket = Socket::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let data: Vec<u8> = (0..2_500_u32)
            .map(|number| number.to_le_bytes()[0])
            .collect();
        for segments in [true, false] {
            socket.segments.set(segments);
            socket
                .send(&data, 1_000, receiver.local_addr().unwrap())
                .unwrap();
            let mut buffer = [0; 2_000];
            for (start, size) in [(0, 1_000), (1_000, 1_000), (2_000, 500)] {
                assert_eq!(receiver.recv(&mut buffer).unwrap(), size);
                assert_eq!(buffer[..size], data[start..start + size]);
            }
        }
    }

    #[test]
    fn a_datagram_is_received_with_its_sender() {
        let sender = UdpSocket::bind("[::1]:0").unwrap();
        let socket = Socket::bind("[::1]:0".parse().unwrap()).unwrap();
        let mut buffer = vec![0; RECEIVE_SIZE];
        assert!(socket.receive(&mut buffer).unwrap().is_none());
        sender.send_to(b"hello", socket.local).unwrap();
        let batch = socket.receive(&mut buffer).unwrap().unwrap();
        assert_eq!((batch.bytes, batch.segment), (5, 5));
        assert_eq!(batch.from, sender.local_addr().unwrap());
    }
}
