//! Python module `upshift_native._native`: the capture engine for Python.

use pcapscan::Rules;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

mod connections;
mod packets;
mod record;

pyo3::create_exception!(
    _native,
    CaptureError,
    pyo3::exceptions::PyException,
    "A file that the engine cannot read as a capture: the message is one clause with the reason."
);

pub(crate) fn parse_rules(rules: &str) -> PyResult<Rules> {
    match rules {
        "4.0" => Ok(Rules::V4_0),
        "4.4" => Ok(Rules::V4_4),
        other => Err(PyValueError::new_err(format!(
            "rules are '4.0' or '4.4', not {other:?}"
        ))),
    }
}

/// The capture engine for Python.
#[pymodule]
mod _native {
    #[pymodule_export]
    use super::{
        CaptureError, connections::ConnectionReader, packets::PacketReader, packets::write_packets,
    };
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("MOST_CONNECTIONS", pcapscan::MOST_CONNECTIONS)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
