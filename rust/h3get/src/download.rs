//! One download: the loop that moves datagrams between the socket and quiche, and the response out of it.

use std::io;
use std::path::Path;
use std::time::Duration;

use clientkit::{
    Clock, Field, Outcome, Record, Request, Response, Usage, Verdict, one_line, seconds,
};
use nix::errno::Errno;
use quiche::h3::{self, NameValue};

use crate::acks::Acks;
use crate::client::Quiche;
use crate::dump::Dump;
use crate::ending;
use crate::order::Order;
use crate::quic::{self, QuicFacts, SetupError};
use crate::socket::{RECEIVE_SIZE, Socket};

/// Datagrams to take in before acknowledgements go out; more would starve the server's congestion control.
const DATAGRAMS_PER_ROUND: usize = 64;
/// Large enough for everything that quiche sends: its datagrams are 1200 bytes, as we leave the default.
const SEND_SIZE: usize = 1500;
/// The first unidirectional stream of a client, which quiche's HTTP/3 takes for control.
const CONTROL_STREAM: u64 = 2;
/// Bytes that the type of that stream and its settings need at most.
const SETTINGS_ROOM: usize = 64;
/// HTTP/3 error codes with which this side closes.
const H3_NO_ERROR: u64 = 0x100;
const H3_REQUEST_CANCELLED: u64 = 0x10c;

/// Downloads once. An error is wrong use that shows only now (a CA file that cannot be read): nothing was sent.
pub fn download(client: &Quiche, request: &Request) -> Result<Record<QuicFacts>, SetupError> {
    let mut config = quic::config(client, request)?;
    let dump = match &client.dump {
        Some(path) => Some(Dump::create(path).map_err(|error| unwritable(path, error))?),
        None => None,
    };
    let socket = match Socket::open(
        (request.address, request.port).into(),
        client.gro,
        client.receive_buffer,
    ) {
        Ok(socket) => socket,
        Err(errno) => {
            let record = Record::new::<Quiche>(request, &Clock::start());
            return Ok(record.conclude(Verdict::of_errno(errno, false)));
        }
    };
    let connection = quic::connect(client, request, &mut config, &socket)?;
    let mut download = Download::new(client, request, socket, connection, dump);
    let verdict = download.run();
    let transfer = download.clock.usage();
    download.close(&verdict);
    if let (Some(dump), Some(path)) = (download.dump.take(), &client.dump)
        && let Err(error) = dump.write()
    {
        eprintln!("h3get: {}", unwritable(path, error)); // the download counts all the same
    }
    Ok(download.report(&transfer).conclude(verdict))
}

fn unwritable(path: &Path, error: io::Error) -> SetupError {
    let path = path.to_owned();
    SetupError::Unwritable { path, error }
}

/// The state of a running download.
struct Download<'a> {
    client: &'a Quiche,
    request: &'a Request,
    socket: Socket,
    connection: quiche::Connection,
    http: Option<h3::Connection>,
    /// The request is on its way.
    asked: bool,
    response: Response,
    acks: Acks,
    order: Order,
    clock: Clock,
    /// Handshake completed, since the start.
    connected_at: Option<Duration>,
    /// Receive calls that gave data.
    receive_calls: u64,
    /// Bytes of the datagrams so far.
    received: usize,
    /// What quiche last complained about.
    fault: Option<quiche::Error>,
    complete: bool,
    datagrams: Vec<u8>,
    body: Vec<u8>,
    dump: Option<Dump>,
}

impl<'a> Download<'a> {
    fn new(
        client: &'a Quiche,
        request: &'a Request,
        socket: Socket,
        connection: quiche::Connection,
        dump: Option<Dump>,
    ) -> Self {
        Self {
            client,
            request,
            socket,
            connection,
            http: None,
            asked: false,
            response: Response::new(request.max_bytes),
            acks: Acks::default(),
            order: Order::default(),
            clock: Clock::start(),
            connected_at: None,
            receive_calls: 0,
            received: 0,
            fault: None,
            complete: false,
            datagrams: vec![0; RECEIVE_SIZE],
            body: vec![0; RECEIVE_SIZE],
            dump,
        }
    }

    /// Runs until there is a verdict.
    fn run(&mut self) -> Verdict {
        self.open()
            .and_then(|()| self.rounds())
            .unwrap_or_else(|errno| Verdict::of_errno(errno, self.connection.is_established()))
    }

    /// Sends the first datagram. Everything that it takes has been done when the clock starts.
    fn open(&mut self) -> Result<(), Errno> {
        let mut out = [0; SEND_SIZE];
        match self.connection.send(&mut out) {
            Ok((size, _)) => {
                self.clock = Clock::start();
                self.socket.send(&out[..size])
            }
            Err(error) => {
                self.give_up(error);
                Ok(())
            }
        }
    }

