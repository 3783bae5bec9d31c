//! The code of a failure, closed like the first; `core.domain.FailureCode` explains each. How far a download got
//! is the failure code of a time-out or a reset: whoever reads the document sees that.

use std::net::IpAddr;

use nix::errno::Errno;
use serde::Serialize;

/// What exactly happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "explained in core/domain/outcome.py")]
pub enum FailureCode {
    IcmpPort,
    IcmpHost,
    IcmpNet,
    NoRoute,
    HostFirewall,
    Expired,
    NotYetValid,
    WrongName,
    UnknownCa,
    SelfSigned,
    Alert,
    Version,
    HttpSyntax,
    BadLength,
    Upgrade,
    H3Code,
    QuicTransport,
    VersionNegotiation,
}

/// An ICMP message that the kernel related to a socket: its type is "destination unreachable".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Icmp {
    /// Of IPv6.
    pub v6: bool,
    /// RFC 792, RFC 1812 section 5.2.7.1; RFC 4443, section 3.1.
    pub code: u8,
    /// Who sent it.
    pub from: Option<IpAddr>,
}

impl FailureCode {
    /// `X509_V_ERR_*` of OpenSSL and `BoringSSL` (include/openssl/x509.h).
    #[must_use]
    pub fn of_verification(number: i32) -> Option<Self> {
        Some(match number {
            9 => Self::NotYetValid,
            10 => Self::Expired,
            18 => Self::SelfSigned,
            62 | 64 => Self::WrongName,
            2 | 19..=21 => Self::UnknownCa,
            _ => return None,
        })
    }

    /// A TLS alert, sent or received, and its number where the word has one (RFC 8446, section 6).
    #[must_use]
    pub fn of_alert(number: u64) -> (Self, Option<u64>) {
        match number {
            70 => (Self::Version, None),
            _ => (Self::Alert, Some(number)),
        }
    }

    /// An HTTP/3 error for which this side gave up: a malformed message is one, the rest is the connection's.
    #[must_use]
    pub fn of_http3(number: u64) -> (Self, Option<u64>) {
        const MESSAGE_ERROR: u64 = 0x10e;
        match number {
            MESSAGE_ERROR => (Self::HttpSyntax, None),
            _ => (Self::H3Code, Some(number)),
        }
    }

    /// An error of the system before the handshake was complete. `local` and `peer` tell whether this host made the
    /// ICMP message itself.
    #[must_use]
    pub fn of_network(
        errno: Errno,
        icmp: Option<Icmp>,
        local: Option<IpAddr>,
        peer: IpAddr,
    ) -> Option<Self> {
        if let Some(icmp) = icmp {
            let ours = icmp.from.is_some() && icmp.from == local && local != Some(peer);
            return match (icmp.v6, icmp.code) {
                // Nobody on the link has the next hop's address: this host says so itself.
                (false, 1) | (true, 3) => Some(Self::IcmpHost),
                _ if ours => Some(Self::HostFirewall),
                (false, 3) | (true, 4) => Some(Self::IcmpPort),
                (false, 0 | 6 | 9 | 11) | (true, 0 | 2 | 6) => Some(Self::IcmpNet),
                (false, 2 | 7 | 8 | 10 | 12 | 13) | (true, 1 | 5) => Some(Self::IcmpHost),
                _ => None,
            };
        }
        Some(match errno {
            Errno::EPERM | Errno::EACCES => Self::HostFirewall,
            Errno::ECONNREFUSED => Self::IcmpPort,
            Errno::ENETUNREACH
            | Errno::EHOSTUNREACH
            | Errno::ENETDOWN
            | Errno::EHOSTDOWN
            | Errno::EADDRNOTAVAIL
            | Errno::EAFNOSUPPORT
            | Errno::EINVAL => Self::NoRoute,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_words() {
        let here: IpAddr = "198.18.0.1".parse().unwrap();
        let there: IpAddr = "198.18.0.2".parse().unwrap();
        let said = |code, from| {
            let icmp = Icmp {
                v6: false,
                code,
                from: Some(from),
            };
            FailureCode::of_network(Errno::EHOSTUNREACH, Some(icmp), Some(here), there)
        };
        assert_eq!(said(3, there), Some(FailureCode::IcmpPort));
        assert_eq!(said(13, there), Some(FailureCode::IcmpHost));
        assert_eq!(said(13, here), Some(FailureCode::HostFirewall));
        assert_eq!(said(1, here), Some(FailureCode::IcmpHost));
        assert_eq!(said(0, there), Some(FailureCode::IcmpNet));
        let alone = |errno| FailureCode::of_network(errno, None, None, there);
        assert_eq!(alone(Errno::ENETUNREACH), Some(FailureCode::NoRoute));
        assert_eq!(alone(Errno::EPERM), Some(FailureCode::HostFirewall));
        assert_eq!(alone(Errno::EMSGSIZE), None);
    }

    #[test]
    fn words_are_the_shared_vocabulary() {
        for (code, word) in [
            (FailureCode::IcmpPort, "icmp_port"),
            (FailureCode::UnknownCa, "unknown_ca"),
            (FailureCode::H3Code, "h3_code"),
            (FailureCode::VersionNegotiation, "version_negotiation"),
        ] {
            assert_eq!(serde_json::to_value(code).unwrap(), word);
        }
    }
}
