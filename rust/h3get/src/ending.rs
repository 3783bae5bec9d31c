//! How a download ended, where quiche or its HTTP/3 says so.

use clientkit::{Close, Failure, FailureCode, Verdict};
use quiche::h3;

use crate::quic;

/// Whether QUIC has ended the connection, and why; `fault` is what quiche last complained about.
pub fn of_connection(
    connection: &mut quiche::Connection,
    fault: Option<quiche::Error>,
) -> Option<Verdict> {
    let established = connection.is_established();
    if let Some(error) = connection.peer_error() {
        let close = Close {
            by_application: error.is_app,
            code: error.error_code,
            reason: &error.reason,
        };
        return Some(close.peer(established));
    }
    if fault == Some(quiche::Error::UnknownVersion) && !established {
        return Some(
            Verdict::failed(
                Failure::ProtocolError,
                "the server supports none of our QUIC versions",
            )
            .because(FailureCode::VersionNegotiation),
        );
    }
    if let Some(error) = connection.local_error().cloned() {
        let fault = fault.map(|fault| fault.to_string()).unwrap_or_default();
        let close = Close {
            by_application: error.is_app,
            code: error.error_code,
            reason: fault.as_bytes(),
        };
        return Some(close.local(quic::rejected(connection)));
    }
    if connection.is_timed_out() {
        return Some(Verdict::of_idle_timeout(established));
    }
    let reset = || Verdict::failed(Failure::ConnectionReset, "the peer sent a stateless reset");
    connection.is_closed().then(reset)
}

/// Its HTTP/3 cannot be read.
pub fn of_http3(error: &h3::Error) -> Verdict {
    const FRAME_ERROR: u64 = 0x106;
    let verdict = Verdict::failed(Failure::ProtocolError, &format!("HTTP/3: {error}"));
    match error {
        h3::Error::MessageError => verdict.because(FailureCode::HttpSyntax),
        // quiche reads on where the stream ended inside a frame (RFC 9114, section 7.1), and finds no stream any more.
        h3::Error::TransportError(quiche::Error::InvalidStreamState(_)) => {
            verdict.because_of(FailureCode::of_http3(FRAME_ERROR))
        }
        _ => verdict,
    }
}
