//! The command line: what may be asked, and the checks that give one sentence each.

use std::ffi::{OsStr, OsString};
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use lexopt::prelude::{Long, Short, Value, ValueExt};

use crate::reach::{Prefix, Reach};
use crate::url::Url;

const MIB: u64 = 1 << 20;

/// The text of `--help`.
pub const HELP: &str = "\
h3get: one HTTP/3 download over QUIC, one JSON document on standard output

usage: h3get --url https://HOST/PATH --address IP --budget-s SECONDS [options]

  --url URL               what to fetch; HOST is checked against the certificate
  --address IP            where to fetch it; nothing is looked up in DNS
  --port N                UDP port (default: the URL's, else 443)
  --ca FILE               PEM file with the trusted CA certificates (default: the system's)
  --budget-s SECONDS      time from the start of connecting; then the download is censored (default 30)
  --max-bytes N           body bytes after which the download is censored (default: no limit)
  --user-agent TEXT       (default: upshift-h3get/VERSION)
  --allow PREFIX          may be repeated; an address outside gets no packet. The comma-separated prefixes
                          in UPSHIFT_ALLOWED_PREFIXES are enforced as well
  --max-data BYTES        connection flow control window (default 67108864)
  --max-stream-data BYTES stream flow control window (default 67108864)
  --cc NAME               reno, cubic or bbr2; governs what this client sends (default cubic)
  --max-udp-payload N     largest UDP payload to accept, 1200 to 65527 bytes (default 65527)
  --idle-timeout-s SECONDS  (default: five seconds more than the budget)
  --post-quantum 0|1      1 offers X25519MLKEM768 with X25519: a ClientHello of two datagrams (default 0)
  --no-gro                do not ask the kernel to merge datagrams (UDP_GRO)
  --keylog FILE           append TLS secrets, for reading a capture
  --help, --version

Exit code: 0 when a document was printed, whatever the outcome; 2 for wrong use.";

/// What the command line asks for.
#[derive(Debug)]
pub enum Command {
    Help,
    Version,
    Download(Box<Options>),
}

/// One download, fully specified.
#[derive(Debug)]
pub struct Options {
    pub url: Url,
    /// Forced server address; an IPv4-mapped IPv6 address has become the IPv4 address.
    pub address: IpAddr,
    pub port: u16,
    /// PEM file of trusted CA certificates; the system's when absent.
    pub ca: Option<PathBuf>,
    /// From the start of connecting.
    pub budget: Duration,
    /// Body bytes after which the download is censored.
    pub max_bytes: Option<u64>,
    pub user_agent: String,
    pub reach: Reach,
    /// Connection flow control window, bytes.
    pub max_data: u64,
    /// Stream flow control window, bytes.
    pub max_stream_data: u64,
    pub congestion_control: &'static str,
    /// Largest UDP payload to accept, bytes: the transport parameter `max_udp_payload_size`.
    pub max_udp_payload: u16,
    pub idle_timeout: Duration,
    /// Whether the `ClientHello` offers a post-quantum key share too.
    pub post_quantum: bool,
    pub gro: bool,
    pub keylog: Option<PathBuf>,
}

/// What was read so far; required options are checked at the end.
#[derive(Default)]
struct Draft {
    url: Option<String>,
    address: Option<IpAddr>,
    port: Option<u16>,
    ca: Option<PathBuf>,
    budget: Option<Duration>,
    max_bytes: Option<u64>,
    user_agent: Option<String>,
    allow: Vec<Prefix>,
    max_data: Option<u64>,
    max_stream_data: Option<u64>,
    congestion_control: Option<&'static str>,
    max_udp_payload: Option<u16>,
    idle_timeout: Option<Duration>,
    post_quantum: bool,
    no_gro: bool,
    keylog: Option<PathBuf>,
}

/// Reads the command line; `environment` is the value of [`crate::reach::VARIABLE`].
pub fn parse(mut parser: lexopt::Parser, environment: Option<&OsStr>) -> Result<Command, String> {
    let mut draft = Draft::default();
    while let Some(argument) = parser.next().map_err(sentence)? {
        match argument {
            Short('h') | Long("help") => return Ok(Command::Help),
            Short('V') | Long("version") => return Ok(Command::Version),
            Long("no-gro") => draft.no_gro = true,
            Long(name) => {
                let name = name.to_owned();
                if !Draft::knows(&name) {
                    return Err(format!(
                        "--{} is not an option; try --help",
                        crate::text::one_line(&name)
                    ));
                }
                let value = parser.value().map_err(sentence)?;
                draft.take(&name, value)?;
            }
            Short(letter) => {
                return Err(format!(
                    "-{} is not an option; try --help",
                    letter.escape_default()
                ));
            }
            Value(value) => {
                let value = value.to_string_lossy();
                return Err(format!(
                    "unexpected argument {}; try --help",
                    crate::text::one_line(&value)
                ));
            }
        }
    }
    draft
        .finish(environment)
        .map(|options| Command::Download(Box::new(options)))
}

impl Draft {
    fn knows(name: &str) -> bool {
        const NAMES: [&str; 15] = [
            "url",
            "address",
            "port",
            "ca",
            "budget-s",
            "max-bytes",
            "user-agent",
            "allow",
            "max-data",
            "max-stream-data",
            "cc",
            "max-udp-payload",
            "idle-timeout-s",
            "post-quantum",
            "keylog",
        ];
        NAMES.contains(&name)
    }

    fn take(&mut self, name: &str, value: OsString) -> Result<(), String> {
        match name {
            "ca" => self.ca = Some(value.into()),
            "keylog" => self.keylog = Some(value.into()),
            "url" => self.url = Some(text(name, value)?),
            "address" => self.address = Some(parsed(name, value, "an IPv4 or IPv6 address")?),
            "port" => self.port = Some(parsed(name, value, "a port number").and_then(not_zero)?),
            "budget-s" => self.budget = Some(seconds(name, value)?),
            "idle-timeout-s" => self.idle_timeout = Some(seconds(name, value)?),
            "max-bytes" => self.max_bytes = Some(parsed(name, value, "a number of bytes")?),
            "user-agent" => self.user_agent = Some(header_value(name, value)?),
            "allow" => self.allow.push(
                text(name, value)?
                    .parse()
                    .map_err(|error| format!("--allow: {error}"))?,
            ),
            "max-data" => self.max_data = Some(window(name, value)?),
            "max-stream-data" => self.max_stream_data = Some(window(name, value)?),
            "cc" => self.congestion_control = Some(congestion_control(&text(name, value)?)?),
            "post-quantum" => self.post_quantum = zero_or_one(name, value)?,
            "max-udp-payload" => self.max_udp_payload = Some(udp_payload(name, value)?),
            _ => return Err(format!("--{name} is not an option; try --help")),
        }
        Ok(())
    }

    fn finish(self, environment: Option<&OsStr>) -> Result<Options, String> {
        let url = Url::parse(&self.url.ok_or("--url is required; try --help")?)?;
        let address = self
            .address
            .ok_or("--address is required; try --help")?
            .to_canonical();
        let budget = self.budget.unwrap_or(Duration::from_secs(30));
        Ok(Options {
            port: self.port.or(url.port).unwrap_or(443),
            url,
            address,
            ca: self.ca,
            budget,
            max_bytes: self.max_bytes,
            user_agent: self
                .user_agent
                .unwrap_or_else(|| format!("upshift-h3get/{}", env!("CARGO_PKG_VERSION"))),
            reach: Reach::new(self.allow, environment)?,
            max_data: self.max_data.unwrap_or(64 * MIB),
            max_stream_data: self.max_stream_data.unwrap_or(64 * MIB),
            congestion_control: self.congestion_control.unwrap_or("cubic"),
            max_udp_payload: self.max_udp_payload.unwrap_or(65527),
            idle_timeout: self.idle_timeout.unwrap_or(budget + Duration::from_secs(5)),
            post_quantum: self.post_quantum,
            gro: !self.no_gro,
            keylog: self.keylog,
        })
    }
}

#[allow(clippy::needless_pass_by_value)] // the shape that map_err wants
fn sentence(error: lexopt::Error) -> String {
    crate::text::one_line(&error.to_string())
}

fn text(name: &str, value: OsString) -> Result<String, String> {
    value.string().map_err(|_| format!("--{name} is not text"))
}

fn parsed<T: FromStr>(name: &str, value: OsString, what: &str) -> Result<T, String> {
    let value = text(name, value)?;
    value
        .parse()
        .map_err(|_| format!("--{name} {} is not {what}", crate::text::one_line(&value)))
}

fn not_zero(port: u16) -> Result<u16, String> {
    if port == 0 {
        Err("--port must not be 0".to_owned())
    } else {
        Ok(port)
    }
}

fn seconds(name: &str, value: OsString) -> Result<Duration, String> {
    const DAY_S: f64 = 86400.0;
    let number: f64 = parsed(name, value, "a number of seconds")?;
    if number > 0.0 && number <= DAY_S {
        Ok(Duration::from_secs_f64(number))
    } else {
        Err(format!(
            "--{name} must be above 0 and at most 86400 seconds"
        ))
    }
}

fn window(name: &str, value: OsString) -> Result<u64, String> {
    const MOST: u64 = 1 << 40;
    let bytes: u64 = parsed(name, value, "a number of bytes")?;
    if (1..=MOST).contains(&bytes) {
        Ok(bytes)
    } else {
        Err(format!("--{name} must be from 1 to {MOST} bytes"))
    }
}

fn udp_payload(name: &str, value: OsString) -> Result<u16, String> {
    let bytes: u16 = parsed(name, value, "a number of bytes")?;
    if (1200..=65527).contains(&bytes) {
        Ok(bytes)
    } else {
        Err(format!("--{name} must be from 1200 to 65527 bytes"))
    }
}

fn zero_or_one(name: &str, value: OsString) -> Result<bool, String> {
    match text(name, value)?.as_str() {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err(format!("--{name} must be 0 or 1")),
    }
}

fn header_value(name: &str, value: OsString) -> Result<String, String> {
    let value = text(name, value)?;
    let printable = value
        .bytes()
        .all(|byte| byte == b' ' || byte.is_ascii_graphic());
    if printable && !value.is_empty() {
        Ok(value)
    } else {
        Err(format!("--{name} must be printable ASCII"))
    }
}

fn congestion_control(name: &str) -> Result<&'static str, String> {
    const NAMES: [&str; 3] = ["reno", "cubic", "bbr2"];
    let found = NAMES.into_iter().find(|known| *known == name);
    found.ok_or_else(|| {
        format!(
            "--cc {} is not one of reno, cubic, bbr2",
            crate::text::one_line(name)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(arguments: &str) -> Result<Options, String> {
        let parser = lexopt::Parser::from_args(arguments.split_whitespace());
        match parse(parser, None)? {
            Command::Download(options) => Ok(*options),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn defaults() {
        let options = options("--url https://a.test/x --address 198.18.0.1").unwrap();
        assert_eq!(
            (options.port, options.budget),
            (443, Duration::from_secs(30))
        );
        assert_eq!(
            (options.max_data, options.max_stream_data),
            (64 * MIB, 64 * MIB)
        );
        assert!(
            options.idle_timeout > options.budget
                && options.gro
                && options.max_bytes.is_none()
                && !options.post_quantum
        );
        assert_eq!(options.congestion_control, "cubic");
    }

    #[test]
    fn everything_can_be_set() {
        let options = options(
            "--url=https://a.test:8443/x --address ::ffff:198.18.0.1 --budget-s 1.5 --max-bytes 7 --max-data 1 \
             --max-stream-data 2 --cc reno --max-udp-payload 1452 --idle-timeout-s 3 --no-gro --keylog k --ca c \
             --user-agent me/1 --post-quantum 1 --allow 198.18.0.0/15 --allow ::1",
        )
        .unwrap();
        assert_eq!(
            (options.port, options.address),
            (8443, "198.18.0.1".parse().unwrap())
        );
        assert_eq!(
            (options.max_data, options.max_stream_data, options.max_bytes),
            (1, 2, Some(7))
        );
        assert_eq!(
            (
                options.congestion_control,
                options.max_udp_payload,
                options.gro
            ),
            ("reno", 1452, false)
        );
        assert!(options.post_quantum);
        assert!(
            options.reach.permits("::1".parse().unwrap())
                && !options.reach.permits("::2".parse().unwrap())
        );
    }

    #[test]
    fn wrong_use_gives_one_sentence() {
        let needed = "--url https://a.test/ --address ::1";
        for bad in [
            "",
            "--url https://a.test/",
            "--address ::1",
            "extra",
            "--bogus",
            "--insecure",
            "--address",
            "-x",
            &format!("{needed} --budget-s 0"),
            &format!("{needed} --budget-s NaN"),
            &format!("{needed} --budget-s inf"),
            &format!("{needed} --port 0"),
            &format!("{needed} --port 70000"),
            &format!("{needed} --cc vegas"),
            &format!("{needed} --max-udp-payload 1199"),
            &format!("{needed} --allow 1.2.3.4/40"),
            &format!("{needed} --max-data 0"),
            &format!("{needed} --address a.test"),
            &format!("{needed} --no-gro=x"),
            &format!("{needed} --post-quantum yes"),
        ] {
            let sentence = options(bad).unwrap_err();
            assert!(
                !sentence.is_empty() && !sentence.contains('\n'),
                "{bad}: {sentence}"
            );
        }
    }

    #[test]
    fn help_names_every_option() {
        for name in [
            "url",
            "address",
            "port",
            "ca",
            "budget-s",
            "max-bytes",
            "user-agent",
            "allow",
            "max-data",
            "cc",
            "post-quantum",
        ] {
            assert!(HELP.contains(&format!("--{name} ")), "{name}");
        }
    }
}
