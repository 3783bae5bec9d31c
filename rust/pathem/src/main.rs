//! The command line of pathem.

use clap::Parser;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use pathem::awake::{self, Awake};
use pathem::engine::Engine;
use pathem::packet_log::PacketLog;
use pathem::world::World;
use pathem::{config, host, loss};
use std::fs::File;
use std::io::Write;
use std::os::fd::{BorrowedFd, FromRawFd, RawFd};
use std::path::PathBuf;
use std::process::ExitCode;

/// Upshift path emulator: one process that is the network between lab namespaces.
///
/// Exit codes: 0 stopped by a signal or the control peer, 1 the system refused something, 2 wrong use
/// or a wrong configuration.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Configuration, JSON, schema 1 (docs/design/pathem.md)
    #[arg(long, value_name = "FILE", required_unless_present_any = ["selftest_loss", "spin"])]
    config: Option<PathBuf>,
    /// Unix socket to create for control: one JSON object per line in and out
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,
    /// Write one CSV row per packet from the start on (times in ns, sizes in IP bytes)
    #[arg(long, value_name = "FILE")]
    packet_log: Option<PathBuf>,
    /// Write "ready" and a newline to this descriptor once all devices and the control socket exist
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..))]
    ready_fd: Option<RawFd>,
    /// Do not ask for real-time scheduling or a lower nice value
    #[arg(long)]
    no_realtime: bool,
    /// Do not keep the CPUs awake, though packets may then be 0.1 to 0.5 ms late
    #[arg(long)]
    let_cpus_sleep: bool,
    /// Only keep the CPUs awake, by an idle-priority thread on each, until standard input ends
    #[arg(long, exclusive = true)]
    spin: bool,
    /// Print the indices below N that probability P (0 to 1) loses, as a JSON array, and exit
    #[arg(long, num_args = 3, value_names = ["SEED", "P", "N"], exclusive = true)]
    selftest_loss: Option<Vec<String>>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match &arguments.selftest_loss {
        Some(values) => selftest_loss(values).map_err(|error| (2, error)),
        None if arguments.spin => awake::spin().map_err(|error| (1, error.to_string())),
        None => run(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err((code, error)) => {
            eprintln!("pathem: {error}");
            ExitCode::from(code)
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), (u8, String)> {
    // First, while the number cannot mean a descriptor of our own.
    let ready = arguments
        .ready_fd
        .map(take_descriptor)
        .transpose()
        .map_err(|error| (2, error))?;
    let file = arguments
        .config
        .as_deref()
        .unwrap_or_else(|| std::path::Path::new(""));
    let config = config::load(file).map_err(|error| (2, error.0))?;
    let system = |error| (1, error);
    let awake = if arguments.let_cpus_sleep {
        Awake::let_sleep()
    } else {
        Awake::keep()
    };
    let scheduling = host::ask(!arguments.no_realtime);
    let mut world = World::open(&config, scheduling, awake).map_err(system)?;
    if let Some(path) = &arguments.packet_log {
        let log = PacketLog::create(path)
            .map_err(|error| (1, format!("packet log {}: {error}", path.display())))?;
        world.log = Some(log);
    }
    let scheduling = world.scheduling;
    let awake = world.awake.status().to_string();
    let engine = Engine::new(world, arguments.control.as_deref()).map_err(system)?;
    if let Some(mut ready) = ready {
        ready
            .write_all(b"ready\n")
            .map_err(|error| (1, format!("--ready-fd: {error}")))?;
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
    engine.run().map_err(system)
}

fn take_descriptor(number: RawFd) -> Result<File, String> {
    // SAFETY: only borrowed for a call that fails where it is not open.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    // Not for the program that spins: whoever waits for the descriptor's end would wait for that.
    fcntl(borrowed, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).map_err(|error| {
        format!("--ready-fd {number} is not an open descriptor ({error}); pass it on when starting pathem")
    })?;
    // SAFETY: it is open, the caller gave it to us, and nothing else here uses it.
    Ok(unsafe { File::from_raw_fd(number) })
}

fn selftest_loss(values: &[String]) -> Result<(), String> {
    let [seed, probability, count] = values else {
        return Err("--selftest-loss needs SEED P N".to_owned());
    };
    let seed: u64 = seed
        .parse()
        .map_err(|_| format!("SEED is {seed:?}; use a whole number"))?;
    let probability: f64 = probability
        .parse()
        .ok()
        .filter(|value| (0.0..=1.0).contains(value))
        .ok_or_else(|| format!("P is {probability:?}; use 0 to 1"))?;
    let count: u64 = count
        .parse()
        .ok()
        .filter(|&value| value <= 100_000_000)
        .ok_or_else(|| format!("N is {count:?}; use a whole number up to 100000000"))?;
    println!("{:?}", loss::lost_indices(seed, probability, count));
    Ok(())
}
