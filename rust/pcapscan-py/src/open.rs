//! What both readers begin with: a capture file and the rules, or an error of Python.

use pcapscan::{Capture, Rules, Settings};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::path::Path;

pyo3::create_exception!(
    _native,
    CaptureError,
    pyo3::exceptions::PyException,
    "A file that the engine cannot read as a capture: the message is one clause with the reason."
);

/// The engine's settings; `rules` names a version of Wireshark.
pub fn settings(rules: &str, series: bool) -> PyResult<Settings> {
    let rules = match rules {
        "4.0" => Rules::V4_0,
        "4.4" => Rules::V4_4,
        other => {
            return Err(PyValueError::new_err(format!(
                "rules are '4.0' or '4.4', not {other:?}"
            )));
        }
    };
    Ok(Settings {
        rules,
        series,
        ..Settings::default()
    })
}

/// Opens a capture file.
pub fn capture(path: &Path) -> PyResult<Capture> {
    Capture::open(path).map_err(|error| CaptureError::new_err(error.to_string()))
}
