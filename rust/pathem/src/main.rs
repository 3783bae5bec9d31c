//! The command line of pathem.

use clap::Parser;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use pathem::awake::{self, Awake, Refusal};
use pathem::config_error::ConfigError;
use pathem::engine::{Engine, EngineError};
use pathem::packet_log::PacketLog;
use pathem::world::{NodeError, World};
use pathem::{config, host, loss};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{BorrowedFd, FromRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use thiserror::Error;

/// Most indices that `--selftest-loss` computes.
const MAX_SELFTEST: u64 = 100_000_000;

/// A debug build says so: Upshift refuses it, as it forwards packets late.
const VERSION: &str = if cfg!(debug_assertions) {
    concat!(env!("CARGO_PKG_VERSION"), ", debug build")
} else {
    env!("CARGO_PKG_VERSION")
};

/// Upshift path emulator: one process that emulates the network between lab namespaces.
///
/// Exit codes: 0 stopped by a signal or the control peer, 1 system error, 2 usage or
/// configuration error.
#[derive(Parser)]
#[command(version = VERSION)]
struct Arguments {
    /// Configuration, JSON, schema 1 (docs/design/pathem.md)
    #[arg(long, value_name = "FILE", required_unless_present_any = ["selftest_loss", "spin", "spin_on"])]
    config: Option<PathBuf>,
    /// Unix socket to create for control: one JSON object per line in and out
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,
    /// Write one CSV row per packet from the start (times in ns, sizes in IP bytes)
    #[arg(long, value_name = "FILE")]
    packet_log: Option<PathBuf>,
    /// Write "ready" and a newline to this descriptor once all devices and the control socket exist
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..))]
    ready_fd: Option<RawFd>,
    /// Do not request real-time scheduling or a lower nice value
    #[arg(long)]
    no_realtime: bool,
    /// Do not keep the CPUs awake; packets may then be 0.1 to 0.5 ms late
    #[arg(long)]
    let_cpus_sleep: bool,
    /// Only keep the CPUs awake, with an idle-priority process on each, until standard input ends
    #[arg(long, exclusive = true)]
    spin: bool,
    /// Only keep this CPU awake, until the program that started this one ends
    #[arg(long, value_name = "CPU", exclusive = true)]
    spin_on: Option<usize>,
    /// Print the indices below N that probability P (0 to 1) loses, as a JSON array, and exit
    #[arg(long, num_args = 3, value_names = ["SEED", "P", "N"], exclusive = true)]
    selftest_loss: Option<Vec<String>>,
}

/// What ends the program early.
#[derive(Debug, Error)]
enum Failure {
    #[error(
        "--ready-fd {number} is not an open descriptor ({error}); pass it on when starting pathem"
    )]
    NotOpen { number: RawFd, error: nix::Error },
    #[error("SEED is {0:?}; use a whole number")]
    Seed(String),
    #[error("P is {0:?}; use 0 to 1")]
    Probability(String),
    #[error("N is {0:?}; use a whole number up to {MAX_SELFTEST}")]
    Count(String),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error("packet log {}: {error}", .path.display())]
    PacketLog { path: PathBuf, error: io::Error },
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error("--ready-fd: {0}")]
    Ready(io::Error),
    #[error(transparent)]
    Asleep(#[from] Refusal),
}

impl Failure {
    /// 2 for wrong use or configuration, 1 for what the system refused.
    fn code(&self) -> u8 {
        match self {
            Self::NotOpen { .. }
            | Self::Seed(_)
            | Self::Probability(_)
            | Self::Count(_)
            | Self::Config(_) => 2,
            Self::Node(_)
            | Self::PacketLog { .. }
            | Self::Engine(_)
            | Self::Ready(_)
            | Self::Asleep(_) => 1,
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match (&arguments.selftest_loss, arguments.spin_on) {
        (Some(values), _) => selftest_loss(values),
        (_, Some(cpu)) => awake::spin_on(cpu).map_err(Failure::from),
        _ if arguments.spin => awake::spin().map_err(Failure::from),
        _ => run(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("pathem: {failure}");
            ExitCode::from(failure.code())
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Failure> {
    // First, while the number cannot mean a descriptor of our own.
    let ready = arguments.ready_fd.map(take_descriptor).transpose()?;
    let config = config::load(arguments.config.as_deref().unwrap_or_else(|| Path::new("")))?;
    let awake = if arguments.let_cpus_sleep {
        Awake::let_sleep()
    } else {
        Awake::keep()
    };
    let scheduling = host::ask(!arguments.no_realtime);
    let mut world = World::open(&config, scheduling, awake)?;
    if let Some(path) = &arguments.packet_log {
        let log = PacketLog::create(path).map_err(|error| Failure::PacketLog {
            path: path.clone(),
            error,
        })?;
        world.log = Some(log);
    }
    let awake = world.awake.status().to_string();
    let engine = Engine::new(world, arguments.control.as_deref())?;
    if let Some(mut ready) = ready {
        ready.write_all(b"ready\n").map_err(Failure::Ready)?;
    }
    eprintln!(
        "pathem: ready, {} nodes, {} pairs, {}, {awake}",
        config.nodes.len(),
        config.pairs.len(),
        match (scheduling.fifo_priority, scheduling.nice) {
            (Some(priority), _) => format!("SCHED_FIFO priority {priority}"),
            (None, Some(nice)) => format!("nice {nice}"),
            (None, None) => "normal scheduling".to_owned(),
        },
    );
    Ok(engine.run()?)
}

fn take_descriptor(number: RawFd) -> Result<File, Failure> {
    // SAFETY: only borrowed for a call that fails where it is not open.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    // Not inherited by the spinning program, which would keep the descriptor open.
    fcntl(borrowed, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))
        .map_err(|error| Failure::NotOpen { number, error })?;
    // SAFETY: it is open, the caller gave it to us, and nothing else here uses it.
    Ok(unsafe { File::from_raw_fd(number) })
}

fn selftest_loss(values: &[String]) -> Result<(), Failure> {
    let [seed, probability, count] = values else {
        unreachable!("clap takes three values");
    };
    let lost = loss::lost_indices(
        seed.parse().map_err(|_| Failure::Seed(seed.clone()))?,
        probability
            .parse()
            .ok()
            .filter(|value| (0.0..=1.0).contains(value))
            .ok_or_else(|| Failure::Probability(probability.clone()))?,
        count
            .parse()
            .ok()
            .filter(|&value| value <= MAX_SELFTEST)
            .ok_or_else(|| Failure::Count(count.clone()))?,
    );
    println!("{lost:?}");
    Ok(())
}
