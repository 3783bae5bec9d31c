//! h3get against a real HTTP/3 server on loopback. Needs Caddy, and fails without it.

mod support;

use std::net::UdpSocket;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::Value;
use support::certificates::Authority;
use support::hello;
use support::relay::{Path, Relay};
use support::rogue::{self, Wrong};
use support::server::{FILE_BYTES, HOST, Server, free_port};
use support::{assert_ended, h3get, record};

fn fetch(server: &Server, path: &str, more: &[&str]) -> Value {
    let url = server.url(path);
    let mut arguments = vec![
        "--url",
        &url,
        "--address",
        "127.0.0.1",
        "--ca",
        server.ca(),
        "--budget-s",
        "20",
    ];
    arguments.extend(more);
    record(&arguments)
}

/// What every record of a complete download of the file must say.
#[track_caller]
fn assert_whole(record: &Value, server: &Server) {
    assert_eq!(
        (&record["outcome"], &record["failure"]),
        (&"ok".into(), &Value::Null),
        "{record:#}"
    );
    assert_eq!(
        (&record["http_status"], &record["http_version"]),
        (&200.into(), &"3".into())
    );
    assert_eq!(record["body_sha256"], server.sha256.as_str());
    assert_eq!(record["body_bytes"], FILE_BYTES);
    assert_eq!(record["content_length"], FILE_BYTES);
}

#[test]
fn a_download_that_works() {
    let server = Server::start();
    let record = fetch(&server, "/random.bin", &[]);
    assert_whole(&record, &server);
    assert_eq!(
        (&record["schema"], &record["client"]),
        (&1.into(), &"quiche".into())
    );
    assert_eq!(
        (&record["tls_version"], &record["alpn"]),
        (&"TLSv1.3".into(), &"h3".into())
    );
    assert!(
        record["tls_cipher"].as_str().unwrap().starts_with("TLS_"),
        "{}",
        record["tls_cipher"]
    );
    assert_eq!(
        (&record["server_ip"], &record["local_ip"]),
        (&"127.0.0.1".into(), &"127.0.0.1".into())
    );
    assert_eq!(record["server_port"], server.port);
    assert!(record["local_port"].as_u64().unwrap() > 0);
    assert_eq!(record["response_headers"]["server"], "Caddy");
    let times: Vec<f64> = ["connect_s", "headers_s", "first_byte_s", "last_byte_s"]
        .map(|name| record[name].as_f64().unwrap())
        .to_vec();
    assert!(
        times[0] > 0.0 && times.is_sorted() && times[3] < 20.0,
        "{times:?}"
    );
    assert!(record["client_cpu_s"].as_f64().unwrap() > 0.0);
    assert!(record["socket_drops"].is_u64());
    let quic = &record["quic"];
    assert_eq!(quic["version"], "0x00000001");
    assert_eq!(
        quic["transport_parameters"]["local"]["initial_max_data"],
        64 << 20
    );
    assert!(
        quic["transport_parameters"]["peer"]["initial_max_data"]
            .as_u64()
            .unwrap()
            > 0
    );
    assert!(quic["packets_received"].as_u64().unwrap() > FILE_BYTES as u64 / 1500);
    assert!(quic["rcvbuf_bytes"].as_u64().unwrap() > 0 && quic["rtt_ms"].is_f64());
    for name in ["dns_s", "tls_s", "tcp"] {
        assert!(record[name].is_null(), "{name}");
    }
}

#[test]
fn settings_are_heeded() {
    let server = Server::start();
    let log = server.directory.path().join("keys.log");
    let more = [
        "--no-gro",
        "--max-data",
        "200000",
        "--max-stream-data",
        "100000",
        "--max-udp-payload",
        "1300",
        "--cc",
        "bbr2",
        "--keylog",
        log.to_str().unwrap(),
        "--user-agent",
        "test/1 (mailto:a@b.test)",
        "--allow",
        "127.0.0.0/8",
    ];
    let record = fetch(&server, "/random.bin", &more);
    assert_whole(&record, &server);
    let quic = &record["quic"];
    assert_eq!(
        (&quic["gro"], &quic["congestion_control"]),
        (&false.into(), &"bbr2".into())
    );
    let local = &quic["transport_parameters"]["local"];
    assert_eq!(
        (&local["initial_max_data"], &local["max_udp_payload_size"]),
        (&200_000.into(), &1300.into())
    );
    assert!(
        std::fs::read_to_string(log)
            .unwrap()
            .contains("CLIENT_TRAFFIC_SECRET_0")
    );
}

#[test]
fn the_dump_has_headers_and_the_start_of_the_body() {
    let server = Server::start();
    let path = server.directory.path().join("logs/dump.json");
    let record = fetch(&server, "/random.bin", &["--dump", path.to_str().unwrap()]);
    assert_whole(&record, &server);
    let dump: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let entry = &dump["entries"][0];
    let field = |side: &str, index: usize| {
        let field = &entry[side]["headers"][index];
        (field["name"].clone(), field["value"].clone())
    };
    assert_eq!(field("request", 0), (":method".into(), "GET".into()));
    assert_eq!(field("response", 0), (":status".into(), "200".into()));
    let body: Vec<u8> = serde_json::from_value(entry["response"]["body"].clone()).unwrap();
    let file = std::fs::read(server.directory.path().join("files/random.bin")).unwrap();
    assert_eq!(body, file[..10_000]);
}

