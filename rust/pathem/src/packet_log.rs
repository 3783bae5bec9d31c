//! The packet log: one CSV row per packet, written when its fate is known.

use crate::router::{Link, NodeState, Record};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// The first line of the file. Times are ns of the monotonic clock; `len` and `occupancy` are IP bytes.
pub const HEADER: &str =
    "time_in_ns,due_ns,out_ns,from,to,len,verdict,occupancy,protocol,src,sport,dst,dport,index";

/// Rows after which the log stops, so that a forgotten one cannot fill the disk (about 2 GB).
const MAX_ROWS: u64 = 20_000_000;
const BUFFER: usize = 1 << 16;

/// An open packet log.
pub struct PacketLog {
    path: PathBuf,
    writer: BufWriter<File>,
    rows: u64,
    truncated: bool,
    error: Option<io::Error>,
}

impl PacketLog {
    /// Creates (or empties) the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn create(path: &Path) -> io::Result<Self> {
        let mut writer = BufWriter::with_capacity(BUFFER, File::create(path)?);
        writeln!(writer, "{HEADER}")?;
        Ok(Self {
            path: path.to_owned(),
            writer,
            rows: 0,
            truncated: false,
            error: None,
        })
    }

    /// Adds a packet. An error is kept for [`PacketLog::status`] and ends the log.
    pub fn add(&mut self, record: &Record, links: &[Link], nodes: &[NodeState]) {
        self.truncated |= self.rows >= MAX_ROWS;
        if self.truncated || self.error.is_some() {
            return;
        }
        match self.write(record, links, nodes) {
            Ok(()) => self.rows += 1,
            Err(error) => self.error = Some(error),
        }
    }

    fn write(&mut self, record: &Record, links: &[Link], nodes: &[NodeState]) -> io::Result<()> {
        let Record {
            link,
            time_in,
            out,
            length,
            verdict,
            occupancy,
            key,
            index,
        } = record;
        let (from, to) = (&nodes[links[*link].from].name, &nodes[links[*link].to].name);
        write!(self.writer, "{time_in},")?;
        match out {
            Some((due, written)) => write!(self.writer, "{due},{written}")?,
            None => write!(self.writer, ",")?,
        }
        writeln!(
            self.writer,
            ",{},{},{length},{},{occupancy},{},{},{},{},{},{index}",
            quoted(from),
            quoted(to),
            verdict.name(),
            key.protocol,
            key.src,
            key.sport,
            key.dst,
            key.dport,
        )
    }

    /// Writes what is buffered.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }

    /// Path, rows, whether the row limit ended it, and the first error.
    #[must_use]
    pub fn status(&self) -> Value {
        json!({
            "path": self.path,
            "rows": self.rows,
            "truncated": self.truncated,
            "error": self.error.as_ref().map(ToString::to_string),
        })
    }
}

fn quoted(name: &str) -> std::borrow::Cow<'_, str> {
    if name.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", name.replace('"', "\"\"")).into()
    } else {
        name.into()
    }
}
