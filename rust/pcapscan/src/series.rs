//! Time series of one connection, kept only on request: they grow with the capture.

/// Width of a throughput bin, ns.
pub const BIN_NS: i64 = 100_000_000;
/// A clock that jumps must not make us allocate bins for years.
const MOST_BINS: usize = 1_000_000;

/// Series of a connection. Times are ns since the Unix epoch.
#[derive(Debug, Default)]
pub struct Series {
    start_ns: i64,
    has_start: bool,
    /// IP bytes per 100 ms, [from direction 0, from direction 1].
    pub bins: Vec<[u64; 2]>,
    /// (time, direction whose packet ended the sample, round-trip time ns).
    pub rtt: Vec<(i64, u8, i64)>,
    /// (time, direction, relative sequence number of the segment's end, true class) of each segment with data.
    pub sequence: Vec<(i64, u8, u32, u8)>,
}

impl Series {
    /// Adds a packet to its bin.
    pub fn packet(&mut self, now_ns: i64, direction: usize, ip_bytes: u32) {
        if !self.has_start {
            self.start_ns = now_ns;
            self.has_start = true;
        }
        let Ok(bin) = usize::try_from((now_ns.saturating_sub(self.start_ns)) / BIN_NS) else {
            return;
        };
        if bin >= MOST_BINS {
            return;
        }
        if bin >= self.bins.len() {
            self.bins.resize(bin + 1, [0; 2]);
        }
        self.bins[bin][direction] += u64::from(ip_bytes);
    }

    /// Start of the first bin, ns.
    #[must_use]
    pub fn start_ns(&self) -> i64 {
        self.start_ns
    }
}
