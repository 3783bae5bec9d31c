//! One JSON line per request, with the names that Caddy's access log uses.

use std::fs::File;
use std::io::Write;
use std::net::IpAddr;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde_json::json;

use crate::request::Request;

/// A request that is being answered, and what its line will say.
#[derive(Debug)]
pub struct Entry {
    request: Request,
    client: IpAddr,
    began: Instant,
}

impl Entry {
    pub fn new(request: Request, client: IpAddr) -> Self {
        Self {
            request,
            client,
            began: Instant::now(),
        }
    }

    /// Writes the line. `sent` is bytes of the body; a log that cannot be written must not end the service.
    pub fn write(&self, mut log: &File, status: u16, sent: u64) {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let line = json!({
            "ts": now.as_secs_f64(),
            "duration": self.began.elapsed().as_secs_f64(),
            "status": status,
            "size": sent,
            "request": {
                "remote_ip": self.client.to_string(),
                "method": self.request.method,
                "host": self.request.host,
                "uri": self.request.target,
                "headers": {"User-Agent": [self.request.field("user-agent")]},
            },
        });
        let _ = log.write_all(format!("{line}\n").as_bytes());
    }
}
