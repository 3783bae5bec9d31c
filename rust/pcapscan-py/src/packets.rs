//! One row per packet: as CSV straight to a file descriptor or path, or as columns for Arrow.

use crate::open;
use pcapscan::{Capture, Columns, CsvWriter, Engine};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::fs::File;
use std::io::Write;
use std::os::fd::FromRawFd;
use std::path::PathBuf;

/// Writes one CSV row per packet to a file descriptor, which stays open. Returns (rows, warnings).
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "PyO3 passes values")]
#[pyo3(signature = (path, descriptor, *, rules = "4.0"))]
pub fn write_packets(
    py: Python<'_>,
    path: PathBuf,
    descriptor: i32,
    rules: &str,
) -> PyResult<(u64, Vec<String>)> {
    let mut engine = Engine::new(open::settings(rules, false)?);
    let mut capture = open::capture(&path)?;
    py.detach(|| {
        // SAFETY: the caller owns this descriptor and keeps it open during the call; `ManuallyDrop` keeps us from
        // closing it.
        let file = std::mem::ManuallyDrop::new(unsafe { File::from_raw_fd(descriptor) });
        let mut writer = CsvWriter::new(&*file);
        while engine.run(&mut capture, &mut writer, engine.frames + 65_536) {
            writer
                .check()
                .map_err(|error| PyOSError::new_err((error.raw_os_error(), error.to_string())))?;
        }
        let rows = writer
            .finish()
            .map_err(|error| PyOSError::new_err((error.raw_os_error(), error.to_string())))?;
        (&*file).flush()?;
        Ok((rows, engine.warnings()))
    })
}

/// Reads a capture in batches of columns.
#[pyclass(module = "upshift_native")]
pub struct PacketReader {
    capture: Capture,
    engine: Engine,
    done: bool,
}

#[pymethods]
impl PacketReader {
    #[new]
    #[expect(clippy::needless_pass_by_value, reason = "PyO3 passes values")]
    #[pyo3(signature = (path, *, rules = "4.0"))]
    fn new(path: PathBuf, rules: &str) -> PyResult<Self> {
        Ok(Self {
            engine: Engine::new(open::settings(rules, false)?),
            capture: open::capture(&path)?,
            done: false,
        })
    }

    /// The next batch: column name -> little-endian values as bytes; None at the end. `seq` is -1 for QUIC.
    fn next_batch<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        if self.done {
            return Ok(None);
        }
        let mut columns = Columns::default();
        py.detach(|| {
            self.done =
                !self
                    .engine
                    .run(&mut self.capture, &mut columns, self.engine.frames + 65_536);
        });
        let dict = PyDict::new(py);
        for (name, bytes) in columns.finish() {
            dict.set_item(name, PyBytes::new(py, &bytes))?;
        }
        Ok(Some(dict))
    }

    /// Warnings for the user; complete after the last batch.
    fn warnings(&self) -> Vec<String> {
        self.engine.warnings()
    }
}
