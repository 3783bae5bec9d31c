//! Why a download ended, in the closed vocabulary that all Upshift clients share.
//!
//! Pure functions from what was seen (an `errno`, a QUIC error code, a clock) to a [`Verdict`].

use std::time::Duration;

use nix::errno::Errno;
use serde::Serialize;

use crate::codes::{alert_name, http3_name, quic_name};
use crate::text::one_line;

/// How a download ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Ok,
    Failed,
    /// A budget was hit: the true time or size is at least what is recorded.
    Censored,
}

/// The cause, when the outcome is not `ok`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    AddressRefused,
    NetworkUnreachable,
    ConnectionRefused,
    ConnectTimeout,
    ConnectionReset,
    TlsCertificate,
    TlsError,
    ProtocolError,
    HttpStatus,
    TruncatedBody,
    LengthMismatch,
    Stalled,
    TimeBudget,
    ByteBudget,
    Unknown,
}

/// Outcome, cause, and one line for a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    pub outcome: Outcome,
    pub failure: Option<Failure>,
    pub detail: Option<String>,
}

impl Verdict {
    pub fn ok() -> Self {
        Self {
            outcome: Outcome::Ok,
            failure: None,
            detail: None,
        }
    }

    pub fn failed(failure: Failure, detail: &str) -> Self {
        Self {
            outcome: Outcome::Failed,
            failure: Some(failure),
            detail: Some(one_line(detail)),
        }
    }

    pub fn censored(failure: Failure, detail: &str) -> Self {
        Self {
            outcome: Outcome::Censored,
            failure: Some(failure),
            detail: Some(one_line(detail)),
        }
    }
}

/// A `CONNECTION_CLOSE`, sent or received, without borrowing from quiche.
#[derive(Debug, Clone, Copy)]
pub struct Close<'a> {
    /// The application (HTTP/3) closed, not the transport.
    pub by_application: bool,
    pub code: u64,
    pub reason: &'a [u8],
}

/// QUIC reports a TLS alert as this number plus the alert (RFC 9001, section 4.8).
const CRYPTO_ERROR: u64 = 0x100;
/// QUIC transport error `CONNECTION_REFUSED`.
const QUIC_CONNECTION_REFUSED: u64 = 0x2;
/// `bad_certificate` to `certificate_unknown`, and `unknown_ca`: the alerts about the peer's certificate (RFC 8446).
const CERTIFICATE_ALERTS: [u64; 6] = [42, 43, 44, 45, 46, 48];

/// A system call on the UDP socket failed.
pub fn of_errno(errno: Errno, established: bool) -> Verdict {
    let text = errno.desc();
    match errno {
        Errno::ECONNREFUSED if established => Verdict::failed(
            Failure::ConnectionReset,
            "ICMP port unreachable after the handshake",
        ),
        Errno::ECONNREFUSED => Verdict::failed(Failure::ConnectionRefused, "ICMP port unreachable"),
        Errno::ENETUNREACH
        | Errno::EHOSTUNREACH
        | Errno::ENETDOWN
        | Errno::EHOSTDOWN
        | Errno::ENONET
        | Errno::EADDRNOTAVAIL
        | Errno::EAFNOSUPPORT
        | Errno::EACCES
        | Errno::EPERM
        | Errno::EMSGSIZE => Verdict::failed(Failure::NetworkUnreachable, text),
        _ => Verdict::failed(Failure::Unknown, &format!("socket: {text}")),
    }
}

/// This side closed because of what the peer sent; `verify_error` is what the certificate check said, if it failed.
pub fn of_local_close(close: Close<'_>, verify_error: Option<&str>) -> Verdict {
    let what = describe(close);
    let Some(alert) = alert(close) else {
        return Verdict::failed(
            Failure::ProtocolError,
            &format!("the peer broke the protocol: {what}"),
        );
    };
    if verify_error.is_some() || CERTIFICATE_ALERTS.contains(&alert) {
        let reason = verify_error.unwrap_or("certificate rejected");
        return Verdict::failed(Failure::TlsCertificate, &format!("{reason} ({what})"));
    }
    Verdict::failed(
        Failure::TlsError,
        &format!("we ended the TLS handshake: {what}"),
    )
}

/// The peer closed before the body was complete.
pub fn of_peer_close(close: Close<'_>, established: bool) -> Verdict {
    let what = describe(close);
    let failure = if alert(close).is_some() {
        Failure::TlsError
    } else if !close.by_application && close.code == QUIC_CONNECTION_REFUSED && !established {
        Failure::ConnectionRefused
    } else {
        Failure::ConnectionReset
    };
    Verdict::failed(failure, &format!("the peer closed the connection: {what}"))
}

/// The idle timer fired: nothing came from the peer for that long.
pub fn of_idle_timeout(established: bool) -> Verdict {
    if established {
        Verdict::censored(Failure::Stalled, "idle timeout: the peer fell silent")
    } else {
        Verdict::failed(
            Failure::ConnectTimeout,
            "idle timeout before the handshake completed",
        )
    }
}

/// The time budget was hit. `last_stream_byte` is the time of the latest byte of the response, headers included.
pub fn of_spent_budget(
    budget: Duration,
    established: bool,
    last_stream_byte: Option<Duration>,
) -> Verdict {
    let seconds = budget.as_secs_f64();
    if !established {
        return Verdict::failed(
            Failure::ConnectTimeout,
            &format!("no handshake within {seconds} s"),
        );
    }
    match last_stream_byte {
        Some(at) if at >= budget / 2 => Verdict::censored(
            Failure::TimeBudget,
            &format!("not complete within {seconds} s"),
        ),
        Some(at) => Verdict::censored(
            Failure::Stalled,
            &format!("no byte after {:.3} s of {seconds} s", at.as_secs_f64()),
        ),
        None => Verdict::censored(
            Failure::Stalled,
            &format!("no byte of a response within {seconds} s"),
        ),
    }
}

