//! A QUIC `CONNECTION_CLOSE`, the cause that it stands for, and the names of its codes.

use crate::code::FailureCode;
use crate::failure::{Failure, Verdict};

/// A `CONNECTION_CLOSE`, sent or received, without borrowing from quiche.
#[derive(Debug, Clone, Copy)]
pub struct Close<'a> {
    /// The application (HTTP/3) closed, not the transport.
    pub by_application: bool,
    /// The error code.
    pub code: u64,
    /// The reason phrase, as it came.
    pub reason: &'a [u8],
}

/// Why the certificate was rejected.
#[derive(Debug, Clone, Copy)]
pub struct Rejected<'a> {
    /// The word, if the reason has one.
    pub code: Option<FailureCode>,
    /// As text.
    pub why: &'a str,
}

/// QUIC reports a TLS alert as this number plus the alert (RFC 9001, section 4.8).
const CRYPTO_ERROR: u64 = 0x100;
/// QUIC transport error `CONNECTION_REFUSED`.
const QUIC_CONNECTION_REFUSED: u64 = 0x2;
/// `bad_certificate` to `certificate_unknown`, and `unknown_ca`: the alerts about the peer's certificate (RFC 8446).
const CERTIFICATE_ALERTS: [u64; 6] = [42, 43, 44, 45, 46, 48];

impl Close<'_> {
    /// This side closed because of what the peer sent; `rejected` is what the certificate check said, if it failed.
    #[must_use]
    pub fn local(self, rejected: Option<Rejected<'_>>) -> Verdict {
        let what = self.describe();
        let Some(alert) = self.alert() else {
            let code = if self.by_application {
                FailureCode::of_http3(self.code)
            } else {
                (FailureCode::QuicTransport, Some(self.code))
            };
            let detail = format!("protocol violation by the peer: {what}");
            return Verdict::failed(Failure::ProtocolError, &detail).because_of(code);
        };
        if rejected.is_some() || CERTIFICATE_ALERTS.contains(&alert) {
            let reason = rejected.map_or("certificate rejected", |rejected| rejected.why);
            return Verdict::failed(Failure::TlsCertificate, &format!("{reason} ({what})"))
                .because(rejected.and_then(|rejected| rejected.code));
        }
        Verdict::failed(
            Failure::TlsError,
            &format!("we aborted the TLS handshake: {what}"),
        )
        .because_of(FailureCode::of_alert(alert))
    }

    /// The peer closed before the body was complete.
    #[must_use]
    pub fn peer(self, established: bool) -> Verdict {
        let what = self.describe();
        let detail = format!("the peer closed the connection: {what}");
        if let Some(alert) = self.alert() {
            Verdict::failed(Failure::TlsError, &detail).because_of(FailureCode::of_alert(alert))
        } else if !self.by_application && self.code == QUIC_CONNECTION_REFUSED && !established {
            Verdict::failed(Failure::ConnectionRefused, &detail)
                .because_of((FailureCode::QuicTransport, Some(self.code)))
        } else {
            Verdict::failed(Failure::ConnectionReset, &detail)
        }
    }

    /// The TLS alert in a close, if it holds one.
    fn alert(self) -> Option<u64> {
        let alerts = CRYPTO_ERROR..CRYPTO_ERROR + 0x100;
        (!self.by_application && alerts.contains(&self.code)).then(|| self.code - CRYPTO_ERROR)
    }

    fn describe(self) -> String {
        let name = match (self.by_application, self.alert()) {
            (true, _) => format!(
                "HTTP/3 error {:#x}{}",
                self.code,
                named(http3_name(self.code))
            ),
            (false, Some(alert)) => format!("TLS alert {alert}{}", named(alert_name(alert))),
            (false, None) => format!("QUIC error {:#x}{}", self.code, named(quic_name(self.code))),
        };
        if self.reason.is_empty() {
            name
        } else {
            format!("{name}: {}", String::from_utf8_lossy(self.reason))
        }
    }
}

fn named(name: Option<&str>) -> String {
    name.map(|name| format!(" {name}")).unwrap_or_default()
}

/// The server gave the response up, with an HTTP/3 error code.
#[must_use]
pub fn stream_reset(code: u64) -> Verdict {
    let name = http3_name(code).unwrap_or("no registered code");
    Verdict::failed(
        Failure::ConnectionReset,
        &format!("the peer reset the stream: {code:#x} {name}"),
    )
}

/// The name of an HTTP/3 error code (RFC 9114, section 8.1).
fn http3_name(code: u64) -> Option<&'static str> {
    const NAMES: [&str; 17] = [
        "H3_NO_ERROR",
        "H3_GENERAL_PROTOCOL_ERROR",
        "H3_INTERNAL_ERROR",
        "H3_STREAM_CREATION_ERROR",
        "H3_CLOSED_CRITICAL_STREAM",
        "H3_FRAME_UNEXPECTED",
        "H3_FRAME_ERROR",
        "H3_EXCESSIVE_LOAD",
        "H3_ID_ERROR",
        "H3_SETTINGS_ERROR",
        "H3_MISSING_SETTINGS",
        "H3_REQUEST_REJECTED",
        "H3_REQUEST_CANCELLED",
        "H3_REQUEST_INCOMPLETE",
        "H3_MESSAGE_ERROR",
        "H3_CONNECT_ERROR",
        "H3_VERSION_FALLBACK",
    ];
    usize::try_from(code.checked_sub(0x100)?)
        .ok()
        .and_then(|index| NAMES.get(index).copied())
}

