//! Python module `upshift_native._native`: the capture engine for Python.

use pcapscan::{
    BIN_NS, Connection, Engine, Fields, Rules, Settings, Skipped, TrueClass, Value,
    scan as scan_file, visit,
};
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList, PyString};
use std::path::PathBuf;

mod packets;

pyo3::create_exception!(
    _native,
    CaptureError,
    pyo3::exceptions::PyException,
    "A file that is no capture which the engine can read: the message is one clause, what is wrong with it."
);

/// What a capture file holds.
#[pyclass(frozen, get_all, module = "upshift_native")]
struct ScanResult {
    /// One record per connection, in order of first packets; the keys are the fields of `analysis.connection.Connection`.
    connections: Py<PyList>,
    /// Frames, as Wireshark counts them.
    packets: u64,
    /// Whether the file is cut or damaged; what came before is in the records.
    truncated: bool,
    /// Sentences that a user should read.
    warnings: Vec<String>,
    /// Packets outside connections: not IP (or cut), fragments, other transports, unknown link types.
    skipped: Py<PyDict>,
}

/// The names of a record's fields in their fixed order, made once: they are most of the work of making a record.
static NAMES: PyOnceLock<Vec<Py<PyString>>> = PyOnceLock::new();

struct Names<'py> {
    py: Python<'py>,
    names: Vec<Py<PyString>>,
}

impl Fields for Names<'_> {
    fn field(&mut self, name: &'static str, _value: Value) {
        self.names.push(PyString::intern(self.py, name).unbind());
    }
}

struct Record<'py> {
    py: Python<'py>,
    names: std::slice::Iter<'static, Py<PyString>>,
    dict: Bound<'py, PyDict>,
    failed: Option<PyErr>,
}

impl<'py> Record<'py> {
    fn of(py: Python<'py>, connection: &Connection, cut: bool) -> PyResult<Bound<'py, PyDict>> {
        let names = NAMES.get_or_init(py, || {
            let mut all = Names {
                py,
                names: Vec::new(),
            };
            visit(connection, cut, &mut all);
            all.names
        });
        let mut record = Record {
            py,
            names: names.iter(),
            dict: PyDict::new(py),
            failed: None,
        };
        visit(connection, cut, &mut record);
        record.failed.map_or(Ok(record.dict), Err)
    }
}

impl Fields for Record<'_> {
    fn field(&mut self, name: &'static str, value: Value) {
        let Some(key) = self.names.next() else {
            let problem = format!("{name}: records must have the same fields");
            self.failed = Some(PyValueError::new_err(problem));
            return;
        };
        let name = key.bind(self.py);
        let done = match value {
            Value::None => self.dict.set_item(name, self.py.None()),
            Value::Bool(value) => self.dict.set_item(name, value),
            Value::Int(value) => self.dict.set_item(name, value),
            Value::Float(value) => self.dict.set_item(name, value),
            Value::Text(value) => self.dict.set_item(name, value),
        };
        if let Err(error) = done {
            self.failed = Some(error);
        }
    }
}

pub(crate) fn parse_rules(rules: &str) -> PyResult<Rules> {
    match rules {
        "4.0" => Ok(Rules::V4_0),
        "4.4" => Ok(Rules::V4_4),
        other => Err(PyValueError::new_err(format!(
            "rules are '4.0' or '4.4', not {other:?}"
        ))),
    }
}

fn series_dict<'py>(
    py: Python<'py>,
    engine: &Engine,
    number: usize,
) -> PyResult<Option<Bound<'py, PyDict>>> {
    let Some(connection) = engine.connections().nth(number) else {
        return Ok(None);
    };
    let Some(series) = &connection.series else {
        return Ok(None);
    };
    let from_client = |direction: u8| usize::from(direction) == connection.client;
    let dict = PyDict::new(py);
    dict.set_item("start_ns", series.start_ns())?;
    dict.set_item("bin_ns", BIN_NS)?;
    let bins = |side: usize| series.bins.iter().map(|bin| bin[side]).collect::<Vec<_>>();
    dict.set_item("client_bytes", bins(connection.client))?;
    dict.set_item("server_bytes", bins(connection.client ^ 1))?;
    // A sample is named after the side whose packet began it, which is not the one whose packet ended it.
    let rtt: Vec<_> = series
        .rtt
        .iter()
        .map(|&(at, direction, rtt)| (at, !from_client(direction), rtt))
        .collect();
    dict.set_item("rtt", rtt)?;
    let sequence: Vec<_> = series
        .sequence
        .iter()
        .map(|&(at, direction, end, class)| {
            (
                at,
                from_client(direction),
                end,
                TrueClass::ALL[usize::from(class)].name(),
            )
        })
        .collect();
    dict.set_item("sequence", sequence)?;
    Ok(Some(dict))
}

fn skipped_dict(py: Python<'_>, skipped: Skipped) -> PyResult<Py<PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("not_ip", skipped.not_ip)?;
    dict.set_item("fragments", skipped.fragments)?;
    dict.set_item("other", skipped.other)?;
    dict.set_item("unknown_link", skipped.unknown_link)?;
    Ok(dict.unbind())
}

/// Scans a capture file: one pass, the GIL released.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "PyO3 passes values")]
#[pyo3(signature = (path, *, series = false, rules = "4.0"))]
fn scan(py: Python<'_>, path: PathBuf, series: bool, rules: &str) -> PyResult<ScanResult> {
    let settings = Settings {
        rules: parse_rules(rules)?,
        series,
        ..Settings::default()
    };
    let engine = py
        .detach(|| scan_file(&path, settings))
        .map_err(|error| CaptureError::new_err(error.to_string()))?;
    let connections = PyList::empty(py);
    for (number, connection) in engine.connections().enumerate() {
        let record = Record::of(py, connection, engine.cut.is_some())?;
        if let Some(dict) = series_dict(py, &engine, number)? {
            record.set_item(intern!(py, "series"), dict)?;
        }
        connections.append(record)?;
    }
    Ok(ScanResult {
        connections: connections.unbind(),
        packets: engine.frames,
        truncated: engine.cut.is_some(),
        warnings: engine.warnings(),
        skipped: skipped_dict(py, engine.skipped)?,
    })
}

/// The capture engine for Python.
#[pymodule]
mod _native {
    #[pymodule_export]
    use super::{CaptureError, ScanResult, packets::PacketReader, packets::write_packets, scan};
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
