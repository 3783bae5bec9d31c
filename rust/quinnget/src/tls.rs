//! TLS by rustls: the same groups and trust anchors as every client, and a note of what was agreed on, which quinn does
//! not tell.

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, OnceLock};

use clientkit::FailureCode;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};

use clientkit::UnreadableCa;
use rustls::crypto::cipher::{AeadKey, Iv};
use rustls::crypto::ring::{default_provider, kx_group};
use rustls::crypto::{ActiveKeyExchange, CryptoProvider, SupportedKxGroup};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::quic::{Algorithm, HeaderProtectionKey, PacketKey};
use rustls::{
    CertificateError, CipherSuite, ClientConfig, DigitallySignedStruct, Error, NamedGroup,
    RootCertStore, SignatureScheme, SupportedCipherSuite, Tls13CipherSuite,
};

use crate::options::SetupError;

/// Cipher suite and group of the latest keys, by their numbers in the TLS registry: this process makes one connection.
static SUITE: AtomicU16 = AtomicU16::new(0);
static GROUP: AtomicU16 = AtomicU16::new(0);
/// Why the certificate was rejected: quinn makes text of it.
static REJECTED: OnceLock<CertificateError> = OnceLock::new();

/// rustls's configuration with exactly the given trust anchors.
pub fn config(ca: &Path) -> Result<ClientConfig, SetupError> {
    let unreadable = || UnreadableCa(ca.to_owned());
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(ca).map_err(|_| unreadable())?;
    let certificates: Result<Vec<_>, _> = certificates.collect();
    let (added, _) = roots.add_parsable_certificates(certificates.map_err(|_| unreadable())?);
    if added == 0 {
        return Err(unreadable().into());
    }
    let provider = Arc::new(provider());
    let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
        .build()
        .map_err(|_| unreadable())?;
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(NotedVerifier(inner)))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h3".to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    Ok(config)
}

/// Cipher suite and group of an established connection, as their registry names them.
pub fn agreed() -> (Option<&'static str>, Option<&'static str>) {
    let suite = CipherSuite::from(SUITE.load(Ordering::Relaxed));
    let cipher = match suite {
        CipherSuite::TLS13_AES_128_GCM_SHA256 => Some("TLS_AES_128_GCM_SHA256"),
        CipherSuite::TLS13_AES_256_GCM_SHA384 => Some("TLS_AES_256_GCM_SHA384"),
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => Some("TLS_CHACHA20_POLY1305_SHA256"),
        _ => None,
    };
    let group = match NamedGroup::from(GROUP.load(Ordering::Relaxed)) {
        NamedGroup::X25519 => Some("X25519"),
        NamedGroup::secp256r1 => Some("P-256"),
        NamedGroup::secp384r1 => Some("P-384"),
        _ => None,
    };
    (cipher, group)
}

/// Why the certificate was rejected, if it was.
pub fn rejected() -> Option<(Option<FailureCode>, String)> {
    let error = REJECTED.get()?;
    let code = match error {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            Some(FailureCode::Expired)
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            Some(FailureCode::NotYetValid)
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            Some(FailureCode::WrongName)
        }
        CertificateError::UnknownIssuer => Some(FailureCode::UnknownCa),
        _ => None,
    };
    Some((code, error.to_string()))
}

/// rustls's own verifier, which notes why it rejects a certificate.
#[derive(Debug)]
struct NotedVerifier(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for NotedVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.0
            .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
            .inspect_err(|error| {
                if let Error::InvalidCertificate(error) = error {
                    let _ = REJECTED.set(error.clone());
                }
            })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// ring's algorithms; rustls sends a key share for the first group only, so that the `ClientHello` fits one datagram.
fn provider() -> CryptoProvider {
    let groups = [kx_group::X25519, kx_group::SECP256R1, kx_group::SECP384R1];
    let default = default_provider();
    CryptoProvider {
        kx_groups: groups.map(|group| leaked(NotedGroup(group)) as _).to_vec(),
        cipher_suites: default
            .cipher_suites
            .iter()
            .copied()
            .filter_map(noted)
            .collect(),
        ..default
    }
}

/// A value for the rest of this process, which ends with its one download: rustls wants constants.
fn leaked<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

/// A suite of TLS 1.3 that notes when it makes keys.
fn noted(suite: SupportedCipherSuite) -> Option<SupportedCipherSuite> {
    let suite = suite.tls13()?;
    let algorithm = NotedSuite {
        suite: suite.common.suite,
        inner: suite.quic?,
    };
    Some(SupportedCipherSuite::Tls13(leaked(Tls13CipherSuite {
        common: rustls::crypto::CipherSuiteCommon {
            suite: suite.common.suite,
            hash_provider: suite.common.hash_provider,
            confidentiality_limit: suite.common.confidentiality_limit,
        },
        hkdf_provider: suite.hkdf_provider,
        aead_alg: suite.aead_alg,
        quic: Some(leaked(algorithm)),
    })))
}

struct NotedSuite {
    suite: CipherSuite,
    inner: &'static dyn Algorithm,
}

impl Algorithm for NotedSuite {
    fn packet_key(&self, key: AeadKey, iv: Iv) -> Box<dyn PacketKey> {
        self.inner.packet_key(key, iv)
    }

    /// Called for Initial, Handshake and application data, in this order.
    fn header_protection_key(&self, key: AeadKey) -> Box<dyn HeaderProtectionKey> {
        SUITE.store(self.suite.into(), Ordering::Relaxed);
        self.inner.header_protection_key(key)
    }

    fn aead_key_len(&self) -> usize {
        self.inner.aead_key_len()
    }
}

struct NotedGroup(&'static dyn SupportedKxGroup);

impl fmt::Debug for NotedGroup {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

impl SupportedKxGroup for NotedGroup {
    /// Called for the first group, and again for another if the server wants that one.
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, rustls::Error> {
        GROUP.store(self.name().into(), Ordering::Relaxed);
        self.0.start()
    }

    fn name(&self) -> NamedGroup {
        self.0.name()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_ca_file_is_one_sentence() {
        for bad in ["/dev/null", "/nonexistent.pem"] {
            let Err(error) = config(Path::new(bad)) else {
                panic!("accepted {bad}")
            };
            assert_eq!(
                error.to_string(),
                format!("{bad} is not a readable PEM file with CA certificates")
            );
        }
    }

    #[test]
    fn groups_and_suites_are_those_of_the_other_clients() {
        let provider = provider();
        let groups: Vec<_> = provider
            .kx_groups
            .iter()
            .map(|group| group.name())
            .collect();
        assert_eq!(
            groups,
            [
                NamedGroup::X25519,
                NamedGroup::secp256r1,
                NamedGroup::secp384r1
            ]
        );
        assert_eq!(provider.cipher_suites.len(), 3);
    }
}
