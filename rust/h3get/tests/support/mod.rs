//! What the download tests stand on: certificates, a real HTTP/3 server, a bad network, and h3get itself.
//! Loopback only; every process is our own child and is stopped by its handle.

pub mod certificates;
pub mod hello;
pub mod relay;
pub mod rogue;
pub mod server;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;

/// A directory that goes when the test ends.
pub struct Directory(PathBuf);

impl Directory {
    pub fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("h3get-test-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs h3get with nothing but loopback allowed.
pub fn h3get(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_h3get"))
        .args(arguments)
        .env("UPSHIFT_ALLOWED_PREFIXES", "127.0.0.0/8,::1/128")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// Runs h3get and reads its document.
pub fn record(arguments: &[&str]) -> Value {
    let output = h3get(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{errors}");
    assert_eq!(errors, "", "standard error stays empty");
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), 1, "one document on one line");
    serde_json::from_str(&text).unwrap()
}

/// Checks outcome and failure word.
#[track_caller]
pub fn assert_ended(record: &Value, outcome: &str, failure: &str) {
    assert_eq!(
        (&record["outcome"], &record["failure"]),
        (&outcome.into(), &failure.into()),
        "{record:#}"
    );
    let detail = record["failure_detail"]
        .as_str()
        .expect("a failure has a detail");
    assert!(
        !detail.is_empty() && !detail.contains(char::is_control),
        "{detail:?}"
    );
    assert!(
        record["body_sha256"].is_null(),
        "a hash only of a complete body"
    );
}
