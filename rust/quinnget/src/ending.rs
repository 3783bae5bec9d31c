//! How a download ended, where quinn or its HTTP/3 says so.

use std::fmt::Display;

use clientkit::{Close, Failure, FailureCode, Rejected, Verdict, stream_reset};
use h3::error::{ConnectionError as Http3Error, LocalError, StreamError};
use quinn::ConnectionError;

use crate::tls;

/// A malformed message (RFC 9114, section 8.1).
const H3_MESSAGE_ERROR: u64 = 0x10e;

/// QUIC has ended the connection.
pub fn of_connection(error: &ConnectionError, established: bool) -> Verdict {
    match error {
        ConnectionError::VersionMismatch => Verdict::failed(
            Failure::ProtocolError,
            "the server supports none of our QUIC versions",
        )
        .because(FailureCode::VersionNegotiation),
        ConnectionError::TransportError(error) => Close {
            by_application: false,
            code: error.code.into(),
            reason: error.reason.as_bytes(),
        }
        .local(
            tls::rejected()
                .as_ref()
                .map(|(code, why)| Rejected { code: *code, why }),
        ),
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

/// What h3 says of a stream that ends before a response: an unexpected frame, though there was none.
const NO_RESPONSE: &str = "Stream finished without receiving response headers";

/// HTTP/3 has failed: by what it read, or since QUIC has ended the connection.
pub fn of_http3(connection: &quinn::Connection, error: &Http3Error) -> Verdict {
    let number = match error {
        Http3Error::Local {
            error: LocalError::Application { reason, .. },
            ..
        } if reason == NO_RESPONSE => Some(H3_MESSAGE_ERROR),
        Http3Error::Local {
            error: LocalError::Application { code, .. },
            ..
        } => Some(code.value()),
        _ => None,
    };
    of_error(connection, error, number)
}

/// HTTP/3 has ended the request.
pub fn of_stream(connection: &quinn::Connection, error: &StreamError) -> Verdict {
    match error {
        StreamError::RemoteTerminate { code, .. } => stream_reset(code.value()),
        StreamError::StreamError { code, .. } => of_error(connection, error, Some(code.value())),
        StreamError::ConnectionError { 0: cause, .. } => of_http3(connection, cause),
        _ => of_error(connection, error, None),
    }
}

fn of_error(connection: &quinn::Connection, error: &dyn Display, number: Option<u64>) -> Verdict {
    match connection.close_reason() {
        None | Some(ConnectionError::LocallyClosed) => {
            let verdict = Verdict::failed(Failure::ProtocolError, &format!("HTTP/3: {error}"));
            match number {
                Some(number) => verdict.because_of(FailureCode::of_http3(number)),
                None => verdict,
            }
        }
        Some(reason) => of_connection(&reason, true),
    }
}
