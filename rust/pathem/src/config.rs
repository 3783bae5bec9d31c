//! The configuration file, schema 1: reading it, and refusing what cannot be right.

use crate::loss::Loss;
use crate::path::Params;
use serde::Deserialize;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

const SCHEMA: u64 = 1;
const MAX_NODES: usize = 512;
const MAX_DELAY_US: u64 = 60_000_000;
const MAX_RATE_BPS: u64 = 1_000_000_000_000;
const MIN_QUEUE_BYTES: u64 = 1500;
const MAX_DEVICE_NAME: usize = 15;

/// One sentence: what is wrong, where, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError(pub String);

impl fmt::Display for ConfigError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}

/// A node: a network namespace that gets one TUN device.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Unique name.
    pub name: String,
    /// File of the network namespace, for example /run/netns/MUC.
    pub netns: PathBuf,
    /// Name of the TUN device to create.
    pub device: String,
    /// The addresses that this node may send from and is reached at.
    pub addresses: Vec<IpAddr>,
}

/// A checked ordered pair of nodes.
#[derive(Debug, Clone, PartialEq)]
pub struct Pair {
    /// Index of the sending node.
    pub from: usize,
    /// Index of the receiving node.
    pub to: usize,
    /// Properties of the path.
    pub params: Params,
}

/// A checked configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The nodes.
    pub nodes: Vec<Node>,
    /// The directed paths between them.
    pub pairs: Vec<Pair>,
    /// Taken off every delay, ns.
    pub compensation_ns: u64,
    /// Transmit queue length of the TUN devices, packets.
    pub txqueuelen: u32,
    /// Most memory for packets in flight, bytes.
    pub memory_limit_bytes: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawConfig {
    schema: u64,
    nodes: Vec<Node>,
    pairs: Vec<RawPair>,
    #[serde(default)]
    delay_compensation_us: u64,
    #[serde(default = "default_txqueuelen")]
    txqueuelen: u32,
    #[serde(default = "default_memory_limit")]
    memory_limit_bytes: u64,
}

/// A pair as it stands in the configuration or in a `set_pair` request.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawPair {
    /// Name of the sending node.
    pub from: String,
    /// Name of the receiving node.
    pub to: String,
    delay_us: u64,
    rate_bps: Option<u64>,
    queue_bytes: Option<u64>,
    loss: Option<RawLoss>,
    ecn_threshold_bytes: Option<u64>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLoss {
    probability: Option<f64>,
    seed: Option<u64>,
    pattern: Option<Vec<u64>>,
}

fn default_txqueuelen() -> u32 {
    20_000
}

fn default_memory_limit() -> u64 {
    512 * 1024 * 1024
}

/// Reads and checks a configuration file.
///
/// # Errors
/// A sentence that names the file and the field.
pub fn load(file: &Path) -> Result<Config, ConfigError> {
    let place = file.display();
    let text = std::fs::read_to_string(file).map_err(|error| {
        ConfigError(format!(
            "{place}: cannot be read ({error}); give a readable JSON file"
        ))
    })?;
    parse(&text).map_err(|error| ConfigError(format!("{place}: {error}")))
}

/// Checks the text of a configuration.
///
/// # Errors
/// A sentence that names the field.
pub fn parse(text: &str) -> Result<Config, ConfigError> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let raw: RawConfig = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        ConfigError(format!(
            "{}: {}; see docs/design/pathem.md",
            error.path(),
            error.inner()
        ))
    })?;
    reader
        .end()
        .map_err(|error| ConfigError(format!("{error}; keep one JSON object in the file")))?;
    check(raw)
}

fn check(raw: RawConfig) -> Result<Config, ConfigError> {
    if raw.schema != SCHEMA {
        return fail(
            "schema",
            &format!(
                "is {}, but this pathem reads {SCHEMA}; use the pathem of the same release",
                raw.schema
            ),
        );
    }
    if raw.nodes.is_empty() || raw.nodes.len() > MAX_NODES {
        return fail(
            "nodes",
            &format!("has {} entries; give 1 to {MAX_NODES}", raw.nodes.len()),
        );
    }
    if raw.txqueuelen == 0 {
        return fail("txqueuelen", "is 0, which drops every packet; use 20000");
    }
    let compensation_ns = micros("delay_compensation_us", raw.delay_compensation_us)?;
    let names = check_nodes(&raw.nodes)?;
    let mut seen = HashSet::new();
    let mut pairs = Vec::with_capacity(raw.pairs.len());
    for (number, pair) in raw.pairs.into_iter().enumerate() {
        let field = format!("pairs[{number}]");
        let find = |name: &str, end: &str| {
            names.get(name).copied().ok_or_else(|| {
                ConfigError(format!(
                    "{field}.{end}: no node is called {name:?}; use a name from nodes"
                ))
            })
        };
        let (from, to) = (find(&pair.from, "from")?, find(&pair.to, "to")?);
        if from == to {
            return fail(
                &field,
                &format!("leads from {:?} to itself; remove it", pair.from),
            );
        }
        if !seen.insert((from, to)) {
            return fail(
                &field,
                &format!(
                    "repeats the pair {:?} to {:?}; keep one of them",
                    pair.from, pair.to
                ),
            );
        }
        let params = check_params(&field, pair, compensation_ns)?;
        pairs.push(Pair { from, to, params });
    }
    Ok(Config {
        nodes: raw.nodes,
        pairs,
        compensation_ns,
        txqueuelen: raw.txqueuelen,
        memory_limit_bytes: raw.memory_limit_bytes,
    })
}

