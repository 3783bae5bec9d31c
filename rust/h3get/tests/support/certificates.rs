//! A CA of our own, and certificates for servers, made with the TLS library that quiche brings along.

use std::path::{Path, PathBuf};

use boring::asn1::Asn1Time;
use boring::bn::BigNum;
use boring::ec::{EcGroup, EcKey};
use boring::hash::MessageDigest;
use boring::nid::Nid;
use boring::pkey::{PKey, Private};
use boring::x509::extension::{BasicConstraints, SubjectAlternativeName};
use boring::x509::{X509, X509Builder, X509NameBuilder};

/// A certificate authority that only these tests know.
pub struct Authority {
    key: PKey<Private>,
    certificate: X509,
    /// Its certificate, as PEM.
    pub file: PathBuf,
}

impl Authority {
    pub fn new(directory: &Path, name: &str) -> Self {
        let key = new_key();
        let mut builder = start(name, &key);
        builder
            .append_extension(&BasicConstraints::new().critical().ca().build().unwrap())
            .unwrap();
        builder.set_issuer_name(&common_name(name)).unwrap();
        builder.sign(&key, MessageDigest::sha256()).unwrap();
        let certificate = builder.build();
        let file = directory.join(format!("{name}.pem"));
        std::fs::write(&file, certificate.to_pem().unwrap()).unwrap();
        Self {
            key,
            certificate,
            file,
        }
    }

    /// Writes a server's certificate for `host` and its key.
    pub fn issue(&self, directory: &Path, host: &str) -> (PathBuf, PathBuf) {
        let key = new_key();
        let mut builder = start(host, &key);
        builder
            .set_issuer_name(self.certificate.subject_name())
            .unwrap();
        let context = builder.x509v3_context(Some(&self.certificate), None);
        let names = SubjectAlternativeName::new()
            .dns(host)
            .build(&context)
            .unwrap();
        builder.append_extension(&names).unwrap();
        builder.sign(&self.key, MessageDigest::sha256()).unwrap();
        let files = (directory.join("server.crt"), directory.join("server.key"));
        std::fs::write(&files.0, builder.build().to_pem().unwrap()).unwrap();
        std::fs::write(&files.1, key.private_key_to_pem_pkcs8().unwrap()).unwrap();
        files
    }
}

fn new_key() -> PKey<Private> {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
    PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap()
}

fn common_name(name: &str) -> boring::x509::X509Name {
    let mut builder = X509NameBuilder::new().unwrap();
    builder.append_entry_by_text("CN", name).unwrap();
    builder.build()
}

fn start(name: &str, key: &PKey<Private>) -> X509Builder {
    static SERIAL: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(1);
    let serial = SERIAL.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let mut builder = X509::builder().unwrap();
    builder.set_version(2).unwrap(); // X.509 v3
    builder
        .set_serial_number(&BigNum::from_u32(serial).unwrap().to_asn1_integer().unwrap())
        .unwrap();
    builder.set_subject_name(&common_name(name)).unwrap();
    builder.set_pubkey(key).unwrap();
    builder
        .set_not_before(&Asn1Time::days_from_now(0).unwrap())
        .unwrap();
    builder
        .set_not_after(&Asn1Time::days_from_now(2).unwrap())
        .unwrap();
    builder
}