/// The name of a QUIC transport error code (RFC 9000, section 20.1).
fn quic_name(code: u64) -> Option<&'static str> {
    const NAMES: [&str; 17] = [
        "NO_ERROR",
        "INTERNAL_ERROR",
        "CONNECTION_REFUSED",
        "FLOW_CONTROL_ERROR",
        "STREAM_LIMIT_ERROR",
        "STREAM_STATE_ERROR",
        "FINAL_SIZE_ERROR",
        "FRAME_ENCODING_ERROR",
        "TRANSPORT_PARAMETER_ERROR",
        "CONNECTION_ID_LIMIT_ERROR",
        "PROTOCOL_VIOLATION",
        "INVALID_TOKEN",
        "APPLICATION_ERROR",
        "CRYPTO_BUFFER_EXCEEDED",
        "KEY_UPDATE_ERROR",
        "AEAD_LIMIT_REACHED",
        "NO_VIABLE_PATH",
    ];
    usize::try_from(code)
        .ok()
        .and_then(|index| NAMES.get(index).copied())
}

/// The name of a TLS alert that is likely to be met (RFC 8446, section 6).
fn alert_name(alert: u64) -> Option<&'static str> {
    Some(match alert {
        40 => "handshake_failure",
        42 => "bad_certificate",
        43 => "unsupported_certificate",
        44 => "certificate_revoked",
        45 => "certificate_expired",
        46 => "certificate_unknown",
        48 => "unknown_ca",
        70 => "protocol_version",
        80 => "internal_error",
        112 => "unrecognized_name",
        120 => "no_application_protocol",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transport(code: u64) -> Close<'static> {
        Close {
            by_application: false,
            code,
            reason: b"",
        }
    }

    #[test]
    fn certificate_or_other_tls_trouble() {
        let unknown_ca = transport(0x100 + 48).local(None);
        assert_eq!(unknown_ca.failure, Some(Failure::TlsCertificate));
        let named = transport(0x100 + 80).local(Some(Rejected {
            code: Some(FailureCode::WrongName),
            why: "hostname mismatch",
        }));
        assert_eq!(named.code, Some(FailureCode::WrongName));
        assert_eq!(named.failure, Some(Failure::TlsCertificate));
        assert_eq!(
            named.detail.unwrap(),
            "hostname mismatch (TLS alert 80 internal_error)"
        );
        assert_eq!(
            transport(0x100 + 40).local(None).failure,
            Some(Failure::TlsError)
        );
        assert_eq!(
            transport(0xa).local(None).failure,
            Some(Failure::ProtocolError)
        );
    }

    #[test]
    fn the_peer_closes() {
        assert_eq!(
            transport(0x178).peer(false).failure,
            Some(Failure::TlsError)
        );
        assert_eq!(
            transport(0x130).peer(false).failure,
            Some(Failure::TlsError),
            "our certificate is not asked"
        );
        assert_eq!(
            transport(2).peer(false).failure,
            Some(Failure::ConnectionRefused)
        );
        assert_eq!(
            transport(2).peer(true).failure,
            Some(Failure::ConnectionReset)
        );
        let close = Close {
            by_application: true,
            code: 0x102,
            reason: b"oh\r\nno",
        };
        let verdict = close.peer(true);
        assert_eq!(verdict.failure, Some(Failure::ConnectionReset));
        assert_eq!(
            verdict.detail.unwrap(),
            "the peer closed the connection: HTTP/3 error 0x102 H3_INTERNAL_ERROR: oh  no"
        );
        let application = Close {
            by_application: true,
            code: 0x130,
            reason: b"",
        };
        assert_eq!(
            application.peer(true).failure,
            Some(Failure::ConnectionReset),
            "0x130 is not an alert here"
        );
    }

    #[test]
    fn ends_of_the_tables() {
        assert_eq!(
            (http3_name(0xff), http3_name(0x100)),
            (None, Some("H3_NO_ERROR"))
        );
        assert_eq!(
            (http3_name(0x110), http3_name(0x111)),
            (Some("H3_VERSION_FALLBACK"), None)
        );
        assert_eq!(
            (quic_name(0), quic_name(0x10), quic_name(0x11)),
            (Some("NO_ERROR"), Some("NO_VIABLE_PATH"), None)
        );
        assert_eq!((alert_name(48), alert_name(1)), (Some("unknown_ca"), None));
        assert_eq!((http3_name(u64::MAX), quic_name(u64::MAX)), (None, None));
    }
}
