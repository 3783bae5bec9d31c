//! quinn's configuration, and a connection's statistics.

use std::sync::Arc;
use std::time::Duration;

use clientkit::{Library, Request};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, EndpointConfig, IdleTimeout, TransportConfig, VarInt};
use serde::Serialize;

use crate::link::Link;
use crate::options::{Quinn, SetupError};
use crate::tls;

/// The crate `quinn`; a test of clientkit compares its version with `Cargo.lock`.
pub const LIBRARY: Library = Library {
    name: "quinn",
    version: "0.11.12",
};
/// QUIC version 1 (RFC 9000), the only one that is offered.
const VERSION: u32 = 1;
/// The server needs three streams (control and twice QPACK); some open one more to grease.
const UNI_STREAMS: u32 = 16;
/// As h3get: the largest payload of a UDP datagram.
const MAX_UDP_PAYLOAD: u16 = 65527;

/// The transport parameters that this client sets; sizes in bytes. quinn does not tell the server's.
#[derive(Debug, Serialize)]
#[allow(clippy::struct_field_names)] // the names of RFC 9000, section 18.2
pub struct TransportParameters {
    pub max_udp_payload_size: u16,
    pub initial_max_data: u64,
    pub initial_max_stream_data_bidi_local: u64,
    pub initial_max_streams_uni: u32,
}

/// Both sides' transport parameters, as far as they are known.
#[derive(Debug, Serialize)]
pub struct BothTransportParameters {
    pub local: TransportParameters,
    pub peer: Option<()>,
}

/// The connection's own account; what quinn does not count is left out.
#[derive(Debug, Serialize)]
pub struct QuicFacts {
    pub version: &'static str,
    pub transport_parameters: BothTransportParameters,
    pub packets_received: u64,
    pub packets_sent: u64,
    /// Packets that this side sent and took for lost; what the server lost is not visible here.
    pub packets_lost: u64,
    pub bytes_received: u64,
    pub bytes_sent: u64,
    /// Smoothed; this side has few samples, as it sends little that is acknowledged.
    pub rtt_ms: Option<f64>,
    /// `DATA_BLOCKED` frames: how often our connection window held the server back.
    pub data_blocked_received: u64,
    /// `STREAM_DATA_BLOCKED` frames: the same for the stream window.
    pub stream_data_blocked_received: u64,
    pub congestion_control: &'static str,
    pub gro: bool,
    pub rcvbuf_bytes: Option<usize>,
    /// Receive calls that gave data; fewer than packets where datagrams came merged.
    pub receive_calls: u64,
}

/// What quinn is told about the endpoint.
pub fn endpoint_config() -> Result<EndpointConfig, SetupError> {
    let mut config = EndpointConfig::default(); // its connection IDs have 8 bytes, as those of h3get
    config.max_udp_payload_size(MAX_UDP_PAYLOAD)?;
    config.supported_versions(vec![VERSION]);
    Ok(config)
}

/// What quinn is told about the connection.
pub fn client_config(client: &Quinn, request: &Request) -> Result<ClientConfig, SetupError> {
    let idle = request.budget + Duration::from_secs(5); // longer than the budget, which decides
    let mut transport = TransportConfig::default();
    transport
        .max_idle_timeout(Some(IdleTimeout::try_from(idle)?))
        .receive_window(VarInt::from_u64(client.windows.max_data)?)
        .stream_receive_window(VarInt::from_u64(client.windows.max_stream_data)?)
        .max_concurrent_uni_streams(UNI_STREAMS.into())
        .max_concurrent_bidi_streams(0_u8.into())
        .datagram_receive_buffer_size(None)
        // Requests and acknowledgements are small: no probes for larger packets.
        .mtu_discovery_config(None);
    let crypto = QuicClientConfig::try_from(tls::config(&request.ca)?)?;
    let mut config = ClientConfig::new(Arc::new(crypto));
    config
        .version(VERSION)
        .transport_config(Arc::new(transport));
    Ok(config)
}

/// Gathers the account of an established connection.
pub fn facts(client: &Quinn, link: &Link, connection: &quinn::Connection) -> QuicFacts {
    let stats = connection.stats();
    let socket = link.socket();
    QuicFacts {
        version: "0x00000001",
        transport_parameters: BothTransportParameters {
            local: TransportParameters {
                max_udp_payload_size: MAX_UDP_PAYLOAD,
                initial_max_data: client.windows.max_data,
                initial_max_stream_data_bidi_local: client.windows.max_stream_data,
                initial_max_streams_uni: UNI_STREAMS,
            },
            peer: None,
        },
        packets_received: stats.udp_rx.datagrams,
        packets_sent: stats.path.sent_packets,
        packets_lost: stats.path.lost_packets,
        bytes_received: stats.udp_rx.bytes,
        bytes_sent: stats.udp_tx.bytes,
        rtt_ms: Some((stats.path.rtt.as_secs_f64() * 1e6).round() / 1e3),
        data_blocked_received: stats.frame_rx.data_blocked,
        stream_data_blocked_received: stats.frame_rx.stream_data_blocked,
        congestion_control: "cubic", // quinn's default
        gro: socket.gro,
        rcvbuf_bytes: socket.rcvbuf_bytes,
        receive_calls: link.receive_calls(),
    }
}
