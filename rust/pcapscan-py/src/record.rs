//! A connection as a dictionary: its record, and its series.

use pcapscan::{BIN_NS, Connection, Fields, TrueClass, Value, visit};
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyString, PyTuple};

/// The record of a connection, with its `series` if there is one; `cut` says whether the file was.
pub fn record<'py>(
    py: Python<'py>,
    connection: &Connection,
    cut: bool,
) -> PyResult<Bound<'py, PyDict>> {
    let made = Record::of(py, connection, cut)?;
    if let Some(dict) = series_dict(py, connection)? {
        made.set_item(intern!(py, "series"), dict)?;
    }
    Ok(made)
}

/// The names of a record's fields in their fixed order, made once: they are most of the work of making a record.
static NAMES: PyOnceLock<Vec<Py<PyString>>> = PyOnceLock::new();

struct Names<'py> {
    py: Python<'py>,
    names: Vec<Py<PyString>>,
}

impl Names<'_> {
    fn note(&mut self, name: &str) {
        self.names.push(PyString::intern(self.py, name).unbind());
    }
}

impl Fields for Names<'_> {
    fn field(&mut self, name: &'static str, _value: Value) {
        self.note(name);
    }

    fn enter(&mut self, side: &'static str) {
        self.note(side);
    }
}

/// A dictionary with one more for each side in it.
struct Record<'py> {
    py: Python<'py>,
    names: std::slice::Iter<'static, Py<PyString>>,
    whole: Bound<'py, PyDict>,
    /// Where fields go: the whole, or a side.
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
        let whole = PyDict::new(py);
        let mut record = Record {
            py,
            names: names.iter(),
            dict: whole.clone(),
            whole,
            failed: None,
        };
        visit(connection, cut, &mut record);
        record.failed.map_or(Ok(record.whole), Err)
    }

    fn next_name(&mut self, name: &'static str) -> Option<Bound<'py, PyString>> {
        let next = self.names.next().map(|key| key.bind(self.py).clone());
        if next.is_none() {
            let problem = format!("{name}: records must have the same fields");
            self.failed = Some(PyValueError::new_err(problem));
        }
        next
    }
}

impl Fields for Record<'_> {
    fn field(&mut self, name: &'static str, value: Value) {
        let Some(name) = self.next_name(name) else {
            return;
        };
        let done = match value {
            Value::None => self.dict.set_item(name, self.py.None()),
            Value::Bool(value) => self.dict.set_item(name, value),
            Value::Int(value) => self.dict.set_item(name, value),
            Value::Float(value) => self.dict.set_item(name, value),
            Value::Text(value) => self.dict.set_item(name, value),
            Value::Ints(values) => {
                PyTuple::new(self.py, values).and_then(|values| self.dict.set_item(name, values))
            }
        };
        if let Err(error) = done {
            self.failed = Some(error);
        }
    }

    fn enter(&mut self, side: &'static str) {
        if let Some(name) = self.next_name(side) {
            self.dict = PyDict::new(self.py);
            if let Err(error) = self.whole.set_item(name, &self.dict) {
                self.failed = Some(error);
            }
        }
    }

    fn leave(&mut self) {
        self.dict = self.whole.clone();
    }
}

fn series_dict<'py>(
    py: Python<'py>,
    connection: &Connection,
) -> PyResult<Option<Bound<'py, PyDict>>> {
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
