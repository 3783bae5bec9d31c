//! Capture engine: packets in, one record per connection out.
//!
//! One pass, one thread per file, memory per connection (of which a bounded number is held) and never per packet, unless
//! a series is asked for. See
//! `docs/design/kpi-engine.md` for the rules and what they rest on.

#![allow(
    clippy::doc_markdown,
    reason = "TSval, TSecr, AccECN and the like are the words of RFCs, not code"
)]

mod answer;
mod capture;
mod connection;
mod copies;
mod engine;
mod error;
mod holes;
mod ip;
mod link;
mod lookup;
mod plain;
mod quic;
mod record;
mod rounds;
mod rows;
mod rtt;
mod seq;
mod series;
mod side;
mod sink;
mod slots;
mod tcp;
#[doc(hidden)]
pub mod testing;
mod truth;
mod wireshark;

pub use capture::Capture;
pub use connection::Connection;
pub use engine::{Engine, MOST_CONNECTIONS, Settings, Skipped};
pub use error::ScanError;
pub use record::{Field, Record, SideRecord};
pub use rows::{Columns, CsvWriter};
pub use sink::{PacketRow, Sink};
pub use truth::TrueClass;
pub use wireshark::Rules;
