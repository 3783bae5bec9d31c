//! Caddy as an HTTP/3 file server on loopback.

use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use boring::rand::rand_bytes;
use boring::sha::sha256;

use super::Directory;
use super::certificates::Authority;

/// The only name in the server's certificate.
pub const HOST: &str = "files.test";
/// Size of the file `/random.bin`.
pub const FILE_BYTES: usize = 5_000_003;

/// A running server with one random file.
pub struct Server {
    process: Child,
    pub port: u16,
    pub authority: Authority,
    /// SHA-256 of the file, in hexadecimal.
    pub sha256: String,
    pub directory: Directory,
}

impl Server {
    /// Starts Caddy and waits until it listens. Fails loudly where Caddy is not installed: a test that is skipped
    /// in silence protects nothing.
    pub fn start() -> Self {
        let directory = Directory::new();
        let authority = Authority::new(directory.path(), "authority");
        let (certificate, key) = authority.issue(directory.path(), HOST);
        let mut content = vec![0; FILE_BYTES];
        rand_bytes(&mut content).unwrap();
        let files = directory.path().join("files");
        std::fs::create_dir(&files).unwrap();
        std::fs::write(files.join("random.bin"), &content).unwrap();
        let port = free_port();
        let text = format!(
            "{{\n admin off\n auto_https disable_redirects\n skip_install_trust\n default_sni {HOST}\n}}\n\
             https://{HOST}:{port}, https://127.0.0.1:{port}, https://:{port} {{\n bind 127.0.0.1\n tls {} {}\n \
             root * {}\n file_server\n redir /moved /random.bin\n}}\n",
            certificate.display(),
            key.display(),
            files.display()
        );
        let configuration = directory.path().join("Caddyfile");
        std::fs::write(&configuration, text).unwrap();
        let log = std::fs::File::create(directory.path().join("caddy.log")).unwrap();
        let process = Command::new("caddy")
            .args(["run", "--adapter", "caddyfile", "--config"])
            .arg(&configuration)
            .env("XDG_DATA_HOME", directory.path())
            .env("XDG_CONFIG_HOME", directory.path())
            .env("HOME", directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("these tests need Caddy: install the package `caddy`");
        let sha256 = hexadecimal(&sha256(&content));
        let mut server = Self {
            process,
            port,
            authority,
            sha256,
            directory,
        };
        server.wait();
        server
    }

    pub fn url(&self, path: &str) -> String {
        format!("https://{HOST}:{}{path}", self.port)
    }

    pub fn ca(&self) -> &str {
        self.authority.file.to_str().unwrap()
    }

    /// Caddy opens its TCP socket first and its UDP socket a moment later, which on a busy machine can be long.
    fn wait(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() || !udp_bound(self.port) {
            let ended = self.process.try_wait().unwrap();
            let log = || {
                std::fs::read_to_string(self.directory.path().join("caddy.log")).unwrap_or_default()
            };
            assert!(
                ended.is_none() && Instant::now() < deadline,
                "Caddy does not listen:\n{}",
                log()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Whether a UDP socket is bound to the port (proc(5), /proc/net/udp).
fn udp_bound(port: u16) -> bool {
    let local = format!(":{port:04X} ");
    std::fs::read_to_string("/proc/net/udp")
        .unwrap()
        .contains(&local)
}

/// A port that is free for TCP and UDP at this moment.
pub fn free_port() -> u16 {
    for _ in 0..50 {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = tcp.local_addr().unwrap().port();
        if UdpSocket::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no port is free for both TCP and UDP");
}

fn hexadecimal(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // writing to a String cannot fail
        text
    })
}
