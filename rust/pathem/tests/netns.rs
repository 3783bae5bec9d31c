//! pathem between two real network namespaces. Needs root; says so and passes without.
//!
//! The namespaces are named after this process, have no way out, and are removed in every case.
//! Nothing here asserts that a packet is fast: the host may be busy.

use nix::sched::{CloneFlags, setns};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const V4: (&str, &str) = ("198.18.1.1", "198.18.2.2");
const V6: (&str, &str) = ("fd00:198:18:1::1", "fd00:198:18:2::2");
const PATIENCE: Duration = Duration::from_secs(20);

struct Lab {
    folder: PathBuf,
    names: Vec<String>,
    pathem: Option<Child>,
}

impl Lab {
    fn new(test: &str) -> Self {
        let tag = format!("upshift-pathem-{}-{test}", std::process::id());
        let folder = std::env::temp_dir().join(&tag);
        std::fs::create_dir_all(&folder).expect("folder");
        let mut lab = Self {
            folder,
            names: Vec::new(),
            pathem: None,
        };
        for end in ["a", "b"] {
            let name = format!("{tag}-{end}");
            run_ip(&["netns", "add", &name]);
            lab.names.push(name);
        }
        lab
    }

    fn start(&mut self, pairs: &Value) -> Peer {
        let node = |index: usize, name: &str, addresses: [&str; 2]| {
            let netns = format!("/run/netns/{}", self.names[index]);
            json!({"name": name, "netns": netns, "device": "tun0", "addresses": addresses})
        };
        let nodes = [node(0, "a", [V4.0, V6.0]), node(1, "b", [V4.1, V6.1])];
        let config = json!({"schema": 1, "nodes": nodes, "pairs": pairs});
        std::fs::write(self.folder.join("net.json"), config.to_string()).expect("configuration");
        let mut child = Command::new(env!("CARGO_BIN_EXE_pathem"))
            .arg("--config")
            .arg(self.folder.join("net.json"))
            .arg("--control")
            .arg(self.folder.join("control"))
            .args(["--ready-fd", "1"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("pathem");
        let stdout = child.stdout.take().expect("stdout");
        self.pathem = Some(child);
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).expect("ready");
        assert_eq!(line, "ready\n");
        for (index, (v4, v6)) in [(V4.0, V6.0), (V4.1, V6.1)].into_iter().enumerate() {
            let at = ["-n", &self.names[index]];
            let ip = |arguments: &[&str]| run_ip(&[&at, arguments].concat());
            ip(&["address", "add", &format!("{v4}/32"), "dev", "tun0"]);
            ip(&[
                "address",
                "add",
                &format!("{v6}/128"),
                "dev",
                "tun0",
                "nodad",
            ]);
            ip(&["route", "add", "198.18.0.0/15", "dev", "tun0"]);
            ip(&["route", "add", "fd00:198:18::/48", "dev", "tun0"]);
        }
        Peer::connect(&self.folder.join("control"))
    }

    /// A UDP socket in a namespace: made by a thread that enters it and ends.
    fn udp(&self, index: usize, address: &str) -> UdpSocket {
        let netns = format!("/run/netns/{}", self.names[index]);
        let address = SocketAddr::new(address.parse().expect("address"), 0);
        let socket = std::thread::spawn(move || {
            setns(
                File::open(netns).expect("namespace"),
                CloneFlags::CLONE_NEWNET,
            )
            .expect("setns");
            UdpSocket::bind(address).expect("socket")
        });
        let socket = socket.join().expect("thread");
        socket.set_read_timeout(Some(PATIENCE)).expect("timeout");
        socket
    }

    fn wait(&mut self) -> Option<i32> {
        let mut child = self.pathem.take().expect("running");
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if let Some(status) = child.try_wait().expect("status") {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.pathem = Some(child);
        panic!("pathem does not end");
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Some(mut child) = self.pathem.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

struct Peer(BufReader<UnixStream>);

impl Peer {
    fn connect(path: &std::path::Path) -> Self {
        let stream = UnixStream::connect(path).expect("control socket");
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        Self(BufReader::new(stream))
    }

    fn send(&mut self, line: &str) {
        writeln!(self.0.get_mut(), "{line}").expect("request");
    }

    fn receive(&mut self) -> Value {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("answer");
        serde_json::from_str(&line).expect("JSON")
    }

    fn ask(&mut self, request: &Value) -> Value {
        self.send(&request.to_string());
        self.receive()
    }
}

fn run_ip(arguments: &[&str]) {
    let status = Command::new("ip").args(arguments).status().expect("ip");
    assert!(status.success(), "ip {arguments:?}");
}

fn may_run() -> bool {
    let is_root = nix::unistd::geteuid().is_root();
    if !is_root {
        eprintln!("skipped: this test makes network namespaces, which needs root");
    }
    is_root
}

/// Sends one datagram and waits for it. Gives the one-way time.
fn one_way(from: &UdpSocket, to: &UdpSocket, length: usize) -> Duration {
    let start = Instant::now();
    from.send_to(&vec![7; length], to.local_addr().expect("address"))
        .expect("send");
    let mut buffer = [0; 2000];
    assert_eq!(to.recv(&mut buffer).expect("receive"), length);
    start.elapsed()
}

#[test]
fn carries_delays_and_counts() {
    if !may_run() {
        return;
    }
    let mut lab = Lab::new("carry");
    let mut peer = lab.start(&json!([
        {"from": "a", "to": "b", "delay_us": 20000, "rate_bps": 10_000_000, "queue_bytes": 50000},
        {"from": "b", "to": "a", "delay_us": 30000},
    ]));
    for (at_a, at_b, header) in [(V4.0, V4.1, 28), (V6.0, V6.1, 48)] {
        let (a, b) = (lab.udp(0, at_a), lab.udp(1, at_b));
        for _ in 0..5 {
            // 1500 bytes at 10 Mbit/s: 1.2 ms
            assert!(one_way(&a, &b, 1500 - header) >= Duration::from_micros(21_200));
            assert!(one_way(&b, &a, 1500 - header) >= Duration::from_millis(30));
        }
    }
    let idle =
        peer.ask(&json!({"op": "idle", "pairs": [["a", "b"], ["b", "a"]], "timeout_ms": 5000}));
    assert_eq!(idle["idle"], true);
    let snapshot = peer.ask(&json!({"op": "snapshot"}));
    for pair in snapshot["pairs"].as_array().expect("pairs") {
        assert_eq!(
            (&pair["in_packets"], &pair["delivered_packets"]),
            (&json!(10), &json!(10)),
            "{pair}"
        );
        assert_eq!(
            (&pair["delivered_bytes"], &pair["lateness"]["count"]),
            (&json!(15000), &json!(10))
        );
    }
    for node in snapshot["nodes"].as_array().expect("nodes") {
        assert_eq!(node["device_counters"]["tx_dropped"], 0);
        assert!(node["device_counters"]["tx_packets"].as_u64() >= Some(10));
    }
    let flows = peer.ask(&json!({"op": "flows", "a": V4.0, "b": V4.1}));
    let flows = flows["flows"].as_array().expect("flows");
    assert_eq!(flows.len(), 2);
    assert!(
        flows
            .iter()
            .all(|flow| flow["delivered_packets"] == 5 && flow["protocol"] == 17)
    );
    peer.ask(&json!({"op": "stop"}));
    assert_eq!(lab.wait(), Some(0));
    assert!(!lab.folder.join("control").exists());
}

#[test]
fn control_changes_pairs_logs_packets_and_survives_bad_requests() {
    if !may_run() {
        return;
    }
    let mut lab = Lab::new("control");
    let mut peer = lab.start(&json!([
        {"from": "a", "to": "b", "delay_us": 0},
        {"from": "b", "to": "a", "delay_us": 0},
    ]));
    for bad in [
        "{",
        "[]",
        r#"{"op":"no"}"#,
        r#"{"op":"snapshot","x":1}"#,
        r#"{"op":"idle"}"#,
    ] {
        peer.send(bad);
        assert!(peer.receive()["error"].is_string(), "{bad}");
    }
    let unknown = peer.ask(&json!({"op": "snapshot", "pairs": [["a", "c"]]}));
    assert!(
        unknown["error"]
            .as_str()
            .expect("sentence")
            .contains("no pair")
    );
    let log = lab.folder.join("packets.csv");
    assert_eq!(
        peer.ask(&json!({"op": "packet_log", "enable": true, "path": log}))["enabled"],
        true
    );
    let set = json!({"op": "set_pair", "from": "a", "to": "b", "delay_us": 40000, "loss": {"pattern": [1]}});
    assert_eq!(peer.ask(&set)["set"], true);
    let (a, b) = (lab.udp(0, V4.0), lab.udp(1, V4.1));
    assert!(one_way(&a, &b, 100) >= Duration::from_millis(40));
    a.send_to(&[1; 50], b.local_addr().expect("address"))
        .expect("send"); // index 1: lost
    assert!(one_way(&a, &b, 200) >= Duration::from_millis(40));
    let mut other = Peer::connect(&lab.folder.join("control"));
    let only = other.ask(&json!({"op": "snapshot", "pairs": [["a", "b"]]}));
    assert_eq!(only["pairs"].as_array().map(Vec::len), Some(1));
    assert_eq!(
        (
            &only["pairs"][0]["loss"],
            &only["pairs"][0]["delivered_packets"]
        ),
        (&json!(1), &json!(2))
    );
    let stopped = peer.ask(&json!({"op": "packet_log", "enable": false}));
    assert_eq!(stopped["stopped"]["rows"], 3);
    let text = std::fs::read_to_string(&log).expect("log");
    assert_eq!(text.lines().next(), Some(pathem::packet_log::HEADER));
    assert_eq!(
        text.lines().filter(|line| line.contains(",loss,")).count(),
        1
    );
    assert_eq!(
        peer.ask(&json!({"op": "forget_flows", "a": V4.1, "b": V4.0}))["forgotten"],
        1
    );
    // A packet in flight: not idle at the timeout.
    let set = json!({"op": "set_pair", "from": "a", "to": "b", "delay_us": 5_000_000});
    assert_eq!(peer.ask(&set)["set"], true);
    a.send_to(&[1; 50], b.local_addr().expect("address"))
        .expect("send");
    assert_eq!(
        peer.ask(&json!({"op": "idle", "timeout_ms": 1}))["idle"],
        false
    );
    let pid = i32::try_from(lab.pathem.as_ref().expect("running").id()).expect("pid");
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(pid),
        nix::sys::signal::Signal::SIGTERM,
    )
    .expect("kill");
    assert_eq!(lab.wait(), Some(0));
}

#[test]
fn refuses_a_wrong_configuration_with_2() {
    let output = Command::new(env!("CARGO_BIN_EXE_pathem"))
        .args(["--config", "/nonexistent.json"])
        .output();
    let output = output.expect("pathem");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nonexistent.json: cannot be read"));
}

#[test]
fn prints_the_lost_indices() {
    let output = Command::new(env!("CARGO_BIN_EXE_pathem"))
        .args(["--selftest-loss", "7", "0.01", "1000"])
        .output();
    let printed: Vec<u64> = serde_json::from_slice(&output.expect("pathem").stdout).expect("JSON");
    assert_eq!(printed, pathem::loss::lost_indices(7, 0.01, 1000));
}
