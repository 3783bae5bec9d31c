//! The server's loop: datagrams to their connections, timers, turns.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use boring::error::ErrorStack;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use quiche::{ConnectionId, RecvInfo};
use thiserror::Error;

use crate::burst::DATAGRAM_BYTES;
use crate::connection::{Connection, Scratch, Sent};
use crate::hosts::Service;
use crate::settings::Settings;
use crate::socket::{Batch, RECEIVE_SIZE, Socket};

/// Longest sleep.
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// Receive calls in a row for one socket, before connections get their turn.
const RECEIVE_TURN: usize = 32;

/// Why the server cannot go on.
#[derive(Debug, Error)]
pub enum EndpointError {
    #[error("QUIC cannot be set up: {0}")]
    Quic(#[from] quiche::Error),
    #[error("no random numbers available: {0}")]
    Random(#[from] ErrorStack),
    #[error("waiting for datagrams: {0}")]
    Wait(Errno),
    #[error("receiving at {0}: {1}")]
    Receive(SocketAddr, Errno),
}

type Key = u64;

struct Client {
    connection: Connection,
    name: Vec<u8>,
    socket: usize,
    peer: SocketAddr,
    due: Option<Instant>,
}

/// The server.
pub struct Endpoint {
    sockets: Vec<Socket>,
    service: Service,
    config: quiche::Config,
    settings: Settings,
    settings_file: Option<PathBuf>,
    seed: [u8; 32],
    clients: HashMap<Key, Client>,
    names: HashMap<Vec<u8>, Key>,
    timers: BTreeSet<(Instant, Key)>,
    fetching: HashSet<Key>,
    last_key: Key,
    scratch: Scratch,
}

impl Endpoint {
    pub fn new(
        sockets: Vec<Socket>,
        service: Service,
        config: quiche::Config,
        settings: Settings,
        settings_file: Option<PathBuf>,
    ) -> Result<Self, EndpointError> {
        let mut seed = [0; 32];
        boring::rand::rand_bytes(&mut seed)?;
        Ok(Self {
            sockets,
            service,
            config,
            settings,
            settings_file,
            seed,
            clients: HashMap::new(),
            names: HashMap::new(),
            timers: BTreeSet::new(),
            fetching: HashSet::new(),
            last_key: 0,
            scratch: Scratch::default(),
        })
    }

    /// Serves until it is killed, or something is wrong with the machine.
    pub fn run(&mut self) -> Result<(), EndpointError> {
        let mut buffer = vec![0; RECEIVE_SIZE];
        let mut ready: BTreeSet<Key> = BTreeSet::new();
        loop {
            let wait = if ready.is_empty() {
                self.wait_time()
            } else {
                Duration::ZERO
            };
            self.wait(wait)?;
            for number in 0..self.sockets.len() {
                for _ in 0..RECEIVE_TURN {
                    let socket = &self.sockets[number];
                    let received = socket
                        .receive(&mut buffer)
                        .map_err(|error| EndpointError::Receive(socket.local, error))?;
                    let Some(batch) = received else {
                        break;
                    };
                    self.take_batch(&mut buffer[..batch.bytes], batch, number, &mut ready);
                }
            }
            ready.extend(&self.fetching);
            self.run_timers(&mut ready);
            ready = std::mem::take(&mut ready)
                .into_iter()
                .filter(|key| self.turn(*key))
                .collect();
        }
    }

    fn wait_time(&self) -> Duration {
        self.timers.first().map_or(LONGEST_WAIT, |(due, _)| {
            due.saturating_duration_since(Instant::now())
                .min(LONGEST_WAIT)
        })
    }

    /// Sleeps until there is something to do.
    fn wait(&self, wait: Duration) -> Result<(), EndpointError> {
        let sockets = self
            .sockets
            .iter()
            .map(|socket| PollFd::new(socket.as_fd(), PollFlags::POLLIN));
        let fetching = self
            .fetching
            .iter()
            .filter_map(|key| self.clients.get(key))
            .flat_map(|client| client.connection.poll_descriptors());
        let mut descriptors: Vec<PollFd<'_>> = sockets.chain(fetching).collect();
        match ppoll(&mut descriptors, Some(TimeSpec::from_duration(wait)), None) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(EndpointError::Wait(error)),
        }
    }

    fn run_timers(&mut self, ready: &mut BTreeSet<Key>) {
        let now = Instant::now();
        while let Some((due, key)) = self.timers.first().copied()
            && due <= now
        {
            self.timers.remove(&(due, key));
            if let Some(client) = self.clients.get_mut(&key) {
                client.due = None;
                let due = client.connection.quic.timeout_instant();
                if due.is_some_and(|at| at <= now) {
                    client.connection.on_timeout();
                }
                ready.insert(key);
            }
        }
    }

    fn take_batch(
        &mut self,
        data: &mut [u8],
        batch: Batch,
        socket: usize,
        ready: &mut BTreeSet<Key>,
    ) {
        let to = self.sockets[socket].local;
        for datagram in data.chunks_mut(batch.segment) {
            let info = RecvInfo {
                from: batch.from,
                to,
            };
            match self.take(datagram, info, socket) {
                Ok(Some(key)) => {
                    ready.insert(key);
                }
                Ok(None) => {}
                Err(error) => eprintln!("h3serve: {}: {error}", batch.from),
            }
        }
    }

    /// Gives a datagram to its connection; a first one makes a connection, or is answered with our versions.
    fn take(
        &mut self,
        data: &mut [u8],
        info: RecvInfo,
        socket: usize,
    ) -> quiche::Result<Option<Key>> {
        let size = data.len();
        let header = quiche::Header::from_slice(data, quiche::MAX_CONN_ID_LEN)?;
        // A client goes on using its own choice until our first packet arrives, so ours follows from it.
        let ours = own_id(&self.seed, &header.dcid);
        let known = self
            .names
            .get(&*header.dcid)
            .or_else(|| self.names.get(&ours));
        if let Some(key) = known.copied()
            && let Some(client) = self.clients.get_mut(&key)
        {
            client.connection.receive(data, info)?;
            return Ok(Some(key));
        }
        if matches!(
            header.ty,
            quiche::Type::Short | quiche::Type::VersionNegotiation
        ) || size < quiche::MIN_CLIENT_INITIAL_LEN
        {
            return Ok(None); // the tail of an earlier connection, or too small to begin one (RFC 9000, section 5.2.2)
        }
        if !quiche::version_is_supported(header.version) {
            let mut reply = [0; 1 << 10];
            let size = quiche::negotiate_version(&header.scid, &header.dcid, &mut reply)?;
            let sent = self.sockets[socket].send(&reply[..size], size, info.from);
            if let Err(error) = sent {
                eprintln!("h3serve: {}: {error}", info.from);
            }
            return Ok(None);
        }
        if header.ty != quiche::Type::Initial {
            return Ok(None);
        }
        self.accept(ours, data, info, socket).map(Some)
    }

    /// Makes a connection of a client's first datagram.
    fn accept(
        &mut self,
        ours: Vec<u8>,
        data: &mut [u8],
        info: RecvInfo,
        socket: usize,
    ) -> quiche::Result<Key> {
        let settings = self.present_settings();
        settings.configure(&mut self.config);
        let scid = ConnectionId::from_ref(&ours);
        let mut quic = quiche::accept(&scid, None, info.to, info.from, &mut self.config)?;
        // Kept even if it failed: the packet that closes it tells the client why.
        let taken = quic.recv(data, info);
        self.last_key += 1;
        let key = self.last_key;
        self.names.insert(ours.clone(), key);
        self.clients.insert(
            key,
            Client {
                connection: Connection::new(quic, settings.body_pace),
                name: ours,
                socket,
                peer: info.from,
                due: None,
            },
        );
        if let Err(error) = taken {
            eprintln!("h3serve: {}: {error}", info.from);
        }
        Ok(key)
    }

    /// Settings for a connection that begins now.
    fn present_settings(&self) -> Settings {
        let Some(path) = &self.settings_file else {
            return self.settings.clone();
        };
        self.settings.with_file(path).unwrap_or_else(|error| {
            eprintln!("h3serve: {error}");
            self.settings.clone()
        })
    }

    /// Lets a connection answer and send; true where it has more to send at once.
    fn turn(&mut self, key: Key) -> bool {
        let Some(client) = self.clients.get_mut(&key) else {
            return false;
        };
        let connection = &mut client.connection;
        connection.answer(client.peer, &self.service, &mut self.scratch);
        let socket = &self.sockets[client.socket];
        let sent = connection
            .send(socket, client.peer, &mut self.scratch)
            .unwrap_or_else(|error| {
                eprintln!("h3serve: {}: {error}", client.peer);
                Sent::All
            });
        if connection.fetches() {
            self.fetching.insert(key);
        } else {
            self.fetching.remove(&key);
        }
        if let Some(due) = client.due.take() {
            self.timers.remove(&(due, key));
        }
        if connection.quic.is_closed() {
            connection.end(&self.service);
            self.names.remove(&client.name);
            self.fetching.remove(&key);
            self.clients.remove(&key);
            return false;
        }
        let paced = match sent {
            Sent::Paced(at) => Some(at),
            Sent::All | Sent::Part => None,
        };
        client.due = connection
            .quic
            .timeout_instant()
            .into_iter()
            .chain(paced)
            .chain(connection.body_due())
            .chain(connection.hold_due())
            .min();
        if let Some(due) = client.due {
            self.timers.insert((due, key));
        }
        sent == Sent::Part
    }
}

/// The transport's configuration.
pub fn transport(
    tls: boring::ssl::SslContextBuilder,
    alpn: &str,
) -> Result<quiche::Config, EndpointError> {
    let mut config = quiche::Config::with_boring_ssl_ctx_builder(quiche::PROTOCOL_VERSION, tls)?;
    config.set_application_protos(&[alpn.as_bytes()])?;
    config.set_max_idle_timeout(30_000);
    config.set_max_recv_udp_payload_size(DATAGRAM_BYTES);
    config.set_max_send_udp_payload_size(DATAGRAM_BYTES);
    config.set_initial_max_data(1 << 20);
    config.set_initial_max_stream_data_bidi_remote(1 << 18);
    config.set_initial_max_stream_data_uni(1 << 18);
    config.set_initial_max_streams_bidi(100);
    config.set_initial_max_streams_uni(3);
    config.set_disable_active_migration(true);
    Ok(config)
}

/// The connection ID that we choose for a connection which a client began with `theirs`.
fn own_id(seed: &[u8], theirs: &[u8]) -> Vec<u8> {
    boring::sha::sha256(&[seed, theirs].concat())[..quiche::MAX_CONN_ID_LEN].to_vec()
}
