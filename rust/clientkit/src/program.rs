//! What a client's `main` does: the command line in, the document out.

use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use crate::arguments::Common;
use crate::client::Client;
use crate::clock::Clock;
use crate::failure::{Failure, Verdict};
use crate::reach;
use crate::record::Record;
use crate::text::one_line;

const WRONG_USE: u8 = 2;

/// What `--version` says of a build that is too slow to be measured: Upshift refuses it.
const BUILD: &str = if cfg!(debug_assertions) {
    ", debug build"
} else {
    ""
};

/// The whole command line. An option that is repeated has its last value.
#[derive(Parser)]
#[command(
    name = C::PROGRAM,
    about = C::ABOUT,
    version = version::<C>(),
    args_override_self = true,
    after_help = "Exit code: 0 if a document was printed, also for a failed download; 2 for wrong use."
)]
struct CommandLine<C: Client> {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    client: C,
}

fn version<C: Client>() -> String {
    let library = C::LIBRARY;
    format!(
        "{} ({} {}){BUILD}",
        C::VERSION,
        library.name,
        library.version
    )
}

/// Runs a client. The exit code is 0 whenever a document was printed: a failed download is a record, not
/// an error. It is 2 for wrong use, with one sentence on standard error.
#[must_use]
pub fn main<C: Client>() -> ExitCode {
    let environment = std::env::var_os(reach::VARIABLE);
    match run::<C>(std::env::args_os(), environment.as_deref()) {
        Ok(text) => print(&text),
        Err(error) => {
            eprintln!("{}: {error}", C::PROGRAM);
            ExitCode::from(WRONG_USE)
        }
    }
}

/// Does what the command line asks for; gives the text for standard output. `environment` is the value of
/// [`reach::VARIABLE`].
fn run<C: Client>(
    words: impl IntoIterator<Item = OsString>,
    environment: Option<&OsStr>,
) -> Result<String, Box<dyn Error>> {
    let CommandLine { common, client } = match CommandLine::<C>::try_parse_from(words) {
        Ok(parsed) => parsed,
        Err(error) if error.use_stderr() => return Err(sentence(&error).into()),
        Err(help_or_version) => return Ok(help_or_version.to_string().trim_end().to_owned()),
    };
    let agent = format!("upshift-{}/{}", C::PROGRAM, C::VERSION);
    let request = common.request(agent, environment)?;
    let record = if request.reach.permits(request.address) {
        client
            .download(&request)
            .map_err(|error| error.to_string())?
    } else {
        let detail = format!("{} is outside the allowed prefixes", request.address);
        Record::new(C::LIBRARY, &request, &Clock::start())
            .conclude(Verdict::failed(Failure::AddressRefused, &detail))
    };
    Ok(serde_json::to_string(&record)?)
}

/// The first paragraph of clap's error as one line; the usage and the hints after it are left out.
fn sentence(error: &clap::Error) -> String {
    let text = error.to_string();
    let paragraph = text.split("\n\n").next().unwrap_or_default();
    let words: Vec<_> = paragraph.split_whitespace().skip(1).collect(); // without "error:"
    format!("{}; try --help", one_line(&words.join(" ")))
}

