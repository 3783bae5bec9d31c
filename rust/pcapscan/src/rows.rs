//! One row per packet, as CSV or as columns.

use crate::sink::{PacketRow, Sink};
use std::io::{self, Write};

/// The header line of the CSV form.
pub const HEADER: &str = "frame,time_ns,connection,direction,seq,len,ws_class,true_class";

const FLUSH_AT: usize = 64 * 1024;

/// Name of a packet's direction: client to server, or server to client.
#[must_use]
pub fn direction_name(from_client: bool) -> &'static str {
    if from_client { "c2s" } else { "s2c" }
}

/// Writes packets as CSV; by hand, as rows already cost more than the analysis of their packets (benchmarks/kpis).
pub struct CsvWriter<W: Write> {
    out: W,
    buffer: Vec<u8>,
    rows: u64,
    error: Option<io::Error>,
}

impl<W: Write> CsvWriter<W> {
    /// Begins with the header line.
    pub fn new(out: W) -> Self {
        let mut buffer = Vec::with_capacity(FLUSH_AT + 256);
        buffer.extend_from_slice(HEADER.as_bytes());
        buffer.push(b'\n');
        Self {
            out,
            buffer,
            rows: 0,
            error: None,
        }
    }

    /// Whether writing still works.
    ///
    /// # Errors
    /// The first error of the output.
    pub fn check(&mut self) -> io::Result<()> {
        self.error.take().map_or(Ok(()), Err)
    }

    fn flush(&mut self) {
        if self.error.is_none()
            && let Err(error) = self.out.write_all(&self.buffer)
        {
            self.error = Some(error);
        }
        self.buffer.clear();
    }

    /// Writes the rest. Returns the number of rows.
    ///
    /// # Errors
    /// The first error of the output.
    pub fn finish(mut self) -> io::Result<u64> {
        self.flush();
        self.check()?;
        self.out.flush()?;
        Ok(self.rows)
    }

    fn number(&mut self, value: u64) {
        let mut digits = [0; 20];
        let mut at = digits.len();
        let mut left = value;
        loop {
            at -= 1;
            digits[at] = b'0' + (left % 10) as u8;
            left /= 10;
            if left == 0 {
                break;
            }
        }
        self.buffer.extend_from_slice(&digits[at..]);
        self.buffer.push(b',');
    }
}

impl<W: Write> Sink for CsvWriter<W> {
    fn packet(&mut self, row: &PacketRow) {
        self.rows += 1;
        self.number(row.frame);
        if row.time_ns < 0 {
            self.buffer.push(b'-');
        }
        self.number(row.time_ns.unsigned_abs());
        self.number(u64::from(row.connection));
        self.buffer
            .extend_from_slice(direction_name(row.from_client).as_bytes());
        self.buffer.push(b',');
        match row.verdict.relative_seq {
            Some(seq) => self.number(u64::from(seq)),
            None => self.buffer.push(b','),
        }
        self.number(u64::from(row.verdict.len));
        self.buffer
            .extend_from_slice(row.verdict.ws.name().as_bytes());
        self.buffer.push(b',');
        self.buffer
            .extend_from_slice(row.verdict.truth.name().as_bytes());
        self.buffer.push(b'\n');
        if self.buffer.len() >= FLUSH_AT {
            self.flush();
        }
    }
}

/// Collects packets as columns of little-endian numbers. Classes and directions are indices into their name tables.
#[derive(Debug, Default)]
pub struct Columns {
    frame: Vec<u8>,
    time_ns: Vec<u8>,
    connection: Vec<u8>,
    direction: Vec<u8>,
    seq: Vec<u8>,
    len: Vec<u8>,
    ws_class: Vec<u8>,
    true_class: Vec<u8>,
}

impl Columns {
    /// The columns by name: u64, i64, u32, u8 (0 client to server, 1 server to client), i64 (-1 for none), u32, u8, u8.
    #[must_use]
    pub fn finish(self) -> [(&'static str, Vec<u8>); 8] {
        [
            ("frame", self.frame),
            ("time_ns", self.time_ns),
            ("connection", self.connection),
            ("direction", self.direction),
            ("seq", self.seq),
            ("len", self.len),
            ("ws_class", self.ws_class),
            ("true_class", self.true_class),
        ]
    }
}

impl Sink for Columns {
    fn packet(&mut self, row: &PacketRow) {
        self.frame.extend_from_slice(&row.frame.to_le_bytes());
        self.time_ns.extend_from_slice(&row.time_ns.to_le_bytes());
        self.connection
            .extend_from_slice(&row.connection.to_le_bytes());
        self.direction.push(u8::from(!row.from_client));
        self.seq
            .extend_from_slice(&row.verdict.relative_seq.map_or(-1, i64::from).to_le_bytes());
        self.len.extend_from_slice(&row.verdict.len.to_le_bytes());
        self.ws_class.push(row.verdict.ws as u8);
        self.true_class.push(row.verdict.truth as u8);
    }
}