#[test]
fn other_status_codes() {
    let server = Server::start();
    for (path, status) in [("/absent", 404), ("/moved", 302)] {
        let record = fetch(&server, path, &[]);
        assert_ended(&record, "failed", "http_status");
        assert_eq!(record["http_status"], status);
    }
}

#[test]
fn certificates_are_verified() {
    let server = Server::start();
    let stranger = Authority::new(server.directory.path(), "stranger");
    let stranger = stranger.file.to_str().unwrap();
    let url = server.url("/random.bin");
    let wrong_ca = record(&[
        "--url",
        &url,
        "--address",
        "127.0.0.1",
        "--ca",
        stranger,
        "--budget-s",
        "10",
    ]);
    assert_ended(&wrong_ca, "failed", "tls_certificate");
    assert!(wrong_ca["connect_s"].is_null() && wrong_ca["http_status"].is_null());
    let system_roots = record(&["--url", &url, "--address", "127.0.0.1", "--budget-s", "10"]);
    assert_ended(&system_roots, "failed", "tls_certificate");
    for host in ["other.test", "127.0.0.1"] {
        let url = format!("https://{host}:{}/random.bin", server.port);
        let wrong_host = record(&[
            "--url",
            &url,
            "--address",
            "127.0.0.1",
            "--ca",
            server.ca(),
            "--budget-s",
            "10",
        ]);
        assert_ended(&wrong_host, "failed", "tls_certificate");
        let detail = wrong_host["failure_detail"].as_str().unwrap();
        assert!(detail.contains("mismatch"), "{host}: {detail}");
    }
}

#[test]
fn a_closed_port_and_a_silent_one() {
    let url = format!("https://{HOST}/x");
    let closed = free_port().to_string();
    let arguments = [
        "--url",
        &url,
        "--address",
        "127.0.0.1",
        "--budget-s",
        "5",
        "--port",
        &closed,
    ];
    assert_ended(&record(&arguments), "failed", "connection_refused");
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port().to_string();
    let timeout = record(&[
        "--url",
        &url,
        "--address",
        "127.0.0.1",
        "--budget-s",
        "0.7",
        "--port",
        &port,
    ]);
    assert_ended(&timeout, "failed", "connect_timeout");
    assert!(timeout["connect_s"].is_null());
    assert!(
        timeout["quic"]["packets_sent"].as_u64().unwrap() >= 1,
        "it did try"
    );
    assert!(timeout["quic"]["transport_parameters"]["peer"].is_null());
}

#[test]
fn an_address_outside_gets_no_packet() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port().to_string();
    let url = format!("https://{HOST}/x");
    let common = ["--url", &url, "--budget-s", "1", "--port", &port];
    let by_option = record(
        &[
            &common[..],
            &["--address", "127.0.0.1", "--allow", "198.18.0.0/15"],
        ]
        .concat(),
    );
    let by_environment = record(
        &[
            &common[..],
            &["--address", "198.18.0.1", "--allow", "198.18.0.0/15"],
        ]
        .concat(),
    );
    for refused in [by_option, by_environment] {
        assert_ended(&refused, "failed", "address_refused");
        assert!(refused["quic"].is_null() && refused["local_ip"].is_null());
    }
    socket.set_nonblocking(true).unwrap();
    let nothing = socket.recv(&mut [0; 1]).unwrap_err();
    assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn budgets_censor() {
    let server = Server::start();
    let bytes = fetch(&server, "/random.bin", &["--max-bytes", "1000000"]);
    assert_ended(&bytes, "censored", "byte_budget");
    assert_eq!(bytes["body_bytes"], 1_000_000);

    let far = Path {
        delay: Duration::from_millis(40),
        dead_after: usize::MAX,
    };
    let relay = Relay::start(server.port, far);
    let port = relay.port.to_string();
    let slow = fetch(
        &server,
        "/random.bin",
        &[
            "--port",
            &port,
            "--max-stream-data",
            "20000",
            "--budget-s",
            "1.5",
        ],
    );
    assert_ended(&slow, "censored", "time_budget");
    let last = slow["last_byte_s"].as_f64().unwrap();
    assert!(last > 0.75 && last < 2.5, "{last}");
    let arrived = slow["body_bytes"].as_u64().unwrap();
    assert!(arrived > 0 && arrived < FILE_BYTES as u64);
    assert!(slow["quic"]["min_rtt_ms"].as_f64().unwrap() >= 80.0);
}

