//! A sliding window over a byte stream: one copy from the kernel, none per record.

use std::io::{self, Read};

/// Bytes fetched at once. Larger chunks are slower: they fall out of the cache before they are parsed.
const CHUNK: usize = 64 * 1024;

/// The largest piece that may be asked for; bounds the memory that a hostile file can claim.
pub const LARGEST_PIECE: usize = 16 * 1024 * 1024;

/// A buffer that slides over a stream.
pub struct Window {
    source: Box<dyn Read + Send + Sync>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Window {
    /// A window at the start of the stream.
    #[must_use]
    pub fn new(source: Box<dyn Read + Send + Sync>) -> Self {
        Self {
            source,
            buffer: vec![0; CHUNK],
            start: 0,
            end: 0,
        }
    }

    /// The bytes at hand.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Makes at least `wanted` bytes available; false where the stream ends before.
    ///
    /// # Errors
    /// The stream cannot be read, or `wanted` is above [`LARGEST_PIECE`].
    #[inline]
    pub fn ensure(&mut self, wanted: usize) -> io::Result<bool> {
        if self.end - self.start >= wanted {
            return Ok(true);
        }
        self.fill(wanted)
    }

    #[cold]
    fn fill(&mut self, wanted: usize) -> io::Result<bool> {
        if wanted > LARGEST_PIECE {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a record of more than 16 MiB",
            ));
        }
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        if wanted > self.buffer.len() {
            self.buffer.resize(wanted.next_power_of_two(), 0);
        } else if self.buffer.len() > CHUNK && wanted <= CHUNK && self.end <= CHUNK {
            self.buffer.truncate(CHUNK);
            self.buffer.shrink_to_fit();
        }
        while self.end < wanted {
            match self.source.read(&mut self.buffer[self.end..]) {
                Ok(0) => return Ok(false),
                Ok(count) => self.end += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Moves past `count` bytes, which must be at hand.
    #[inline]
    pub fn consume(&mut self, count: usize) {
        self.start += count;
        debug_assert!(self.start <= self.end);
    }

    /// The next `count` bytes, which must be at hand, and moves past them.
    #[inline]
    pub fn take(&mut self, count: usize) -> &[u8] {
        let from = self.start;
        self.consume(count);
        &self.buffer[from..from + count]
    }

    /// Reads and drops `count` bytes; false where the stream ends before.
    ///
    /// # Errors
    /// The stream cannot be read.
    pub fn skip(&mut self, mut count: u64) -> io::Result<bool> {
        loop {
            let step = count.min((self.end - self.start) as u64);
            #[expect(
                clippy::cast_possible_truncation,
                reason = "at most the length of the buffer"
            )]
            self.consume(step as usize);
            count -= step;
            if count == 0 {
                return Ok(true);
            }
            if !self.ensure(1)? {
                return Ok(false);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    #[test]
    fn slides_grows_and_ends() {
        let bytes: Vec<u8> = (0..300_000u32).map(|i| (i % 251) as u8).collect();
        let mut window = Window::new(Box::new(Cursor::new(bytes.clone())));
        assert!(window.ensure(10).unwrap());
        assert_eq!(window.take(10), &bytes[..10]);
        assert!(window.ensure(200_000).unwrap());
        assert_eq!(window.bytes()[..200_000], bytes[10..200_010]);
        assert!(window.skip(299_985).unwrap());
        assert!(window.ensure(5).unwrap());
        assert!(!window.ensure(6).unwrap());
        assert!(!window.skip(6).unwrap());
    }

    #[test]
    fn refuses_a_piece_that_no_capture_has() {
        let mut window = Window::new(Box::new(Cursor::new(vec![0; 10])));
        assert!(window.ensure(LARGEST_PIECE + 1).is_err());
    }
}
