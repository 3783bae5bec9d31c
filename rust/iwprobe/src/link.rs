//! A network device, by packet(7): packets in from a ring shared with the kernel, packets out in batches.
//!
//! The sockets are "cooked" (`SOCK_DGRAM`): the kernel takes off and puts on the link layer's header, so that Ethernet and
//! TUN look the same. Bound to one protocol each, they do not see what we send.

#![allow(
    clippy::cast_possible_truncation, // sizes and counts below are small constants
    clippy::cast_ptr_alignment        // frames of the ring are aligned to their size
)]

use std::ffi::CString;
use std::io;
use std::mem::{size_of, zeroed};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{Ordering, fence};

use thiserror::Error;

use crate::packet::Checksum;

/// Room for one packet with the kernel's header; what is longer (merged segments) is cut.
const FRAME: usize = 2_048;
const FRAMES: usize = 8_192;
const BLOCK: usize = 1 << 18;
const SEND_BUFFER: libc::c_int = 8 << 20;
/// `TP_STATUS_*` of `linux/if_packet.h`.
const TO_USER: u32 = 1;
const CHECKSUM_MISSING: u32 = 1 << 3;
const CHECKSUM_VALID: u32 = 1 << 7;
const DEVICE_TIME: u32 = 1 << 31;
/// `TP_STATUS_GSO_TCP`, Linux 6.0 and later.
const MERGED: u32 = 1 << 8;
/// `ETHTOOL_GGRO` of `linux/ethtool.h`.
const GET_GRO: u32 = 0x2b;

/// Why a device cannot be used.
#[derive(Debug, Error)]
pub enum LinkError {
    /// No `CAP_NET_RAW`.
    #[error("no right to raw sockets")]
    NotPermitted,
    /// There is no such device.
    #[error("there is no network device {0}")]
    NoDevice(String),
    /// Not TUN, not Ethernet.
    #[error("the device {0} needs --next-hop")]
    NoNextHop(String),
    /// It merges packets.
    #[error("the device {0} merges packets (generic receive offload is on)")]
    Merges(String),
    /// A system call failed.
    #[error("{0}: {1}")]
    System(&'static str, io::Error),
}

impl LinkError {
    /// What helps.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Self::NotPermitted => "run it as root, or with CAP_NET_RAW".to_owned(),
            Self::Merges(device) => format!("switch it off: ethtool -K {device} gro off lro off"),
            _ => "run upshift doctor to see what is missing".to_owned(),
        }
    }
}

fn system(what: &'static str) -> LinkError {
    LinkError::System(what, io::Error::last_os_error())
}

/// A device and what is known of it.
pub struct Device {
    index: libc::c_int,
    /// MTU [bytes].
    pub mtu: u32,
    next_hop: Option<[u8; 6]>,
}

impl Device {
    /// Looks at a device.
    ///
    /// # Errors
    /// It does not exist, needs a next hop, or merges packets.
    pub fn open(name: &str, next_hop: Option<[u8; 6]>) -> Result<Self, LinkError> {
        // SAFETY: a plain system call.
        let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        let socket = owned(fd).ok_or_else(|| system("socket"))?;
        let no_device = || LinkError::NoDevice(name.to_owned());
        let c_name = CString::new(name).map_err(|_| no_device())?;
        if name.len() >= libc::IFNAMSIZ {
            return Err(no_device());
        }
        let ask = |request: libc::c_ulong, data: Option<*mut libc::c_char>| {
            // SAFETY: ifreq is plain data, valid when zeroed; its name ends with a zero byte, as it is shorter.
            let mut ifreq: libc::ifreq = unsafe { zeroed() };
            for (to, from) in ifreq.ifr_name.iter_mut().zip(c_name.as_bytes()) {
                *to = from.cast_signed();
            }
            if let Some(data) = data {
                ifreq.ifr_ifru.ifru_data = data;
            }
            // SAFETY: the request reads and writes one ifreq.
            let done = unsafe { libc::ioctl(socket.as_raw_fd(), request as _, &raw mut ifreq) };
            (done == 0).then_some(ifreq)
        };
        let index = ask(libc::SIOCGIFINDEX, None).ok_or_else(no_device)?;
        let mtu = ask(libc::SIOCGIFMTU, None).ok_or_else(no_device)?;
        let hardware = ask(libc::SIOCGIFHWADDR, None).ok_or_else(no_device)?;
        // SAFETY: each request has filled in the field that is read.
        let (index, mtu, kind) = unsafe {
            (
                index.ifr_ifru.ifru_ifindex,
                mtu.ifr_ifru.ifru_mtu,
                hardware.ifr_ifru.ifru_hwaddr.sa_family,
            )
        };
        if kind == libc::ARPHRD_ETHER {
            if next_hop.is_none() {
                return Err(LinkError::NoNextHop(name.to_owned()));
            }
            let mut value = [GET_GRO, 0]; // struct ethtool_value
            let answer = ask(libc::SIOCETHTOOL, Some(value.as_mut_ptr().cast()));
            if answer.is_some() && value[1] != 0 {
                return Err(LinkError::Merges(name.to_owned()));
            }
        }
        Ok(Self {
            index,
            mtu: u32::try_from(mtu).unwrap_or(1_500),
            next_hop,
        })
    }