/// The TLS alert in a close, if it holds one.
fn alert(close: Close<'_>) -> Option<u64> {
    let alerts = CRYPTO_ERROR..CRYPTO_ERROR + 0x100;
    (!close.by_application && alerts.contains(&close.code)).then(|| close.code - CRYPTO_ERROR)
}

fn describe(close: Close<'_>) -> String {
    let name = match (close.by_application, alert(close)) {
        (true, _) => format!(
            "HTTP/3 error {:#x}{}",
            close.code,
            named(http3_name(close.code))
        ),
        (false, Some(alert)) => format!("TLS alert {alert}{}", named(alert_name(alert))),
        (false, None) => format!(
            "QUIC error {:#x}{}",
            close.code,
            named(quic_name(close.code))
        ),
    };
    if close.reason.is_empty() {
        name
    } else {
        format!("{name}: {}", String::from_utf8_lossy(close.reason))
    }
}

fn named(name: Option<&str>) -> String {
    name.map(|name| format!(" {name}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn transport(code: u64) -> Close<'static> {
        Close {
            by_application: false,
            code,
            reason: b"",
        }
    }

    #[test]
    fn words_are_the_shared_vocabulary() {
        let words = [
            (Failure::AddressRefused, "address_refused"),
            (Failure::NetworkUnreachable, "network_unreachable"),
            (Failure::ConnectionRefused, "connection_refused"),
            (Failure::ConnectTimeout, "connect_timeout"),
            (Failure::ConnectionReset, "connection_reset"),
            (Failure::TlsCertificate, "tls_certificate"),
            (Failure::TlsError, "tls_error"),
            (Failure::ProtocolError, "protocol_error"),
            (Failure::HttpStatus, "http_status"),
            (Failure::TruncatedBody, "truncated_body"),
            (Failure::LengthMismatch, "length_mismatch"),
            (Failure::Stalled, "stalled"),
            (Failure::TimeBudget, "time_budget"),
            (Failure::ByteBudget, "byte_budget"),
            (Failure::Unknown, "unknown"),
        ];
        for (failure, word) in words {
            assert_eq!(serde_json::to_value(failure).unwrap(), word);
        }
        assert_eq!(serde_json::to_value(Outcome::Censored).unwrap(), "censored");
    }

    #[test]
    fn socket_errors() {
        assert_eq!(
            of_errno(Errno::ECONNREFUSED, false).failure,
            Some(Failure::ConnectionRefused)
        );
        assert_eq!(
            of_errno(Errno::ECONNREFUSED, true).failure,
            Some(Failure::ConnectionReset)
        );
        assert_eq!(
            of_errno(Errno::ENETUNREACH, false).failure,
            Some(Failure::NetworkUnreachable)
        );
        assert_eq!(
            of_errno(Errno::EINVAL, false).failure,
            Some(Failure::Unknown)
        );
    }

    #[test]
    fn certificate_or_other_tls_trouble() {
        let unknown_ca = of_local_close(transport(0x100 + 48), None);
        assert_eq!(unknown_ca.failure, Some(Failure::TlsCertificate));
        let named = of_local_close(transport(0x100 + 80), Some("hostname mismatch"));
        assert_eq!(named.failure, Some(Failure::TlsCertificate));
        assert_eq!(
            named.detail.unwrap(),
            "hostname mismatch (TLS alert 80 internal_error)"
        );
        assert_eq!(
            of_local_close(transport(0x100 + 40), None).failure,
            Some(Failure::TlsError)
        );
        assert_eq!(
            of_local_close(transport(0xa), None).failure,
            Some(Failure::ProtocolError)
        );
    }

    #[test]
    fn the_peer_closes() {
        assert_eq!(
            of_peer_close(transport(0x178), false).failure,
            Some(Failure::TlsError)
        );
        assert_eq!(
            of_peer_close(transport(0x130), false).failure,
            Some(Failure::TlsError),
            "our certificate is not asked"
        );
        assert_eq!(
            of_peer_close(transport(2), false).failure,
            Some(Failure::ConnectionRefused)
        );
        assert_eq!(
            of_peer_close(transport(2), true).failure,
            Some(Failure::ConnectionReset)
        );
        let close = Close {
            by_application: true,
            code: 0x102,
            reason: b"oh\r\nno",
        };
        let verdict = of_peer_close(close, true);
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
            of_peer_close(application, true).failure,
            Some(Failure::ConnectionReset),
            "0x130 is no alert here"
        );
    }

    #[test]
    fn the_budget_is_hit() {
        let budget = 10 * SECOND;
        let timeout = of_spent_budget(budget, false, None);
        assert_eq!(
            (timeout.outcome, timeout.failure),
            (Outcome::Failed, Some(Failure::ConnectTimeout))
        );
        for (last, word) in [
            (None, Failure::Stalled),
            (Some(4 * SECOND), Failure::Stalled),
            (Some(5 * SECOND), Failure::TimeBudget),
            (Some(9 * SECOND), Failure::TimeBudget),
        ] {
            let verdict = of_spent_budget(budget, true, last);
            assert_eq!(
                (verdict.outcome, verdict.failure),
                (Outcome::Censored, Some(word)),
                "{last:?}"
            );
        }
        assert_eq!(of_idle_timeout(true).outcome, Outcome::Censored);
        assert_eq!(
            of_idle_timeout(false).failure,
            Some(Failure::ConnectTimeout)
        );
    }
}