    fn rounds(&mut self) -> Result<Verdict, Errno> {
        loop {
            if let Some(verdict) = self.round()? {
                return Ok(verdict);
            }
        }
    }

    /// Sends what is due, waits for the network or a timer, takes in what came, and looks at what that means.
    fn round(&mut self) -> Result<Option<Verdict>, Errno> {
        let wait = self.acks.wait(self.clock.elapsed());
        if wait.is_none() {
            self.flush()?;
            self.acks.sent();
        }
        let (received_before, body_before) = (self.received, self.response.body_bytes);
        let left = self.request.budget.saturating_sub(self.clock.elapsed());
        let mut datagrams = self.receive()?;
        if datagrams == 0 {
            let timer = self.connection.timeout().unwrap_or(left);
            self.socket
                .wait_readable(timer.min(left).min(wait.unwrap_or(left)))?;
            datagrams = self.receive()?;
        }
        if self.connection.timeout() == Some(Duration::ZERO) {
            self.connection.on_timeout();
            self.flush()?; // what a timer causes does not wait for another packet
        }
        let now = self.clock.elapsed();
        // A response that came before its connection was closed counts, hence this order.
        if let Some(verdict) = self.progress(now).or_else(|| self.ended()) {
            return Ok(Some(verdict));
        }
        let in_order = self.response.last_stream_byte_at() == Some(now);
        self.acks.received(datagrams, in_order, now);
        if body_before > 0 {
            let read = self.response.body_bytes - body_before;
            self.order
                .received(datagrams, self.received - received_before, read);
        }
        let spent = now >= self.request.budget;
        Ok(spent.then(|| {
            let established = self.connection.is_established();
            Verdict::of_spent_budget(
                self.request.budget,
                established,
                self.response.last_stream_byte_at(),
            )
        }))
    }

    /// Takes in what is waiting, up to a limit; gives the number of datagrams.
    fn receive(&mut self) -> Result<usize, Errno> {
        let info = quic::receive_info(self.socket.local, self.socket.peer);
        let mut datagrams = 0;
        while datagrams < DATAGRAMS_PER_ROUND {
            let Some(batch) = self.socket.receive(&mut self.datagrams)? else {
                break;
            };
            self.receive_calls += 1;
            self.received += batch.bytes;
            for datagram in self.datagrams[..batch.bytes].chunks_mut(batch.segment) {
                datagrams += 1;
                if let Err(error) = self.connection.recv(datagram, info) {
                    self.fault = Some(error);
                }
            }
        }
        Ok(datagrams)
    }

    /// Sends all that quiche has to send.
    fn flush(&mut self) -> Result<(), Errno> {
        let mut out = [0; SEND_SIZE];
        loop {
            match self.connection.send(&mut out) {
                Ok((size, _)) => self.socket.send(&out[..size])?,
                Err(quiche::Error::Done) => return Ok(()),
                Err(error) => {
                    self.give_up(error);
                    return Ok(());
                }
            }
        }
    }

    /// Closes for want of something to send; seen by `ended`.
    fn give_up(&mut self, error: quiche::Error) {
        self.fault = Some(error);
        let _ = self.connection.close(false, 0x1, b"");
    }

