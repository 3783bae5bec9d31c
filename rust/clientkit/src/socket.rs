//! The UDP socket: connected, non-blocking, with a large buffer, merged datagrams and counted drops.

use std::io::IoSliceMut;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, getsockopt, recvmsg, send, setsockopt, sockopt,
};
use nix::sys::time::TimeSpec;

use crate::code::{FailureCode, Icmp};

/// How long to wait for room in the send buffer before a datagram is given up; QUIC then sends its content again.
const SEND_PATIENCE: Duration = Duration::from_millis(20);
/// The largest thing one receive call can give: a full IP packet, or as much merged.
pub const RECEIVE_SIZE: usize = 65535;

/// What one receive call gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch {
    /// Bytes in the buffer.
    pub bytes: usize,
    /// Every datagram has this size, save the last, which may be shorter.
    pub segment: usize,
}

/// A UDP socket that talks to one server.
#[derive(Debug)]
pub struct Socket {
    inner: UdpSocket,
    control: Vec<u8>,
    /// This side.
    pub local: SocketAddr,
    /// The server.
    pub peer: SocketAddr,
    /// The kernel merges datagrams for this socket.
    pub gro: bool,
    /// The receive buffer as the kernel accounts it, bytes.
    pub rcvbuf_bytes: Option<usize>,
    /// Whether drops are counted.
    pub counts_drops: bool,
    /// Datagrams dropped for want of buffer, as of the latest one received.
    pub drops: u32,
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

impl Socket {
    /// Opens the socket. Nothing is sent; `connect` on UDP only picks route and local address.
    ///
    /// Of the receive buffer that is requested, the kernel grants at most `net.core.rmem_max` (and doubles it, for its
    /// own bookkeeping). `SO_RCVBUFFORCE` is not used: the result must not depend on who runs the client.
    ///
    /// # Errors
    /// There is no socket, or no route.
    pub fn open(peer: SocketAddr, gro: bool, receive_buffer: usize) -> Result<Self, Errno> {
        let any: IpAddr = if peer.is_ipv4() {
            Ipv4Addr::UNSPECIFIED.into()
        } else {
            Ipv6Addr::UNSPECIFIED.into()
        };
        let inner = UdpSocket::bind((any, 0)).map_err(|error| errno(&error))?;
        inner.set_nonblocking(true).map_err(|error| errno(&error))?;
        // Each option is a help, not a need: a kernel without it gives a slower or less telling download.
        let _ = setsockopt(&inner, sockopt::RcvBuf, &receive_buffer);
        let gro = gro && setsockopt(&inner, sockopt::UdpGroSegment, &true).is_ok();
        let counts_drops = setsockopt(&inner, sockopt::RxqOvfl, &1).is_ok();
        inner.connect(peer).map_err(|error| errno(&error))?;
        let local = inner.local_addr().map_err(|error| errno(&error))?;
        let rcvbuf_bytes = getsockopt(&inner, sockopt::RcvBuf).ok();
        let control = nix::cmsg_space!(i32, u32);
        let socket = Self {
            inner,
            control,
            local,
            peer,
            gro,
            rcvbuf_bytes,
            counts_drops,
            drops: 0,
        };
        socket.hear_icmp(true);
        Ok(socket)
    }

    /// Makes the kernel report ICMP errors here: until the handshake is complete. Afterwards an unreachable host is no
    /// reason to give up (RFC 9000, section 14.2.1).
    pub fn hear_icmp(&self, on: bool) {
        let _ = if self.peer.is_ipv4() {
            setsockopt(&self.inner, sockopt::Ipv4RecvErr, &on)
        } else {
            setsockopt(&self.inner, sockopt::Ipv6RecvErr, &on)
        };
    }

    /// The failure code of an error of the system before the handshake was complete.
    #[must_use]
    pub fn why(&self, errno: Errno) -> Option<FailureCode> {
        let (local, peer) = (self.local.ip(), self.peer.ip());
        FailureCode::of_network(errno, self.heard(), Some(local), peer)
    }

    /// The ICMP message "destination unreachable" that the kernel keeps for this socket, if there is one.
    fn heard(&self) -> Option<Icmp> {
        let mut control = nix::cmsg_space!([u8; 64]);
        let mut buffer = [0; 512];
        let mut slices = [IoSliceMut::new(&mut buffer)];
        let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
        let descriptor = self.inner.as_raw_fd();
        let message = recvmsg::<()>(descriptor, &mut slices, Some(&mut control), flags).ok()?;
        message.cmsgs().ok()?.find_map(|control| match control {
            ControlMessageOwned::Ipv4RecvErr(error, from) if error.ee_type == 3 => Some(Icmp {
                v6: false,
                code: error.ee_code,
                from: from.map(|from| Ipv4Addr::from(u32::from_be(from.sin_addr.s_addr)).into()),
            }),
            ControlMessageOwned::Ipv6RecvErr(error, from) if error.ee_type == 1 => Some(Icmp {
                v6: true,
                code: error.ee_code,
                from: from.map(|from| Ipv6Addr::from(from.sin6_addr.s6_addr).into()),
            }),
            _ => None,
        })
    }

