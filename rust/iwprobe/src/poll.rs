//! Sleeping until a descriptor can be read, by ppoll(2).

use std::os::fd::RawFd;

/// A descriptor to wait for.
#[must_use]
pub fn readable(fd: RawFd) -> libc::pollfd {
    libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    }
}

/// Sleeps until one of the descriptors can be read, at most so long [ns]; `None`: without end. A signal wakes it too.
pub fn sleep(fds: &mut [libc::pollfd], most: Option<u64>) {
    let time = most.map(|ns| libc::timespec {
        tv_sec: i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(ns % 1_000_000_000).unwrap_or(0),
    });
    let limit = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the array and the time outlive the call; there is no signal mask.
    unsafe {
        libc::ppoll(
            fds.as_mut_ptr(),
            fds.len() as libc::nfds_t,
            limit,
            std::ptr::null(),
        )
    };
}
