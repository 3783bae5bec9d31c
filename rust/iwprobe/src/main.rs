//! The prober of initial windows: requests on standard input, replies on standard output.

use std::io::{self, Write};
use std::process::ExitCode;

use clientkit::{REACH_VARIABLE, Reach, ReachError, User, confine};
use iwprobe::args::Options;
use iwprobe::link::{Device, Link, LinkError};
use iwprobe::prober::{Prober, ProberError};
use thiserror::Error;

/// Why it does not start.
#[derive(Debug, Error)]
enum StartError {
    #[error(transparent)]
    Reach(#[from] ReachError),
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    #[error("{0}")]
    System(#[from] io::Error),
}

fn main() -> ExitCode {
    let started = start(Options::from_command_line());
    let fault = started.as_ref().err().map(|error| {
        let remedy = match error {
            StartError::Link(error) => error.remedy(),
            StartError::Reach(_) => "write prefixes, separated by commas".to_owned(),
            _ => "run upshift doctor to see what is missing".to_owned(),
        };
        (error.to_string(), remedy)
    });
    let (fault, remedy) = fault.unzip();
    let greeting = serde_json::json!({ "fault": fault, "remedy": remedy });
    let written = writeln!(io::stdout(), "{greeting}").and_then(|()| io::stdout().flush());
    let Ok(mut prober) = started else {
        if let Some(fault) = fault {
            eprintln!("iwprobe: {fault}");
        }
        return ExitCode::from(3);
    };
    let ended = written
        .map_err(|error| ProberError::System("standard output", error))
        .and_then(|()| prober.run());
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("iwprobe: {error}");
            ExitCode::FAILURE
        }
    }
}

fn start(options: Options) -> Result<Prober, StartError> {
    let reach = Reach::new(
        options.allow.clone(),
        std::env::var_os(REACH_VARIABLE).as_deref(),
    )?;
    let device = Device::open(&options.device, options.next_hop)?;
    let links = options
        .addresses
        .iter()
        .map(|address| Link::open(&device, *address))
        .collect::<Result<Vec<_>, _>>()?;
    let tls = iwprobe::tls::settings()?;
    let prober = Prober::new(links, device.mtu, options, reach, tls)?;
    confine(None, User::default())?; // it has its sockets; replies come from strangers
    Ok(prober)
}
