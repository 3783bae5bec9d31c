//! A bad network between h3get and the server: it delays datagrams, and may go dead.

use std::collections::VecDeque;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What the relay does to the datagrams.
#[derive(Clone, Copy)]
pub struct Path {
    /// One way, each way.
    pub delay: Duration,
    /// After this many bytes towards the client, nothing passes any more.
    pub dead_after: usize,
}

/// A relay on loopback; it stops when dropped.
pub struct Relay {
    pub port: u16,
    /// Bytes towards the client so far.
    pub passed: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    pub fn start(server_port: u16, path: Path) -> Self {
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        let far = UdpSocket::bind("127.0.0.1:0").unwrap();
        far.connect(("127.0.0.1", server_port)).unwrap();
        near.set_nonblocking(true).unwrap();
        far.set_nonblocking(true).unwrap();
        let port = near.local_addr().unwrap().port();
        let stop = Arc::new(AtomicBool::new(false));
        let passed = Arc::default();
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&passed));
        let thread = std::thread::spawn(move || run(&near, &far, path, &stopped, &count));
        Self {
            port,
            passed,
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(near: &UdpSocket, far: &UdpSocket, path: Path, stop: &AtomicBool, passed: &AtomicUsize) {
    let mut up: VecDeque<(Instant, Vec<u8>)> = VecDeque::new();
    let mut down = up.clone();
    let mut client: Option<SocketAddr> = None;
    let mut buffer = vec![0; 65535];
    while !stop.load(Ordering::Relaxed) {
        while let Ok((size, from)) = near.recv_from(&mut buffer) {
            client = Some(from);
            up.push_back((Instant::now() + path.delay, buffer[..size].to_vec()));
        }
        while let Ok(size) = far.recv(&mut buffer) {
            down.push_back((Instant::now() + path.delay, buffer[..size].to_vec()));
        }
        while let Some(datagram) = pop_due(&mut up) {
            let _ = far.send(&datagram);
        }
        while let Some(datagram) = pop_due(&mut down) {
            let total = datagram.len() + passed.fetch_add(datagram.len(), Ordering::Relaxed);
            if let Some(client) = client.filter(|_| total <= path.dead_after) {
                let _ = near.send_to(&datagram, client);
            }
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

fn pop_due(queue: &mut VecDeque<(Instant, Vec<u8>)>) -> Option<Vec<u8>> {
    queue.front().filter(|(due, _)| *due <= Instant::now())?;
    queue.pop_front().map(|(_, datagram)| datagram)
}
