//! The received bytes in order, as far as they are kept.

/// A reassembly buffer: segments in, whole runs of bytes out.
#[derive(Debug, Default)]
pub struct Stream {
    bytes: Vec<u8>,
    /// Offset of the first byte of `bytes`: everything before was taken.
    taken: u32,
    /// Bytes further than this behind `taken` are not kept.
    room: usize,
}

impl Stream {
    /// Forgets everything.
    pub fn reset(&mut self, room: usize) {
        self.bytes.clear();
        (self.taken, self.room) = (0, room);
    }

    /// Keeps a segment's bytes, if there is room.
    pub fn write(&mut self, offset: u32, payload: &[u8]) {
        let skip = self.taken.saturating_sub(offset) as usize;
        let Some(payload) = payload.get(skip..) else {
            return;
        };
        let start = offset.saturating_sub(self.taken) as usize;
        let end = (start + payload.len()).min(self.room);
        if start >= end {
            return;
        }
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[start..end].copy_from_slice(&payload[..end - start]);
    }

    /// The bytes up to offset `contiguous` that have not been taken. Call [`take`](Stream::take) then.
    #[must_use]
    pub fn ready(&self, contiguous: u32) -> &[u8] {
        let ready = contiguous.saturating_sub(self.taken) as usize;
        &self.bytes[..ready.min(self.bytes.len())]
    }

    /// Drops what [`ready`](Stream::ready) returned.
    pub fn take(&mut self, contiguous: u32) {
        let ready = self.ready(contiguous).len();
        self.bytes.drain(..ready);
        self.taken += u32::try_from(ready).unwrap_or(u32::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn out_of_order_and_again() {
        let mut stream = Stream::default();
        stream.reset(100);
        stream.write(3, b"def");
        assert_eq!(stream.ready(0), b"");
        stream.write(0, b"abc");
        assert_eq!(stream.ready(6), b"abcdef");
        stream.take(6);
        stream.write(4, b"efgh");
        assert_eq!(stream.ready(8), b"gh");
    }

    #[test]
    fn what_has_no_room_is_left_out() {
        let mut stream = Stream::default();
        stream.reset(4);
        stream.write(0, b"abcdef");
        stream.write(9, b"x");
        assert_eq!(stream.ready(6), b"abcd");
    }
}
