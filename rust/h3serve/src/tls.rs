//! TLS: one certificate for all names, or one for each.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use boring::error::ErrorStack;
use boring::pkey::{PKey, Private};
use boring::ssl::{NameType, SelectCertError, SslContextBuilder, SslMethod, SslOptions, SslRef};
use boring::x509::X509;
use thiserror::Error;

use crate::hosts::CertificateFiles;

/// Why certificates cannot be used.
#[derive(Debug, Error)]
pub enum CertificateError {
    #[error("{path}: {source}")]
    File { path: PathBuf, source: io::Error },
    #[error("{path}: {source}")]
    Pem { path: PathBuf, source: ErrorStack },
    #[error("{0}: contains no certificate")]
    Empty(PathBuf),
    #[error("TLS cannot be set up: {0}")]
    Library(#[from] ErrorStack),
}

struct Identity {
    chain: Vec<X509>,
    key: PKey<Private>,
}

impl Identity {
    fn read(chain_file: &Path, key_file: &Path) -> Result<Self, CertificateError> {
        let read = |path: &Path| {
            std::fs::read(path).map_err(|source| CertificateError::File {
                path: path.to_owned(),
                source,
            })
        };
        let chain =
            X509::stack_from_pem(&read(chain_file)?).map_err(|source| CertificateError::Pem {
                path: chain_file.to_owned(),
                source,
            })?;
        if chain.is_empty() {
            return Err(CertificateError::Empty(chain_file.to_owned()));
        }
        let key = PKey::private_key_from_pem(&read(key_file)?).map_err(|source| {
            CertificateError::Pem {
                path: key_file.to_owned(),
                source,
            }
        })?;
        Ok(Self { chain, key })
    }

    fn install(&self, ssl: &mut SslRef) -> Result<(), ErrorStack> {
        ssl.set_certificate(&self.chain[0])?;
        for certificate in &self.chain[1..] {
            ssl.add_chain_cert(certificate)?;
        }
        ssl.set_private_key(&self.key)
    }
}

fn builder() -> Result<SslContextBuilder, ErrorStack> {
    let mut builder = SslContextBuilder::new(SslMethod::tls())?;
    // Connections are never resumed: a ticket would be bytes on the wire for nothing.
    builder.set_options(SslOptions::NO_TICKET);
    Ok(builder)
}

/// The same certificate for every server name.
pub fn one(chain: &Path, key: &Path) -> Result<SslContextBuilder, CertificateError> {
    let identity = Identity::read(chain, key)?;
    let mut builder = builder()?;
    builder.set_select_certificate_callback(move |mut hello| {
        identity
            .install(hello.ssl_mut())
            .map_err(|_| SelectCertError::ERROR)
    });
    Ok(builder)
}

/// A certificate by server name; a name without one, or none at all, ends the handshake.
pub fn by_name(files: &[CertificateFiles]) -> Result<SslContextBuilder, CertificateError> {
    let mut identities = Vec::new();
    let mut index = HashMap::new();
    for files in files {
        for name in &files.names {
            index.insert(name.to_ascii_lowercase(), identities.len());
        }
        identities.push(Identity::read(&files.chain, &files.key)?);
    }
    let mut builder = builder()?;
    builder.set_select_certificate_callback(move |mut hello| {
        let place = hello
            .servername(NameType::HOST_NAME)
            .and_then(|name| index.get(&name.to_ascii_lowercase()))
            .copied()
            .ok_or(SelectCertError::ERROR)?;
        identities[place]
            .install(hello.ssl_mut())
            .map_err(|_| SelectCertError::ERROR)
    });
    Ok(builder)
}
