//! Keeping the CPUs awake: packets leave late where a CPU has to wake up first.
//!
//! An idle CPU of some virtual machines wakes 0.1 to 0.5 ms after the timer or packet that it should serve. Two means
//! are known. PM `QoS` (`/dev/cpu_dma_latency`; the kernel's `pm_qos_interface.rst`) keeps idle CPUs in
//! states with a wake-up latency below the number that an open descriptor holds, and forgets it when that is closed;
//! where the kernel has no cpuidle driver, as on some virtual machines, nothing heeds it (`kernel/sched/idle.c`,
//! `cpuidle_idle_call`). A process of the scheduling class `SCHED_IDLE` (sched(7)) per CPU leaves no CPU idle, and yields to any other.
//! Both end with the process that holds them, however it ends.

use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, setsid};
use serde::Serialize;
use std::fmt::{self, Display};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use thiserror::Error;

/// Device for the largest acceptable wake-up latency: 4 bytes, us.
pub const DEVICE: &str = "/dev/cpu_dma_latency";

/// The name of the driver that heeds the device; `none`, or no such file, where the kernel has none.
const IDLE_DRIVER: &str = "/sys/devices/system/cpu/cpuidle/current_driver";

/// The device is a misc device (Documentation/admin-guide/devices.txt) with a minor number of the kernel's choice.
const MISC_MAJOR: u64 = 10;
const LOWEST_GROUP_PRIORITY: &str = "19";
const READY: &str = "spinning";

/// How the CPUs are kept awake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// An open `/dev/cpu_dma_latency`.
    CpuDmaLatency,
    /// A `SCHED_IDLE` process per CPU.
    Spinners,
    /// Not at all.
    None,
}

/// Why a means is not used.
#[derive(Debug, Error)]
pub enum Refusal {
    /// The user wants the CPUs to sleep.
    #[error("as requested")]
    NotWanted,
    /// The device is missing, or must not be opened or written.
    #[error("{DEVICE} cannot be used: {0}")]
    Device(io::Error),
    /// The kernel has no cpuidle driver: an idle CPU halts whatever the device holds.
    #[error("{DEVICE} cannot be used: the kernel has no cpuidle driver to heed it")]
    NoIdleDriver,
    /// Something else is in the device's place.
    #[error("{DEVICE} is not the kernel's device")]
    NotTheDevice,
    /// The cgroup may use this many CPUs' time only: programs that spin would use it up.
    #[error("spinning would use up the CPU time of this cgroup, which is limited to {0} CPUs")]
    Quota(f64),
    /// A process could not be tied to its CPU, or given the class `SCHED_IDLE`.
    #[error("an idle-priority process was refused: {0}")]
    Priority(#[from] Errno),
    /// The program that spins could not be started.
    #[error("the spinning program cannot be started: {0}")]
    Start(io::Error),
    /// The program that spins ended with these words.
    #[error("{0}")]
    Ended(String),
}

/// The method in use.
#[derive(Debug, Clone, Serialize)]
pub struct Status {
    /// What keeps the CPUs awake.
    pub method: Method,
    /// Why no better method is used; null for the device.
    pub reason: Option<String>,
}

impl Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.method {
            Method::CpuDmaLatency => "CPUs kept awake by cpu_dma_latency",
            Method::Spinners => "CPUs kept awake by idle-priority processes",
            Method::None => "CPUs not kept awake",
        })?;
        self.reason
            .as_ref()
            .map_or(Ok(()), |reason| write!(f, " ({reason})"))
    }
}

/// Keeps the CPUs awake while it lives.
pub struct Awake {
    status: Status,
    #[expect(dead_code, reason = "it only has to live")]
    held: Held,
}

#[expect(dead_code, reason = "they only have to live")]
enum Held {
    Device(File),
    Spinners(Spinners),
    Nothing,
}

impl Awake {
    /// By the device, else by processes, which end with the calling thread, else not.
    #[must_use]
    pub fn keep() -> Self {
        let device = match require_idle_driver(Path::new(IDLE_DRIVER))
            .and_then(|()| hold_device(Path::new(DEVICE)))
        {
            Ok(file) => return Self::new(Method::CpuDmaLatency, None, Held::Device(file)),
            Err(refusal) => refusal,
        };
        match Spinners::start() {
            Ok(spinners) => {
                let reason = Some(device.to_string());
                Self::new(Method::Spinners, reason, Held::Spinners(spinners))
            }
            Err(refusal) => {
                let reason = Some(format!("{device}; {refusal}"));
                Self::new(Method::None, reason, Held::Nothing)
            }
        }
    }

