//! The program that keeps the CPUs awake where the device cannot.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const SCHED_IDLE: &str = "5";
const PATIENCE: Duration = Duration::from_secs(20);

struct Spinner(Child);

impl Spinner {
    fn start() -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_pathem"))
            .arg("--spin")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut spinner = Self(child.expect("pathem"));
        let mut line = String::new();
        let stdout = spinner.0.stdout.as_mut().expect("stdout");
        BufReader::new(stdout).read_line(&mut line).expect("ready");
        assert_eq!(line, "spinning\n");
        spinner
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Fields of a process from the third one on (proc(5), /proc/PID/stat).
fn fields(pid: u32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields = text.rsplit(')').next()?.split_whitespace();
    Some(fields.map(str::to_owned).collect())
}

fn children(pid: u32) -> Vec<u32> {
    let listed = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("children");
    let pids = listed.split_whitespace();
    pids.map(|pid| pid.parse().expect("process")).collect()
}

/// Whether it comes true soon.
fn soon(mut what: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        if what() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

/// Whether its session has the lowest priority, where the kernel groups processes by session (sched(7)).
fn is_lowest(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/autogroup"))
        .map_or(true, |group| group.trim_end().ends_with("nice 19"))
}

fn is_gone(pid: u32) -> bool {
    fields(pid).is_none_or(|fields| fields[0] == "Z")
}

#[test]
fn spins_once_per_cpu_behind_everything_else_until_its_input_ends() {
    let mut spinner = Spinner::start();
    let started = children(spinner.0.id());
    let cpus = std::thread::available_parallelism().expect("CPUs").get();
    assert_eq!(started.len(), cpus);
    for &pid in &started {
        assert_eq!(fields(pid).expect("it runs")[38], SCHED_IDLE);
        assert!(soon(|| is_lowest(pid)), "{pid}");
    }
    drop(spinner.0.stdin.take());
    let ended = soon(|| {
        spinner
            .0
            .try_wait()
            .expect("status")
            .is_some_and(|status| status.success())
    });
    assert!(ended, "it continues after its standard input has closed");
    assert!(started.into_iter().all(is_gone));
}

#[test]
fn what_spins_ends_with_a_program_that_is_killed() {
    let mut spinner = Spinner::start();
    let started = children(spinner.0.id());
    assert!(!started.is_empty());
    assert!(soon(|| started.iter().all(|&pid| is_lowest(pid))));
    spinner.0.kill().expect("killed");
    for pid in started {
        // With the priority that it had it would end, too, but on a busy host late.
        let path = format!("/proc/{pid}/autogroup");
        assert!(soon(|| {
            let _ = fs::write(&path, "0");
            is_gone(pid)
        }));
    }
}
