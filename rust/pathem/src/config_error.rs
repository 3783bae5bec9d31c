//! The limits of a configuration, and what can be wrong with one: a sentence each with where, what, and what to do.

use crate::prefix::Prefix;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use thiserror::Error;

pub(crate) const SCHEMA: u64 = 1;
pub(crate) const MAX_NODES: usize = 512;
pub(crate) const MAX_DELAY_US: u64 = 60_000_000;
pub(crate) const MAX_RATE_BPS: u64 = 1_000_000_000_000;
pub(crate) const MIN_QUEUE_BYTES: u64 = 1500;
/// Most packets of a policer: each flow remembers as many.
pub(crate) const MAX_POLICED: usize = 1000;
pub(crate) const MAX_DEVICE_NAME: usize = 15;

/// Why a configuration, or a pair of a `set_pair` request, is refused.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: cannot be read ({error}); give a readable JSON file", .file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The text of a file is refused.
    #[error("{}: {error}", .file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// Why.
        error: Box<ConfigError>,
    },
    /// A field is missing, unknown, or of another type.
    #[error("{path}: {error}; see docs/design/pathem.md")]
    Shape {
        /// The field.
        path: String,
        /// The parser's error.
        error: serde_json::Error,
    },
    /// Something follows the object.
    #[error("{0}; keep one JSON object in the file")]
    Trailing(serde_json::Error),
    /// The value of a field is refused.
    #[error("{field} {fault}")]
    Field {
        /// The field.
        field: String,
        /// Why.
        fault: Fault,
    },
}

/// What is wrong with the value of a field.
#[derive(Debug, Error)]
pub enum Fault {
    /// Another schema version.
    #[error("is {0}, but this pathem reads {SCHEMA}; use the pathem of the same release")]
    Schema(u64),
    /// No node, or too many.
    #[error("has {0} entries; give 1 to {MAX_NODES}")]
    NodeCount(usize),
    /// A device queue of no packet.
    #[error("is 0, which drops every packet; use 20000")]
    NoDeviceQueue,
    /// A delay that is too long, us.
    #[error("is {0} us; use at most {MAX_DELAY_US}")]
    Delay(u64),
    /// A node without a name.
    #[error("has an empty name; give each node a name")]
    EmptyName,
    /// A name that another node has.
    #[error("repeats {0:?}; give each node its own name")]
    RepeatedName(String),
    /// A relative path.
    #[error("is {:?}; give the absolute path of a network namespace file", .0.display().to_string())]
    RelativeNamespace(PathBuf),
    /// A device name that the kernel would not take.
    #[error("is {0:?}; use 1 to {MAX_DEVICE_NAME} letters, digits, '-', '_' or '.'")]
    DeviceName(String),
    /// A node without an address.
    #[error("is empty; give at least one lab address")]
    NoAddress,
    /// An address outside the lab's prefixes.
    #[error("is {0}, which is not a lab address; use 198.18.0.0/15 or fd00:198:18::/48")]
    ForeignAddress(IpAddr),
    /// An address that another node has.
    #[error("{address} already belongs to {owner:?}; use another address")]
    RepeatedAddress {
        /// The address.
        address: IpAddr,
        /// The node that has it.
        owner: String,
    },
    /// A prefix that reaches outside the lab's prefixes.
    #[error("is {0}, which is not inside the lab; use a part of 198.18.0.0/15 or fd00:198:18::/48")]
    ForeignPrefix(Prefix),
    /// A prefix of which another node has a part.
    #[error("{prefix} overlaps what {owner:?} has; use another prefix")]
    RepeatedPrefix {
        /// The prefix.
        prefix: Prefix,
        /// The node that has a part of it.
        owner: String,
    },
    /// A pair with an end that is not a node.
    #[error("is {0:?}, but no node is called that; use a name from nodes")]
    UnknownNode(String),
    /// A pair with one end.
    #[error("connects {0:?} to itself; remove it")]
    Loop(String),
    /// A pair that stands twice.
    #[error("repeats the pair {from:?} to {to:?}; keep one of them")]
    RepeatedPair {
        /// The sending node.
        from: String,
        /// The receiving node.
        to: String,
    },
    /// A rate out of range.
    #[error("must be 1 to {MAX_RATE_BPS} bit/s, or null for unlimited")]
    Rate,
    /// A limited rate without a queue.
    #[error("is missing, but the rate is limited; give the queue in bytes")]
    NoQueue,
    /// A queue that is too short, bytes.
    #[error("is {0}, so no full-sized packet would pass; use at least {MIN_QUEUE_BYTES}")]
    ShortQueue(u64),
    /// A probability out of range.
    #[error("is {0}; use 0 to 1")]
    Probability(f64),
    /// A policer that lets nothing pass, or remembers too much.
    #[error("must have packets from 1 to {MAX_POLICED} and every_us from 1")]
    Policer,
    /// Neither of the two forms of a loss.
    #[error(
        "must have either probability and seed, or pattern and optionally count; or be null for no loss"
    )]
    LossForm,
}

impl Fault {
    /// This fault of a field.
    pub(crate) fn of(self, field: impl Into<String>) -> ConfigError {
        ConfigError::Field {
            field: field.into(),
            fault: self,
        }
    }
}
