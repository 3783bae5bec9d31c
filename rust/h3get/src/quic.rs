//! quiche's configuration, and a connection's statistics.

use std::fs::OpenOptions;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use boring::error::ErrorStack;
use boring::rand::rand_bytes;
use boring::ssl::{SslCipherRef, SslContextBuilder, SslMethod, SslRef};
use boring::x509::X509VerifyError;
use clientkit::{FailureCode, Library, Rejected, Request, Socket, UnreadableCa, one_line};
use quiche::{Config, Connection, ConnectionId};
use serde::Serialize;
use thiserror::Error;

use crate::options::Quiche;

/// The crate `quiche`; a test of clientkit compares its version with `Cargo.lock`.
pub const LIBRARY: Library = Library {
    name: "quiche",
    version: "0.30.0",
};

/// Groups of the key exchange. `BoringSSL` sends a key share for the first one only (and one more where post-quantum and
/// classical groups are mixed), so that the `ClientHello` fits into one datagram.
const GROUPS: &str = "X25519:P-256:P-384";
/// The same with a post-quantum share before them: 1,216 bytes more (draft-ietf-tls-ecdhe-mlkem).
const POST_QUANTUM_GROUPS: &str = "X25519MLKEM768:X25519:P-256:P-384";
/// Length of our connection ID, which each packet of the server carries: as long as aioquic's, because the 20 bytes of
/// quiche's example would cost 0.9 % of the rate.
const CONNECTION_ID_BYTES: usize = 8;
/// The server needs three streams (control and twice QPACK); some open one more to grease.
const UNI_STREAMS: u64 = 16;

/// The transport parameters that bear on speed, of one side. Durations in milliseconds, sizes in bytes.
#[derive(Debug, Clone, Serialize)]
#[allow(clippy::struct_field_names)] // the names of RFC 9000, section 18.2
pub struct TransportParameters {
    pub max_idle_timeout: u64,
    pub max_udp_payload_size: u64,
    pub initial_max_data: u64,
    pub initial_max_stream_data_bidi_local: u64,
    pub initial_max_stream_data_bidi_remote: u64,
    pub initial_max_stream_data_uni: u64,
    pub initial_max_streams_bidi: u64,
    pub initial_max_streams_uni: u64,
    pub ack_delay_exponent: u64,
    pub max_ack_delay: u64,
    pub active_connection_id_limit: u64,
    pub disable_active_migration: bool,
    pub max_datagram_frame_size: Option<u64>,
}

/// Both sides' transport parameters; the peer's are known once the handshake has brought them.
#[derive(Debug, Serialize)]
pub struct BothTransportParameters {
    pub local: TransportParameters,
    pub peer: Option<TransportParameters>,
}

/// The connection's own account.
#[derive(Debug, Serialize)]
pub struct QuicFacts {
    pub version: &'static str,
    pub transport_parameters: BothTransportParameters,
    pub packets_received: usize,
    pub packets_sent: usize,
    /// Packets that this side sent and took for lost; what the server lost is not visible here.
    pub packets_lost: usize,
    pub bytes_received: u64,
    pub bytes_sent: u64,
    /// Smoothed; this side has few samples, as it sends little that is acknowledged.
    pub rtt_ms: Option<f64>,
    pub min_rtt_ms: Option<f64>,
    pub max_rtt_ms: Option<f64>,
    /// `DATA_BLOCKED` frames: how often our connection window held the server back.
    pub data_blocked_received: u64,
    /// `STREAM_DATA_BLOCKED` frames: the same for the stream window.
    pub stream_data_blocked_received: u64,
    /// How often a packet of the body was lost on its way here: [`crate::order::Order`].
    pub loss_episodes: u64,
    pub congestion_control: String,
    pub gro: bool,
    pub rcvbuf_bytes: Option<usize>,
    /// Receive calls that gave data; fewer than packets where datagrams came merged.
    pub receive_calls: u64,
}

