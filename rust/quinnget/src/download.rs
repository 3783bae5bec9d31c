//! One download: quinn on one thread, over the socket of all clients.

use std::sync::Arc;
use std::time::Duration;

use clientkit::{Clock, Outcome, Record, Request, Response, Socket, Usage, Verdict, confine};
use quinn::{Connecting, Connection, Endpoint, TokioRuntime, VarInt};
use tokio::time::{Instant, sleep_until};

use crate::exchange;
use crate::link::Link;
use crate::options::{Quinn, SetupError};
use crate::quic::{self, LIBRARY, QuicFacts};
use crate::{ending, tls};

/// HTTP/3 error codes with which this side closes.
const H3_NO_ERROR: u32 = 0x100;
const H3_REQUEST_CANCELLED: u32 = 0x10c;

/// Downloads once. An error is wrong use that shows only now (a CA file that cannot be read): nothing was sent.
pub fn download(client: &Quinn, request: &Request) -> Result<Record<QuicFacts>, SetupError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(prepare_and_run(client, request))
}

async fn prepare_and_run(
    client: &Quinn,
    request: &Request,
) -> Result<Record<QuicFacts>, SetupError> {
    let peer = (request.address, request.port).into();
    let config = quic::client_config(client, request)?;
    let head = exchange::head(request)?;
    let socket = match Socket::open(peer, true, client.windows.receive_buffer as usize) {
        Ok(socket) => socket,
        Err(errno) => {
            let record = Record::new(LIBRARY, request, &Clock::start());
            return Ok(record.conclude(Verdict::of_errno(
                errno,
                false,
                clientkit::FailureCode::of_network(errno, None, None, request.address),
            )));
        }
    };
    let link = Link::new(socket)?;
    let endpoint = Endpoint::new_with_abstract_socket(
        quic::endpoint_config()?,
        None,
        link.clone(),
        Arc::new(TokioRuntime),
    )?;
    // Takes its memory now, before the clock starts.
    let response = Response::new(request.max_bytes, request.expected_bytes);
    confine(Some(request.port), request.run_as).map_err(SetupError::Confine)?;
    let connecting = endpoint.connect_with(config, peer, &request.url.host)?;
    let clock = link.started().await;
    let mut download = Download {
        client,
        request,
        link,
        clock,
        response,
        connection: None,
        connected_at: None,
    };
    let verdict = download.run(connecting, head).await;
    let transfer = clock.usage();
    download.close(&verdict).await;
    Ok(download.report(&transfer, &verdict).conclude(verdict))
}

/// The state of a running download.
struct Download<'a> {
    client: &'a Quinn,
    request: &'a Request,
    link: Arc<Link>,
    clock: Clock,
    response: Response,
    connection: Option<Connection>,
    /// Handshake completed, since the start.
    connected_at: Option<Duration>,
}

impl Download<'_> {
    /// Runs until there is a verdict. A response that came before its connection broke counts, hence the order.
    async fn run(&mut self, connecting: Connecting, head: http::Request<()>) -> Verdict {
        let budget = self.request.budget;
        let end = Instant::now() + budget.saturating_sub(self.clock.elapsed());
        let link = self.link.clone();
        tokio::select! {
            biased;
            verdict = self.fetch(connecting, head) => verdict,
            errno = link.fault() => {
                let code = link.socket().why(errno);
                Verdict::of_errno(errno, self.connected_at.is_some(), code)
            }
            () = sleep_until(end) => Verdict::of_spent_budget(
                budget,
                self.connected_at.is_some(),
                self.response.last_stream_byte_at(),
            ),
        }
    }

    async fn fetch(&mut self, connecting: Connecting, head: http::Request<()>) -> Verdict {
        let connection = match connecting.await {
            Ok(connection) => self.connection.insert(connection),
            Err(error) => return ending::of_connection(&error, false),
        };
        self.connected_at = Some(self.clock.elapsed());
        self.link.socket().hear_icmp(false);
        exchange::exchange(connection, head, &mut self.response, &self.clock).await
    }

    /// Closes the connection; does not wait for an answer.
    async fn close(&self, verdict: &Verdict) {
        let Some(connection) = &self.connection else {
            return;
        };
        let code = if verdict.outcome == Outcome::Ok {
            H3_NO_ERROR
        } else {
            H3_REQUEST_CANCELLED
        };
        connection.close(VarInt::from_u32(code), b"");
        tokio::task::yield_now().await; // lets quinn send it
    }

    /// All that is known, without the verdict.
    fn report(self, transfer: &Usage, verdict: &Verdict) -> Record<QuicFacts> {
        let mut record = Record::new(LIBRARY, self.request, &self.clock);
        record.measured(
            self.connected_at,
            transfer,
            &self.clock,
            &self.link.socket(),
        );
        let established = self.connected_at.is_some();
        let connection = self.connection.as_ref(); // quinn has no account of one that was not established
        record.quic = connection.map(|connection| quic::facts(self.client, &self.link, connection));
        if established {
            record.tls_version = Some("TLSv1.3"); // QUIC v1 knows no other
            record.alpn = Some("h3".to_owned()); // the only one that is offered
            (record.tls_cipher, record.tls_group) = tls::agreed();
        }
        record.absorb(self.response, "3", verdict.outcome == Outcome::Ok);
        record
    }
}
