//! TUN devices inside network namespaces.

use crate::netlink::{DeviceCounters, Link};
use nix::sched::{CloneFlags, setns};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// MTU of every lab device, bytes.
pub const MTU: u32 = 1500;

const OWN_NETNS: &str = "/proc/thread-self/ns/net";

/// Why a node has no device.
#[derive(Debug, Error)]
pub enum TunError {
    /// Our own namespace cannot be named, so there would be no way back.
    #[error("{OWN_NETNS}: {0}")]
    Home(io::Error),
    /// The file of the namespace cannot be opened.
    #[error("network namespace {} cannot be opened ({error}); create it first", .netns.display())]
    Missing {
        /// The namespace.
        netns: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// It is ours.
    #[error("network namespace {} is pathem's own; give each node its own namespace", .0.display())]
    Own(PathBuf),
    /// It cannot be entered.
    #[error("network namespace {} cannot be entered ({error}); a namespace file and CAP_SYS_ADMIN are needed", .netns.display())]
    Enter {
        /// The namespace.
        netns: PathBuf,
        /// The kernel's error.
        error: nix::Error,
    },
    /// We are in the node's namespace and stay there.
    #[error("cannot return to the original namespace: {0}")]
    Return(nix::Error),
    /// The device cannot be made.
    #[error("node device {device} in {}: {fault}", .netns.display())]
    Device {
        /// Its name.
        device: String,
        /// Its namespace.
        netns: PathBuf,
        /// Why.
        fault: DeviceFault,
    },
}

/// Why a device cannot be made in a namespace that was entered.
#[derive(Debug, Error)]
pub enum DeviceFault {
    /// The driver is missing, or not ours to use.
    #[error("/dev/net/tun cannot be opened ({0}); load the tun module and allow its use")]
    Driver(io::Error),
    /// The kernel refuses the device.
    #[error("cannot be created ({0}); is the name taken, or CAP_NET_ADMIN missing?")]
    Create(nix::Error),
    /// It has no index.
    #[error("index: {0}")]
    Index(nix::Error),
    /// There is no netlink socket for it.
    #[error("netlink: {0}")]
    Netlink(nix::Error),
    /// MTU, queue or state are refused.
    #[error("cannot be set up ({0})")]
    SetUp(nix::Error),
}

/// The other end of a node's TUN device.
pub struct Tun {
    file: File,
    link: Link,
}

impl Tun {
    /// Creates the device in the namespace, with MTU 1500 and this transmit queue length, and brings it up.
    ///
    /// The calling thread enters the namespace and comes back; the descriptor stays bound to the namespace.
    ///
    /// # Errors
    /// The namespace or the device is refused.
    pub fn open(netns: &Path, device: &str, txqueuelen: u32) -> Result<Self, TunError> {
        let missing = |error| TunError::Missing {
            netns: netns.to_owned(),
            error,
        };
        let home = File::open(OWN_NETNS).map_err(TunError::Home)?;
        let target = File::open(netns).map_err(missing)?;
        if is_same(&home, &target).map_err(missing)? {
            return Err(TunError::Own(netns.to_owned()));
        }
        setns(&target, CloneFlags::CLONE_NEWNET).map_err(|error| TunError::Enter {
            netns: netns.to_owned(),
            error,
        })?;
        let opened = Self::open_here(device, txqueuelen);
        setns(&home, CloneFlags::CLONE_NEWNET).map_err(TunError::Return)?;
        opened.map_err(|fault| TunError::Device {
            device: device.to_owned(),
            netns: netns.to_owned(),
            fault,
        })
    }

    fn open_here(device: &str, txqueuelen: u32) -> Result<Self, DeviceFault> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open("/dev/net/tun")
            .map_err(DeviceFault::Driver)?;
        let mut request = request_for(device);
        let flags = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_TUN_EXCL;
        #[allow(clippy::cast_possible_truncation)]
        // the three flags fit 16 bits; IFF_TUN_EXCL is the top one
        {
            request.ifr_ifru.ifru_flags = flags as i16;
        }
        interface_ioctl(file.as_fd(), libc::TUNSETIFF, &mut request)
            .map_err(DeviceFault::Create)?;
        let index = nix::net::if_::if_nametoindex(device).map_err(DeviceFault::Index)?;
        let link = Link::open(index).map_err(DeviceFault::Netlink)?;
        link.set_up(MTU, txqueuelen).map_err(DeviceFault::SetUp)?;
        Ok(Self { file, link })
    }

    /// Reads one packet that the node sent. `Ok(None)`: none is waiting.
    ///
    /// # Errors
    /// The device no longer exists.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match (&self.file).read(buffer) {
            Ok(length) => Ok(Some(length)),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Hands one packet to the node's kernel, which processes it within this call.
    #[must_use]
    pub fn write(&self, packet: &[u8]) -> bool {
        (&self.file)
            .write(packet)
            .is_ok_and(|length| length == packet.len())
    }

    /// The kernel's counters of the device; `None` if it no longer exists.
    #[must_use]
    pub fn counters(&self) -> Option<DeviceCounters> {
        self.link.read()
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn is_same(one: &File, other: &File) -> io::Result<bool> {
    let (one, other) = (one.metadata()?, other.metadata()?);
    Ok((one.dev(), one.ino()) == (other.dev(), other.ino()))
}

fn request_for(device: &str) -> libc::ifreq {
    // SAFETY: ifreq is a C struct of integers and pointers; all zeros is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let room = request.ifr_name.len() - 1;
    for (place, byte) in request.ifr_name.iter_mut().zip(device.bytes().take(room)) {
        *place = libc::c_char::try_from(byte).unwrap_or(0); // names are ASCII
    }
    request
}

fn interface_ioctl(
    fd: BorrowedFd<'_>,
    code: libc::Ioctl,
    request: &mut libc::ifreq,
) -> nix::Result<()> {
    // SAFETY: the descriptor is open, and every code used here takes a pointer to one ifreq, which outlives the call.
    let answer = unsafe { libc::ioctl(fd.as_raw_fd(), code, std::ptr::from_mut(request)) };
    nix::errno::Errno::result(answer).map(drop)
}
