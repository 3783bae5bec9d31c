//! One download: the loop that moves datagrams between the socket and quiche.

use std::io;
use std::path::Path;
use std::time::Duration;

use clientkit::{
    Clock, Outcome, RECEIVE_SIZE, Record, Request, Socket, Usage, Verdict, confine, one_line,
};
use nix::errno::Errno;

use crate::acks::Acks;
use crate::dump::Dump;
use crate::ending;
use crate::exchange::Exchange;
use crate::options::Quiche;
use crate::order::Order;
use crate::quic::{self, QuicFacts, SetupError};

/// Datagrams to take in before acknowledgements go out; more would starve the server's congestion control.
const DATAGRAMS_PER_ROUND: usize = 64;
/// Large enough for everything that quiche sends: its datagrams are 1200 bytes, as we leave the default.
const SEND_SIZE: usize = 1500;
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
        client.windows.receive_buffer as usize,
    ) {
        Ok(socket) => socket,
        Err(errno) => {
            let record = Record::new(quic::LIBRARY, request, &Clock::start());
            return Ok(record.conclude(Verdict::of_errno(
                errno,
                false,
                clientkit::FailureCode::of_network(errno, None, None, request.address),
            )));
        }
    };
    let connection = quic::connect(client, request, &mut config, &socket)?;
    let mut download = Download::new(client, request, socket, connection, dump);
    confine(Some(request.port), request.run_as).map_err(SetupError::Confine)?;
    let verdict = download.run();
    let transfer = download.clock.usage();
    download.close(&verdict);
    if let (Some(dump), Some(path)) = (download.exchange.dump.take(), &client.dump)
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
    exchange: Exchange,
    acks: Acks,
    order: Order,
    clock: Clock,
    /// Handshake completed, since the start.
    connected_at: Option<Duration>,
    /// Receive calls that gave data.
    receive_calls: u64,
    /// What quiche last complained about.
    fault: Option<quiche::Error>,
    datagrams: Vec<u8>,
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
            exchange: Exchange::new(request, dump),
            acks: Acks::default(),
            order: Order::default(),
            clock: Clock::start(),
            connected_at: None,
            receive_calls: 0,
            fault: None,
            datagrams: vec![0; RECEIVE_SIZE],
        }
    }

    /// Runs until there is a verdict.
    fn run(&mut self) -> Verdict {
        self.open()
            .and_then(|()| self.rounds())
            .unwrap_or_else(|errno| {
                let established = self.connection.is_established();
                Verdict::of_errno(errno, established, self.socket.why(errno))
            })
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
        let body_before = self.exchange.response.body_bytes;
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
        let response = &self.exchange.response;
        let in_order = response.last_stream_byte_at() == Some(now);
        self.acks.received(datagrams, in_order, now);
        self.order.read(response.body_bytes - body_before);
        let spent = now >= self.request.budget;
        Ok(spent.then(|| {
            let established = self.connection.is_established();
            Verdict::of_spent_budget(
                self.request.budget,
                established,
                response.last_stream_byte_at(),
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
            for datagram in self.datagrams[..batch.bytes].chunks_mut(batch.segment) {
                datagrams += 1;
                self.order.received(datagram.len());
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

    /// Asks once the handshake is done, then reads.
    fn progress(&mut self, now: Duration) -> Option<Verdict> {
        if !self.connection.is_established() {
            return None;
        }
        if self.connected_at.is_none() {
            self.connected_at = Some(now);
            self.socket.hear_icmp(false);
        }
        self.exchange
            .progress(&mut self.connection, self.request, self.fault, now)
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
        let mut record = Record::new(quic::LIBRARY, self.request, &self.clock);
        record.measured(self.connected_at, transfer, &self.clock, &self.socket);
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
        record.tls_version = established.then_some("TLSv1.3"); // QUIC v1 knows no other
        (record.tls_cipher, record.tls_group) = quic::tls_facts(&mut self.connection);
        record.alpn = (!alpn.is_empty()).then(|| one_line(&String::from_utf8_lossy(&alpn)));
        record.absorb(self.exchange.response, "3", self.exchange.is_complete);
        record
    }
}