    fn address(&self, protocol: u16) -> libc::sockaddr_ll {
        // SAFETY: plain data, valid when zeroed.
        let mut address: libc::sockaddr_ll = unsafe { zeroed() };
        address.sll_family = u16::try_from(libc::AF_PACKET).unwrap_or(0);
        address.sll_protocol = protocol.to_be();
        address.sll_ifindex = self.index;
        if let Some(mac) = self.next_hop {
            address.sll_halen = 6;
            address.sll_addr[..6].copy_from_slice(&mac);
        }
        address
    }
}

fn owned(fd: RawFd) -> Option<OwnedFd> {
    // SAFETY: a descriptor that was just opened, and belongs to nobody else.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

fn protocol_of(us: IpAddr) -> u16 {
    let protocol = if us.is_ipv4() {
        libc::ETH_P_IP
    } else {
        libc::ETH_P_IPV6
    };
    u16::try_from(protocol).unwrap_or(0)
}

/// When a packet arrived, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Nanoseconds, by the kernel's clock `CLOCK_REALTIME`, or by the device's.
    pub ns: u64,
    /// Whether it is the device's.
    pub by_device: bool,
    /// It holds several segments, as a device has merged them (or the sender's never cut them).
    pub merged: bool,
}

/// One address of ours on a device: what it receives, and sends.
pub struct Link {
    /// The address.
    pub us: IpAddr,
    socket: OwnedFd,
    ring: *mut u8,
    next: usize,
    to: libc::sockaddr_ll,
}

impl Link {
    /// Opens it.
    ///
    /// # Errors
    /// No right, or no memory.
    pub fn open(device: &Device, us: IpAddr) -> Result<Self, LinkError> {
        let protocol = protocol_of(us);
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
        // SAFETY: a plain system call. Protocol 0: nothing is received before bind.
        let socket = match owned(unsafe { libc::socket(libc::AF_PACKET, kind, 0) }) {
            Some(socket) => socket,
            None if io::Error::last_os_error().raw_os_error() == Some(libc::EPERM) => {
                return Err(LinkError::NotPermitted);
            }
            None => return Err(system("packet socket")),
        };
        let fd = socket.as_raw_fd();
        set(
            fd,
            libc::SOL_PACKET,
            libc::PACKET_VERSION,
            &(libc::tpacket_versions::TPACKET_V2 as libc::c_int),
        )
        .ok_or_else(|| system("PACKET_VERSION"))?;
        let times = libc::SOF_TIMESTAMPING_RAW_HARDWARE | libc::SOF_TIMESTAMPING_SOFTWARE;
        set(fd, libc::SOL_PACKET, libc::PACKET_TIMESTAMP, &times)
            .ok_or_else(|| system("PACKET_TIMESTAMP"))?;
        let request = libc::tpacket_req {
            tp_block_size: BLOCK as u32,
            tp_block_nr: (FRAMES * FRAME / BLOCK) as u32,
            tp_frame_size: FRAME as u32,
            tp_frame_nr: FRAMES as u32,
        };
        set(fd, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)
            .ok_or_else(|| system("PACKET_RX_RING"))?;
        set(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &SEND_BUFFER)
            .or_else(|| set(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &SEND_BUFFER))
            .ok_or_else(|| system("SO_SNDBUF"))?;
        filter(fd, us).ok_or_else(|| system("SO_ATTACH_FILTER"))?;
        let ring = map_ring(fd)?;
        let link = Self {
            us,
            socket,
            ring,
            next: 0,
            to: device.address(protocol),
        };
        let size = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the address is one of packet(7), of this size.
        if unsafe { libc::bind(fd, (&raw const link.to).cast(), size) } != 0 {
            return Err(system("bind"));
        }
        Ok(link)
    }