fn print(text: &str) -> ExitCode {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE, // the reader of standard output has closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Request;
    use crate::record::Library;
    use clap::{Args, value_parser};
    use std::convert::Infallible;
    use std::path::Path;
    use std::time::Duration;

    /// A client without a transport: it prints its arguments.
    #[derive(Debug, Args)]
    struct Echo {
        /// A number, bytes
        #[arg(long, default_value_t = 1, value_parser = value_parser!(u64).range(1..=9))]
        window: u64,
        /// A flag
        #[arg(long)]
        loud: bool,
    }

    impl Client for Echo {
        const PROGRAM: &'static str = "echo";
        const VERSION: &'static str = "1.2";
        const LIBRARY: Library = Library {
            name: "echoes",
            version: "3.4",
        };
        const ABOUT: &'static str = "nothing is sent";
        type Facts = u64;
        type Error = Infallible;

        fn download(&self, request: &Request) -> Result<Record<u64>, Infallible> {
            let mut record = Record::new(Self::LIBRARY, request, &Clock::start());
            record.quic = Some(self.window);
            Ok(record.conclude(Verdict::failed(Failure::ConnectTimeout, "nothing was sent")))
        }
    }

    const NEEDED: &str = "--url https://a.test/ --address 198.18.0.1 --ca c";

    fn words(arguments: &str) -> impl Iterator<Item = OsString> {
        let given = arguments.split_whitespace();
        std::iter::once("echo").chain(given).map(OsString::from)
    }

    fn output(arguments: &str) -> Result<String, String> {
        let environment = Some(OsStr::new("198.18.0.0/15"));
        run::<Echo>(words(arguments), environment).map_err(|error| error.to_string())
    }

    fn document(arguments: &str) -> serde_json::Value {
        serde_json::from_str(&output(arguments).unwrap()).unwrap()
    }

    fn parsed(arguments: &str) -> (Request, Echo) {
        let CommandLine { common, client } =
            CommandLine::<Echo>::try_parse_from(words(arguments)).unwrap();
        (common.request("me/0".to_owned(), None).unwrap(), client)
    }

    #[test]
    fn help_and_version() {
        let help = output("--help").unwrap();
        for part in [
            "nothing is sent",
            "--url <URL>",
            "--budget-s <SECONDS>",
            "[default: 30]",
            "--window <WINDOW>",
            "--loud",
            "--version",
            "2 for wrong use",
        ] {
            assert!(help.contains(part), "{part} in {help}");
        }
        assert_eq!(
            output("-V").unwrap(),
            format!("echo 1.2 (echoes 3.4){BUILD}")
        );
    }

    #[test]
    fn defaults() {
        let (request, own) = parsed(NEEDED);
        assert_eq!(
            (request.port, request.budget),
            (443, Duration::from_secs(30))
        );
        assert_eq!(
            (request.max_bytes, request.user_agent.as_str()),
            (None, "me/0")
        );
        assert_eq!((own.window, own.loud), (1, false));
    }

    #[test]
    fn everything_can_be_set_and_the_last_value_holds() {
        let (request, own) = parsed(
            "--url=https://a.test:8443/x --address ::ffff:198.18.0.1 --budget-s 1.5 --max-bytes 7 --ca c --window 3 \
             --loud --user-agent -me/1 --allow 198.18.0.0/15 --allow ::1 --window 4",
        );
        assert_eq!(
            (request.port, request.address, request.ca.as_path()),
            (8443, "198.18.0.1".parse().unwrap(), Path::new("c"))
        );
        assert_eq!(
            (request.max_bytes, request.budget),
            (Some(7), Duration::from_millis(1500))
        );
        assert_eq!(
            (request.user_agent.as_str(), own.window, own.loud),
            ("-me/1", 4, true)
        );
        assert!(request.reach.permits("::1".parse().unwrap()));
        assert!(!request.reach.permits("::2".parse().unwrap()));
    }

    #[test]
    fn a_document_with_the_clients_own_account() {
        let document = document(&format!("{NEEDED} --window 7 --loud"));
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
    fn an_address_outside_is_refused_before_the_client_is_called() {
        let document = document(&NEEDED.replace("198.18.0.1", "192.0.2.1"));
        assert_eq!(document["failure"], "address_refused");
        assert!(document["quic"].is_null());
    }

    #[test]
    fn wrong_use_gives_one_sentence() {
        for (more, expected) in [
            ("extra", "unexpected argument 'extra' found; try --help"),
            ("--bogus", "unexpected argument '--bogus' found"),
            ("--insecure", "unexpected argument '--insecure' found"),
            ("--address", "a value is required for '--address <IP>'"),
            ("-x", "unexpected argument '-x' found"),
            ("--budget-s 0", "above 0 and at most 86400"),
            ("--budget-s NaN", "above 0 and at most 86400"),
            ("--budget-s inf", "above 0 and at most 86400"),
            ("--port 0", "0 is not in 1..=65535"),
            ("--port 70000", "70000 is not in 1..=65535"),
            ("--window 10", "10 is not in 1..=9"),
            ("--window x", "invalid value 'x' for '--window <WINDOW>'"),
            (
                "--allow 1.2.3.4/40",
                "1.2.3.4/40 is not an IPv4 or IPv6 prefix",
            ),
            (
                "--address a.test",
                "invalid value 'a.test' for '--address <IP>'",
            ),
            ("--max-bytes=-1", "invalid value '-1' for '--max-bytes <N>'"),
            ("--user-agent ü", "use printable ASCII"),
            ("--loud=x", "unexpected value 'x' for '--loud' found"),
            ("--url http://a", "must start with https://"),
        ] {
            let sentence = output(&format!("{NEEDED} {more}")).unwrap_err();
            assert!(sentence.contains(expected), "{more}: {sentence}");
            assert!(!sentence.contains('\n'), "{sentence}");
        }
        let nothing = "the following required arguments were not provided: --url <URL> --address <IP>; try --help";
        assert_eq!(output("").unwrap_err(), nothing);
    }
}
