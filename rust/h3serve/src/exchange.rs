//! One request of a connection, and what is still to be sent of its answer.

use std::fs::File;
use std::net::SocketAddr;
use std::time::Instant;

use quiche::h3;

use crate::access_log::Entry;
use crate::answer::{Body, Responder, SERVER, is_logged, respond};
use crate::hosts::Service;
use crate::request::Request;
use crate::settings::Pace;
use crate::upstream::{Head, Upstream};

/// `H3_INTERNAL_ERROR` (RFC 9114, section 8.1).
const INTERNAL_ERROR: u64 = 0x102;

/// A request and its answer.
pub struct Exchange {
    /// Status and headers that have not been sent.
    head: Option<Head>,
    pub source: Source,
    head_only: bool,
    status: u16,
    sent: u64,
    /// How fast its body becomes available, and since when.
    pace: Option<(Pace, Instant)>,
    log: Option<Entry>,
}

pub enum Source {
    Here(Body),
    Upstream(Box<Upstream>),
}

#[derive(Debug, PartialEq, Eq)]
pub enum Progress {
    Waits,
    Ended,
}

impl Exchange {
    pub fn new(
        list: &[h3::Header],
        peer: SocketAddr,
        service: &Service,
        pace: Option<Pace>,
    ) -> Self {
        let request = Request::new(list);
        let (head, source) = match respond(&request, service) {
            Responder::Here(answer) => {
                let (status, fields) = (answer.status, answer.fields);
                (Some(Head { status, fields }), Source::Here(answer.body))
            }
            Responder::Upstream(address) => match Upstream::ask(address, &request, peer) {
                Ok(upstream) => (None, Source::Upstream(Box::new(upstream))),
                Err(error) => {
                    eprintln!("h3serve: {error}");
                    (Some(bad_gateway()), Source::Here(Body::empty()))
                }
            },
        };
        Self {
            head,
            source,
            head_only: request.is_head(),
            status: 0,
            sent: 0,
            pace: pace.map(|pace| (pace, Instant::now())),
            log: is_logged(&request, service).then(|| Entry::new(request, peer.ip())),
        }
    }

    pub fn advance(
        &mut self,
        http: &mut h3::Connection,
        quic: &mut quiche::Connection,
        stream: u64,
        scratch: &mut [u8],
    ) -> Progress {
        if let Source::Upstream(upstream) = &mut self.source {
            match upstream.advance() {
                Ok(head) => self.head = head.or(self.head.take()),
                Err(error) => {
                    eprintln!("h3serve: {error}");
                    if self.status != 0 {
                        let _ =
                            quic.stream_shutdown(stream, quiche::Shutdown::Write, INTERNAL_ERROR);
                        return Progress::Ended;
                    }
                    self.head = Some(bad_gateway());
                    self.source = Source::Here(Body::empty());
                }
            }
        }
        if let Some(head) = &self.head {
            let bodiless = self.head_only || self.is_empty();
            match http.send_response(quic, stream, &head.list(), bodiless) {
                Ok(()) => {
                    self.status = head.status;
                    self.head = None;
                    if bodiless {
                        return Progress::Ended;
                    }
                }
                Err(h3::Error::Done | h3::Error::StreamBlocked) => return Progress::Waits,
                Err(_) => return Progress::Ended, // the client gave this stream up
            }
        }
        if self.status == 0 {
            return Progress::Waits;
        }
        self.send_body(http, quic, stream, scratch)
    }

    /// Bytes of the body that are available and were not sent.
    fn available(&self) -> usize {
        let Some((pace, since)) = self.pace else {
            return usize::MAX;
        };
        let available = pace.available(since.elapsed()).saturating_sub(self.sent);
        usize::try_from(available).unwrap_or(usize::MAX)
    }

    pub fn body_due(&self) -> Option<Instant> {
        let (pace, since) = self.pace.filter(|_| self.available() == 0)?;
        Some(since + pace.due(self.sent))
    }

    fn is_empty(&self) -> bool {
        match &self.source {
            Source::Here(body) => body.left() == 0,
            Source::Upstream(upstream) => upstream.has_ended() && upstream.waiting().is_empty(),
        }
    }

    fn send_body(
        &mut self,
        http: &mut h3::Connection,
        quic: &mut quiche::Connection,
        stream: u64,
        scratch: &mut [u8],
    ) -> Progress {
        loop {
            let room = match quic.stream_capacity(stream) {
                Ok(room) => room.min(scratch.len()).min(self.available()),
                Err(_) => return Progress::Ended,
            };
            let (piece, last) = match &self.source {
                Source::Here(body) => match body.peek(&mut scratch[..room]) {
                    Ok(piece) => (piece, piece.len() as u64 == body.left()),
                    Err(error) => {
                        eprintln!("h3serve: a file cannot be read: {error}");
                        let _ =
                            quic.stream_shutdown(stream, quiche::Shutdown::Write, INTERNAL_ERROR);
                        return Progress::Ended;
                    }
                },
                Source::Upstream(upstream) => (upstream.waiting(), upstream.has_ended()),
            };
            if piece.is_empty() && !last {
                return Progress::Waits;
            }
            let size = piece.len();
            match http.send_body(quic, stream, piece, last) {
                Ok(sent) => {
                    self.sent += sent as u64;
                    match &mut self.source {
                        Source::Here(body) => body.advance(sent),
                        Source::Upstream(upstream) => upstream.consume(sent),
                    }
                    if last && sent == size {
                        return Progress::Ended;
                    }
                }
                Err(h3::Error::Done | h3::Error::StreamBlocked) => return Progress::Waits,
                Err(_) => return Progress::Ended,
            }
        }
    }

    pub fn end(&self, service: &Service) {
        let log: Option<&File> = match service {
            Service::Hosts { access_log, .. } => access_log.as_ref(),
            Service::Fixed { .. } => None,
        };
        if let (Some(log), Some(entry)) = (log, &self.log) {
            entry.write(log, self.status, self.sent);
        }
    }
}

impl Head {
    fn list(&self) -> Vec<h3::Header> {
        let status = self.status.to_string();
        let fields = self
            .fields
            .iter()
            .map(|(name, value)| h3::Header::new(name.as_bytes(), value));
        std::iter::once(h3::Header::new(b":status", status.as_bytes()))
            .chain(fields)
            .collect()
    }
}

fn bad_gateway() -> Head {
    Head {
        status: 502,
        fields: vec![("server".to_owned(), SERVER.as_bytes().to_vec())],
    }
}
