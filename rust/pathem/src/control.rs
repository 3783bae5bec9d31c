//! The control socket: several clients, one JSON object per line in, one per line out.

use crate::answer::write_line;
use crate::jobs::{self, Job, Started, Wish};
use crate::world::World;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use nix::sys::stat::{Mode, umask};
use serde_json::json;
use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Event tokens from this one on belong to clients.
pub const FIRST_CLIENT_TOKEN: u64 = 1 << 32;

const MAX_CLIENTS: usize = 64;
const MAX_LINE: usize = 1 << 20;
const MAX_UNSENT: usize = 1 << 20;

/// The listening socket and its clients.
pub struct Control {
    listener: UnixListener,
    path: PathBuf,
    clients: HashMap<u64, Client>,
    next_token: u64,
}

struct Client {
    stream: UnixStream,
    input: Vec<u8>,
    output: Vec<u8>,
    /// How much at the front of `output` the peer has got.
    sent: usize,
    job: Option<Job>,
    /// The peer sends no more, or may not.
    ended: bool,
    interest: EpollFlags,
}

impl Control {
    /// Listens at `path`, for the same user only. A stale socket is replaced.
    ///
    /// # Errors
    /// Something else is at the path, or it cannot be created.
    pub fn listen(path: &Path, epoll: &Epoll, token: u64) -> io::Result<Self> {
        if std::fs::symlink_metadata(path).is_ok_and(|entry| entry.file_type().is_socket()) {
            if UnixStream::connect(path).is_ok() {
                return Err(io::Error::new(
                    ErrorKind::AddrInUse,
                    "another process listens there",
                ));
            }
            std::fs::remove_file(path)?;
        }
        let before = umask(Mode::from_bits_truncate(0o177));
        let bound = UnixListener::bind(path);
        umask(before);
        let listener = bound?;
        listener.set_nonblocking(true)?;
        epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, token))?;
        Ok(Self {
            listener,
            path: path.to_owned(),
            clients: HashMap::new(),
            next_token: FIRST_CLIENT_TOKEN,
        })
    }

    /// Takes new clients.
    pub fn accept(&mut self, epoll: &Epoll) {
        while let Ok((stream, _)) = self.listener.accept() {
            if self.clients.len() >= MAX_CLIENTS || stream.set_nonblocking(true).is_err() {
                let _ = (&stream).write_all(b"{\"error\":\"too many clients; close some\"}\n");
                continue;
            }
            let interest = EpollFlags::EPOLLIN;
            if epoll
                .add(&stream, EpollEvent::new(interest, self.next_token))
                .is_ok()
            {
                let client = Client {
                    stream,
                    input: Vec::new(),
                    output: Vec::new(),
                    sent: 0,
                    job: None,
                    ended: false,
                    interest,
                };
                self.clients.insert(self.next_token, client);
                self.next_token += 1;
            }
        }
    }

    /// Reads from a client that has sent something, and drops one that has disconnected.
    pub fn event(&mut self, token: u64, flags: EpollFlags) {
        let Some(client) = self.clients.get_mut(&token) else {
            return;
        };
        let gone = flags.intersects(EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR);
        if gone || (flags.contains(EpollFlags::EPOLLIN) && client.read().is_err()) {
            self.clients.remove(&token);
        }
    }

    /// Does a small piece of work for each client.
    pub fn step(&mut self, world: &mut World, epoll: &Epoll) {
        self.clients
            .retain(|&token, client| client.step(world) && client.update_interest(epoll, token));
    }

    /// Whether a job is under way.
    #[must_use]
    pub fn has_jobs(&self) -> bool {
        self.clients.values().any(|client| client.job.is_some())
    }

    /// When [`Control::step`] should be called again at the latest.
    #[must_use]
    pub fn wish(&self, world: &World) -> Option<Wish> {
        let mut earliest: Option<u64> = None;
        for client in self.clients.values() {
            match client.wish(world) {
                Some(Wish::Now) => return Some(Wish::Now),
                Some(Wish::Before(time)) => {
                    earliest = Some(earliest.map_or(time, |other| other.min(time)));
                }
                None => {}
            }
        }
        earliest.map(Wish::Before)
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Client {
    fn read(&mut self) -> io::Result<()> {
        let mut chunk = [0u8; 16_384];
        match self.stream.read(&mut chunk) {
            Ok(0) => self.ended = true,
            Ok(length) => self.input.extend_from_slice(&chunk[..length]),
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// At most one line or one step of a job. False: the client is done.
    fn step(&mut self, world: &mut World) -> bool {
        if self.is_backed_up() {
            // The peer must read first.
        } else if let Some(job) = &mut self.job {
            if job.step(world, &mut self.output) {
                self.job = None;
            }
        } else if let Some(line) = self.next_line() {
            match jobs::start(&line, world) {
                Ok(Started::Answer(answer)) => write_line(&mut self.output, &answer),
                Ok(Started::Job(job)) => self.job = Some(job),
                Err(error) => write_line(&mut self.output, &json!({"error": error.to_string()})),
            }
        } else if self.input.len() > MAX_LINE {
            let error = "the line is longer than 1 MiB; send shorter ones";
            write_line(&mut self.output, &json!({"error": error}));
            self.input.clear();
            self.ended = true;
        }
        let is_alive = self.send().is_ok();
        let has_work = self.job.is_some() || self.unsent() > 0 || self.has_line();
        is_alive && (has_work || !self.ended)
    }

    fn unsent(&self) -> usize {
        self.output.len() - self.sent
    }

    fn is_backed_up(&self) -> bool {
        self.unsent() >= MAX_UNSENT
    }

    fn has_line(&self) -> bool {
        self.input.contains(&b'\n')
    }

    fn next_line(&mut self) -> Option<Vec<u8>> {
        let end = self.input.iter().position(|&byte| byte == b'\n')?;
        let mut line: Vec<u8> = self.input.drain(..=end).collect();
        line.pop();
        Some(line)
    }

    fn send(&mut self) -> io::Result<()> {
        if self.unsent() == 0 {
            return Ok(());
        }
        match self.stream.write(&self.output[self.sent..]) {
            Ok(length) => self.sent += length,
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
        if self.sent > self.output.len() / 2 {
            self.output.drain(..self.sent);
            self.sent = 0;
        }
        Ok(())
    }

    fn wish(&self, world: &World) -> Option<Wish> {
        match &self.job {
            _ if self.is_backed_up() => None,
            Some(job) => Some(job.wish(world)),
            None => self.has_line().then_some(Wish::Now),
        }
    }

    fn update_interest(&mut self, epoll: &Epoll, token: u64) -> bool {
        let mut wanted = EpollFlags::empty();
        let is_free = self.job.is_none() && !self.is_backed_up() && !self.has_line();
        wanted.set(EpollFlags::EPOLLIN, is_free && !self.ended);
        wanted.set(EpollFlags::EPOLLOUT, self.unsent() > 0);
        if wanted == self.interest {
            return true;
        }
        self.interest = wanted;
        epoll
            .modify(&self.stream, &mut EpollEvent::new(wanted, token))
            .is_ok()
    }
}
