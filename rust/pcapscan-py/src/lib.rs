//! Python module `upshift_native._native`: the capture engine for Python.

use pyo3::prelude::*;

mod connections;
mod open;
mod packets;

/// The capture engine for Python.
#[pymodule]
mod _native {
    #[pymodule_export]
    use super::{
        connections::ConnectionReader, open::CaptureError, packets::PacketReader,
        packets::write_packets,
    };
    use pcapscan::{Record, SideRecord};
    use pyo3::prelude::*;
    use pyo3::types::PyDict;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let fields = PyDict::new(module.py());
        for (name, list) in [("connection", Record::FIELDS), ("side", SideRecord::FIELDS)] {
            let texts = list
                .iter()
                .map(|field| (field.name, field.kind, field.meaning));
            fields.set_item(name, texts.collect::<Vec<_>>())?;
        }
        module.add("FIELDS", fields)?;
        module.add("MOST_CONNECTIONS", pcapscan::MOST_CONNECTIONS)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("SOURCE", env!("SOURCE"))
    }
}
