//! The HTTP response as it arrives: a state machine without I/O. Times are handed in.

use std::collections::BTreeMap;
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::failure::{Failure, Verdict};
use crate::text::clean;

/// Response headers worth keeping: who answered, and from which cache.
const KEPT_HEADERS: [&str; 8] = [
    "server",
    "via",
    "age",
    "x-cache",
    "cf-cache-status",
    "cf-mitigated",
    "alt-svc",
    "cache-status",
];
/// Header values are cut after this many characters.
const HEADER_CHARS: usize = 200;

/// Name and value of one header field, or of a pseudo-header field like `:status`.
pub type Field<'a> = (&'a [u8], &'a [u8]);

/// What is known of the response so far.
pub struct Response {
    /// Final status; interim (1xx) responses are skipped.
    pub status: Option<u16>,
    /// As announced.
    pub content_length: Option<u64>,
    /// As announced.
    pub content_type: Option<String>,
    /// The few that are kept: who answered, from which cache.
    pub headers: BTreeMap<String, String>,
    /// Bytes of the body so far.
    pub body_bytes: u64,
    /// Since the start of connecting.
    pub headers_at: Option<Duration>,
    /// Of the body.
    pub first_byte_at: Option<Duration>,
    /// The latest of the body.
    pub last_byte_at: Option<Duration>,
    max_bytes: Option<u64>,
    hasher: Sha256,
}

impl Response {
    /// Nothing has come yet; after `max_bytes` of the body the download is censored.
    #[must_use]
    pub fn new(max_bytes: Option<u64>) -> Self {
        Self {
            status: None,
            content_length: None,
            content_type: None,
            headers: BTreeMap::new(),
            body_bytes: 0,
            headers_at: None,
            first_byte_at: None,
            last_byte_at: None,
            max_bytes,
            hasher: Sha256::new(),
        }
    }