    /// Leaves the CPUs alone.
    #[must_use]
    pub fn let_sleep() -> Self {
        let reason = Some(Refusal::NotWanted.to_string());
        Self::new(Method::None, reason, Held::Nothing)
    }

    fn new(method: Method, reason: Option<String>, held: Held) -> Self {
        let status = Status { method, reason };
        Self { status, held }
    }

    /// The method in use.
    #[must_use]
    pub fn status(&self) -> &Status {
        &self.status
    }
}

fn require_idle_driver(path: &Path) -> Result<(), Refusal> {
    match fs::read_to_string(path) {
        Ok(name) if name.trim() != "none" => Ok(()),
        _ => Err(Refusal::NoIdleDriver),
    }
}

/// Opens the device and asks for 0 us. Nothing is written to anything else that stands in its place.
fn hold_device(path: &Path) -> Result<File, Refusal> {
    let metadata = fs::metadata(path).map_err(Refusal::Device)?;
    if !metadata.file_type().is_char_device()
        || nix::sys::stat::major(metadata.rdev()) != MISC_MAJOR
    {
        return Err(Refusal::NotTheDevice);
    }
    let opened = File::options().read(true).write(true).open(path);
    let mut file = opened.map_err(Refusal::Device)?;
    file.write_all(&0i32.to_ne_bytes())
        .map_err(Refusal::Device)?;
    // The device reports the smallest of all requests: ours.
    let mut present = [0xff; 4];
    match file.read_exact(&mut present) {
        Ok(()) if i32::from_ne_bytes(present) == 0 => Ok(file),
        Ok(()) => Err(Refusal::NotTheDevice),
        Err(error) => Err(Refusal::Device(error)),
    }
}

/// A process per CPU that spins on it.
///
/// Each has a session of its own, since the session decides about priority where the kernel groups tasks by session
/// (sched(7), autogroup): a process that spins in our session would take CPU time from the others in the name of all of us.
/// Were they threads of one session, it would have next to no share of the CPUs on which less of it ran
/// (`kernel/sched/fair.c`, `calc_group_shares`): on a busy host a thread there got no turn, in which to end, for a minute.
struct Spinners(Vec<Child>);

impl Spinners {
    fn start() -> Result<Self, Refusal> {
        let allowed = sched_getaffinity(Pid::from_raw(0))?;
        let cpus: Vec<usize> = (0..CpuSet::count())
            .filter(|&cpu| allowed.is_set(cpu).unwrap_or(false))
            .collect();
        if let Some(quota) = quota().filter(|&quota| quota < cpus.len() as f64) {
            return Err(Refusal::Quota(quota));
        }
        let program = std::env::current_exe().map_err(Refusal::Start)?;
        let mut spinners = Self(Vec::new());
        for cpu in cpus {
            let mut command = Command::new(&program);
            command.arg("--spin-on").arg(cpu.to_string());
            command
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            spinners.0.push(command.spawn().map_err(Refusal::Start)?);
        }
        spinners.0.iter_mut().try_for_each(wait_until_it_spins)?;
        Ok(spinners)
    }
}

impl Drop for Spinners {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
        }
        for child in &mut self.0 {
            while matches!(child.try_wait(), Ok(None)) {
                raise_groups();
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

/// Gives sessions of the lowest priority that our children are in an ordinary one: to end, they need a turn.
///
/// `/proc` knows them by other numbers than we do where it is not that of our PID namespace.
fn raise_groups() {
    let children = fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
    for pid in children.split_whitespace() {
        let path = format!("/proc/{pid}/autogroup");
        let lowest = format!("nice {LOWEST_GROUP_PRIORITY}");
        if fs::read_to_string(&path).is_ok_and(|group| group.trim_end().ends_with(&lowest)) {
            let _ = fs::write(path, "0");
        }
    }
}

fn wait_until_it_spins(child: &mut Child) -> Result<(), Refusal> {
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        let _ = BufReader::new(stdout).read_line(&mut line);
    }
    if line.trim_end() == READY {
        return Ok(());
    }
    let mut words = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        let _ = stderr.read_to_string(&mut words);
    }
    let words = words.trim_end();
    let words = words.strip_prefix("pathem: ").unwrap_or(words);
    Err(Refusal::Ended(words.to_owned()))
}

