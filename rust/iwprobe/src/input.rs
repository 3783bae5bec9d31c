//! Standard input: the bytes of requests that wait for their turn.

use std::io;
use std::os::fd::{AsRawFd, RawFd};

/// What is read at once.
const READ_BYTES: usize = 1 << 16;

/// Bytes that were read, and whether more can come.
pub struct Input {
    bytes: Vec<u8>,
    is_ended: bool,
}

impl Default for Input {
    fn default() -> Self {
        Self {
            bytes: Vec::with_capacity(2 * READ_BYTES),
            is_ended: false,
        }
    }
}

impl Input {
    /// The descriptor, to wait for.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        io::stdin().as_raw_fd()
    }

    /// Whether its end was read; bytes may still wait.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Whether nothing waits, and nothing more can come.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_ended && self.bytes.is_empty()
    }

    /// Reads once; waits if there is nothing.
    ///
    /// # Errors
    /// The system fails.
    pub fn read(&mut self) -> io::Result<()> {
        let (fd, before) = (self.fd(), self.bytes.len());
        self.bytes.resize(before + READ_BYTES, 0);
        let buffer = &mut self.bytes[before..];
        // SAFETY: the kernel writes at most the buffer's length.
        let count = unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        self.bytes.truncate(before + count);
        self.is_ended = count == 0;
        Ok(())
    }

    /// The bytes that wait; [`give_back`](Input::give_back) them.
    #[must_use]
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    /// The bytes, of which so many are done with.
    pub fn give_back(&mut self, bytes: Vec<u8>, done: usize) {
        self.bytes = bytes;
        self.bytes.drain(..done);
    }

    /// Forgets what waits.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }
}
