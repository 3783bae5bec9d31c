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
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use thiserror::Error;

use crate::args::Options;
use crate::endpoint::{Endpoint, EndpointError};
use crate::hosts::{HostsError, HostsFile, Service};
use crate::settings::SettingsError;
use crate::socket::Socket;
use crate::tls::CertificateError;

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
    match serve(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("h3serve: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(options: &Options) -> Result<(), ServeError> {
    let (tls, service) = match (&options.hosts, &options.cert, &options.key) {
        (None, Some(certificate), Some(key)) => {
            let (status, bytes) = (options.status, options.bytes);
            (
                tls::one(certificate, key)?,
                Service::Fixed { status, bytes },
            )
        }
        (hosts, ..) => {
            let hosts = hosts.as_deref().unwrap_or(Path::new("")); // clap sees to it that there is one
            let file = HostsFile::read(hosts)?;
            (tls::by_name(&file.certificates)?, file.service()?)
        }
    };
    let settings = options.settings();
    if let Some(path) = &options.settings_file {
        settings.with_file(path)?; // reports a file that is wrong from the start at once
    }
    let config = endpoint::transport(tls, &options.alpn)?;
    let bind = |&address| Socket::bind(address).map_err(|error| ServeError::Listen(address, error));
    let sockets = options
        .listen
        .iter()
        .map(bind)
        .collect::<Result<Vec<_>, _>>()?;
    announce(&sockets)?;
    let file = options.settings_file.clone();
    Ok(Endpoint::new(sockets, service, config, settings, file)?.run()?)
}

/// Prints where it listens, one line for each address.
fn announce(sockets: &[Socket]) -> Result<(), ServeError> {
    let mut out = std::io::stdout();
    for socket in sockets {
        writeln!(out, "listening {}", socket.local).map_err(ServeError::Output)?;
    }
    out.flush().map_err(ServeError::Output)
}
