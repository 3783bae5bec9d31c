//! Why a download ended, in the closed vocabulary that all Upshift clients share.
//!
//! Pure functions from what was seen (an `errno`, a clock) to a [`Verdict`]; a peer's close is in `close`.

use std::time::Duration;

use nix::errno::Errno;
use serde::Serialize;

use crate::code::FailureCode;
use crate::text::one_line;

/// How a download ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The whole file.
    Ok,
    /// A known error.
    Failed,
    /// A budget was hit: the true time or size is at least what is recorded.
    Censored,
}

/// The cause, when the outcome is not `ok`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// The address may not be contacted; no packet was sent.
    AddressRefused,
    /// This host has no route, or its firewall refuses.
    NetworkUnreachable,
    /// The server answered that the port is closed.
    ConnectionRefused,
    /// The handshake, TLS included, was not complete in time.
    ConnectTimeout,
    /// The server closed the connection or reset the stream.
    ConnectionReset,
    /// The certificate was rejected.
    TlsCertificate,
    /// TLS failed otherwise.
    TlsError,
    /// The server violated QUIC or HTTP.
    ProtocolError,
    /// The final status is not 200.
    HttpStatus,
    /// The end of the body came before the announced length.
    TruncatedBody,
    /// The body was longer than announced.
    LengthMismatch,
    /// Nothing arrived in the second half of the time budget.
    Stalled,
    /// The time budget ended while the response was arriving.
    TimeBudget,
    /// The byte budget ended it.
    ByteBudget,
    /// None of these.
    Unknown,
}

/// Outcome, cause, and one line of text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// How it ended.
    pub outcome: Outcome,
    /// Why, unless it is ok.
    pub failure: Option<Failure>,
    /// What exactly happened, and the number that belongs to it.
    pub code: Option<FailureCode>,
    /// The number of an alert or an error code.
    pub number: Option<u64>,
    /// As text.
    pub detail: Option<String>,
}

impl Verdict {
    /// The whole file was received.
    #[must_use]
    pub fn ok() -> Self {
        Self {
            outcome: Outcome::Ok,
            failure: None,
            code: None,
            number: None,
            detail: None,
        }
    }

    /// A known error ended it.
    #[must_use]
    pub fn failed(failure: Failure, detail: &str) -> Self {
        Self {
            outcome: Outcome::Failed,
            failure: Some(failure),
            code: None,
            number: None,
            detail: Some(one_line(detail)),
        }
    }

    /// The same with the failure code, if there is one.
    #[must_use]
    pub fn because(self, code: impl Into<Option<FailureCode>>) -> Self {
        Self {
            code: code.into(),
            ..self
        }
    }

    /// The same with the failure code and its number.
    #[must_use]
    pub fn because_of(self, (code, number): (FailureCode, Option<u64>)) -> Self {
        Self {
            code: Some(code),
            number,
            ..self
        }
    }

    /// A budget ended it.
    #[must_use]
    pub fn censored(failure: Failure, detail: &str) -> Self {
        Self {
            outcome: Outcome::Censored,
            failure: Some(failure),
            code: None,
            number: None,
            detail: Some(one_line(detail)),
        }
    }

    /// A system call on the UDP socket failed; `code` is the failure code if that was before the handshake was complete.
    #[must_use]
    pub fn of_errno(errno: Errno, established: bool, code: Option<FailureCode>) -> Self {
        let text = errno.desc();
        match errno {
            Errno::ECONNREFUSED if established => Self::failed(
                Failure::ConnectionReset,
                "ICMP port unreachable after the handshake",
            ),
            Errno::ECONNREFUSED => {
                Self::failed(Failure::ConnectionRefused, "ICMP port unreachable").because(code)
            }
            // A blackhole route (fib_props in net/ipv4/fib_semantics.c).
            Errno::EINVAL if !established => Self::failed(Failure::NetworkUnreachable, text).because(code),
            Errno::ENETUNREACH
            | Errno::EHOSTUNREACH
            | Errno::ENETDOWN
            | Errno::EHOSTDOWN
            | Errno::ENONET
            | Errno::ENOPROTOOPT // ICMP protocol unreachable
            | Errno::EADDRNOTAVAIL
            | Errno::EAFNOSUPPORT
            | Errno::EACCES
            | Errno::EPERM
            | Errno::EMSGSIZE => Self::failed(Failure::NetworkUnreachable, text).because(code),
            _ => Self::failed(Failure::Unknown, &format!("socket: {text}")),
        }
    }

    /// The idle timer fired: nothing was received for that long.
    #[must_use]
    pub fn of_idle_timeout(established: bool) -> Self {
        if established {
            Self::censored(Failure::Stalled, "idle timeout: nothing more from the peer")
        } else {
            Self::failed(
                Failure::ConnectTimeout,
                "idle timeout before the handshake completed",
            )
        }
    }

    /// The time budget was hit. `last_stream_byte` is the time of the latest byte of the response, headers included.
    #[must_use]
    pub fn of_spent_budget(
        budget: Duration,
        established: bool,
        last_stream_byte: Option<Duration>,
    ) -> Self {
        let seconds = budget.as_secs_f64();
        if !established {
            return Self::failed(
                Failure::ConnectTimeout,
                &format!("no handshake within {seconds} s"),
            );
        }
        match last_stream_byte {
            Some(at) if at >= budget / 2 => Self::censored(
                Failure::TimeBudget,
                &format!("not complete within {seconds} s"),
            ),
            Some(at) => Self::censored(
                Failure::Stalled,
                &format!("no byte after {:.3} s of {seconds} s", at.as_secs_f64()),
            ),
            None => Self::censored(
                Failure::Stalled,
                &format!("no byte of a response within {seconds} s"),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

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
            Verdict::of_errno(Errno::ECONNREFUSED, false, None).failure,
            Some(Failure::ConnectionRefused)
        );
        assert_eq!(
            Verdict::of_errno(Errno::ECONNREFUSED, true, None).failure,
            Some(Failure::ConnectionReset)
        );
        assert_eq!(
            Verdict::of_errno(Errno::ENETUNREACH, false, None).failure,
            Some(Failure::NetworkUnreachable)
        );
        assert_eq!(
            Verdict::of_errno(Errno::ENOPROTOOPT, false, None).failure,
            Some(Failure::NetworkUnreachable)
        );
        assert_eq!(
            Verdict::of_errno(Errno::EINVAL, false, None).failure,
            Some(Failure::NetworkUnreachable)
        );
        assert_eq!(
            Verdict::of_errno(Errno::EINVAL, true, None).failure,
            Some(Failure::Unknown)
        );
    }

    #[test]
    fn the_budget_is_hit() {
        let budget = 10 * SECOND;
        let timeout = Verdict::of_spent_budget(budget, false, None);
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
            let verdict = Verdict::of_spent_budget(budget, true, last);
            assert_eq!(
                (verdict.outcome, verdict.failure),
                (Outcome::Censored, Some(word)),
                "{last:?}"
            );
        }
        assert_eq!(Verdict::of_idle_timeout(true).outcome, Outcome::Censored);
        assert_eq!(
            Verdict::of_idle_timeout(false).failure,
            Some(Failure::ConnectTimeout)
        );
    }
}
