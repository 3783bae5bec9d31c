//! One row per packet: as CSV straight to a file descriptor or path, or as columns for Arrow.

use crate::{CaptureError, parse_rules};
use pcapscan::{Capture, Columns, CsvWriter, Engine, ScanError, Settings};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::fs::File;
use std::io::Write;
use std::os::fd::FromRawFd;
use std::path::PathBuf;

fn capture_error(error: &ScanError) -> PyErr {
    CaptureError::new_err(error.to_string())
}

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
    let settings = Settings {
        rules: parse_rules(rules)?,
        series: false,
        ..Settings::default()
    };
    py.detach(|| {
        let mut capture = Capture::open(&path).map_err(|error| capture_error(&error))?;
        // SAFETY: the caller owns this descriptor and keeps it open during the call; `ManuallyDrop` keeps us from
        // closing it.
        let file = std::mem::ManuallyDrop::new(unsafe { File::from_raw_fd(descriptor) });
        let mut writer = CsvWriter::new(&*file);
        let mut engine = Engine::new(settings);
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
        let settings = Settings {
            rules: parse_rules(rules)?,
            series: false,
            ..Settings::default()
        };
        let capture = Capture::open(&path).map_err(|error| capture_error(&error))?;
        Ok(Self {
            capture,
            engine: Engine::new(settings),
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
