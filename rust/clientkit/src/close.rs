//! A QUIC `CONNECTION_CLOSE` and the cause that it stands for.

use crate::codes::{alert_name, http3_name, quic_name};
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

/// QUIC reports a TLS alert as this number plus the alert (RFC 9001, section 4.8).
const CRYPTO_ERROR: u64 = 0x100;
/// QUIC transport error `CONNECTION_REFUSED`.
const QUIC_CONNECTION_REFUSED: u64 = 0x2;
/// `bad_certificate` to `certificate_unknown`, and `unknown_ca`: the alerts about the peer's certificate (RFC 8446).
const CERTIFICATE_ALERTS: [u64; 6] = [42, 43, 44, 45, 46, 48];

impl Close<'_> {
    /// This side closed because of what the peer sent; `verify_error` is what the certificate check said, if it failed.
    #[must_use]
    pub fn local(self, verify_error: Option<&str>) -> Verdict {
        let what = self.describe();
        let Some(alert) = self.alert() else {
            return Verdict::failed(
                Failure::ProtocolError,
                &format!("protocol violation by the peer: {what}"),
            );
        };
        if verify_error.is_some() || CERTIFICATE_ALERTS.contains(&alert) {
            let reason = verify_error.unwrap_or("certificate rejected");
            return Verdict::failed(Failure::TlsCertificate, &format!("{reason} ({what})"));
        }
        Verdict::failed(
            Failure::TlsError,
            &format!("we aborted the TLS handshake: {what}"),
        )
    }

    /// The peer closed before the body was complete.
    #[must_use]
    pub fn peer(self, established: bool) -> Verdict {
        let what = self.describe();
        let failure = if self.alert().is_some() {
            Failure::TlsError
        } else if !self.by_application && self.code == QUIC_CONNECTION_REFUSED && !established {
            Failure::ConnectionRefused
        } else {
            Failure::ConnectionReset
        };
        Verdict::failed(failure, &format!("the peer closed the connection: {what}"))
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
        let named = transport(0x100 + 80).local(Some("hostname mismatch"));
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
}