fn check_nodes(nodes: &[Node]) -> Result<HashMap<String, usize>, ConfigError> {
    let mut names = HashMap::new();
    let mut owners: HashMap<IpAddr, &str> = HashMap::new();
    for (number, node) in nodes.iter().enumerate() {
        let field = format!("nodes[{number}]");
        if node.name.is_empty() {
            return fail(&field, "has an empty name; give each node a name");
        }
        if names.insert(node.name.clone(), number).is_some() {
            return fail(
                &format!("{field}.name"),
                &format!("repeats {:?}; give each node its own name", node.name),
            );
        }
        if !node.netns.is_absolute() {
            return fail(
                &format!("{field}.netns"),
                &format!(
                    "is {:?}; give the absolute path of a network namespace file",
                    node.netns.display().to_string()
                ),
            );
        }
        check_device(&format!("{field}.device"), &node.device)?;
        if node.addresses.is_empty() {
            return fail(
                &format!("{field}.addresses"),
                "is empty; give at least one lab address",
            );
        }
        for (position, &address) in node.addresses.iter().enumerate() {
            let field = format!("{field}.addresses[{position}]");
            if !is_lab_address(address) {
                return fail(
                    &field,
                    &format!(
                        "is {address}, which is not a lab address; use 198.18.0.0/15 or fd00:198:18::/48"
                    ),
                );
            }
            if let Some(other) = owners.insert(address, &node.name) {
                return fail(
                    &field,
                    &format!("{address} already belongs to {other:?}; use another address"),
                );
            }
        }
    }
    Ok(names)
}

fn check_device(field: &str, name: &str) -> Result<(), ConfigError> {
    let is_plain = name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    if name.is_empty() || name.len() > MAX_DEVICE_NAME || !is_plain || name.starts_with('.') {
        return fail(
            field,
            &format!("is {name:?}; use 1 to {MAX_DEVICE_NAME} letters, digits, '-', '_' or '.'"),
        );
    }
    Ok(())
}

/// Checks the properties of one pair. `field` names it in an error.
///
/// # Errors
/// A sentence that names the field.
pub fn check_params(
    field: &str,
    pair: RawPair,
    compensation_ns: u64,
) -> Result<Params, ConfigError> {
    let delay_ns = micros(&format!("{field}.delay_us"), pair.delay_us)?;
    if pair
        .rate_bps
        .is_some_and(|rate| !(1..=MAX_RATE_BPS).contains(&rate))
    {
        return fail(
            &format!("{field}.rate_bps"),
            &format!("must be 1 to {MAX_RATE_BPS} bit/s, or null for unlimited"),
        );
    }
    let queue_bytes = match (pair.rate_bps, pair.queue_bytes) {
        (Some(_), None) => {
            return fail(
                &format!("{field}.queue_bytes"),
                "is missing, but the rate is limited; give the queue in bytes",
            );
        }
        (Some(_), Some(bytes)) if bytes < MIN_QUEUE_BYTES => {
            return fail(
                &format!("{field}.queue_bytes"),
                &format!(
                    "is {bytes}, so no full-sized packet would pass; use at least {MIN_QUEUE_BYTES}"
                ),
            );
        }
        (_, bytes) => bytes.unwrap_or(0),
    };
    let loss = pair
        .loss
        .map(|loss| check_loss(&format!("{field}.loss"), loss))
        .transpose()?;
    Ok(Params {
        delay_ns,
        compensation_ns,
        rate_bps: pair.rate_bps,
        queue_bytes,
        loss,
        ecn_threshold_bytes: pair.ecn_threshold_bytes,
    })
}

fn check_loss(field: &str, loss: RawLoss) -> Result<Loss, ConfigError> {
    match loss {
        RawLoss {
            probability: Some(probability),
            seed: Some(seed),
            pattern: None,
        } => {
            if !(0.0..=1.0).contains(&probability) {
                return fail(
                    &format!("{field}.probability"),
                    &format!("is {probability}; use 0 to 1"),
                );
            }
            Ok(Loss::Random { probability, seed })
        }
        RawLoss {
            probability: None,
            seed: None,
            pattern: Some(mut pattern),
        } => {
            pattern.sort_unstable();
            Ok(Loss::Pattern(pattern))
        }
        _ => fail(
            field,
            "must have either probability and seed, or pattern; or be null for no loss",
        ),
    }
}

/// Whether the lab may carry packets of this address: 198.18.0.0/15 (RFC 2544) or `fd00:198:18::/48`.
#[must_use]
pub fn is_lab_address(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let [first, second, ..] = v4.octets();
            first == 198 && second & 0xfe == 18
        }
        IpAddr::V6(v6) => matches!(v6.segments(), [0xfd00, 0x0198, 0x0018, ..]),
    }
}

fn micros(field: &str, value: u64) -> Result<u64, ConfigError> {
    if value > MAX_DELAY_US {
        return fail(field, &format!("is {value} us; use at most {MAX_DELAY_US}"));
    }
    Ok(value * 1000)
}

fn fail<T>(field: &str, what: &str) -> Result<T, ConfigError> {
    Err(ConfigError(format!("{field} {what}")))
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
