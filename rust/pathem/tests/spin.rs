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

/// Fields of each task of a process from the third one on (proc(5), /proc/PID/stat).
fn tasks(pid: u32) -> Vec<Vec<String>> {
    let listed = fs::read_dir(format!("/proc/{pid}/task")).expect("tasks");
    let stat = |path: std::path::PathBuf| fs::read_to_string(path.join("stat")).expect("stat");
    listed
        .map(|entry| stat(entry.expect("task").path()))
        .map(|text| text.rsplit(')').next().expect("fields").to_owned())
        .map(|fields| fields.split_whitespace().map(str::to_owned).collect())
        .collect()
}

#[test]
fn spins_once_per_cpu_behind_everything_else_until_its_input_ends() {
    let mut spinner = Spinner::start();
    let child = &mut spinner.0;
    let cpus = std::thread::available_parallelism().expect("CPUs").get();
    let policies = tasks(child.id());
    let idle = policies.iter().filter(|fields| fields[38] == SCHED_IDLE);
    assert_eq!(idle.count(), cpus);
    assert_eq!(policies.len(), cpus + 1, "and one that waits for the end");
    if let Ok(group) = fs::read_to_string(format!("/proc/{}/autogroup", child.id())) {
        assert!(group.trim_end().ends_with("nice 19"), "{group}");
    }
    drop(child.stdin.take());
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        if let Some(status) = child.try_wait().expect("status") {
            assert!(status.success());
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("it continues after its standard input has closed");
}
