//! The HTTP response as it arrives: a state machine without I/O. Times are passed in.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::body::Body;
use crate::code::FailureCode;
use crate::failure::{Failure, Verdict};
use crate::text::clean;

/// Response headers that are kept: they identify the server, the cache, and the object. Every client keeps
/// the same ones.
const KEPT_HEADERS: [&str; 17] = [
    "server",
    "via",
    "age",
    "x-cache",
    "cf-cache-status",
    "cf-mitigated",
    "alt-svc",
    "cache-status",
    "x-served-by",
    "content-encoding",
    "etag",
    "last-modified",
    "x-amz-cf-pop",
    "cf-ray",
    "x-amzn-waf-action",
    "x-cache-status",
    "server-timing",
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
    /// The kept headers.
    pub headers: BTreeMap<String, String>,
    /// Bytes of the body so far.
    pub body_bytes: u64,
    /// When the headers came, since the first packet.
    pub headers_at: Option<Duration>,
    /// First byte of the body.
    pub first_byte_at: Option<Duration>,
    /// Latest byte of the body.
    pub last_byte_at: Option<Duration>,
    max_bytes: Option<u64>,
    body: Body,
}

impl Response {
    /// Nothing has been received yet; after `max_bytes` of the body the download is censored. Memory is provided now,
    /// for `expected_bytes` where they are known.
    #[must_use]
    pub fn new(max_bytes: Option<u64>, expected_bytes: Option<u64>) -> Self {
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
            body: Body::new(max_bytes, expected_bytes),
        }
    }

    /// A block of header fields came: interim, final, or trailers.
    pub fn on_headers(&mut self, fields: &[Field<'_>], now: Duration) -> Option<Verdict> {
        if self.status.is_some() {
            return None; // trailers
        }
        let status = fields.iter().find(|(name, _)| *name == b":status");
        // Three digits (RFC 9110, section 15): to Rust `+200` is a number, too.
        let status = status
            .filter(|(_, value)| value.len() == 3 && value.iter().all(u8::is_ascii_digit))
            .and_then(|(_, value)| std::str::from_utf8(value).ok()?.parse::<u16>().ok());
        let status = match status {
            Some(status @ 200..=999) => status,
            Some(100 | 102..=199) => return None,
            Some(101) => {
                return Some(protocol_error(
                    "unexpected 101 Switching Protocols",
                    FailureCode::Upgrade,
                ));
            }
            _ => {
                return Some(protocol_error(
                    "a response without a valid :status",
                    FailureCode::HttpSyntax,
                ));
            }
        };
        self.status = Some(status);
        self.headers_at = Some(now);
        for (name, value) in fields {
            self.keep(name, value);
        }
        match content_length(fields) {
            Ok(length) => self.content_length = length,
            Err(verdict) => return Some(verdict),
        }
        (status != 200).then(|| Verdict::failed(Failure::HttpStatus, &format!("status {status}")))
    }

    /// How many bytes of the body to read into a buffer of `size`: one more than the byte budget has left, to see
    /// whether more comes.
    #[must_use]
    pub fn room(&self, size: usize) -> usize {
        let left = self.left().map_or(u64::MAX, |left| left.saturating_add(1));
        usize::try_from(left).map_or(size, |left| left.min(size))
    }

    /// Bytes of the body came. Those beyond the byte budget are not counted.
    pub fn on_body(&mut self, bytes: &[u8], now: Duration) -> Option<Verdict> {
        let left = self.left().and_then(|left| usize::try_from(left).ok());
        let kept = &bytes[..left.map_or(bytes.len(), |left| left.min(bytes.len()))];
        if !kept.is_empty() {
            self.body.add(kept);
            self.body_bytes += kept.len() as u64;
            self.first_byte_at.get_or_insert(now);
            self.last_byte_at = Some(now);
        }
        if kept.len() < bytes.len() {
            let detail = format!("more than the byte budget of {}", self.body_bytes);
            return Some(Verdict::censored(Failure::ByteBudget, &detail));
        }
        let length = self
            .content_length
            .filter(|length| self.body_bytes > *length)?;
        let detail = format!("more than the {length} bytes that content-length announced");
        Some(Verdict::failed(Failure::LengthMismatch, &detail))
    }

    /// Whether every announced byte is here. The body is complete then, with or without the end of its stream
    /// (RFC 9110, section 8.6: the length delimits the content).
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.status == Some(200) && self.content_length == Some(self.body_bytes)
    }

    /// The peer finished the stream, or all announced bytes are here.
    pub fn on_finished(&mut self) -> Verdict {
        match (self.status, self.content_length) {
            (None, _) => protocol_error(
                "the stream ended without a response",
                FailureCode::HttpSyntax,
            ),
            (_, Some(length)) if self.body_bytes < length => {
                let detail = format!("{} of {length} bytes", self.body_bytes);
                Verdict::failed(Failure::TruncatedBody, &detail)
            }
            _ => {
                // An empty body is complete with its headers.
                self.first_byte_at = self.first_byte_at.or(self.headers_at);
                self.last_byte_at = self.last_byte_at.or(self.headers_at);
                Verdict::ok()
            }
        }
    }

    /// The time of the latest byte of the response, headers included.
    #[must_use]
    pub fn last_stream_byte_at(&self) -> Option<Duration> {
        self.last_byte_at.or(self.headers_at)
    }

    /// SHA-256 of the body so far, in hexadecimal; to be asked for when nothing is timed any more.
    #[must_use]
    pub fn sha256(self) -> String {
        self.body.sha256()
    }

    fn left(&self) -> Option<u64> {
        self.max_bytes
            .map(|most| most.saturating_sub(self.body_bytes))
    }

    fn keep(&mut self, name: &[u8], value: &[u8]) {
        let Ok(name) = std::str::from_utf8(name) else {
            return;
        };
        let text = || clean(&String::from_utf8_lossy(value), HEADER_CHARS);
        match name {
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

/// The announced length. One that is not a number (of at most 18 digits, as with every client), or two that differ,
/// break the message's framing (RFC 9110, section 8.6; RFC 9114, section 4.1.2).
fn content_length(fields: &[Field<'_>]) -> Result<Option<u64>, Verdict> {
    let mut announced = None;
    for (_, value) in fields.iter().filter(|(name, _)| *name == b"content-length") {
        let length = std::str::from_utf8(value)
            .ok()
            .filter(|text| text.len() < 19 && text.bytes().all(|byte| byte.is_ascii_digit()))
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| {
                protocol_error("content-length is not a number", FailureCode::BadLength)
            })?;
        if announced.is_some_and(|earlier| earlier != length) {
            return Err(protocol_error(
                "two values of content-length",
                FailureCode::BadLength,
            ));
        }
        announced = Some(length);
    }
    Ok(announced)
}

fn protocol_error(detail: &str, code: FailureCode) -> Verdict {
    Verdict::failed(Failure::ProtocolError, detail).because(code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Outcome;

    const NOW: Duration = Duration::from_millis(7);

    fn answered(max_bytes: Option<u64>, length: Option<&str>) -> Response {
        let mut response = Response::new(max_bytes, None);
        let mut fields = vec![(&b":status"[..], &b"200"[..])];
        fields.extend(length.map(|length| (&b"content-length"[..], length.as_bytes())));
        assert_eq!(response.on_headers(&fields, NOW), None);
        response
    }

    #[test]
    fn a_whole_body() {
        let mut response = answered(None, Some("6"));
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
        let mut response = answered(None, Some("4"));
        assert_eq!(response.on_body(b"abc", NOW), None);
        assert_eq!(response.on_finished().failure, Some(Failure::TruncatedBody));
        assert_eq!(
            response.on_body(b"de", NOW).unwrap().failure,
            Some(Failure::LengthMismatch)
        );
        assert_eq!(
            Response::new(None, None).on_finished().failure,
            Some(Failure::ProtocolError)
        );
    }

    #[test]
    fn the_byte_budget_is_met_exactly() {
        for length in [None, Some("10")] {
            let mut response = answered(Some(4), length);
            assert_eq!(response.room(3), 3);
            assert_eq!(response.on_body(b"abc", NOW), None);
            assert_eq!(response.room(3), 2, "one more, to see that more comes");
            let verdict = response.on_body(b"de", 2 * NOW).unwrap();
            assert_eq!(
                (verdict.outcome, verdict.failure),
                (Outcome::Censored, Some(Failure::ByteBudget))
            );
            assert_eq!(
                (response.body_bytes, response.last_byte_at),
                (4, Some(2 * NOW))
            );
        }
        for length in [None, Some("3")] {
            let mut whole = answered(Some(3), length);
            assert_eq!(whole.on_body(b"abc", NOW), None);
            assert_eq!(
                whole.on_finished(),
                Verdict::ok(),
                "a body of just the budget is whole"
            );
        }
    }

    #[test]
    fn a_body_is_whole_with_its_announced_length() {
        let mut response = answered(None, Some("3"));
        assert!(!response.is_whole());
        assert_eq!(response.on_body(b"abc", NOW), None);
        assert!(response.is_whole());
        assert!(!answered(None, None).is_whole());
        let mut empty = answered(None, Some("0"));
        assert!(empty.is_whole() && empty.last_byte_at.is_none());
        assert_eq!(empty.on_finished(), Verdict::ok());
        assert_eq!(
            (empty.first_byte_at, empty.last_byte_at),
            (Some(NOW), Some(NOW)),
            "complete with its headers"
        );
    }

    #[test]
    fn lengths_that_are_none() {
        for (values, valid) in [
            (&["-5"][..], false),
            (&["+5"], false),
            (&[""], false),
            (&["5, 5"], false),
            (&["99999999999999999999"], false),
            (&["18446744073709551615"], false),
            (&["4611686018427387904"], false),
            (&["999999999999999999"], true),
            (&["5", "6"], false),
            (&["5", "5"], true),
        ] {
            let mut fields = vec![(&b":status"[..], &b"200"[..])];
            fields.extend(
                values
                    .iter()
                    .map(|value| (&b"content-length"[..], value.as_bytes())),
            );
            let verdict = Response::new(None, None).on_headers(&fields, NOW);
            let failure = verdict.and_then(|verdict| verdict.failure);
            let expected = (!valid).then_some(Failure::ProtocolError);
            assert_eq!(failure, expected, "{values:?}");
        }
    }

    #[test]
    fn status_interim_and_trailers() {
        let mut response = Response::new(None, None);
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
        for broken in [&b"x"[..], b"+200", b"0200", b"20"] {
            let verdict = Response::new(None, None).on_headers(&[(&b":status"[..], broken)], NOW);
            assert_eq!(verdict.unwrap().failure, Some(Failure::ProtocolError));
        }
    }

    #[test]
    fn few_headers_are_kept_and_cleaned() {
        let mut response = Response::new(None, None);
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