    /// Takes what is waiting, without blocking; `None` when nothing is.
    ///
    /// # Errors
    /// The kernel's, e.g. that the port is closed.
    pub fn receive(&mut self, buffer: &mut [u8]) -> Result<Option<Batch>, Errno> {
        let mut slices = [IoSliceMut::new(buffer)];
        let descriptor = self.inner.as_raw_fd();
        let message = match recvmsg::<()>(
            descriptor,
            &mut slices,
            Some(&mut self.control),
            MsgFlags::empty(),
        ) {
            Ok(message) => message,
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut segment = None;
        for control in message.cmsgs().into_iter().flatten() {
            match control {
                ControlMessageOwned::UdpGroSegments(size) => segment = usize::try_from(size).ok(),
                ControlMessageOwned::RxqOvfl(drops) => self.drops = drops,
                _ => {}
            }
        }
        let bytes = message.bytes;
        Ok(Some(Batch {
            bytes,
            segment: segment.filter(|size| *size > 0).unwrap_or(bytes).max(1),
        }))
    }

    /// Sends one datagram. A full buffer is waited out briefly; then the datagram counts as lost, as on any path.
    ///
    /// # Errors
    /// The kernel's, e.g. that the port is closed.
    pub fn send(&self, datagram: &[u8]) -> Result<(), Errno> {
        for _ in 0..2 {
            match send(self.inner.as_raw_fd(), datagram, MsgFlags::empty()) {
                Ok(_) | Err(Errno::ENOBUFS) => return Ok(()),
                Err(Errno::EAGAIN) => self.wait(PollFlags::POLLOUT, SEND_PATIENCE)?,
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sleeps until something can be received, at most for `patience`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn wait_readable(&self, patience: Duration) -> Result<(), Errno> {
        self.wait(PollFlags::POLLIN, patience)
    }

    fn wait(&self, flags: PollFlags, patience: Duration) -> Result<(), Errno> {
        let mut descriptors = [PollFd::new(self.inner.as_fd(), flags)];
        match ppoll(
            &mut descriptors,
            Some(TimeSpec::from_duration(patience)),
            None,
        ) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn errno(error: &std::io::Error) -> Errno {
    error
        .raw_os_error()
        .map_or(Errno::UnknownErrno, Errno::from_raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_there_and_back() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut socket = Socket::open(server.local_addr().unwrap(), true, 1 << 20).unwrap();
        assert_eq!(
            socket.local.ip(),
            IpAddr::from(Ipv4Addr::LOCALHOST),
            "the true local address"
        );
        let mut buffer = vec![0; RECEIVE_SIZE];
        assert_eq!(socket.receive(&mut buffer).unwrap(), None);
        socket.send(b"ping").unwrap();
        let mut request = [0; 16];
        let (size, from) = server.recv_from(&mut request).unwrap();
        assert_eq!((&request[..size], from), (&b"ping"[..], socket.local));
        server.send_to(b"pong!", from).unwrap();
        socket.wait_readable(Duration::from_secs(5)).unwrap();
        assert_eq!(
            socket.receive(&mut buffer).unwrap(),
            Some(Batch {
                bytes: 5,
                segment: 5
            })
        );
    }

    #[test]
    fn drops_are_counted() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut socket = Socket::open(server.local_addr().unwrap(), false, 1 << 20).unwrap();
        setsockopt(&socket.inner, sockopt::RcvBuf, &4096).unwrap();
        for _ in 0..200 {
            server.send_to(&[0; 1000], socket.local).unwrap();
        }
        let mut buffer = vec![0; RECEIVE_SIZE];
        while socket.receive(&mut buffer).unwrap().is_some() {}
        server.send_to(b"after", socket.local).unwrap(); // drops are told with the next datagram that is kept
        socket.wait_readable(Duration::from_secs(5)).unwrap();
        while socket.receive(&mut buffer).unwrap().is_some() {}
        assert!(
            socket.counts_drops && socket.drops > 100,
            "{}",
            socket.drops
        );
    }

    #[test]
    fn a_closed_port_refuses() {
        let closed = UdpSocket::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let mut socket = Socket::open(closed, true, 1 << 20).unwrap();
        socket.send(b"x").unwrap();
        socket.wait_readable(Duration::from_secs(5)).unwrap();
        assert_eq!(socket.receive(&mut [0; 9]), Err(Errno::ECONNREFUSED));
        assert_eq!(
            socket.why(Errno::ECONNREFUSED),
            Some(FailureCode::IcmpPort),
            "by the message itself"
        );
        assert_eq!(socket.heard(), None, "it is told once");
    }
}
