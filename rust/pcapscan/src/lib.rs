//! Capture engine: packets in, one record per connection out.
//!
//! One pass, one thread per file, memory per connection and never per packet (unless a series is asked for). See
//! `docs/design/kpi-engine.md` for the rules and what they rest on.

#![allow(
    clippy::doc_markdown,
    reason = "TSval, TSecr, AccECN and the like are the words of RFCs, not code"
)]

pub mod capture;
pub mod connection;
pub mod engine;
pub mod error;
mod holes;
pub mod ip;
pub mod link;
pub mod lookup;
pub mod plain;
pub mod quic;
pub mod record;
pub mod rows;
pub mod rtt;
pub mod seq;
pub mod series;
pub mod side;
pub mod tcp;
#[doc(hidden)]
pub mod testing;
pub mod truth;
pub mod wireshark;

pub use engine::{Engine, PacketRow, Settings, Sink, scan};
pub use error::ScanError;
pub use wireshark::Rules;
