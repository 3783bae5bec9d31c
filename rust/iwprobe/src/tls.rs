//! TLS without TCP: bytes in, bytes out. Certificates are not judged, sessions not resumed.

use std::io::{Read, Write};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientConfig, ClientConnection, Resumption};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, Error, ProtocolVersion, SignatureScheme};

/// The settings of all connections: TLS 1.3 and 1.2, no post-quantum key share (the `ClientHello` is one segment), ALPN
/// http/1.1.
///
/// # Errors
/// The cryptography does not support these versions.
pub fn settings() -> Result<Arc<ClientConfig>, Error> {
    let provider = Arc::new(ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(NotJudged(provider)))
        .with_no_client_auth();
    config.resumption = Resumption::disabled();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Accepts every certificate: we measure the transport, and send nothing that is secret.
#[derive(Debug)]
struct NotJudged(Arc<CryptoProvider>);

impl ServerCertVerifier for NotJudged {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// One connection's TLS.
pub struct Tls {
    connection: ClientConnection,
    records: Records,
    failed: bool,
}

impl Tls {
    /// A connection to `host`, which is the SNI unless it is an address.
    ///
    /// # Errors
    /// `host` is neither a name nor an address.
    pub fn new(config: &Arc<ClientConfig>, host: &str) -> Result<Self, Error> {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(bare.to_owned())
            .map_err(|_| Error::General(format!("{host} is not a name")))?;
        Ok(Self {
            connection: ClientConnection::new(config.clone(), name)?,
            records: Records::default(),
            failed: false,
        })
    }

    /// Appends what is to be sent now.
    pub fn output(&mut self, out: &mut Vec<u8>) {
        while !self.failed && self.connection.wants_write() {
            if self.connection.write_tls(out).is_err() {
                self.failed = true;
            }
        }
    }

    /// Encrypts a request; the handshake must be complete.
    pub fn request(&mut self, request: &[u8], out: &mut Vec<u8>) {
        if self.connection.writer().write_all(request).is_err() {
            self.failed = true;
        }
        self.output(out);
    }

    /// Reads what the server sent; `plain` is called with what it decrypts to.
    pub fn input(&mut self, mut data: &[u8], mut plain: impl FnMut(&[u8])) {
        self.records.pass(data);
        let mut buffer = [0; 4096];
        while !data.is_empty() && !self.failed {
            let good = self
                .connection
                .read_tls(&mut data)
                .is_ok_and(|count| count > 0)
                && self.connection.process_new_packets().is_ok();
            if !good {
                self.failed = true;
            }
            while let Ok(count @ 1..) = self.connection.reader().read(&mut buffer) {
                plain(&buffer[..count]);
            }
        }
    }

    /// Whether requests can be sent.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.failed && !self.connection.is_handshaking()
    }

    /// Whether the server does not speak TLS with us.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// Whether the last record received is not whole.
    #[must_use]
    pub fn is_within_record(&self) -> bool {
        self.records.is_within()
    }

    /// 12, 13, or 0 as long as it is not known.
    #[must_use]
    pub fn version(&self) -> u8 {
        match self.connection.protocol_version() {
            Some(ProtocolVersion::TLSv1_2) => 12,
            Some(ProtocolVersion::TLSv1_3) => 13,
            _ => 0,
        }
    }
}

/// Follows the boundaries of records (RFC 8446, section 5.1), which are not encrypted.
#[derive(Debug, Default)]
struct Records {
    header: [u8; 5],
    header_bytes: usize,
    body_left: usize,
}

impl Records {
    fn pass(&mut self, mut data: &[u8]) {
        while !data.is_empty() {
            if self.header_bytes < 5 {
                let count = data.len().min(5 - self.header_bytes);
                self.header[self.header_bytes..self.header_bytes + count]
                    .copy_from_slice(&data[..count]);
                self.header_bytes += count;
                data = &data[count..];
                if self.header_bytes < 5 {
                    return;
                }
                self.body_left = usize::from(u16::from_be_bytes([self.header[3], self.header[4]]));
            }
            let count = data.len().min(self.body_left);
            self.body_left -= count;
            data = &data[count..];
            if self.body_left == 0 {
                self.header_bytes = 0;
            }
        }
    }

    fn is_within(&self) -> bool {
        self.header_bytes > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_hello_is_one_segment_without_a_post_quantum_share() {
        let mut tls = Tls::new(&settings().unwrap(), "www.example.org").unwrap();
        let mut hello = Vec::new();
        tls.output(&mut hello);
        assert!((100..=536).contains(&hello.len()), "{} bytes", hello.len());
        assert!(hello.windows(15).any(|at| at == b"www.example.org"));
        assert!(hello.windows(8).any(|at| at == b"http/1.1"));
        assert!(!tls.is_open() && !tls.has_failed());
    }

    #[test]
    fn an_address_has_no_sni() {
        for host in ["198.18.0.1", "fd00:198:18::1", "[fd00:198:18::1]"] {
            let mut hello = Vec::new();
            Tls::new(&settings().unwrap(), host)
                .unwrap()
                .output(&mut hello);
            assert!(!hello.windows(6).any(|at| at == b"198.18"), "{host}");
        }
        assert!(Tls::new(&settings().unwrap(), "a b").is_err());
    }

    #[test]
    fn garbage_is_no_tls() {
        let mut tls = Tls::new(&settings().unwrap(), "a.test").unwrap();
        tls.output(&mut Vec::new());
        tls.input(b"HTTP/1.1 400 Bad Request\r\n\r\n", |_| {});
        assert!(tls.has_failed());
    }

    #[test]
    fn boundaries_of_records_however_they_are_cut() {
        let bytes = [23, 3, 3, 0, 2, 1, 1, 23, 3, 3, 0, 0, 23, 3, 3, 0, 1, 9];
        for cut in 0..=bytes.len() {
            let mut records = Records::default();
            records.pass(&bytes[..cut]);
            assert_eq!(records.is_within(), ![0, 7, 12, 18].contains(&cut), "{cut}");
            records.pass(&bytes[cut..]);
            assert!(!records.is_within());
        }
    }
}
