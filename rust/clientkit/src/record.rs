//! The JSON document: schema 1, the same for every Upshift client. Times are seconds since the first packet.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use serde::Serialize;

use crate::arguments::Request;
use crate::clock::{Clock, Usage};
use crate::code::FailureCode;
use crate::failure::{Failure, Outcome, Verdict};
use crate::response::Response;
use crate::socket::Socket;

/// The version of the document's shape.
pub const SCHEMA: u8 = 1;

/// The QUIC or HTTP library of a client.
#[derive(Debug, Clone, Copy)]
pub struct Library {
    /// The client's name in documents, e.g. `quiche`.
    pub name: &'static str,
    /// The version of the library.
    pub version: &'static str,
}

/// One download; `F` is the client's data about the connection. All fields always appear in the document, in this order.
#[derive(Debug, Serialize)]
#[allow(
    missing_docs,
    reason = "the keys of the contract, explained in docs/design/house.md"
)]
pub struct Record<F> {
    pub schema: u8,
    pub client: &'static str,
    pub client_version: &'static str,
    pub outcome: Outcome,
    pub failure: Option<Failure>,
    pub failure_code: Option<FailureCode>,
    pub failure_number: Option<u64>,
    pub failure_detail: Option<String>,
    pub url: String,
    pub http_status: Option<u16>,
    pub http_version: Option<&'static str>,
    pub content_length: Option<u64>,
    pub content_type: Option<String>,
    pub response_headers: BTreeMap<String, String>,
    pub body_bytes: u64,
    /// Only of a complete body.
    pub body_sha256: Option<String>,
    /// Unix time of the first packet, seconds; if none was sent, of the refusal.
    pub started_at: f64,
    /// Always null: the address is forced.
    pub dns_s: Option<f64>,
    /// Handshake completed: in QUIC, connecting and TLS are one.
    pub connect_s: Option<f64>,
    /// Always null: see `connect_s`.
    pub tls_s: Option<f64>,
    pub headers_s: Option<f64>,
    pub first_byte_s: Option<f64>,
    pub last_byte_s: Option<f64>,
    pub local_ip: Option<IpAddr>,
    pub local_port: Option<u16>,
    pub server_ip: IpAddr,
    pub server_port: u16,
    /// CPU time of the thread that downloads, from the first packet to the end; null where none was sent.
    pub client_cpu_s: Option<f64>,
    /// The part of it up to the verdict.
    pub transfer_cpu_s: Option<f64>,
    /// Time on a run queue, up to the verdict; null if the kernel does not report it.
    pub run_delay_s: Option<f64>,
    pub tls_version: Option<&'static str>,
    pub tls_cipher: Option<&'static str>,
    /// The group of the key exchange, as the TLS library names it.
    pub tls_group: Option<&'static str>,
    pub alpn: Option<String>,
    /// Always null: no TCP here.
    pub tcp: Option<()>,
    pub quic: Option<F>,
    /// Datagrams that the socket dropped because its buffer was full. Those that came merged (UDP GRO) count as one.
    pub socket_drops: Option<u32>,
}

impl<F> Record<F> {
    /// The record of a download of which no packet was sent yet.
    #[must_use]
    pub fn new(library: Library, request: &Request, clock: &Clock) -> Self {
        Self {
            schema: SCHEMA,
            client: library.name,
            client_version: library.version,
            outcome: Outcome::Failed,
            failure: Some(Failure::Unknown),
            failure_code: None,
            failure_number: None,
            failure_detail: None,
            url: request.url.text.clone(),
            http_status: None,
            http_version: None,
            content_length: None,
            content_type: None,
            response_headers: BTreeMap::new(),
            body_bytes: 0,
            body_sha256: None,
            started_at: clock.started_at,
            dns_s: None,
            connect_s: None,
            tls_s: None,
            headers_s: None,
            first_byte_s: None,
            last_byte_s: None,
            local_ip: None,
            local_port: None,
            server_ip: request.address,
            server_port: request.port,
            client_cpu_s: None,
            transfer_cpu_s: None,
            run_delay_s: None,
            tls_version: None,
            tls_cipher: None,
            tls_group: None,
            alpn: None,
            tcp: None,
            quic: None,
            socket_drops: None,
        }
    }

