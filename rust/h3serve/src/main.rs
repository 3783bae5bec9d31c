//! An HTTP/3 server by quiche, for the lab, tests and benchmarks: files, or what an edge's cache has.
//!
//! It does not validate addresses or limit connections, so it must not be reachable from outside.

mod access_log;
mod answer;
mod args;
mod burst;
mod connection;
mod endpoint;
mod exchange;
mod hosts;
mod request;
mod settings;
mod socket;
mod tls;
mod upstream;

use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;

use thiserror::Error;

use crate::args::{Command, Options, Source, USAGE};
use crate::endpoint::{Endpoint, EndpointError};
use crate::hosts::{HostsError, HostsFile, Service};
use crate::settings::SettingsError;
use crate::socket::Socket;
use crate::tls::CertificateError;

/// What `--version` says of a build that is too slow to be measured against: Upshift refuses it.
const BUILD: &str = if cfg!(debug_assertions) {
    ", debug build"
} else {
    ""
};

/// Why it does not serve.
#[derive(Debug, Error)]
enum ServeError {
    #[error(transparent)]
    Hosts(#[from] HostsError),
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    #[error("cannot listen at {0}: {1}")]
    Listen(SocketAddr, std::io::Error),
    #[error("standard output: {0}")]
    Output(std::io::Error),
}

fn main() -> ExitCode {
    let options = match args::parse(std::env::args_os().skip(1)) {
        Ok(Command::Serve(options)) => options,
        Ok(Command::Help) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Ok(Command::Version) => {
            println!(
                "h3serve {} (quiche 0.30.0){BUILD}",
                env!("CARGO_PKG_VERSION")
            );
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("h3serve: {error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match serve(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("h3serve: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(options: Options) -> Result<(), ServeError> {
    let (tls, service) = match options.source {
        Source::Hosts(path) => {
            let file = HostsFile::read(&path)?;
            (tls::by_name(&file.certificates)?, file.service()?)
        }
        Source::Fixed {
            certificate,
            key,
            bytes,
            status,
        } => (
            tls::one(&certificate, &key)?,
            Service::Fixed { status, bytes },
        ),
    };
    if let Some(path) = &options.settings_file {
        options.settings.with_file(path)?; // reports a file that is wrong from the start at once
    }
    let config = endpoint::transport(tls, &options.alpn)?;
    let sockets = options
        .listen
        .into_iter()
        .map(|address| Socket::bind(address).map_err(|error| ServeError::Listen(address, error)))
        .collect::<Result<Vec<_>, _>>()?;
    let mut endpoint = Endpoint::new(
        sockets_said(sockets)?,
        service,
        config,
        options.settings,
        options.settings_file,
    )?;
    Ok(endpoint.run()?)
}

/// Prints where it listens, one line for each address.
fn sockets_said(sockets: Vec<Socket>) -> Result<Vec<Socket>, ServeError> {
    let mut out = std::io::stdout();
    for socket in &sockets {
        writeln!(out, "listening {}", socket.local).map_err(ServeError::Output)?;
    }
    out.flush().map_err(ServeError::Output)?;
    Ok(sockets)
}