    /// A block of header fields came: interim, final, or trailers.
    pub fn on_headers(&mut self, fields: &[Field<'_>], now: Duration) -> Option<Verdict> {
        if self.status.is_some() {
            return None; // trailers
        }
        let status = fields.iter().find(|(name, _)| *name == b":status");
        let status =
            status.and_then(|(_, value)| std::str::from_utf8(value).ok()?.parse::<u16>().ok());
        let status = match status {
            Some(status @ 200..=999) => status,
            Some(100..=199) => return None,
            _ => {
                return Some(Verdict::failed(
                    Failure::ProtocolError,
                    "a response without a valid :status",
                ));
            }
        };
        self.status = Some(status);
        self.headers_at = Some(now);
        for (name, value) in fields {
            self.keep(name, value);
        }
        if status == 200 {
            return self.check_byte_budget();
        }
        Some(Verdict::failed(
            Failure::HttpStatus,
            &format!("status {status}"),
        ))
    }

    /// How many bytes of the body may be read into a buffer of `size`, so that the byte budget is met exactly.
    #[must_use]
    pub fn room(&self, size: usize) -> usize {
        let left = self
            .max_bytes
            .map_or(u64::MAX, |most| most.saturating_sub(self.body_bytes).max(1));
        usize::try_from(left).map_or(size, |left| left.min(size))
    }

    /// Bytes of the body came.
    pub fn on_body(&mut self, bytes: &[u8], now: Duration) -> Option<Verdict> {
        self.hasher.update(bytes);
        self.body_bytes += bytes.len() as u64;
        self.first_byte_at.get_or_insert(now);
        self.last_byte_at = Some(now);
        if let Some(length) = self
            .content_length
            .filter(|length| self.body_bytes > *length)
        {
            let detail = format!("more than the {length} bytes that content-length announced");
            return Some(Verdict::failed(Failure::LengthMismatch, &detail));
        }
        self.check_byte_budget()
    }

    /// The peer finished the stream.
    #[must_use]
    pub fn on_finished(&self) -> Verdict {
        match (self.status, self.content_length) {
            (None, _) => Verdict::failed(
                Failure::ProtocolError,
                "the stream ended without a response",
            ),
            (_, Some(length)) if self.body_bytes < length => {
                let detail = format!("{} of {length} bytes", self.body_bytes);
                Verdict::failed(Failure::TruncatedBody, &detail)
            }
            _ => Verdict::ok(),
        }
    }

    /// The time of the latest byte of the response, headers included.
    #[must_use]
    pub fn last_stream_byte_at(&self) -> Option<Duration> {
        self.last_byte_at.or(self.headers_at)
    }

    /// SHA-256 of the body so far, in hexadecimal.
    #[must_use]
    pub fn sha256(&self) -> String {
        use std::fmt::Write;
        let digest = self.hasher.clone().finalize();
        digest
            .iter()
            .fold(String::with_capacity(64), |mut text, byte| {
                let _ = write!(text, "{byte:02x}"); // writing to a String cannot fail
                text
            })
    }

    fn check_byte_budget(&self) -> Option<Verdict> {
        let most = self.max_bytes.filter(|most| self.body_bytes >= *most)?;
        if self.content_length == Some(self.body_bytes) {
            return None; // all is here: the end of the stream is about to come
        }
        Some(Verdict::censored(
            Failure::ByteBudget,
            &format!("the byte budget of {most} was reached"),
        ))
    }

    fn keep(&mut self, name: &[u8], value: &[u8]) {
        let Ok(name) = std::str::from_utf8(name) else {
            return;
        };
        let text = || clean(&String::from_utf8_lossy(value), HEADER_CHARS);
        match name {
            "content-length" => {
                self.content_length = std::str::from_utf8(value).ok().and_then(|v| v.parse().ok());
            }
            "content-type" => self.content_type = Some(text()),
            _ if KEPT_HEADERS.contains(&name) => {
                let joined = match self.headers.get(name) {
                    Some(earlier) => clean(&format!("{earlier}, {}", text()), HEADER_CHARS),
                    None => text(),
                };
                self.headers.insert(name.to_owned(), joined);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Outcome;

    const NOW: Duration = Duration::from_millis(7);

    fn answered(max_bytes: Option<u64>, length: &str) -> Response {
        let mut response = Response::new(max_bytes);
        let fields = [
            (&b":status"[..], &b"200"[..]),
            (b"content-length", length.as_bytes()),
        ];
        assert_eq!(response.on_headers(&fields, NOW), None);
        response
    }

    #[test]
    fn a_whole_body() {
        let mut response = answered(None, "6");
        assert_eq!(response.on_body(b"abc", NOW), None);
        assert_eq!(response.on_body(b"def", 2 * NOW), None);
        assert_eq!(response.on_finished(), Verdict::ok());
        assert_eq!(
            (response.first_byte_at, response.last_byte_at),
            (Some(NOW), Some(2 * NOW))
        );
        assert_eq!(
            response.sha256(),
            "bef57ec7f53a6d40beb640a780a639c83bc29ac8a9816f1fc6c5c6dcd93c4721"
        );
    }

    #[test]
    fn too_few_and_too_many_bytes() {
        let mut response = answered(None, "4");
        assert_eq!(response.on_body(b"abc", NOW), None);
        assert_eq!(response.on_finished().failure, Some(Failure::TruncatedBody));
        assert_eq!(
            response.on_body(b"de", NOW).unwrap().failure,
            Some(Failure::LengthMismatch)
        );
        assert_eq!(
            Response::new(None).on_finished().failure,
            Some(Failure::ProtocolError)
        );
    }

    #[test]
    fn the_byte_budget_is_met_exactly() {
        let mut response = answered(Some(4), "10");
        assert_eq!(response.room(3), 3);
        assert_eq!(response.on_body(b"abc", NOW), None);
        assert_eq!(response.room(3), 1);
        let verdict = response.on_body(b"d", NOW).unwrap();
        assert_eq!(
            (verdict.outcome, verdict.failure),
            (Outcome::Censored, Some(Failure::ByteBudget))
        );
        let mut whole = answered(Some(3), "3");
        assert_eq!(
            whole.on_body(b"abc", NOW),
            None,
            "a body of just the budget is whole"
        );
        assert!(whole.room(9) >= 1, "room to see that more comes");
        let mut unknown = answered(Some(3), "none");
        assert_eq!(
            unknown.on_body(b"abc", NOW).unwrap().failure,
            Some(Failure::ByteBudget)
        );
    }

    #[test]
    fn status_interim_and_trailers() {
        let mut response = Response::new(None);
        assert_eq!(
            response.on_headers(&[(&b":status"[..], &b"103"[..])], NOW),
            None
        );
        assert_eq!(response.status, None);
        let verdict = response
            .on_headers(&[(&b":status"[..], &b"301"[..])], NOW)
            .unwrap();
        assert_eq!(
            (verdict.failure, response.status),
            (Some(Failure::HttpStatus), Some(301))
        );
        assert_eq!(
            response.on_headers(&[(&b":status"[..], &b"200"[..])], NOW),
            None,
            "trailers"
        );
        assert_eq!(response.status, Some(301));
        let broken = Response::new(None).on_headers(&[(&b":status"[..], &b"x"[..])], NOW);
        assert_eq!(broken.unwrap().failure, Some(Failure::ProtocolError));
    }

    #[test]
    fn few_headers_are_kept_and_cleaned() {
        let mut response = Response::new(None);
        let long = "x".repeat(300);
        let fields = [
            (&b":status"[..], &b"200"[..]),
            (&b"content-type"[..], &b"text/\x1bplain"[..]),
            (b"server", long.as_bytes()),
            (&b"set-cookie"[..], &b"secret=1"[..]),
            (&b"via"[..], &b"a"[..]),
            (&b"via"[..], &b"b\xff"[..]),
        ];
        assert_eq!(response.on_headers(&fields, NOW), None);
        assert_eq!(response.content_type.as_deref(), Some("text/ plain"));
        assert_eq!(response.headers["server"].len(), 200);
        assert_eq!(response.headers["via"], "a, b\u{fffd}");
        assert_eq!(response.headers.len(), 2);
    }
}
