//! What a connection is sent with: settings that may change while the server runs.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

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

/// Settings of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    pub congestion_control: CongestionControl,
    pub initial_window_packets: usize,
    /// `HyStart++` (RFC 9406) may end slow start before a loss does; cubic and reno only.
    pub hystart: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            congestion_control: CongestionControl::Cubic,
            initial_window_packets: 10,
            hystart: true,
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
    #[error("unknown setting {0:?}; use congestion_control, initial_window_packets or hystart")]
    Name(String),
    #[error("unknown congestion_control {0:?}; use cubic, reno or bbr2")]
    CongestionControl(String),
    #[error("initial_window_packets is {0:?}; use a whole number from 1 to {LARGEST_WINDOW}")]
    Window(String),
    #[error("hystart is {0:?}; use on or off")]
    HyStart(String),
}

impl Settings {
    /// Sets one of them from its text.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), SettingsError> {
        match name {
            "congestion_control" => {
                self.congestion_control = CongestionControl::ALL
                    .into_iter()
                    .find(|known| known.name() == value)
                    .ok_or_else(|| SettingsError::CongestionControl(value.to_owned()))?;
            }
            "initial_window_packets" => {
                self.initial_window_packets = value
                    .parse()
                    .ok()
                    .filter(|packets| (1..=LARGEST_WINDOW).contains(packets))
                    .ok_or_else(|| SettingsError::Window(value.to_owned()))?;
            }
            "hystart" => {
                self.hystart = match value {
                    "on" => true,
                    "off" => false,
                    _ => return Err(SettingsError::HyStart(value.to_owned())),
                };
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_changes_what_it_names_only() {
        let path = std::env::temp_dir().join(format!("h3serve-settings-{}", std::process::id()));
        let base = Settings::default();
        std::fs::write(&path, r#"{"congestion_control": "reno", "hystart": "off"}"#).unwrap();
        let settings = base.with_file(&path).unwrap();
        assert_eq!(settings.congestion_control, CongestionControl::Reno);
        assert!(!settings.hystart);
        assert_eq!(settings.initial_window_packets, 10);
        for (text, said) in [
            (r#"{"cwnd": "3"}"#, "unknown setting \"cwnd\""),
            (r#"{"hystart": "maybe"}"#, "use on or off"),
            (r#"{"initial_window_packets": "x"}"#, "from 1 to 1000"),
            ("{", "EOF"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = base.with_file(&path).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
        std::fs::remove_file(&path).unwrap();
    }
}
