//! The configuration file, schema 1: reading it, and refusing what cannot be right.

use crate::config_error::{
    ConfigError, Fault, MAX_DELAY_US, MAX_DEVICE_NAME, MAX_NODES, MAX_POLICED, MAX_RATE_BPS,
    MIN_QUEUE_BYTES, SCHEMA,
};
use crate::loss::{Count, Loss};
use crate::path::Params;
use crate::policer::Policer;
use crate::prefix::{Prefix, is_lab_address};
use crate::rewrite::Rule;
use serde::Deserialize;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

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
    /// Blocks of addresses that it has as well.
    #[serde(default)]
    pub prefixes: Vec<Prefix>,
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
    policer: Option<RawPolicer>,
    ecn_threshold_bytes: Option<u64>,
    #[serde(default)]
    rewrite: Vec<Rule>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLoss {
    probability: Option<f64>,
    seed: Option<u64>,
    pattern: Option<Vec<u64>>,
    count: Option<Count>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPolicer {
    packets: usize,
    every_us: u64,
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
    let text = std::fs::read_to_string(file).map_err(|error| ConfigError::Unreadable {
        file: file.to_owned(),
        error,
    })?;
    parse(&text).map_err(|error| ConfigError::File {
        file: file.to_owned(),
        error: Box::new(error),
    })
}

/// Checks the text of a configuration.
///
/// # Errors
/// A sentence that names the field.
pub fn parse(text: &str) -> Result<Config, ConfigError> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let raw: RawConfig =
        serde_path_to_error::deserialize(&mut reader).map_err(|error| ConfigError::Shape {
            path: error.path().to_string(),
            error: error.into_inner(),
        })?;
    reader.end().map_err(ConfigError::Trailing)?;
    check(raw)
}

fn check(raw: RawConfig) -> Result<Config, ConfigError> {
    if raw.schema != SCHEMA {
        return Err(Fault::Schema(raw.schema).of("schema"));
    }
    if raw.nodes.is_empty() || raw.nodes.len() > MAX_NODES {
        return Err(Fault::NodeCount(raw.nodes.len()).of("nodes"));
    }
    if raw.txqueuelen == 0 {
        return Err(Fault::NoDeviceQueue.of("txqueuelen"));
    }
    let compensation_ns = micros("delay_compensation_us", raw.delay_compensation_us)?;
    let names = check_nodes(&raw.nodes)?;
    let mut seen = HashSet::new();
    let mut pairs = Vec::with_capacity(raw.pairs.len());
    for (number, pair) in raw.pairs.into_iter().enumerate() {
        let field = format!("pairs[{number}]");
        let find = |name: &str, end: &str| {
            let known = names.get(name).copied();
            known.ok_or_else(|| Fault::UnknownNode(name.to_owned()).of(format!("{field}.{end}")))
        };
        let (from, to) = (find(&pair.from, "from")?, find(&pair.to, "to")?);
        if from == to {
            return Err(Fault::Loop(pair.from).of(field));
        }
        if !seen.insert((from, to)) {
            let (from, to) = (pair.from, pair.to);
            return Err(Fault::RepeatedPair { from, to }.of(field));
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
            return Err(Fault::EmptyName.of(field));
        }
        if names.insert(node.name.clone(), number).is_some() {
            return Err(Fault::RepeatedName(node.name.clone()).of(format!("{field}.name")));
        }
        if !node.netns.is_absolute() {
            return Err(Fault::RelativeNamespace(node.netns.clone()).of(format!("{field}.netns")));
        }
        check_device(&format!("{field}.device"), &node.device)?;
        if node.addresses.is_empty() {
            return Err(Fault::NoAddress.of(format!("{field}.addresses")));
        }
        for (position, &address) in node.addresses.iter().enumerate() {
            let field = format!("{field}.addresses[{position}]");
            if !is_lab_address(address) {
                return Err(Fault::ForeignAddress(address).of(field));
            }
            if let Some(owner) = owners.insert(address, &node.name) {
                let owner = owner.to_owned();
                return Err(Fault::RepeatedAddress { address, owner }.of(field));
            }
        }
    }
    check_prefixes(nodes, &owners)?;
    Ok(names)
}

