//! rtnetlink: setting a device up, and reading its counters.
//!
//! Set-up is by `RTM_SETLINK` and not by ioctl, since `SIOCSIFTXQLEN` is refused in a user namespace.
//! Counters come by `RTM_GETSTATS` with `IFLA_STATS_LINK_64` (`linux/if_link.h`, kernel 4.7 and later).
//!
//! The socket is opened in the node's namespace and stays bound to it, so no `setns` is needed later.
//! One request takes a few microseconds.

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket,
};
use serde::Serialize;
use std::os::fd::{AsRawFd, OwnedFd};

const RTM_NEWSTATS: u16 = 92;
const RTM_GETSTATS: u16 = 94;
const NLM_F_REQUEST: u16 = 1;
const IFLA_STATS_LINK_64: u16 = 1;
const RTM_SETLINK: u16 = 19;
const NLMSG_ERROR: u16 = 2;
const NLM_F_ACK: u16 = 4;
const IFLA_MTU: u16 = 4;
const IFLA_TXQLEN: u16 = 13;
const IFF_UP: u32 = 1;
const HEADER: usize = 16;
const STATS_MESSAGE: usize = 12;

/// Counters of a TUN device as the node's kernel sees it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct DeviceCounters {
    /// Packets that the node sent into the device (and pathem read or will read).
    pub tx_packets: u64,
    /// Packets that pathem wrote to the node.
    pub rx_packets: u64,
    /// Unprogrammed drops between the node and pathem: the device queue was full. Must stay 0.
    pub tx_dropped: u64,
    /// Unprogrammed drops between pathem and the node. Must stay 0.
    pub rx_dropped: u64,
}

/// A socket for one device.
pub struct Link {
    socket: OwnedFd,
    index: u32,
}

impl Link {
    /// Opens the socket in the calling thread's network namespace.
    ///
    /// # Errors
    /// The kernel refuses a netlink socket.
    pub fn open(index: u32) -> nix::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            flags,
            SockProtocol::NetlinkRoute,
        )?;
        Ok(Self { socket, index })
    }

    /// Sets MTU (bytes) and transmit queue length (packets), and brings the device up.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn set_up(&self, mtu: u32, txqueuelen: u32) -> nix::Result<()> {
        let answer = self.ask(&set_up_request(self.index, mtu, txqueuelen))?;
        match acknowledgement(&answer) {
            Some(0) => Ok(()),
            Some(code) => Err(nix::Error::from_raw(-code)),
            None => Err(nix::Error::EPROTO),
        }
    }

    /// Asks for the counters. `None`: the device no longer exists, or the kernel does not answer.
    #[must_use]
    pub fn read(&self) -> Option<DeviceCounters> {
        parse(&self.ask(&stats_request(self.index)).ok()?)
    }

    fn ask(&self, message: &[u8]) -> nix::Result<Vec<u8>> {
        send(self.socket.as_raw_fd(), message, MsgFlags::empty())?;
        // The kernel answers such a request before send returns.
        let mut buffer = vec![0u8; 4096];
        let length = recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
        buffer.truncate(length);
        Ok(buffer)
    }
}

/// struct nlmsghdr, struct ifinfomsg, then the two attributes of 4 bytes each.
fn set_up_request(index: u32, mtu: u32, txqueuelen: u32) -> Vec<u8> {
    let mut message = Vec::with_capacity(48);
    message.extend(48u32.to_ne_bytes()); // length of all
    message.extend(RTM_SETLINK.to_ne_bytes());
    message.extend((NLM_F_REQUEST | NLM_F_ACK).to_ne_bytes());
    message.extend([0; 8]); // sequence, port
    message.extend([0; 4]); // family, padding, type
    message.extend(index.to_ne_bytes());
    message.extend(IFF_UP.to_ne_bytes()); // flags
    message.extend(IFF_UP.to_ne_bytes()); // which of them to change
    for (kind, value) in [(IFLA_MTU, mtu), (IFLA_TXQLEN, txqueuelen)] {
        message.extend(8u16.to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend(value.to_ne_bytes());
    }
    message
}

/// The code in a struct nlmsgerr: 0, or a negative error number.
fn acknowledgement(message: &[u8]) -> Option<i32> {
    let kind = u16::from_ne_bytes(message.get(4..6)?.try_into().ok()?);
    let code = i32::from_ne_bytes(message.get(16..20)?.try_into().ok()?);
    (kind == NLMSG_ERROR).then_some(code)
}

fn stats_request(index: u32) -> [u8; HEADER + STATS_MESSAGE] {
    let mut message = [0u8; HEADER + STATS_MESSAGE];
    message[0..4].copy_from_slice(&28u32.to_ne_bytes()); // length of all
    message[4..6].copy_from_slice(&RTM_GETSTATS.to_ne_bytes());
    message[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    message[20..24].copy_from_slice(&index.to_ne_bytes()); // if_stats_msg.ifindex
    message[24..28].copy_from_slice(&(1u32 << (IFLA_STATS_LINK_64 - 1)).to_ne_bytes());
    message
}

fn parse(message: &[u8]) -> Option<DeviceCounters> {
    let u16_at = |at: usize| {
        Some(u16::from_ne_bytes(
            message.get(at..at + 2)?.try_into().ok()?,
        ))
    };
    if u16_at(4)? != RTM_NEWSTATS {
        return None;
    }
    let mut at = HEADER + STATS_MESSAGE;
    loop {
        let (length, kind) = (usize::from(u16_at(at)?), u16_at(at + 2)?);
        if kind == IFLA_STATS_LINK_64 {
            return counters(message.get(at + 4..at + length)?);
        }
        at += length.max(4).next_multiple_of(4);
    }
}

/// The first eight fields of struct `rtnl_link_stats64`.
fn counters(stats: &[u8]) -> Option<DeviceCounters> {
    let field = |number: usize| {
        let bytes = stats.get(number * 8..number * 8 + 8)?;
        Some(u64::from_ne_bytes(bytes.try_into().ok()?))
    };
    Some(DeviceCounters {
        rx_packets: field(0)?,
        tx_packets: field(1)?,
        rx_dropped: field(6)?,
        tx_dropped: field(7)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn loopback_has_counters() {
        // Index 1 is the loopback device of every network namespace.
        let stats = Link::open(1).expect("netlink socket");
        assert!(stats.read().is_some());
    }

    proptest! {
        #[test]
        fn garbage_never_panics(message in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = (parse(&message), acknowledgement(&message));
        }
    }
}
