//! The hosts that are served: the file of `--hosts`, and what becomes of it.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use thiserror::Error;

/// The file of `--hosts`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostsFile {
    pub certificates: Vec<CertificateFiles>,
    /// Name -> what it serves; names that are not there are answered by 404.
    pub hosts: HashMap<String, Host>,
    /// Ending of a file's name, without the dot -> media type.
    #[serde(default)]
    pub types: HashMap<String, String>,
    /// One JSON line for each request to a host with `log`.
    #[serde(default)]
    pub access_log: Option<PathBuf>,
}

/// A certificate for some names.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CertificateFiles {
    /// Server names (SNI) that are answered by it.
    pub names: Vec<String>,
    pub chain: PathBuf,
    pub key: PathBuf,
}

/// What a host serves.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Host {
    /// Folder of its files.
    pub root: Option<PathBuf>,
    /// Instead of files: an HTTP/1.1 server to forward to, as a reverse proxy.
    pub upstream: Option<SocketAddr>,
    /// Path -> a fixed answer; checked before the files.
    pub answers: HashMap<String, Fixed>,
    /// Whether its requests are logged.
    pub log: bool,
}

/// An answer that is not a file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fixed {
    pub status: u16,
    #[serde(default)]
    pub text: String,
    #[serde(default)]
    pub location: Option<String>,
    /// It answers this method only; the others get the file.
    #[serde(default)]
    pub method: Option<String>,
}

/// What is served.
#[derive(Debug)]
pub enum Service {
    /// The same for everything: a status and a body of zeros.
    Fixed { status: u16, bytes: u64 },
    /// By host.
    Hosts {
        hosts: HashMap<String, Host>,
        types: HashMap<String, String>,
        access_log: Option<File>,
    },
}

/// Why the file of `--hosts` cannot be used.
#[derive(Debug, Error)]
pub enum HostsError {
    #[error("{path}: {source}")]
    File { path: PathBuf, source: io::Error },
    #[error("{path}: {source}")]
    Json {
        path: PathBuf,
        source: serde_json::Error,
    },
}

impl HostsFile {
    pub fn read(path: &Path) -> Result<Self, HostsError> {
        let data = std::fs::read(path).map_err(|source| HostsError::File {
            path: path.to_owned(),
            source,
        })?;
        serde_json::from_slice(&data).map_err(|source| HostsError::Json {
            path: path.to_owned(),
            source,
        })
    }

    /// Opens what has to be open.
    pub fn service(self) -> Result<Service, HostsError> {
        let open = |path: PathBuf| {
            OpenOptions::new()
                .append(true)
                .create(true)
                .open(&path)
                .map_err(|source| HostsError::File { path, source })
        };
        Ok(Service::Hosts {
            access_log: self.access_log.map(open).transpose()?,
            hosts: self.hosts,
            types: self.types,
        })
    }
}