/// Prefixes of different nodes must not overlap, and no other node may have an address inside.
fn check_prefixes(nodes: &[Node], owners: &HashMap<IpAddr, &str>) -> Result<(), ConfigError> {
    let mut taken: Vec<(Prefix, &str)> = Vec::new();
    for (number, node) in nodes.iter().enumerate() {
        for (position, &prefix) in node.prefixes.iter().enumerate() {
            let field = format!("nodes[{number}].prefixes[{position}]");
            if !prefix.is_in_lab() {
                return Err(Fault::ForeignPrefix(prefix).of(field));
            }
            let addresses = owners
                .iter()
                .map(|(&address, &owner)| (prefix.contains(address), owner));
            let prefixes = taken
                .iter()
                .map(|&(other, owner)| (prefix.overlaps(&other), owner));
            let other = addresses
                .chain(prefixes)
                .find(|&(overlaps, owner)| overlaps && owner != node.name);
            if let Some((_, owner)) = other {
                let owner = owner.to_owned();
                return Err(Fault::RepeatedPrefix { prefix, owner }.of(field));
            }
            taken.push((prefix, &node.name));
        }
    }
    Ok(())
}

fn check_device(field: &str, name: &str) -> Result<(), ConfigError> {
    let is_plain = name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    if name.is_empty() || name.len() > MAX_DEVICE_NAME || !is_plain || name.starts_with('.') {
        return Err(Fault::DeviceName(name.to_owned()).of(field));
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
        return Err(Fault::Rate.of(format!("{field}.rate_bps")));
    }
    let queue = || format!("{field}.queue_bytes");
    let queue_bytes = match (pair.rate_bps, pair.queue_bytes) {
        (Some(_), None) => return Err(Fault::NoQueue.of(queue())),
        (Some(_), Some(bytes)) if bytes < MIN_QUEUE_BYTES => {
            return Err(Fault::ShortQueue(bytes).of(queue()));
        }
        (_, bytes) => bytes.unwrap_or(0),
    };
    let loss = pair
        .loss
        .map(|loss| check_loss(&format!("{field}.loss"), loss))
        .transpose()?;
    let policer = pair
        .policer
        .map(|policer| check_policer(&format!("{field}.policer"), &policer))
        .transpose()?;
    Ok(Params {
        delay_ns,
        compensation_ns,
        rate_bps: pair.rate_bps,
        queue_bytes,
        loss,
        policer,
        ecn_threshold_bytes: pair.ecn_threshold_bytes,
        rewrite: pair.rewrite,
    })
}

fn check_policer(field: &str, policer: &RawPolicer) -> Result<Policer, ConfigError> {
    let &RawPolicer { packets, every_us } = policer;
    if !(1..=MAX_POLICED).contains(&packets) || every_us == 0 {
        return Err(Fault::Policer.of(field));
    }
    let every_ns = micros(&format!("{field}.every_us"), every_us)?;
    Ok(Policer { packets, every_ns })
}

fn check_loss(field: &str, loss: RawLoss) -> Result<Loss, ConfigError> {
    match loss {
        RawLoss {
            probability: Some(probability),
            seed: Some(seed),
            pattern: None,
            count: None,
        } => {
            if !(0.0..=1.0).contains(&probability) {
                return Err(Fault::Probability(probability).of(format!("{field}.probability")));
            }
            Ok(Loss::Random { probability, seed })
        }
        RawLoss {
            probability: None,
            seed: None,
            pattern: Some(mut indices),
            count,
        } => {
            indices.sort_unstable();
            Ok(Loss::Pattern {
                indices,
                count: count.unwrap_or_default(),
            })
        }
        _ => Err(Fault::LossForm.of(field)),
    }
}

fn micros(field: &str, value: u64) -> Result<u64, ConfigError> {
    if value > MAX_DELAY_US {
        return Err(Fault::Delay(value).of(field));
    }
    Ok(value * 1000)
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