    /// Moves HTTP/3 on: asks once the handshake is done, then reads.
    fn progress(&mut self, now: Duration) -> Option<Verdict> {
        if !self.connection.is_established() {
            return None;
        }
        self.connected_at.get_or_insert(now);
        if !self.asked {
            match self.ask() {
                Ok(asked) => self.asked = asked,
                Err(error) => return Some(ending::of_http3(&error)),
            }
        }
        loop {
            let event = self.http.as_mut()?.poll(&mut self.connection);
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
                Ok((stream, h3::Event::Data)) => self.read_body(stream, now),
                Ok((_, h3::Event::Finished)) => Some(self.response.on_finished()),
                Ok((_, h3::Event::Reset(code))) => Some(ending::of_reset(code)),
                Ok((_, h3::Event::GoAway | h3::Event::PriorityUpdate)) => None, // our request is under way already
                Err(h3::Error::Done) if self.response.is_whole() => {
                    Some(self.response.on_finished())
                }
                Err(h3::Error::Done) => return None,
                Err(error) => return self.ended().or_else(|| Some(ending::of_http3(&error))),
            };
            if verdict.is_some() {
                self.complete = verdict
                    .as_ref()
                    .is_some_and(|verdict| verdict.outcome == Outcome::Ok);
                return verdict;
            }
        }
    }

    /// Asks for the file, as soon as the server's limits on streams and bytes allow it. Limits of zero are legal
    /// (RFC 9000, section 18.2): the client waits for credit. `false` means that it still waits.
    fn ask(&mut self) -> Result<bool, h3::Error> {
        if self.http.is_none() {
            if !self.can_send_settings() {
                return Ok(false);
            }
            let config = h3::Config::new()?;
            self.http = Some(h3::Connection::with_transport(
                &mut self.connection,
                &config,
            )?);
        }
        match self.request() {
            Err(
                h3::Error::StreamBlocked | h3::Error::TransportError(quiche::Error::StreamLimit),
            ) => Ok(false),
            other => other.map(|()| true),
        }
    }

    /// quiche's HTTP/3 gives up where its control stream cannot take all settings at once.
    fn can_send_settings(&mut self) -> bool {
        // The same priority as quiche's HTTP/3 sets; it creates the stream, which can then be asked for its capacity.
        let opened = self
            .connection
            .stream_priority(CONTROL_STREAM, 0, false)
            .is_ok();
        let capacity = self.connection.stream_capacity(CONTROL_STREAM);
        opened && capacity.is_ok_and(|room| room >= SETTINGS_ROOM)
    }

    fn request(&mut self) -> Result<(), h3::Error> {
        let url = &self.request.url;
        let fields = [
            h3::Header::new(b":method", b"GET"),
            h3::Header::new(b":scheme", b"https"),
            h3::Header::new(b":authority", url.authority.as_bytes()),
            h3::Header::new(b":path", url.path.as_bytes()),
            h3::Header::new(b"user-agent", self.request.user_agent.as_bytes()),
            h3::Header::new(b"accept", b"*/*"),
            h3::Header::new(b"accept-encoding", b"identity"),
        ];
        if let Some(dump) = &mut self.dump {
            dump.on_request(&fields);
        }
        if let Some(http) = &mut self.http {
            http.send_request(&mut self.connection, &fields, true)?;
        }
        Ok(())
    }

    fn read_body(&mut self, stream: u64, now: Duration) -> Option<Verdict> {
        let http = self.http.as_mut()?;
        loop {
            let room = self.response.room(self.body.len());
            let verdict = match http.recv_body(&mut self.connection, stream, &mut self.body[..room])
            {
                Ok(size) => {
                    if let Some(dump) = &mut self.dump {
                        dump.on_body(&self.body[..size]);
                    }
                    self.response.on_body(&self.body[..size], now)
                }
                Err(h3::Error::Done) => return None,
                Err(h3::Error::TransportError(quiche::Error::StreamReset(code))) => {
                    Some(ending::of_reset(code))
                }
                Err(error) => Some(ending::of_http3(&error)),
            };
            if verdict.is_some() {
                return verdict;
            }
        }
    }

    /// Whether QUIC has ended the connection, and why.
    fn ended(&mut self) -> Option<Verdict> {
        ending::of_connection(&mut self.connection, self.fault)
    }

    /// Closes the connection; does not wait for an answer.
    fn close(&mut self, verdict: &Verdict) {
        let code = if verdict.outcome == Outcome::Ok {
            H3_NO_ERROR
        } else {
            H3_REQUEST_CANCELLED
        };
        let _ = self.connection.close(true, code, b""); // Done: it is closed already
        let _ = self.flush(); // the peer may have closed already
    }

    /// All that is known, without the verdict.
    fn report(mut self, transfer: &Usage) -> Record<QuicFacts> {
        let cpu = self.clock.usage().cpu;
        let mut record = Record::new::<Quiche>(self.request, &self.clock);
        let established = self.connection.is_established();
        let alpn = self.connection.application_proto().to_owned();
        record.quic = Some(quic::facts(
            self.client,
            self.request,
            &mut self.connection,
            &self.socket,
            self.receive_calls,
            self.order.loss_episodes,
        ));
        record.connect_s = self.connected_at.map(seconds);
        record.local_ip = Some(self.socket.local.ip());
        record.local_port = Some(self.socket.local.port());
        record.client_cpu_s = cpu.map(seconds);
        record.transfer_cpu_s = transfer.cpu.map(seconds);
        record.run_delay_s = transfer.run_delay.map(seconds);
        record.tls_version = established.then_some("TLSv1.3"); // QUIC v1 knows no other
        (record.tls_cipher, record.tls_group) = quic::tls_facts(&mut self.connection);
        record.alpn = (!alpn.is_empty()).then(|| one_line(&String::from_utf8_lossy(&alpn)));
        record.socket_drops = self.socket.counts_drops.then_some(self.socket.drops);
        record.absorb(self.response, "3", self.complete);
        record
    }
}
