//! The exchange over HTTP/3: one request, and the response out of quiche.

use std::time::Duration;

use clientkit::{Field, Outcome, RECEIVE_SIZE, Request, Response, Verdict, stream_reset};
use quiche::h3::{self, NameValue};

use crate::dump::Dump;
use crate::ending;

/// The first unidirectional stream of a client, which quiche's HTTP/3 takes for control.
const CONTROL_STREAM: u64 = 2;
/// Bytes that the type of that stream and its settings need at most.
const SETTINGS_ROOM: usize = 64;
/// Empty DATA frames to read over at once; the rest is read with the next packet.
const EMPTY_FRAMES: usize = 100;

/// A request, its response, and how far they are.
pub struct Exchange {
    http: Option<h3::Connection>,
    /// The request's, once it is on its way.
    stream: Option<u64>,
    pub response: Response,
    /// The response is whole, and as it should be.
    pub is_complete: bool,
    body: Vec<u8>,
    pub dump: Option<Dump>,
}

impl Exchange {
    pub fn new(request: &Request, dump: Option<Dump>) -> Self {
        Self {
            http: None,
            stream: None,
            response: Response::new(request.max_bytes, request.expected_bytes),
            is_complete: false,
            body: vec![0; RECEIVE_SIZE],
            dump,
        }
    }

    /// Asks, then reads what has come; `fault` is what quiche last complained about. Call it once the handshake is done.
    pub fn progress(
        &mut self,
        connection: &mut quiche::Connection,
        request: &Request,
        fault: Option<quiche::Error>,
        now: Duration,
    ) -> Option<Verdict> {
        if self.stream.is_none() {
            match self.ask(connection, request) {
                Ok(stream) => self.stream = stream,
                Err(error) => return Some(ending::of_http3(&error)),
            }
        }
        let mut empty = 0;
        loop {
            let event = self.http.as_mut()?.poll(connection);
            let verdict = match event {
                Ok((_, h3::Event::Headers { list, .. })) => {
                    if let Some(dump) = &mut self.dump {
                        dump.on_headers(&list);
                    }
                    let fields: Vec<Field<'_>> = list
                        .iter()
                        .map(|field| (field.name(), field.value()))
                        .collect();
                    self.response.on_headers(&fields, now)
                }
                Ok((stream, h3::Event::Data)) => self.read_body(connection, stream, fault, now),
                Ok((_, h3::Event::Finished)) => Some(self.response.on_finished()),
                Ok((_, h3::Event::Reset(code))) => Some(stream_reset(code)),
                Ok((_, h3::Event::GoAway | h3::Event::PriorityUpdate)) => None, // our request is under way already
                Err(h3::Error::Done) if self.response.is_whole() => {
                    Some(self.response.on_finished())
                }
                Err(h3::Error::Done) => {
                    let stream = self.stream?;
                    if empty == EMPTY_FRAMES || !connection.stream_readable(stream) {
                        return None;
                    }
                    empty += 1; // quiche does not tell of a DATA frame behind an empty one
                    self.read_body(connection, stream, fault, now)
                }
                // It reads on where the stream ended inside a frame, and finds no stream any more.
                Err(h3::Error::TransportError(quiche::Error::InvalidStreamState(_)))
                    if self.response.status.is_none() =>
                {
                    Some(self.response.on_finished())
                }
                Err(error) => return Some(failed(connection, fault, &error)),
            };
            if verdict.is_some() {
                self.is_complete = verdict
                    .as_ref()
                    .is_some_and(|verdict| verdict.outcome == Outcome::Ok);
                return verdict;
            }
        }
    }

    /// Asks for the file, as soon as the server's limits on streams and bytes allow it. Limits of zero are legal
    /// (RFC 9000, section 18.2): the client waits for credit. `None` means that it still waits.
    fn ask(
        &mut self,
        connection: &mut quiche::Connection,
        request: &Request,
    ) -> Result<Option<u64>, h3::Error> {
        let http = match &mut self.http {
            Some(http) => http,
            None if can_send_settings(connection) => {
                let config = h3::Config::new()?;
                self.http
                    .insert(h3::Connection::with_transport(connection, &config)?)
            }
            None => return Ok(None),
        };
        let fields = fields(request);
        if let Some(dump) = &mut self.dump {
            dump.on_request(&fields);
        }
        match http.send_request(connection, &fields, true) {
            Err(
                h3::Error::StreamBlocked | h3::Error::TransportError(quiche::Error::StreamLimit),
            ) => Ok(None),
            other => other.map(Some),
        }
    }

    fn read_body(
        &mut self,
        connection: &mut quiche::Connection,
        stream: u64,
        fault: Option<quiche::Error>,
        now: Duration,
    ) -> Option<Verdict> {
        let http = self.http.as_mut()?;
        loop {
            let room = self.response.room(self.body.len());
            let verdict = match http.recv_body(connection, stream, &mut self.body[..room]) {
                Ok(size) => {
                    if let Some(dump) = &mut self.dump {
                        dump.on_body(&self.body[..size]);
                    }
                    self.response.on_body(&self.body[..size], now)
                }
                Err(h3::Error::Done) => return None,
                Err(h3::Error::TransportError(quiche::Error::StreamReset(code))) => {
                    Some(stream_reset(code))
                }
                Err(error) => Some(failed(connection, fault, &error)),
            };
            if verdict.is_some() {
                return verdict;
            }
        }
    }
}

/// The request's header section.
fn fields(request: &Request) -> [h3::Header; 7] {
    let url = &request.url;
    [
        h3::Header::new(b":method", b"GET"),
        h3::Header::new(b":scheme", b"https"),
        h3::Header::new(b":authority", url.authority.as_bytes()),
        h3::Header::new(b":path", url.path.as_bytes()),
        h3::Header::new(b"user-agent", request.user_agent.as_bytes()),
        h3::Header::new(b"accept", b"*/*"),
        h3::Header::new(b"accept-encoding", b"identity"),
    ]
}

/// What the connection says of it, else what HTTP/3 says.
fn failed(
    connection: &mut quiche::Connection,
    fault: Option<quiche::Error>,
    error: &h3::Error,
) -> Verdict {
    ending::of_connection(connection, fault).unwrap_or_else(|| ending::of_http3(error))
}

/// quiche's HTTP/3 gives up where its control stream cannot take all settings at once.
fn can_send_settings(connection: &mut quiche::Connection) -> bool {
    // The same priority as quiche's HTTP/3 sets; it creates the stream, which can then be asked for its capacity.
    let opened = connection.stream_priority(CONTROL_STREAM, 0, false).is_ok();
    let capacity = connection.stream_capacity(CONTROL_STREAM);
    opened && capacity.is_ok_and(|room| room >= SETTINGS_ROOM)
}
