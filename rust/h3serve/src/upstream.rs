//! Asking the cache of an edge: one HTTP request on its own TCP connection, without blocking, and a body that passes
//! through in pieces.

use std::fmt::Write as _;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::poll::PollFlags;
use thiserror::Error;

use crate::answer::SERVER;
use crate::request::Request;

/// The cache is on loopback: it accepts at once, or not at all.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const LONGEST_HEAD: usize = 64 << 10;
/// So much of a body waits here for a client; then reading pauses.
const BUFFERED: usize = 256 << 10;
const MOST_FIELDS: usize = 100;
/// Fields of a request that we write ourselves, or that tell of a body, which we pass none of.
const OWN: [&str; 6] = [
    "host",
    "content-length",
    "expect",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
];
/// Fields that end at a proxy (RFC 9110, section 7.6.1; RFC 9114, section 4.2).
const HOP_BY_HOP: [&str; 7] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Why the answer is missing or incomplete.
#[derive(Debug, Error)]
pub enum UpstreamError {
    #[error("the cache: {0}")]
    Io(#[from] std::io::Error),
    #[error("the cache's answer cannot be read: {0}")]
    Syntax(#[from] httparse::Error),
    #[error("the cache's answer has a header section of more than {LONGEST_HEAD} bytes")]
    Head,
    #[error("the cache ended its answer {0} bytes early")]
    Short(u64),
    #[error("the cache ended without an answer")]
    Nothing,
}

/// Status and headers from the cache.
#[derive(Debug)]
pub struct Head {
    pub status: u16,
    pub fields: Vec<(String, Vec<u8>)>,
}

enum State {
    Asking {
        sent: usize,
    },
    Waiting,
    /// `left` is None if the body ends with the connection.
    Body {
        left: Option<u64>,
    },
    Ended,
}

/// A request to the cache.
pub struct Upstream {
    stream: TcpStream,
    request: Vec<u8>,
    head_only: bool,
    state: State,
    buffer: Vec<u8>,
    /// Where what is not yet passed on begins.
    start: usize,
}

impl Upstream {
    /// Connects, and asks for what `request` asks for on behalf of `client`.
    pub fn ask(
        address: SocketAddr,
        request: &Request,
        client: SocketAddr,
    ) -> Result<Self, UpstreamError> {
        let stream = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)?;
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        // HTTP/1.0: the body comes as it is, not in chunks.
        let mut text = format!(
            "{} {} HTTP/1.0\r\nHost: {host}\r\nX-Forwarded-For: {}\r\nX-Forwarded-Host: {host}\r\n\
             X-Forwarded-Proto: https\r\n",
            request.method,
            one_word(&request.target),
            client.ip(),
            host = one_word(&request.host),
        );
        for (name, value) in &request.fields {
            if !HOP_BY_HOP.contains(&name.as_str()) && !OWN.contains(&name.as_str()) {
                let _ = write!(text, "{}: {}\r\n", one_word(name), one_line(value));
            }
        }
        text.push_str("\r\n");
        let mut upstream = Self {
            stream,
            request: text.into_bytes(),
            head_only: request.is_head(),
            state: State::Asking { sent: 0 },
            buffer: Vec::new(),
            start: 0,
        };
        upstream.write()?;
        Ok(upstream)
    }

    /// What to wait for; nothing while the client has to catch up.
    pub fn interest(&self) -> PollFlags {
        match self.state {
            State::Asking { .. } => PollFlags::POLLOUT,
            State::Waiting => PollFlags::POLLIN,
            State::Body { .. } if self.waiting().len() < BUFFERED => PollFlags::POLLIN,
            State::Body { .. } | State::Ended => PollFlags::empty(),
        }
    }

    fn write(&mut self) -> Result<(), UpstreamError> {
        while let State::Asking { sent } = self.state {
            match self.stream.write(&self.request[sent..]) {
                Ok(size) if sent + size == self.request.len() => self.state = State::Waiting,
                Ok(size) => self.state = State::Asking { sent: sent + size },
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Moves on as far as it can without waiting; gives status and headers once, when they are there.
    pub fn advance(&mut self) -> Result<Option<Head>, UpstreamError> {
        self.write()?;
        let mut head = None;
        let mut piece = [0; 16 << 10];
        while self.interest() == PollFlags::POLLIN {
            match self.stream.read(&mut piece) {
                Ok(0) => {
                    match self.state {
                        State::Body { left: Some(left) } => return Err(UpstreamError::Short(left)),
                        State::Body { left: None } | State::Ended => {}
                        State::Asking { .. } | State::Waiting => {
                            return Err(UpstreamError::Nothing);
                        }
                    }
                    self.state = State::Ended;
                }
                Ok(size) => {
                    self.buffer.extend_from_slice(&piece[..size]);
                    if let State::Waiting = self.state {
                        head = self.take_head()?;
                    } else {
                        self.count(size);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(head)
    }

    fn take_head(&mut self) -> Result<Option<Head>, UpstreamError> {
        let mut fields = [httparse::EMPTY_HEADER; MOST_FIELDS];
        let mut response = httparse::Response::new(&mut fields);
        let httparse::Status::Complete(size) = response.parse(&self.buffer)? else {
            let short = self.buffer.len() <= LONGEST_HEAD;
            return if short {
                Ok(None)
            } else {
                Err(UpstreamError::Head)
            };
        };
        let fields: Vec<(String, Vec<u8>)> = response
            .headers
            .iter()
            .map(|field| (field.name.to_ascii_lowercase(), field.value.to_vec()))
            .collect();
        let status = response.code.unwrap_or(502);
        let length = fields
            .iter()
            .find(|(name, _)| name == "content-length")
            .and_then(|(_, value)| std::str::from_utf8(value).ok()?.trim().parse().ok());
        let bodiless = self.head_only || matches!(status, 100..=199 | 204 | 304);
        self.buffer.drain(..size);
        self.state = State::Body {
            left: if bodiless { Some(0) } else { length },
        };
        self.count(self.buffer.len());
        let own = [("server".to_owned(), SERVER.as_bytes().to_vec())];
        let passed = fields
            .into_iter()
            .filter(|(name, _)| !HOP_BY_HOP.contains(&name.as_str()));
        Ok(Some(Head {
            status,
            fields: own.into_iter().chain(passed).collect(),
        }))
    }

    /// Counts bytes of the body that have come; what is beyond its length is cut off.
    fn count(&mut self, size: usize) {
        let State::Body { left: Some(left) } = &mut self.state else {
            return;
        };
        let beyond = (size as u64).saturating_sub(*left);
        *left = left.saturating_sub(size as u64);
        let ended = *left == 0;
        self.buffer
            .truncate(self.buffer.len() - usize::try_from(beyond).unwrap_or(0));
        if ended {
            self.state = State::Ended;
        }
    }

    /// Bytes of the body that can be passed on.
    pub fn waiting(&self) -> &[u8] {
        match self.state {
            State::Asking { .. } | State::Waiting => &[],
            State::Body { .. } | State::Ended => &self.buffer[self.start..],
        }
    }

    /// Whether no more will come than `waiting` has.
    pub fn has_ended(&self) -> bool {
        matches!(self.state, State::Ended)
    }

    /// Drops the first `size` bytes of `waiting`.
    pub fn consume(&mut self, size: usize) {
        self.start += size;
        if self.start == self.buffer.len() || self.start >= BUFFERED {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
    }
}

impl AsFd for Upstream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// A value that cannot end its part of a line.
fn one_word(text: &str) -> String {
    text.chars()
        .filter(|c| !c.is_control() && !c.is_whitespace())
        .collect()
}

/// A value that cannot begin another line.
fn one_line(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// What is passed on of an answer that comes in two pieces.
    fn passed(first: &str, second: &str, method: &str) -> Result<(Head, String), UpstreamError> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let request = Request {
            method: method.to_owned(),
            host: "a.example".to_owned(),
            target: "/x?y HTTP/1.0\r\nX: injected".to_owned(),
            fields: [
                ("range", "bytes=0-4\r\nX: y"),
                ("x-forwarded-for", "192.0.2.1"),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .to_vec(),
        };
        let client = "198.18.1.2:999".parse().unwrap();
        let mut upstream = Upstream::ask(listener.local_addr().unwrap(), &request, client)?;
        let (mut server, _) = listener.accept().unwrap();
        let mut request = [0; 1_000];
        let size = server.read(&mut request).unwrap();
        let request = String::from_utf8_lossy(&request[..size]).into_owned();
        assert!(request.starts_with(&format!("{method} /x?yHTTP/1.0X:injected HTTP/1.0\r\n")));
        assert!(request.contains("\r\nX-Forwarded-For: 198.18.1.2\r\n"));
        assert!(request.contains("\r\nrange: bytes=0-4X: y\r\n"));
        assert!(!request.contains("192.0.2.1"));
        server.write_all(first.as_bytes()).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        let mut head = upstream.advance()?;
        server.write_all(second.as_bytes()).unwrap();
        drop(server);
        std::thread::sleep(Duration::from_millis(20));
        head = upstream.advance()?.or(head);
        assert!(upstream.has_ended());
        let body = String::from_utf8_lossy(upstream.waiting()).into_owned();
        Ok((head.unwrap(), body))
    }

    #[test]
    fn headers_and_body_pass() {
        let (head, body) = passed(
            "HTTP/1.1 200 OK\r\nServer: nginx\r\nConnection: close\r\nX-Cac",
            "he: HIT\r\nContent-Length: 5\r\n\r\nhello and more",
            "GET",
        )
        .unwrap();
        assert_eq!((head.status, body.as_str()), (200, "hello"));
        let names: Vec<&str> = head.fields.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["server", "server", "x-cache", "content-length"]);
    }

    #[test]
    fn a_body_may_end_with_the_connection_or_be_missing() {
        let (_, body) = passed("HTTP/1.1 200 OK\r\n\r\nhel", "lo", "GET").unwrap();
        assert_eq!(body, "hello");
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
        assert_eq!(passed(head, "", "HEAD").unwrap().1, "");
    }

    #[test]
    fn broken_answers_are_errors() {
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
        for (first, second, sentence) in [
            (head, "hel", "ended its answer 2 bytes early"),
            ("HTTP/1.1 2", "", "without an answer"),
            ("nonsense\r\n\r\n", "", "cannot be read"),
        ] {
            let error = passed(first, second, "GET").map(|_| ()).unwrap_err();
            assert!(error.to_string().contains(sentence), "{error}");
        }
    }
}
