//! What a connection is sent with: settings that may change while the server runs.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use quiche::CongestionControlAlgorithm;
use thiserror::Error;

const LARGEST_WINDOW: usize = 1000;

/// How congestion is controlled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CongestionControl {
    Cubic,
    Reno,
    /// quiche's port of Google's BBR version 2, the only one of the three that paces.
    Bbr2,
}

impl CongestionControl {
    const ALL: [Self; 3] = [Self::Cubic, Self::Reno, Self::Bbr2];

    pub fn name(self) -> &'static str {
        match self {
            Self::Cubic => "cubic",
            Self::Reno => "reno",
            Self::Bbr2 => "bbr2",
        }
    }

    fn algorithm(self) -> CongestionControlAlgorithm {
        match self {
            Self::Cubic => CongestionControlAlgorithm::CUBIC,
            Self::Reno => CongestionControlAlgorithm::Reno,
            Self::Bbr2 => CongestionControlAlgorithm::Bbr2Gcongestion,
        }
    }
}

impl FromStr for CongestionControl {
    type Err = SettingsError;

    fn from_str(text: &str) -> Result<Self, SettingsError> {
        Self::ALL
            .into_iter()
            .find(|known| known.name() == text)
            .ok_or_else(|| SettingsError::CongestionControl(text.to_owned()))
    }
}

/// Settings of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    pub congestion_control: CongestionControl,
    pub initial_window_packets: usize,
    /// `HyStart++` (RFC 9406) may end slow start before a loss does; cubic and reno only.
    pub hystart: bool,
    /// How fast bodies are handed to the transport; none: as fast as it takes them.
    pub body_pace: Option<Pace>,
}

/// A body that becomes available piece by piece, as from an application or a disk that is slower than the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Bytes of a piece.
    pub chunk_bytes: u64,
    /// Time between two pieces.
    pub every: Duration,
}

impl Pace {
    /// Bytes that are available after this time; the first piece is there at once.
    pub fn available(&self, elapsed: Duration) -> u64 {
        let pieces = elapsed.as_nanos() / self.every.as_nanos().max(1) + 1;
        u64::try_from(pieces)
            .unwrap_or(u64::MAX)
            .saturating_mul(self.chunk_bytes)
    }

    /// When, after the first piece, more than `bytes` are available.
    pub fn due(&self, bytes: u64) -> Duration {
        let pieces = u32::try_from(bytes / self.chunk_bytes.max(1)).unwrap_or(u32::MAX);
        self.every.saturating_mul(pieces)
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            congestion_control: CongestionControl::Cubic,
            initial_window_packets: 10,
            hystart: true,
            body_pace: None,
        }
    }
}

/// Why settings are not valid.
#[derive(Debug, Error)]
pub enum SettingsError {
    #[error("{path}: {source}")]
    File { path: PathBuf, source: io::Error },
    #[error("{path}: {source}")]
    Json {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error(
        "unknown setting {0:?}; use congestion_control, initial_window_packets, hystart or body_pace"
    )]
    Name(String),
    #[error("unknown congestion_control {0:?}; use cubic, reno or bbr2")]
    CongestionControl(String),
    #[error("initial_window_packets is {0:?}; use a whole number from 1 to {LARGEST_WINDOW}")]
    Window(String),
    #[error("hystart is {0:?}; use on or off")]
    HyStart(String),
    #[error("body_pace is {0:?}; use off, or BYTES/MICROSECONDS of a piece")]
    BodyPace(String),
}

impl Settings {
    /// Sets one of them from its text.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), SettingsError> {
        match name {
            "congestion_control" => self.congestion_control = value.parse()?,
            "initial_window_packets" => self.initial_window_packets = initial_window(value)?,
            "hystart" => {
                self.hystart = match value {
                    "on" => true,
                    "off" => false,
                    _ => return Err(SettingsError::HyStart(value.to_owned())),
                };
            }
            "body_pace" => self.body_pace = pace(value)?,
            _ => return Err(SettingsError::Name(name.to_owned())),
        }
        Ok(())
    }

    /// These settings with those of a file (a JSON object of texts) on top.
    pub fn with_file(&self, path: &Path) -> Result<Self, SettingsError> {
        let data = std::fs::read(path).map_err(|source| SettingsError::File {
            path: path.to_owned(),
            source,
        })?;
        let values: BTreeMap<String, String> =
            serde_json::from_slice(&data).map_err(|source| SettingsError::Json {
                path: path.to_owned(),
                source,
            })?;
        let mut settings = self.clone();
        for (name, value) in &values {
            settings.set(name, value)?;
        }
        Ok(settings)
    }

    /// Makes the next connections of this configuration have them.
    pub fn configure(&self, config: &mut quiche::Config) {
        config.set_cc_algorithm(self.congestion_control.algorithm());
        config.set_initial_congestion_window_packets(self.initial_window_packets);
        config.enable_hystart(self.hystart);
    }
}

/// Reads an initial window, packets.
pub fn initial_window(value: &str) -> Result<usize, SettingsError> {
    value
        .parse()
        .ok()
        .filter(|packets| (1..=LARGEST_WINDOW).contains(packets))
        .ok_or_else(|| SettingsError::Window(value.to_owned()))
}

fn pace(value: &str) -> Result<Option<Pace>, SettingsError> {
    if value == "off" {
        return Ok(None);
    }
    let numbers = value.split_once('/').and_then(|(bytes, micros)| {
        Some((bytes.parse::<u64>().ok()?, micros.parse::<u64>().ok()?))
    });
    match numbers {
        Some((chunk_bytes @ 1.., micros @ 1..)) => Ok(Some(Pace {
            chunk_bytes,
            every: Duration::from_micros(micros),
        })),
        _ => Err(SettingsError::BodyPace(value.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paced_body_comes_piece_by_piece() {
        let pace = Pace {
            chunk_bytes: 1000,
            every: Duration::from_millis(10),
        };
        let available = [0, 9, 10, 25].map(|ms| pace.available(Duration::from_millis(ms)));
        assert_eq!(available, [1000, 1000, 2000, 3000]);
        assert_eq!(pace.due(1000), Duration::from_millis(10));
        assert_eq!(pace.due(2500), Duration::from_millis(20));
    }

    #[test]
    fn a_file_changes_what_it_names_only() {
        let path = std::env::temp_dir().join(format!("h3serve-settings-{}", std::process::id()));
        let base = Settings::default();
        std::fs::write(&path, r#"{"congestion_control": "reno", "hystart": "off"}"#).unwrap();
        let settings = base.with_file(&path).unwrap();
        assert_eq!(settings.congestion_control, CongestionControl::Reno);
        assert!(!settings.hystart);
        assert_eq!(settings.initial_window_packets, 10);
        for (text, sentence) in [
            (r#"{"cwnd": "3"}"#, "unknown setting \"cwnd\""),
            (r#"{"hystart": "maybe"}"#, "use on or off"),
            (r#"{"initial_window_packets": "x"}"#, "from 1 to 1000"),
            (r#"{"body_pace": "5/0"}"#, "use off, or BYTES/MICROSECONDS"),
            ("{", "EOF"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = base.with_file(&path).unwrap_err().to_string();
            assert!(error.contains(sentence), "{error}");
        }
        std::fs::remove_file(&path).unwrap();
    }
}
