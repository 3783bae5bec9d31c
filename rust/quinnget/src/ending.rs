//! How a download ended, where quinn or its HTTP/3 says so.

use std::fmt::Display;

use clientkit::{Close, Failure, Verdict, stream_reset};
use h3::error::StreamError;
use quinn::ConnectionError;

/// QUIC has ended the connection.
pub fn of_connection(error: &ConnectionError, established: bool) -> Verdict {
    match error {
        ConnectionError::VersionMismatch => Verdict::failed(
            Failure::ProtocolError,
            "the server supports none of our QUIC versions",
        ),
        ConnectionError::TransportError(error) => Close {
            by_application: false,
            code: error.code.into(),
            reason: error.reason.as_bytes(),
        }
        .local(None),
        ConnectionError::ConnectionClosed(close) => Close {
            by_application: false,
            code: close.error_code.into(),
            reason: &close.reason,
        }
        .peer(established),
        ConnectionError::ApplicationClosed(close) => Close {
            by_application: true,
            code: close.error_code.into_inner(),
            reason: &close.reason,
        }
        .peer(established),
        ConnectionError::Reset => {
            Verdict::failed(Failure::ConnectionReset, "the peer sent a stateless reset")
        }
        ConnectionError::TimedOut => Verdict::of_idle_timeout(established),
        ConnectionError::LocallyClosed | ConnectionError::CidsExhausted => {
            Verdict::failed(Failure::Unknown, &error.to_string())
        }
    }
}

/// HTTP/3 has failed: by what it read, or since QUIC has ended the connection.
pub fn of_http3(connection: &quinn::Connection, error: &dyn Display) -> Verdict {
    match connection.close_reason() {
        None | Some(ConnectionError::LocallyClosed) => {
            Verdict::failed(Failure::ProtocolError, &format!("HTTP/3: {error}"))
        }
        Some(reason) => of_connection(&reason, true),
    }
}

/// HTTP/3 has ended the request.
pub fn of_stream(connection: &quinn::Connection, error: &StreamError) -> Verdict {
    match error {
        StreamError::RemoteTerminate { code, .. } => stream_reset(code.value()),
        _ => of_http3(connection, error),
    }
}