#[test]
fn a_path_that_dies_stalls() {
    let server = Server::start();
    let dying = Path {
        delay: Duration::from_millis(1),
        dead_after: 500_000,
    };
    let relay = Relay::start(server.port, dying);
    let port = relay.port.to_string();
    let dead = fetch(
        &server,
        "/random.bin",
        &["--port", &port, "--budget-s", "2"],
    );
    assert_ended(&dead, "censored", "stalled");
    assert!(
        dead["body_bytes"].as_u64().unwrap() > 0 && dead["last_byte_s"].as_f64().unwrap() < 1.0
    );

    let dying = Path {
        delay: Duration::from_millis(1),
        dead_after: 500_000,
    };
    let relay = Relay::start(server.port, dying);
    let port = relay.port.to_string();
    let idle = fetch(
        &server,
        "/random.bin",
        &["--port", &port, "--idle-timeout-s", "0.5"],
    );
    assert_ended(&idle, "censored", "stalled");
    assert!(idle["failure_detail"].as_str().unwrap().contains("idle"));
}

#[test]
fn a_peer_that_goes_away_resets() {
    let server = Server::start();
    let far = Path {
        delay: Duration::from_millis(40),
        dead_after: usize::MAX,
    };
    let relay = Relay::start(server.port, far);
    let port = relay.port.to_string();
    let closer = std::thread::spawn(move || {
        for _ in 0..2000 {
            if relay.passed.load(Ordering::Relaxed) > 100_000 {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        drop(relay); // its socket closes: from now on the kernel answers with ICMP port unreachable
    });
    let gone = fetch(
        &server,
        "/random.bin",
        &["--port", &port, "--max-stream-data", "20000"],
    );
    closer.join().unwrap();
    assert_ended(&gone, "failed", "connection_reset");
    assert!(gone["connect_s"].is_f64() && gone["body_bytes"].as_u64().unwrap() > 0);
}

#[test]
fn broken_promises() {
    let directory = support::Directory::new();
    let authority = Authority::new(directory.path(), "authority");
    let (certificate, key) = authority.issue(directory.path(), HOST);
    for (wrong, failure, body_bytes, detail) in [
        (Wrong::Body(4), "truncated_body", Some(4), "4 of 10 bytes"),
        (Wrong::Body(12), "length_mismatch", Some(12), "10 bytes"),
        (
            Wrong::Reset,
            "connection_reset",
            None,
            "reset the stream: 0x102 H3_INTERNAL_ERROR",
        ),
        (
            Wrong::Close,
            "connection_reset",
            None,
            "closed the connection: HTTP/3 error 0x102",
        ),
    ] {
        let (port, server) = rogue::start(&certificate, &key, wrong);
        let url = format!("https://{HOST}:{port}/");
        let ca = authority.file.to_str().unwrap();
        let ended = record(&[
            "--url",
            &url,
            "--address",
            "127.0.0.1",
            "--ca",
            ca,
            "--budget-s",
            "8",
        ]);
        server.join().unwrap();
        assert_ended(&ended, "failed", failure);
        assert!(
            ended["failure_detail"].as_str().unwrap().contains(detail),
            "{}",
            ended["failure_detail"]
        );
        if let Some(bytes) = body_bytes {
            assert_eq!(ended["body_bytes"], bytes);
        }
    }
}

#[test]
fn the_client_hello_is_one_datagram_with_one_key_share() {
    const X25519: u16 = 0x1d;
    const X25519_MLKEM768: u16 = 0x11ec;
    let directory = support::Directory::new();
    let authority = Authority::new(directory.path(), "authority");
    let (certificate, key) = authority.issue(directory.path(), HOST);
    let url = format!("https://{HOST}/x");
    for (more, datagrams, shares) in [
        (&[][..], 1, &[X25519][..]),
        (&["--post-quantum", "1"], 2, &[X25519_MLKEM768, X25519]),
    ] {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port().to_string();
        let common = ["--url", &url, "--address", "127.0.0.1", "--port", &port];
        let arguments = [&common[..], &["--budget-s", "0.7"], more].concat();
        let hello = std::thread::scope(|scope| {
            scope.spawn(|| record(&arguments));
            hello::receive(&socket, &certificate, &key)
        })
        .expect("a whole ClientHello");
        assert_eq!(
            (hello.datagrams, &hello.key_shares[..]),
            (datagrams, shares),
            "{hello:?}"
        );
        assert_eq!(hello.bytes < 1300, datagrams == 1, "{hello:?}");
        assert!(
            hello.groups.contains(&0x17),
            "P-256 stays listed: {hello:?}"
        );
    }
}

#[test]
fn wrong_use_is_one_sentence_and_2() {
    let url = format!("https://{HOST}/x");
    let good = ["--url", &url, "--address", "127.0.0.1"];
    for bad in [
        vec!["--insecure"],
        vec!["--ca", "/nonexistent.pem"],
        vec!["--budget-s", "-1"],
        vec!["stray"],
    ] {
        let output = h3get(&[&good[..], &bad].concat());
        assert_eq!(output.status.code(), Some(2), "{bad:?}");
        assert_eq!(output.stdout, [] as [u8; 0]);
        assert_eq!(
            String::from_utf8(output.stderr).unwrap().lines().count(),
            1,
            "{bad:?}"
        );
    }
    assert_eq!(h3get(&["--help"]).status.code(), Some(0));
}
