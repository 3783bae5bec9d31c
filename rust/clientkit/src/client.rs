//! A client: its name, its options besides the common arguments, and its download.

use std::error::Error;
use std::ffi::OsStr;
use std::io::Write;
use std::process::ExitCode;

use serde::Serialize;

use crate::arguments::{self, Command, Request};
use crate::clock::Clock;
use crate::failure::{Failure, Verdict};
use crate::reach;
use crate::record::Record;
use crate::values::{UsageError, Values};

const WRONG_USE: u8 = 2;

/// One download program. Its value holds the client's own options, as they are by default.
pub trait Client: Default {
    /// The name of the program, e.g. `h3get`.
    const PROGRAM: &'static str;
    /// The version of the program.
    const VERSION: &'static str;
    /// The client's name in documents, e.g. `quiche`.
    const NAME: &'static str;
    /// The version of the client's QUIC or HTTP library.
    const LIBRARY_VERSION: &'static str;
    /// One line for `--help`.
    const ABOUT: &'static str;
    /// The lines of `--help` about the client's own options, each ended by a line feed.
    const OWN_OPTIONS: &'static str;

    /// The client's data about the connection, for the document.
    type Facts: Serialize;
    /// Wrong use that is found only at the download (a CA file that cannot be read): one sentence.
    type Error: Error;

    /// Takes one of the client's own options, named without dashes; `false` if it has no such option.
    ///
    /// # Errors
    /// The option's value is missing or not valid.
    fn take(&mut self, option: &str, values: &mut Values<'_>) -> Result<bool, UsageError>;

    /// Downloads once, from an address that may be contacted. A failed download is a record, too.
    ///
    /// # Errors
    /// Wrong use; nothing was sent.
    fn download(&self, request: &Request) -> Result<Record<Self::Facts>, Self::Error>;
}

/// What `--version` says of a build that is too slow to be measured: Upshift refuses it.
pub const BUILD: &str = if cfg!(debug_assertions) {
    ", debug build"
} else {
    ""
};

/// What a client's `main` does. The exit code is 0 whenever a document was printed: a failed download is a record, not
/// an error. It is 2 for wrong use, with one sentence on standard error.
#[must_use]
pub fn main<C: Client>() -> ExitCode {
    let environment = std::env::var_os(reach::VARIABLE);
    match run::<C>(lexopt::Parser::from_env(), environment.as_deref()) {
        Ok(text) => print(&text),
        Err(error) => {
            eprintln!("{}: {error}", C::PROGRAM);
            ExitCode::from(WRONG_USE)
        }
    }
}

/// Does what the command line asks for; gives the text for standard output.
fn run<C: Client>(
    parser: lexopt::Parser,
    environment: Option<&OsStr>,
) -> Result<String, Box<dyn Error>> {
    let mut client = C::default();
    match arguments::parse(parser, environment, &mut client)? {
        Command::Help => Ok(arguments::help::<C>()),
        Command::Version => Ok(format!(
            "{} {} ({} {}){BUILD}",
            C::PROGRAM,
            C::VERSION,
            C::NAME,
            C::LIBRARY_VERSION
        )),
        Command::Download(request) => {
            let record = if request.reach.permits(request.address) {
                client
                    .download(&request)
                    .map_err(|error| error.to_string())?
            } else {
                let detail = format!("{} is outside the allowed prefixes", request.address);
                Record::new::<C>(&request, &Clock::start())
                    .conclude(Verdict::failed(Failure::AddressRefused, &detail))
            };
            Ok(serde_json::to_string(&record)?)
        }
    }
}

fn print(text: &str) -> ExitCode {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE, // the reader of standard output has closed
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::convert::Infallible;

    /// A client without a transport: it prints its arguments.
    #[derive(Debug, Default)]
    pub struct Echo {
        pub window: u64,
        pub loud: bool,
    }

    impl Client for Echo {
        const PROGRAM: &'static str = "echo";
        const VERSION: &'static str = "1.2";
        const NAME: &'static str = "echoes";
        const LIBRARY_VERSION: &'static str = "3.4";
        const ABOUT: &'static str = "nothing is sent";
        const OWN_OPTIONS: &'static str =
            "  --window BYTES          a number\n  --loud                  a flag\n";
        type Facts = u64;
        type Error = Infallible;

        fn take(&mut self, option: &str, values: &mut Values<'_>) -> Result<bool, UsageError> {
            match option {
                "window" => self.window = values.number(1..=9, "bytes")?,
                "loud" => self.loud = true,
                _ => return Ok(false),
            }
            Ok(true)
        }

        fn download(&self, request: &Request) -> Result<Record<u64>, Infallible> {
            let mut record = Record::new::<Self>(request, &Clock::start());
            record.quic = Some(self.window);
            Ok(record.conclude(Verdict::failed(Failure::ConnectTimeout, "nothing was sent")))
        }
    }

    fn said(arguments: &str) -> Result<String, String> {
        let parser = lexopt::Parser::from_args(arguments.split_whitespace());
        let environment = Some(OsStr::new("198.18.0.0/15"));
        run::<Echo>(parser, environment).map_err(|error| error.to_string())
    }

    #[test]
    fn help_and_version() {
        let help = said("--help").unwrap();
        for part in [
            "echo: nothing is sent",
            "--url URL",
            "--window BYTES",
            "--loud",
            "--version",
        ] {
            assert!(help.contains(part), "{part} in {help}");
        }
        let build = if cfg!(debug_assertions) {
            ", debug build"
        } else {
            ""
        };
        assert_eq!(said("-V").unwrap(), format!("echo 1.2 (echoes 3.4){build}"));
    }

    #[test]
    fn a_document_with_the_clients_own_account() {
        let text = said("--url https://a.test/ --address 198.18.0.1 --window 7 --loud").unwrap();
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (
                &document["client"],
                &document["client_version"],
                &document["quic"]
            ),
            (&"echoes".into(), &"3.4".into(), &7.into())
        );
        assert_eq!(document["failure"], "connect_timeout");
    }

    #[test]
    fn an_address_outside_is_refused_before_the_client_is_asked() {
        let text = said("--url https://a.test/ --address 192.0.2.1").unwrap();
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(document["failure"], "address_refused");
        assert!(document["quic"].is_null());
    }

    #[test]
    fn own_options_are_checked_like_the_common_ones() {
        let common = "--url https://a.test/ --address 198.18.0.1";
        for (more, sentence) in [
            ("--window 10", "--window must be from 1 to 9 bytes"),
            ("--window x", "--window x is not a number of bytes"),
            ("--loud=yes", "unexpected argument for option"),
            ("--quiet", "--quiet is not an option; try --help"),
        ] {
            let said = said(&format!("{common} {more}")).unwrap_err();
            assert!(said.contains(sentence), "{said}");
        }
    }
}