    /// Its descriptor, for poll(2).
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Passes up to `most` packets that have arrived; how many there were.
    pub fn receive(&mut self, most: usize, mut each: impl FnMut(&[u8], Stamp, Checksum)) -> usize {
        for done in 0..most {
            // SAFETY: `next` is below FRAMES, so the frame is within the mapping, and aligned as FRAME is.
            let frame = unsafe { self.ring.add(self.next * FRAME) };
            let header = frame.cast::<libc::tpacket2_hdr>();
            // SAFETY: every frame begins with this header; the kernel writes its status last.
            let status = unsafe { ptr::read_volatile(&raw const (*header).tp_status) };
            if status & TO_USER == 0 {
                return done;
            }
            fence(Ordering::Acquire);
            // SAFETY: the frame is ours until its status is 0.
            let header_now = unsafe { &*header };
            let start = usize::from(header_now.tp_net);
            let length = (header_now.tp_snaplen as usize).min(FRAME.saturating_sub(start));
            // SAFETY: start + length is within the frame.
            let packet = unsafe { std::slice::from_raw_parts(frame.add(start.min(FRAME)), length) };
            let stamp = Stamp {
                ns: u64::from(header_now.tp_sec) * 1_000_000_000 + u64::from(header_now.tp_nsec),
                by_device: status & DEVICE_TIME != 0,
                merged: status & MERGED != 0,
            };
            let checksum = if status & (CHECKSUM_MISSING | CHECKSUM_VALID) == 0 {
                Checksum::Verify
            } else {
                Checksum::Trust
            };
            each(packet, stamp, checksum);
            fence(Ordering::Release);
            // SAFETY: gives the frame back; nothing of it is used any more.
            unsafe { ptr::write_volatile(&raw mut (*header).tp_status, 0) };
            self.next = (self.next + 1) % FRAMES;
        }
        most
    }

    /// Sends packets; how many the kernel took (at least one).
    ///
    /// # Errors
    /// It took none.
    pub fn send(&self, packets: &[&[u8]]) -> io::Result<usize> {
        const BATCH: usize = 64;
        // SAFETY: plain data, valid when zeroed.
        let (mut messages, mut parts): ([libc::mmsghdr; BATCH], [libc::iovec; BATCH]) =
            unsafe { (zeroed(), zeroed()) };
        let count = packets.len().min(BATCH);
        for ((message, part), packet) in messages.iter_mut().zip(&mut parts).zip(&packets[..count])
        {
            part.iov_base = packet.as_ptr().cast_mut().cast();
            part.iov_len = packet.len();
            message.msg_hdr.msg_name = (&raw const self.to).cast_mut().cast();
            message.msg_hdr.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            message.msg_hdr.msg_iov = part;
            message.msg_hdr.msg_iovlen = 1;
        }
        // SAFETY: `count` messages, each with one part and one address that outlive the call and are not written to.
        let sent =
            unsafe { libc::sendmmsg(self.fd(), messages.as_mut_ptr(), count as libc::c_uint, 0) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `open`; nothing of it is used any more.
        unsafe { libc::munmap(self.ring.cast(), FRAMES * FRAME) };
    }
}

fn set<T>(fd: RawFd, level: libc::c_int, name: libc::c_int, value: &T) -> Option<()> {
    let size = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel reads `size` bytes of the value.
    let done = unsafe { libc::setsockopt(fd, level, name, ptr::from_ref(value).cast(), size) };
    (done == 0).then_some(())
}

/// The ring, shared with the kernel.
fn map_ring(fd: RawFd) -> Result<*mut u8, LinkError> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let size = FRAMES * FRAME;
    // SAFETY: a new mapping of the ring, whose size the kernel has just accepted.
    let ring = unsafe { libc::mmap(ptr::null_mut(), size, access, libc::MAP_SHARED, fd, 0) };
    if ring == libc::MAP_FAILED {
        return Err(system("mmap"));
    }
    Ok(ring.cast())
}

/// Only packets to our address: a classic BPF program on the IP header's destination.
fn filter(fd: RawFd, us: IpAddr) -> Option<()> {
    const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
    const IF_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
    const RETURN: u16 = 0x06; // BPF_RET | BPF_K
    let (words, at): (Vec<u32>, u32) = match us {
        IpAddr::V4(address) => (vec![address.to_bits()], 16),
        IpAddr::V6(address) => {
            let bits = address.to_bits();
            (
                (0..4)
                    .rev()
                    .map(|word| (bits >> (32 * word)) as u32)
                    .collect(),
                24,
            )
        }
    };
    let step = |code, jf, k| libc::sock_filter { code, jt: 0, jf, k };
    let mut program = Vec::new();
    for (index, word) in (0_u8..).zip(&words) {
        program.push(step(LOAD, 0, at + 4 * u32::from(index)));
        let left = u8::try_from(words.len()).ok()? - 1 - index;
        program.push(step(IF_EQUAL, 2 * left + 1, *word));
    }
    program.push(step(RETURN, 0, u32::MAX));
    program.push(step(RETURN, 0, 0));
    let whole = libc::sock_fprog {
        len: u16::try_from(program.len()).ok()?,
        filter: program.as_mut_ptr(),
    };
    set(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &whole)
}