/// What keeps a download from starting: one sentence each.
#[derive(Debug, Error)]
pub enum SetupError {
    #[error(transparent)]
    Ca(#[from] UnreadableCa),
    #[error("cannot write {}: {error}", one_line(&.path.display().to_string()))]
    Unwritable { path: PathBuf, error: io::Error },
    #[error(transparent)]
    Confine(io::Error),
    #[error("TLS refused its configuration: {0}")]
    Tls(#[from] ErrorStack),
    #[error("quiche refused its configuration: {0}")]
    Quiche(#[from] quiche::Error),
}

/// The configuration of quiche for one download.
pub fn config(client: &Quiche, request: &Request) -> Result<Config, SetupError> {
    let mut config = Config::with_boring_ssl_ctx_builder(
        quiche::PROTOCOL_VERSION,
        tls(&request.ca, client.post_quantum)?,
    )?;
    config.verify_peer(true);
    config.set_application_protos(quiche::h3::APPLICATION_PROTOCOL)?;
    config.set_cc_algorithm_name(&client.congestion_control)?;
    config.enable_pacing(false); // we send requests and acknowledgements only, and do not heed pacing hints
    let idle_ms = client.idle_timeout(request).as_millis().max(1);
    config.set_max_idle_timeout(u64::try_from(idle_ms).unwrap_or(u64::MAX));
    config.set_max_recv_udp_payload_size(usize::from(client.max_udp_payload));
    // The windows stay as asked: quiche would otherwise shrink them to its own maxima (24 MiB, 16 MiB) after the
    // initial credit, or grow small ones.
    config.set_initial_max_data(client.windows.max_data);
    config.set_max_connection_window(client.windows.max_data);
    config.set_initial_max_stream_data_bidi_local(client.windows.max_stream_data);
    config.set_initial_max_stream_data_bidi_remote(client.windows.max_stream_data);
    config.set_initial_max_stream_data_uni(client.windows.max_stream_data);
    config.set_max_stream_window(client.windows.max_stream_data);
    config.set_initial_max_streams_bidi(0);
    config.set_initial_max_streams_uni(UNI_STREAMS);
    config.set_disable_active_migration(true);
    if client.keylog.is_some() {
        config.log_keys();
    }
    Ok(config)
}

/// The TLS context with exactly the wanted trust anchors and groups.
fn tls(ca: &Path, post_quantum: bool) -> Result<SslContextBuilder, SetupError> {
    let mut builder = SslContextBuilder::new(SslMethod::tls())?;
    builder
        .set_ca_file(ca)
        .map_err(|_| UnreadableCa(ca.to_owned()))?;
    builder.set_curves_list(if post_quantum {
        POST_QUANTUM_GROUPS
    } else {
        GROUPS
    })?;
    Ok(builder)
}

/// A connection that has not sent anything yet.
pub fn connect(
    client: &Quiche,
    request: &Request,
    config: &mut Config,
    socket: &Socket,
) -> Result<Connection, SetupError> {
    let mut scid = [0; CONNECTION_ID_BYTES];
    rand_bytes(&mut scid)?;
    let scid = ConnectionId::from_ref(&scid);
    let address = request.url.host_address();
    let name = address.is_none().then_some(request.url.host.as_str());
    let mut connection = quiche::connect(name, &scid, socket.local, socket.peer, config)?;
    if let Some(address) = address {
        // An address is never sent as SNI, yet the certificate must be for it.
        let ssl: &mut SslRef = connection.as_mut();
        ssl.param_mut().set_ip(address)?;
    }
    if let Some(path) = &client.keylog {
        let opened = OpenOptions::new().create(true).append(true).open(path);
        let file = opened.map_err(|error| SetupError::Unwritable {
            path: path.clone(),
            error,
        })?;
        connection.set_keylog(Box::new(file));
    }
    Ok(connection)
}

/// What TLS agreed on: cipher (as the TLS registry names it) and group. Nothing before the handshake.
pub fn tls_facts(connection: &mut Connection) -> (Option<&'static str>, Option<&'static str>) {
    if !connection.is_established() {
        return (None, None);
    }
    let ssl: &mut SslRef = connection.as_mut();
    let cipher = ssl.current_cipher().and_then(SslCipherRef::standard_name);
    (cipher, ssl.curve_name())
}

/// Why the certificate was rejected, if it was.
pub fn rejected(connection: &mut Connection) -> Option<Rejected<'static>> {
    let ssl: &mut SslRef = connection.as_mut();
    let result = ssl.verify_result().err();
    // INVALID_CALL is the result before any certificate was checked.
    let reason = result.filter(|error| *error != X509VerifyError::INVALID_CALL);
    reason.map(|error| Rejected {
        code: FailureCode::of_verification(error.as_raw()),
        why: error.error_string(),
    })
}

/// Gathers the connection's own account.
pub fn facts(
    client: &Quiche,
    request: &Request,
    connection: &mut Connection,
    socket: &Socket,
    receive_calls: u64,
    loss_episodes: u64,
) -> QuicFacts {
    let stats = connection.stats();
    let path = connection.path_stats().find(|path| path.active);
    let peer = connection
        .peer_transport_params()
        .filter(|_| connection.is_established());
    let min_rtt = path.as_ref().and_then(|path| path.min_rtt);
    QuicFacts {
        version: "0x00000001",
        transport_parameters: BothTransportParameters {
            local: local(client, request),
            peer: peer.map(shown),
        },
        packets_received: stats.recv,
        packets_sent: stats.sent,
        packets_lost: stats.lost,
        bytes_received: stats.recv_bytes,
        bytes_sent: stats.sent_bytes,
        rtt_ms: path
            .as_ref()
            .filter(|_| min_rtt.is_some())
            .map(|path| milliseconds(path.rtt)),
        min_rtt_ms: min_rtt.map(milliseconds),
        max_rtt_ms: path
            .as_ref()
            .filter(|_| min_rtt.is_some())
            .and_then(|path| path.max_rtt)
            .map(milliseconds),
        data_blocked_received: stats.data_blocked_recv_count,
        stream_data_blocked_received: stats.stream_data_blocked_recv_count,
        loss_episodes,
        congestion_control: client.congestion_control.clone(),
        gro: socket.gro,
        rcvbuf_bytes: socket.rcvbuf_bytes,
        receive_calls,
    }
}

fn shown(parameters: &quiche::TransportParams) -> TransportParameters {
    TransportParameters {
        max_idle_timeout: parameters.max_idle_timeout,
        max_udp_payload_size: parameters.max_udp_payload_size,
        initial_max_data: parameters.initial_max_data,
        initial_max_stream_data_bidi_local: parameters.initial_max_stream_data_bidi_local,
        initial_max_stream_data_bidi_remote: parameters.initial_max_stream_data_bidi_remote,
        initial_max_stream_data_uni: parameters.initial_max_stream_data_uni,
        initial_max_streams_bidi: parameters.initial_max_streams_bidi,
        initial_max_streams_uni: parameters.initial_max_streams_uni,
        ack_delay_exponent: parameters.ack_delay_exponent,
        max_ack_delay: parameters.max_ack_delay,
        active_connection_id_limit: parameters.active_conn_id_limit,
        disable_active_migration: parameters.disable_active_migration,
        max_datagram_frame_size: parameters.max_datagram_frame_size,
    }
}

/// What [`config`] makes quiche send: quiche has no accessor for them.
fn local(client: &Quiche, request: &Request) -> TransportParameters {
    let defaults = shown(&quiche::TransportParams::default());
    TransportParameters {
        max_idle_timeout: u64::try_from(client.idle_timeout(request).as_millis().max(1))
            .unwrap_or(u64::MAX),
        max_udp_payload_size: u64::from(client.max_udp_payload),
        initial_max_data: client.windows.max_data,
        initial_max_stream_data_bidi_local: client.windows.max_stream_data,
        initial_max_stream_data_bidi_remote: client.windows.max_stream_data,
        initial_max_stream_data_uni: client.windows.max_stream_data,
        initial_max_streams_uni: UNI_STREAMS,
        disable_active_migration: true,
        ..defaults
    }
}

fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

/// What quiche wants to know about where a datagram came from.
pub fn receive_info(local: SocketAddr, peer: SocketAddr) -> quiche::RecvInfo {
    quiche::RecvInfo {
        from: peer,
        to: local,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_ca_file_is_one_sentence() {
        for bad in ["/dev/null", "/nonexistent.pem"] {
            let Err(error) = tls(Path::new(bad), false) else {
                panic!("accepted {bad}")
            };
            assert_eq!(
                error.to_string(),
                format!("{bad} is not a readable PEM file with CA certificates")
            );
        }
    }
}
