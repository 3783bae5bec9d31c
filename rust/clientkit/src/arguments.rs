//! The command line: the common arguments of all clients.

use std::ffi::OsStr;
use std::fmt::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lexopt::prelude::{Long, Short, Value};

use crate::client::Client;
use crate::reach::{Prefix, Reach};
use crate::text::one_line;
use crate::url::Url;
use crate::values::{UsageError, Values, usage_error};

const COMMON_OPTIONS: &str = "\
  --url URL               what to fetch; HOST is checked against the certificate
  --address IP            where to fetch it; nothing is looked up in DNS
  --port N                port (default: the URL's, else 443)
  --ca FILE               PEM file with the trusted CA certificates (default: the system's)
  --budget-s SECONDS      time from the first packet; then the download is censored (default 30)
  --max-bytes N           body bytes after which the download is censored (default: no limit)
  --user-agent TEXT       (default: upshift-PROGRAM/VERSION)
  --allow PREFIX          may be repeated; an address outside gets no packet. The comma-separated prefixes
                          in UPSHIFT_ALLOWED_PREFIXES are enforced as well
";

/// Where systems keep their CA certificates in one file.
const SYSTEM_CA_FILES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The parsed command line.
#[derive(Debug)]
pub(crate) enum Command {
    Help,
    Version,
    Download(Box<Request>),
}

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
    /// From the first packet.
    pub budget: Duration,
    /// Body bytes after which the download is censored.
    pub max_bytes: Option<u64>,
    /// The header of that name.
    pub user_agent: String,
    /// Which addresses may be contacted.
    pub reach: Reach,
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
}

/// The text of `--help`.
pub(crate) fn help<C: Client>() -> String {
    let program = C::PROGRAM;
    let mut text = format!("{program}: {}\n\n", C::ABOUT);
    let _ = write!(
        text, // writing to a String cannot fail
        "usage: {program} --url https://HOST/PATH --address IP --budget-s SECONDS [options]\n\n"
    );
    text.push_str(&COMMON_OPTIONS.replace("PROGRAM", program));
    text.push_str(C::OWN_OPTIONS);
    text.push_str("  --help, --version\n\n");
    text.push_str(
        "Exit code: 0 if a document was printed, also for a failed download; 2 for a usage error.",
    );
    text
}

/// Reads the command line, with the client's own options into `client`; `environment` is the value of
/// [`crate::reach::VARIABLE`].
pub(crate) fn parse<C: Client>(
    mut parser: lexopt::Parser,
    environment: Option<&OsStr>,
    client: &mut C,
) -> Result<Command, UsageError> {
    let mut draft = Draft::default();
    while let Some(argument) = parser.next().map_err(|error| usage_error(&error))? {
        let option = match argument {
            Short('h') | Long("help") => return Ok(Command::Help),
            Short('V') | Long("version") => return Ok(Command::Version),
            Long(name) => name.to_owned(),
            Short(letter) => {
                return Err(UsageError::Unknown(format!("-{}", letter.escape_default())));
            }
            Value(value) => return Err(UsageError::Unexpected(one_line(&value.to_string_lossy()))),
        };
        let mut values = Values::new(option.clone(), &mut parser);
        if !draft.take(&option, &mut values)? && !client.take(&option, &mut values)? {
            return Err(UsageError::Unknown(format!("--{}", one_line(&option))));
        }
    }
    draft
        .finish::<C>(environment)
        .map(|request| Command::Download(Box::new(request)))
}

impl Draft {
    fn take(&mut self, option: &str, values: &mut Values<'_>) -> Result<bool, UsageError> {
        match option {
            "url" => self.url = Some(values.text()?),
            "address" => self.address = Some(values.parsed("an IPv4 or IPv6 address")?),
            "port" => self.port = Some(port(values)?),
            "ca" => self.ca = Some(values.path()?),
            "budget-s" => self.budget = Some(values.seconds()?),
            "max-bytes" => self.max_bytes = Some(values.parsed("a number of bytes")?),
            "user-agent" => self.user_agent = Some(values.header_value()?),
            "allow" => self.allow.push(values.text()?.parse()?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn finish<C: Client>(self, environment: Option<&OsStr>) -> Result<Request, UsageError> {
        let url = Url::parse(&self.url.ok_or(UsageError::Missing("url"))?)?;
        let address = self.address.ok_or(UsageError::Missing("address"))?;
        let system = || {
            let files = SYSTEM_CA_FILES.into_iter().map(Path::new);
            files
                .into_iter()
                .find(|path| path.exists())
                .map(Path::to_owned)
        };
        Ok(Request {
            port: self.port.or(url.port).unwrap_or(443),
            url,
            address: address.to_canonical(),
            ca: self.ca.or_else(system).ok_or(UsageError::NoCaFile)?,
            budget: self.budget.unwrap_or(Duration::from_secs(30)),
            max_bytes: self.max_bytes,
            user_agent: self
                .user_agent
                .unwrap_or_else(|| format!("upshift-{}/{}", C::PROGRAM, C::VERSION)),
            reach: Reach::new(self.allow, environment)?,
        })
    }
}

fn port(values: &mut Values<'_>) -> Result<u16, UsageError> {
    match values.parsed("a port number")? {
        0 => Err(values.out_of_range("above 0")),
        port => Ok(port),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::tests::Echo;

    fn read(arguments: &str) -> Result<(Request, Echo), UsageError> {
        let parser = lexopt::Parser::from_args(arguments.split_whitespace());
        let mut own = Echo::default();
        match parse(parser, None, &mut own)? {
            Command::Download(request) => Ok((*request, own)),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn defaults() {
        let (request, own) = read("--url https://a.test/x --address 198.18.0.1 --ca c").unwrap();
        assert_eq!(
            (request.port, request.budget),
            (443, Duration::from_secs(30))
        );
        assert_eq!(
            (request.max_bytes, request.user_agent.as_str()),
            (None, "upshift-echo/1.2")
        );
        assert_eq!((own.window, own.loud), (0, false));
    }

    #[test]
    fn everything_can_be_set() {
        let (request, own) = read(
            "--url=https://a.test:8443/x --address ::ffff:198.18.0.1 --budget-s 1.5 --max-bytes 7 --ca c --window 3 \
             --loud --user-agent me/1 --allow 198.18.0.0/15 --allow ::1",
        )
        .unwrap();
        assert_eq!(
            (request.port, request.address, request.ca.as_path()),
            (8443, "198.18.0.1".parse().unwrap(), Path::new("c"))
        );
        assert_eq!(
            (
                request.max_bytes,
                request.budget,
                request.user_agent.as_str()
            ),
            (Some(7), Duration::from_millis(1500), "me/1")
        );
        assert_eq!((own.window, own.loud), (3, true));
        assert!(request.reach.permits("::1".parse().unwrap()));
        assert!(!request.reach.permits("::2".parse().unwrap()));
    }

    #[test]
    fn wrong_use_gives_one_sentence() {
        let needed = "--url https://a.test/ --address ::1 --ca c";
        for (bad, expected) in [
            ("", "--url is required; try --help"),
            ("--url https://a.test/", "--address is required"),
            ("--address ::1", "--url is required"),
            ("extra", "unexpected argument extra"),
            ("--bogus", "--bogus is not an option"),
            ("--insecure", "--insecure is not an option"),
            ("--address", "missing argument"),
            ("-x", "-x is not an option"),
            (&format!("{needed} --budget-s 0"), "above 0 and at most"),
            (&format!("{needed} --budget-s NaN"), "above 0 and at most"),
            (&format!("{needed} --budget-s inf"), "above 0 and at most"),
            (&format!("{needed} --port 0"), "--port must be above 0"),
            (&format!("{needed} --port 70000"), "70000 is not a port"),
            (&format!("{needed} --window 0"), "must be from 1 to 9 bytes"),
            (
                &format!("{needed} --allow 1.2.3.4/40"),
                "--allow: 1.2.3.4/40",
            ),
            (&format!("{needed} --address a.test"), "is not an IPv4 or"),
            (
                &format!("{needed} --max-bytes -1"),
                "is not a number of bytes",
            ),
            (
                &format!("{needed} --loud=x"),
                "unexpected argument for option",
            ),
            (
                &format!("{needed} --url http://a"),
                "must start with https://",
            ),
        ] {
            let sentence = read(bad).unwrap_err().to_string();
            assert!(
                sentence.contains(expected) && !sentence.contains('\n'),
                "{bad}: {sentence}"
            );
        }
    }
}