/// Spins on each CPU, reports that on standard output, and returns when standard input ends.
///
/// # Errors
/// Why the CPUs are not kept awake.
pub fn spin() -> Result<(), Refusal> {
    let _spinners = Spinners::start()?;
    println!("{READY}");
    let mut chunk = [0; 64];
    while matches!(io::stdin().read(&mut chunk), Ok(1..)) {}
    Ok(())
}

/// Spins on one CPU behind everything else, reports that on standard output, and ends with the thread that started it.
///
/// # Errors
/// If the kernel refuses the CPU or the class.
pub fn spin_on(cpu: usize) -> Result<(), Refusal> {
    set_pdeathsig(Signal::SIGKILL)?;
    let own = Pid::from_raw(0);
    let mut one = CpuSet::new();
    one.set(cpu)?;
    sched_setaffinity(own, &one)?;
    let parameter = libc::sched_param { sched_priority: 0 };
    // SAFETY: pid 0 is the calling thread, and the parameter outlives the call.
    Errno::result(unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameter) })?;
    // A parent that has ended before no longer reads this: the write fails, and the program with it.
    println!("{READY}");
    lower_group();
    loop {
        std::hint::spin_loop();
    }
}

/// A session of our own with the lowest priority, for kernels that group tasks by session.
///
/// The leader of a process group, as an interactive shell makes one, cannot start its own session; the shell's is
/// left alone.
fn lower_group() {
    if setsid().is_err() {
        return;
    }
    // The kernel takes ten changes per second from all ordinary users together, and one is due for each CPU.
    for _ in 0..1000 {
        match fs::write("/proc/self/autogroup", LOWEST_GROUP_PRIORITY) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(110));
            }
            _ => return,
        }
    }
}

/// The fewest CPUs whose time our cgroup, or one that holds it, may use (cgroup v2, `cpu.max`).
fn quota() -> Option<f64> {
    let listed = fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = listed.lines().find_map(|line| line.strip_prefix("0::"))?;
    let folder = Path::new("/sys/fs/cgroup").join(own.trim_start_matches('/'));
    let limits = folder
        .ancestors()
        .take_while(|folder| folder.starts_with("/sys/fs/cgroup"))
        .filter_map(|folder| parse_quota(&fs::read_to_string(folder.join("cpu.max")).ok()?));
    limits.min_by(f64::total_cmp)
}

/// CPUs in the text of a `cpu.max`: quota and period in us; none for `max`.
fn parse_quota(text: &str) -> Option<f64> {
    let mut words = text.split_whitespace();
    let quota: f64 = words.next()?.parse().ok()?;
    let period: f64 = words.next()?.parse().ok()?;
    Some(quota / period)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_told_in_cpus() {
        assert_eq!(parse_quota("150000 100000\n"), Some(1.5));
        assert_eq!(parse_quota("max 100000\n"), None);
        assert_eq!(parse_quota(""), None);
    }

    #[test]
    fn without_an_idle_driver_the_device_is_of_no_use() {
        let file = std::env::temp_dir().join(format!("pathem-driver-{}", std::process::id()));
        fs::write(&file, b"none\n").expect("file");
        assert!(matches!(
            require_idle_driver(&file),
            Err(Refusal::NoIdleDriver)
        ));
        fs::write(&file, b"haltpoll\n").expect("file");
        assert!(require_idle_driver(&file).is_ok());
        fs::remove_file(&file).expect("removed");
        assert!(matches!(
            require_idle_driver(&file),
            Err(Refusal::NoIdleDriver)
        ));
    }

    #[test]
    fn what_stands_in_the_place_of_the_device_is_left_alone() {
        let file = std::env::temp_dir().join(format!("pathem-awake-{}", std::process::id()));
        fs::write(&file, b"mine").expect("file");
        assert!(matches!(hold_device(&file), Err(Refusal::NotTheDevice)));
        assert_eq!(fs::read(&file).expect("file"), b"mine");
        fs::remove_file(&file).expect("removed");
        assert!(matches!(hold_device(&file), Err(Refusal::Device(_))));
        assert!(matches!(
            hold_device(Path::new("/dev/null")),
            Err(Refusal::NotTheDevice)
        ));
    }
}
