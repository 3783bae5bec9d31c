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

/// A request, its response, and how far they are.
pub struct Exchange {
    http: Option<h3::Connection>,
    /// The request is on its way.
    is_sent: bool,
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
            is_sent: false,
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
        if !self.is_sent {
            match self.ask(connection, request) {
                Ok(is_sent) => self.is_sent = is_sent,
                Err(error) => return Some(ending::of_http3(&error)),
            }
        }
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
                Ok((stream, h3::Event::Data)) => self.read_body(connection, stream, now),
                Ok((_, h3::Event::Finished)) => Some(self.response.on_finished()),
                Ok((_, h3::Event::Reset(code))) => Some(stream_reset(code)),
                Ok((_, h3::Event::GoAway | h3::Event::PriorityUpdate)) => None, // our request is under way already
                Err(h3::Error::Done) if self.response.is_whole() => {
                    Some(self.response.on_finished())
                }
                Err(h3::Error::Done) => return None,
                Err(error) => {
                    return ending::of_connection(connection, fault)
                        .or_else(|| Some(ending::of_http3(&error)));
                }
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
    /// (RFC 9000, section 18.2): the client waits for credit. `false` means that it still waits.
    fn ask(
        &mut self,
        connection: &mut quiche::Connection,
        request: &Request,
    ) -> Result<bool, h3::Error> {
        if self.http.is_none() {
            if !can_send_settings(connection) {
                return Ok(false);
            }
            let config = h3::Config::new()?;
            self.http = Some(h3::Connection::with_transport(connection, &config)?);
        }
        match self.send_request(connection, request) {
            Err(
                h3::Error::StreamBlocked | h3::Error::TransportError(quiche::Error::StreamLimit),
            ) => Ok(false),
            other => other.map(|()| true),
        }
    }

    fn send_request(
        &mut self,
        connection: &mut quiche::Connection,
        request: &Request,
    ) -> Result<(), h3::Error> {
        let url = &request.url;
        let fields = [
            h3::Header::new(b":method", b"GET"),
            h3::Header::new(b":scheme", b"https"),
            h3::Header::new(b":authority", url.authority.as_bytes()),
            h3::Header::new(b":path", url.path.as_bytes()),
            h3::Header::new(b"user-agent", request.user_agent.as_bytes()),
            h3::Header::new(b"accept", b"*/*"),
            h3::Header::new(b"accept-encoding", b"identity"),
        ];
        if let Some(dump) = &mut self.dump {
            dump.on_request(&fields);
        }
        if let Some(http) = &mut self.http {
            http.send_request(connection, &fields, true)?;
        }
        Ok(())
    }

    fn read_body(
        &mut self,
        connection: &mut quiche::Connection,
        stream: u64,
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
                Err(error) => Some(ending::of_http3(&error)),
            };
            if verdict.is_some() {
                return verdict;
            }
        }
    }
}

/// quiche's HTTP/3 gives up where its control stream cannot take all settings at once.
fn can_send_settings(connection: &mut quiche::Connection) -> bool {
    // The same priority as quiche's HTTP/3 sets; it creates the stream, which can then be asked for its capacity.
    let opened = connection.stream_priority(CONTROL_STREAM, 0, false).is_ok();
    let capacity = connection.stream_capacity(CONTROL_STREAM);
    opened && capacity.is_ok_and(|room| room >= SETTINGS_ROOM)
}
