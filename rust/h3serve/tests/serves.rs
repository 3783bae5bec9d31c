//! What h3serve says before any handshake, and how it refuses wrong use. Handshakes and answers are tested by those
//! that use it (tests/lab). Loopback only.

use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use boring::asn1::Asn1Time;
use boring::ec::{EcGroup, EcKey};
use boring::hash::MessageDigest;
use boring::nid::Nid;
use boring::pkey::PKey;
use boring::x509::X509Builder;

struct Server {
    process: Child,
    address: String,
    folder: std::path::PathBuf,
}

impl Server {
    fn start() -> Self {
        Self::with_answers_of(0)
    }

    fn with_answers_of(bytes: usize) -> Self {
        let name = format!("h3serve-test-{}-{bytes}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let (certificate, key) = (folder.join("cert.pem"), folder.join("key.pem"));
        self_signed(&certificate, &key);
        let mut process = Command::new(env!("CARGO_BIN_EXE_h3serve"))
            .args(["--listen", "127.0.0.1:0", "--cert"])
            .arg(certificate)
            .arg("--key")
            .arg(key)
            .args(["--bytes", &bytes.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line.strip_prefix("listening ").unwrap().trim().to_owned();
        Self {
            process,
            address,
            folder,
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn self_signed(certificate: &Path, key: &Path) {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
    let pair = PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap();
    let mut builder = X509Builder::new().unwrap();
    builder.set_pubkey(&pair).unwrap();
    builder
        .set_not_before(&Asn1Time::days_from_now(0).unwrap())
        .unwrap();
    builder
        .set_not_after(&Asn1Time::days_from_now(1).unwrap())
        .unwrap();
    builder.sign(&pair, MessageDigest::sha256()).unwrap();
    std::fs::write(certificate, builder.build().to_pem().unwrap()).unwrap();
    std::fs::write(key, pair.private_key_to_pem_pkcs8().unwrap()).unwrap();
}

/// A long header of a reserved version, then zeros (RFC 8999, section 5.1; RFC 9000, section 15).
fn probe(size: usize) -> Vec<u8> {
    let mut data = vec![
        0xc0, 0x1a, 0x2a, 0x3a, 0x4a, 8, 1, 2, 3, 4, 5, 6, 7, 8, 4, 9, 9, 9, 9,
    ];
    data.resize(size, 0);
    data
}

#[test]
fn names_its_versions_and_only_to_a_padded_probe() {
    let server = Server::start();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(&server.address).unwrap();
    let mut answer = [0; 100];
    socket
        .set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    socket.send(&probe(1_199)).unwrap();
    assert!(socket.recv(&mut answer).is_err(), "too small to begin with");
    socket
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    socket.send(&probe(1_200)).unwrap();
    let size = socket.recv(&mut answer).unwrap();
    // Version 0, the connection IDs the other way round, and the one version that quiche speaks.
    assert_eq!(
        answer[1..size],
        [
            0, 0, 0, 0, 4, 9, 9, 9, 9, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 1
        ]
    );
}

/// A client by quiche over a connected socket.
struct Client {
    quic: quiche::Connection,
    socket: UdpSocket,
}

impl Client {
    fn new(server: &Server) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(&server.address).unwrap();
        let mut config = quiche::Config::new(quiche::PROTOCOL_VERSION).unwrap();
        config.set_application_protos(&[b"h3"]).unwrap();
        config.verify_peer(false);
        config.set_initial_max_data(1 << 22);
        config.set_initial_max_stream_data_bidi_local(1 << 22);
        config.set_initial_max_stream_data_uni(1 << 20);
        config.set_initial_max_streams_uni(10);
        let id = quiche::ConnectionId::from_ref(&[7; 8]);
        let (local, peer) = (socket.local_addr().unwrap(), socket.peer_addr().unwrap());
        let quic = quiche::connect(Some("late.test"), &id, local, peer, &mut config).unwrap();
        Self { quic, socket }
    }

    fn send(&mut self) {
        let mut data = [0; 1_500];
        while let Ok((size, _)) = self.quic.send(&mut data) {
            self.socket.send(&data[..size]).unwrap();
        }
    }

    /// Takes one datagram; false if none comes in time.
    fn receive(&mut self, within: Duration) -> bool {
        let mut data = [0; 1_500];
        self.socket.set_read_timeout(Some(within)).unwrap();
        let Ok(size) = self.socket.recv(&mut data) else {
            return false;
        };
        let (from, to) = (
            self.socket.peer_addr().unwrap(),
            self.socket.local_addr().unwrap(),
        );
        let info = quiche::RecvInfo { from, to };
        self.quic.recv(&mut data[..size], info).unwrap();
        true
    }
}

/// A client that gets no processor for a while acknowledges everything at once, after the server's first probe time-out
/// and before the end of a hold. The download stopped there, once in 1,800 on a busy host.
#[test]
fn goes_on_after_a_late_acknowledgement() {
    const BYTES: usize = 200_000;
    let server = Server::with_answers_of(BYTES);
    for late_ms in [30, 40, 50, 60, 70, 80, 90, 150] {
        let mut client = Client::new(&server);
        client.send();
        while !client.quic.is_established() {
            assert!(client.receive(Duration::from_secs(10)));
            if !client.quic.is_established() {
                client.send();
            }
        }
        // The request leaves with the end of the handshake, so HTTP/3's own streams are not acknowledged before.
        let config = quiche::h3::Config::new().unwrap();
        let mut http = quiche::h3::Connection::with_transport(&mut client.quic, &config).unwrap();
        let request = [
            (":method", "GET"),
            (":scheme", "https"),
            (":authority", "late.test"),
            (":path", "/"),
        ]
        .map(|(name, value)| quiche::h3::Header::new(name.as_bytes(), value.as_bytes()));
        http.send_request(&mut client.quic, &request, true).unwrap();
        client.send();
        std::thread::sleep(Duration::from_millis(late_ms));
        while client.receive(Duration::from_millis(1)) {}
        let (mut got, mut body) = (0, vec![0; 1 << 16]);
        while got < BYTES {
            client.send();
            while let Ok((stream, event)) = http.poll(&mut client.quic) {
                if event == quiche::h3::Event::Data {
                    while let Ok(size) = http.recv_body(&mut client.quic, stream, &mut body) {
                        got += size;
                    }
                }
            }
            client.send();
            assert!(
                got == BYTES || client.receive(Duration::from_secs(3)),
                "{got} of {BYTES} bytes, acknowledged {late_ms} ms late"
            );
        }
    }
}

#[test]
fn wrong_use_is_refused() {
    let output = Command::new(env!("CARGO_BIN_EXE_h3serve"))
        .args(["--listen", "nowhere"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        String::from_utf8_lossy(&output.stderr)
            .contains("invalid value 'nowhere' for '--listen <ADDRESS:PORT>'")
    );
}
