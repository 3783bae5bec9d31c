//! One record per connection, in batches.

use crate::open;
use pcapscan::{Capture, Connection, Engine, PacketRow, Record, Sink, Skipped};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use std::collections::VecDeque;
use std::path::PathBuf;

/// Records per batch: a record takes 12 kB as Python objects.
const BATCH: usize = 1024;
/// Frames between two checks for removed connections: each frame may remove one.
const FRAMES: u64 = 8192;

/// Connections that have left the engine.
#[derive(Default)]
struct Left(VecDeque<Box<Connection>>);

impl Sink for Left {
    #[inline]
    fn packet(&mut self, _row: &PacketRow) {}

    fn leaves(&mut self, connection: Box<Connection>) {
        self.0.push_back(connection);
    }
}

/// Reads the connections of a capture: one pass, a bounded number of connections in memory.
#[pyclass(module = "upshift_native")]
pub struct ConnectionReader {
    capture: Capture,
    engine: Engine,
    left: Left,
    done: bool,
}

impl ConnectionReader {
    /// Reads until there is a batch, or the capture ends.
    fn scan(&mut self) {
        while !self.done && self.left.0.len() < BATCH {
            let limit = self.engine.frames + FRAMES;
            self.done = !self.engine.run(&mut self.capture, &mut self.left, limit);
            if self.done {
                self.engine.finish(&mut self.left);
            }
        }
    }
}

#[pymethods]
impl ConnectionReader {
    #[new]
    #[expect(clippy::needless_pass_by_value, reason = "PyO3 passes values")]
    #[pyo3(signature = (path, *, series = false, rules = "4.0"))]
    fn new(path: PathBuf, series: bool, rules: &str) -> PyResult<Self> {
        Ok(Self {
            engine: Engine::new(open::settings(rules, series)?),
            capture: open::capture(&path)?,
            left: Left::default(),
            done: false,
        })
    }

    /// The next records, at most 1,024, made with the GIL released; None at the end. Up to
    /// `upshift_native.MOST_CONNECTIONS` connections come in order of their first packets; beyond that, those that are
    /// closed or idle longest come first. The keys are the fields of `analysis.captures.connection.Connection`.
    fn next_batch<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyList>>> {
        py.detach(|| self.scan());
        if self.left.0.is_empty() {
            return Ok(None);
        }
        let batch = PyList::empty(py);
        let cut = self.engine.cut.is_some();
        while batch.len() < BATCH
            && let Some(connection) = self.left.0.pop_front()
        {
            batch.append(Record::new(&connection, cut))?;
        }
        Ok(Some(batch))
    }

    /// Frames so far, as Wireshark counts them.
    #[getter]
    fn packets(&self) -> u64 {
        self.engine.frames
    }

    /// Whether the file is truncated or damaged; known after the last batch.
    #[getter]
    fn truncated(&self) -> bool {
        self.engine.cut.is_some()
    }

    /// Warnings for the user; complete after the last batch.
    #[getter]
    fn warnings(&self) -> Vec<String> {
        self.engine.warnings()
    }

    /// Packets outside connections: not IP (or cut), fragments, other transports, unknown link types.
    #[getter]
    fn skipped(&self, py: Python<'_>) -> PyResult<Py<PyDict>> {
        let Skipped {
            not_ip,
            fragments,
            other,
            unknown_link,
        } = self.engine.skipped;
        let dict = PyDict::new(py);
        dict.set_item("not_ip", not_ip)?;
        dict.set_item("fragments", fragments)?;
        dict.set_item("other", other)?;
        dict.set_item("unknown_link", unknown_link)?;
        Ok(dict.unbind())
    }
}
