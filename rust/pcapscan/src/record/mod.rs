//! The record of a connection: what Python gets. **A new field is one entry here**, with its meaning, its type and its
//! value; `scripts/docs` then writes Python's classes.

mod connection;
mod fields;
mod series;
mod side;

pub use connection::Record;
pub use fields::Field;
pub use side::SideRecord;
