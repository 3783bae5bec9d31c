//! The connections: sockets of smoltcp on a packet socket, in one loop.

use crate::http::{self, Arrived};
use smoltcp::iface::{Config, Interface, PollResult, SocketHandle, SocketSet};
use smoltcp::phy::{self, Medium, RawSocket};
use smoltcp::socket::tcp::{CongestionControl, Socket, SocketBuffer, State};
use smoltcp::time::{Duration, Instant};
use smoltcp::wire::{HardwareAddress, IpCidr};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Connections at once.
const CONNECTIONS: usize = 256;
const RECEIVE_BYTES: usize = 8192;
const SEND_BYTES: usize = 262_144;
/// A connection that is silent for so long is given up.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Why it does not serve.
#[derive(Debug, Error)]
pub enum ServerError {
    /// The device cannot be used.
    #[error("the device {0} cannot be used: {1}")]
    Device(String, io::Error),
    /// More addresses than smoltcp keeps.
    #[error("{0} addresses are too many; give at most two")]
    Addresses(usize),
    /// Waiting for packets failed.
    #[error("waiting for packets: {0}")]
    Wait(io::Error),
}

struct Connection {
    handle: SocketHandle,
    arrived: Vec<u8>,
    answer: Vec<u8>,
    sent: usize,
    closes: bool,
}

/// The server with all its connections.
pub struct Server {
    device: RawSocket,
    interface: Interface,
    sockets: SocketSet<'static>,
    connections: Vec<Connection>,
    root: PathBuf,
    port: u16,
}

impl Server {
    /// Opens the device.
    ///
    /// # Errors
    /// The device does not exist, or packet sockets are not permitted; too many addresses.
    pub fn new(
        name: &str,
        addresses: &[IpCidr],
        port: u16,
        root: &Path,
    ) -> Result<Self, ServerError> {
        let failed = |error| ServerError::Device(name.to_owned(), error);
        let mut device = RawSocket::new(name, Medium::Ip).map_err(failed)?;
        let now = Instant::now();
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = u64::try_from(now.total_micros()).unwrap_or_default(); // of initial sequence numbers
        let mut interface = Interface::new(config, &mut device, now);
        let mut rejected = false;
        interface.update_ip_addrs(|held| {
            rejected = addresses.iter().any(|&address| held.push(address).is_err());
        });
        if rejected {
            return Err(ServerError::Addresses(addresses.len()));
        }
        let mut sockets = SocketSet::new(Vec::new());
        let connections = (0..CONNECTIONS)
            .map(|_| Connection::new(&mut sockets))
            .collect();
        let root = root.to_owned();
        Ok(Self {
            device,
            interface,
            sockets,
            connections,
            root,
            port,
        })
    }

    /// Serves until the process is stopped.
    ///
    /// # Errors
    /// The device has gone.
    pub fn run(&mut self) -> Result<(), ServerError> {
        loop {
            self.interface
                .poll(Instant::now(), &mut self.device, &mut self.sockets);
            for connection in &mut self.connections {
                let socket = self.sockets.get_mut::<Socket>(connection.handle);
                connection.serve(socket, &self.root, self.port);
            }
            let now = Instant::now();
            let sent = self
                .interface
                .poll(now, &mut self.device, &mut self.sockets);
            if sent == PollResult::SocketStateChanged {
                continue; // it may have received as well: that has to be served before a wait for packets
            }
            let delay = self.interface.poll_delay(now, &self.sockets);
            phy::wait(self.device.as_raw_fd(), delay).map_err(ServerError::Wait)?;
        }
    }
}

impl Connection {
    fn new(sockets: &mut SocketSet<'static>) -> Self {
        let buffer = |bytes| SocketBuffer::new(vec![0; bytes]);
        let handle = sockets.add(Socket::new(buffer(RECEIVE_BYTES), buffer(SEND_BYTES)));
        Self {
            handle,
            arrived: Vec::new(),
            answer: Vec::new(),
            sent: 0,
            closes: false,
        }
    }

    fn serve(&mut self, socket: &mut Socket<'_>, root: &Path, port: u16) {
        if matches!(socket.state(), State::Closed | State::TimeWait) {
            self.listen(socket, port);
            return;
        }
        // Twice where what arrived goes round the end of the buffer.
        while socket.can_recv() {
            let taken = socket.recv(|bytes| (bytes.len(), bytes.to_vec()));
            self.arrived.extend(taken.unwrap_or_default());
        }
        if self.sent == self.answer.len() && !self.closes {
            self.next_answer(root);
        }
        if socket.can_send() && self.sent < self.answer.len() {
            self.sent += socket
                .send_slice(&self.answer[self.sent..])
                .unwrap_or_default();
        }
        let is_over = self.closes || !socket.may_recv() && socket.state() == State::CloseWait;
        if is_over && self.sent == self.answer.len() {
            socket.close();
        }
    }

    /// Makes the socket new: a window that an earlier connection opened must not stay.
    fn listen(&mut self, socket: &mut Socket<'_>, port: u16) {
        socket.abort();
        socket.set_congestion_control(CongestionControl::Reno);
        // What is left of the window is sent, too, if it is no full segment.
        socket.set_nagle_enabled(false);
        socket.set_ack_delay(None);
        socket.set_timeout(Some(TIMEOUT));
        self.arrived.clear();
        (self.answer, self.sent, self.closes) = (Vec::new(), 0, false);
        // It fails for port 0 or an open socket only.
        let _ = socket.listen(port);
    }

    fn next_answer(&mut self, root: &Path) {
        match http::read(&self.arrived) {
            Arrived::Part => return,
            Arrived::Whole(request) => {
                self.arrived.drain(..request.length);
                self.closes = request.closes;
                self.answer = http::answer(root, &request.path);
            }
            Arrived::Nonsense => {
                self.closes = true;
                self.answer = http::refusal();
            }
        }
        self.sent = 0;
    }
}