    /// Sets how it ended.
    #[must_use]
    pub fn conclude(mut self, verdict: Verdict) -> Self {
        self.outcome = verdict.outcome;
        self.failure = verdict.failure;
        self.failure_code = verdict.code;
        self.failure_number = verdict.number;
        self.failure_detail = verdict.detail;
        self
    }

    /// Takes what the client measured around the response: the end of the handshake, the processor time of the thread
    /// up to the verdict (`transfer`) and up to now, and the socket's ends and drops.
    pub fn measured(
        &mut self,
        connected_at: Option<Duration>,
        transfer: &Usage,
        clock: &Clock,
        socket: &Socket,
    ) {
        self.client_cpu_s = clock.usage().cpu.map(seconds);
        self.transfer_cpu_s = transfer.cpu.map(seconds);
        self.run_delay_s = transfer.run_delay.map(seconds);
        self.connect_s = connected_at.map(seconds);
        self.local_ip = Some(socket.local.ip());
        self.local_port = Some(socket.local.port());
        self.socket_drops = socket.counts_drops.then_some(socket.drops);
    }

    /// Takes the fields of the response; `complete` means that the whole body was received.
    pub fn absorb(&mut self, response: Response, http_version: &'static str, complete: bool) {
        self.http_status = response.status;
        self.http_version = response.status.map(|_| http_version);
        self.content_length = response.content_length;
        self.body_bytes = response.body_bytes;
        self.headers_s = response.headers_at.map(seconds);
        self.first_byte_s = response.first_byte_at.map(seconds);
        self.last_byte_s = response.last_byte_at.map(seconds);
        self.content_type.clone_from(&response.content_type);
        self.response_headers.clone_from(&response.headers);
        self.body_sha256 = complete.then(|| response.sha256());
    }
}

/// Seconds, to the microsecond.
#[must_use]
pub fn seconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::confine::User;
    use crate::reach::Reach;
    use crate::url::Url;

    const KEYS: [&str; 37] = [
        "schema",
        "client",
        "client_version",
        "outcome",
        "failure",
        "failure_code",
        "failure_number",
        "failure_detail",
        "url",
        "http_status",
        "http_version",
        "content_length",
        "content_type",
        "response_headers",
        "body_bytes",
        "body_sha256",
        "started_at",
        "dns_s",
        "connect_s",
        "tls_s",
        "headers_s",
        "first_byte_s",
        "last_byte_s",
        "local_ip",
        "local_port",
        "server_ip",
        "server_port",
        "client_cpu_s",
        "transfer_cpu_s",
        "run_delay_s",
        "tls_version",
        "tls_cipher",
        "tls_group",
        "alpn",
        "tcp",
        "quic",
        "socket_drops",
    ];

    fn record() -> Record<u64> {
        let request = Request {
            url: Url::parse("https://a.test/").unwrap(),
            address: "198.18.0.1".parse().unwrap(),
            port: 443,
            ca: "ca.pem".into(),
            budget: Duration::from_secs(1),
            max_bytes: None,
            expected_bytes: None,
            user_agent: "me".to_owned(),
            reach: Reach::default(),
            run_as: User::default(),
        };
        let library = Library {
            name: "echoes",
            version: "3.4",
        };
        Record::new(library, &request, &Clock::start())
    }

    #[test]
    fn exactly_the_agreed_keys() {
        let verdict = Verdict::failed(Failure::AddressRefused, "outside");
        let document = serde_json::to_value(record().conclude(verdict)).unwrap();
        let mut expected = KEYS;
        expected.sort_unstable();
        let mut keys: Vec<&str> = document
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        keys.sort_unstable();
        assert_eq!(keys, expected);
        assert_eq!(document["failure"], "address_refused");
        assert_eq!(document["outcome"], "failed");
        assert_eq!(document["server_ip"], "198.18.0.1");
        assert!(
            document["tcp"].is_null()
                && document["client_cpu_s"].is_null()
                && document["quic"].is_null()
                && document["response_headers"].is_object()
        );
    }

    #[test]
    fn a_hash_only_when_complete() {
        for complete in [true, false] {
            let mut record = record();
            let mut response = Response::new(None, None);
            response.on_body(b"abc", Duration::from_micros(1_234_567));
            record.absorb(response, "3", complete);
            assert_eq!(record.body_sha256.is_some(), complete);
            assert_eq!(
                (record.body_bytes, record.last_byte_s),
                (3, Some(1.234_567))
            );
        }
    }
}
