//! A web server by smoltcp, another make of TCP than the kernel's: HTTP/1.1 over IP packets of one device.
//!
//! Its congestion control is Reno, whose first window is 2,048 bytes at any segment size. The node's kernel must not
//! have its addresses, as it would answer for them.

mod http;
mod server;

use crate::server::{Server, ServerError};
use clap::Parser;
use smoltcp::wire::IpCidr;
use std::path::PathBuf;
use std::process::ExitCode;

/// What `--version` says of a build that is too slow to be measured against: Upshift refuses it.
const VERSION: &str = if cfg!(debug_assertions) {
    concat!(env!("CARGO_PKG_VERSION"), " (smoltcp 0.14, debug build)")
} else {
    concat!(env!("CARGO_PKG_VERSION"), " (smoltcp 0.14)")
};

#[derive(Parser)]
#[command(name = "smoltcp-server", version = VERSION, about = "A web server whose TCP is smoltcp's")]
struct Options {
    /// Device whose packets it reads and writes.
    #[arg(long)]
    device: String,
    /// An address of its own, with the prefix that is reached through the device; up to two.
    #[arg(long, required = true, value_parser = prefix)]
    address: Vec<IpCidr>,
    /// Folder of the files that it serves.
    #[arg(long)]
    root: PathBuf,
    /// TCP port.
    #[arg(long, default_value_t = 80)]
    port: u16,
}

fn prefix(text: &str) -> Result<IpCidr, String> {
    text.parse()
        .map_err(|()| "not an address with a prefix, such as 198.19.0.16/15".to_owned())
}

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("smoltcp-server: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), ServerError> {
    Server::new(
        &options.device,
        &options.address,
        options.port,
        &options.root,
    )?
    .run()
}
