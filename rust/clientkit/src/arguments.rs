//! The arguments that all clients have.

use std::ffi::OsStr;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, value_parser};
use thiserror::Error;

use crate::confine::User;
use crate::reach::{Prefix, Reach, ReachError};
use crate::text::one_line;
use crate::url::Url;

/// Where systems keep their CA certificates in one file.
const SYSTEM_CA_FILES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
const DAY_S: f64 = 86400.0;
/// The largest window that may be asked for, bytes.
const MOST_WINDOW: u64 = 1 << 40;
const WINDOW: u64 = 64 << 20;

/// The arguments as given; [`Common::request`] fills in what depends on others.
#[allow(clippy::doc_markdown, reason = "the sentences of --help")]
#[derive(Debug, Args)]
pub(crate) struct Common {
    /// What to fetch, https://HOST[:PORT]/PATH; HOST is checked against the certificate
    #[arg(long, value_parser = Url::parse)]
    url: Url,
    /// Where to fetch it; nothing is looked up in DNS
    #[arg(long, value_name = "IP")]
    address: IpAddr,
    /// Port [default: the URL's, else 443]
    #[arg(long, value_name = "N", value_parser = value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// PEM file with the trusted CA certificates [default: the system's]
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Time from the first packet, s; then the download is censored
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = parse_seconds)]
    budget_s: Duration,
    /// Body bytes after which the download is censored [default: no limit]
    #[arg(long, value_name = "N")]
    max_bytes: Option<u64>,
    /// Body bytes for which memory is provided before the clock starts [default: 80 MiB]
    #[arg(long, value_name = "N")]
    expected_bytes: Option<u64>,
    /// The header of that name [default: upshift-PROGRAM/VERSION]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, value_parser = header_value)]
    user_agent: Option<String>,
    /// May be repeated; an address outside gets no packet. The comma-separated prefixes in UPSHIFT_ALLOWED_PREFIXES are
    /// enforced as well
    #[arg(long, value_name = "PREFIX")]
    allow: Vec<Prefix>,
    /// User and group for the download, if the user may be changed [default: nobody]
    #[arg(long, value_name = "UID:GID")]
    run_as: Option<User>,
}

/// The flow-control windows and the buffer of a QUIC client.
#[derive(Debug, Clone, Copy, Args)]
pub struct Windows {
    /// Connection flow control window, bytes
    #[arg(long, value_name = "BYTES", default_value_t = WINDOW, value_parser = value_parser!(u64).range(1..=MOST_WINDOW))]
    pub max_data: u64,
    /// Stream flow control window, bytes
    #[arg(long, value_name = "BYTES", default_value_t = WINDOW, value_parser = value_parser!(u64).range(1..=MOST_WINDOW))]
    pub max_stream_data: u64,
    /// Receive buffer of the socket, as requested from the kernel, bytes
    #[arg(long, value_name = "BYTES", default_value_t = 16 << 20, value_parser = value_parser!(u32).range(1..=i64::from(i32::MAX)))]
    pub receive_buffer: u32,
}

/// The CA certificates cannot be read: wrong use.
#[derive(Debug, Error)]
#[error("{} is not a readable PEM file with CA certificates", one_line(&.0.display().to_string()))]
pub struct UnreadableCa(pub PathBuf);

/// One download, as requested from every client.
#[derive(Debug, Clone)]
pub struct Request {
    /// What to fetch.
    pub url: Url,
    /// Forced server address; an IPv4-mapped IPv6 address has become the IPv4 address.
    pub address: IpAddr,
    /// Forced port.
    pub port: u16,
    /// PEM file of trusted CA certificates.
    pub ca: PathBuf,
    /// Time from the first packet.
    pub budget: Duration,
    /// Body bytes after which the download is censored.
    pub max_bytes: Option<u64>,
    /// Body bytes for which memory is provided before the clock starts.
    pub expected_bytes: Option<u64>,
    /// The header of that name.
    pub user_agent: String,
    /// Which addresses may be contacted.
    pub reach: Reach,
    /// User and group to become before the first packet, where the user may be changed.
    pub run_as: User,
}

/// Wrong use that no single argument shows: one sentence each.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum UsageError {
    /// The environment's prefixes are not valid.
    #[error(transparent)]
    Reach(#[from] ReachError),
    /// Neither option nor system names CA certificates.
    #[error("this system has no known file of CA certificates; name one with --ca")]
    NoCaFile,
}

impl Common {
    /// The request; `agent` is the default user agent, `environment` the value of [`crate::reach::VARIABLE`].
    pub(crate) fn request(
        self,
        agent: String,
        environment: Option<&OsStr>,
    ) -> Result<Request, UsageError> {
        let system = || {
            SYSTEM_CA_FILES
                .iter()
                .map(Path::new)
                .find(|path| path.exists())
        };
        let ca = self.ca.or_else(|| system().map(Path::to_owned));
        Ok(Request {
            port: self.port.or(self.url.port).unwrap_or(443),
            url: self.url,
            address: self.address.to_canonical(),
            ca: ca.ok_or(UsageError::NoCaFile)?,
            budget: self.budget_s,
            max_bytes: self.max_bytes,
            expected_bytes: self.expected_bytes,
            user_agent: self.user_agent.unwrap_or(agent),
            reach: Reach::new(self.allow, environment)?,
            run_as: self.run_as.unwrap_or_default(),
        })
    }
}

/// Reads a duration in seconds, at most a day: for `value_parser` of an option.
///
/// # Errors
/// It is not a number, or out of range.
pub fn parse_seconds(text: &str) -> Result<Duration, &'static str> {
    text.parse()
        .ok()
        .filter(|number| *number > 0.0 && *number <= DAY_S)
        .map(Duration::from_secs_f64)
        .ok_or("use a number of seconds above 0 and at most 86400")
}

fn header_value(text: &str) -> Result<String, &'static str> {
    let is_printable = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
    if text.is_empty() || !text.bytes().all(is_printable) {
        return Err("use printable ASCII");
    }
    Ok(text.to_owned())
}
