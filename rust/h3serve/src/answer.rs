//! From a request to its answer. The headers are those of Caddy's file server, so that it does not matter to a client
//! which of the two it asks.

use std::fs::{File, Metadata};
use std::net::SocketAddr;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::hosts::{Host, Service};
use crate::request::Request;

pub const SERVER: &str = "h3serve";
static ZEROS: [u8; 1 << 16] = [0; 1 << 16];
const UNKNOWN_HOST: &str = "There is no such page.\n";
const TEXT: &str = "text/plain; charset=utf-8";
const ANYTHING: &str = "application/octet-stream";

/// Status and headers of an answer, and its body.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub fields: Vec<(String, Vec<u8>)>,
    pub body: Body,
}

/// A body that is sent piece by piece; none of them is held in memory whole but short texts.
#[derive(Debug)]
pub enum Body {
    Zeros { left: u64 },
    Text { data: Vec<u8>, at: usize },
    File { file: File, at: u64, left: u64 },
}

impl Body {
    pub fn empty() -> Self {
        Self::Zeros { left: 0 }
    }

    pub fn left(&self) -> u64 {
        match self {
            Self::Zeros { left } | Self::File { left, .. } => *left,
            Self::Text { data, at } => (data.len() - at) as u64,
        }
    }

    /// The next bytes, at most as many as `scratch` has.
    pub fn peek<'a>(&'a self, scratch: &'a mut [u8]) -> std::io::Result<&'a [u8]> {
        let size = usize::try_from(self.left())
            .unwrap_or(usize::MAX)
            .min(scratch.len());
        match self {
            Self::Zeros { .. } => Ok(&ZEROS[..size.min(ZEROS.len())]),
            Self::Text { data, at } => Ok(&data[*at..*at + size]),
            Self::File { file, at, .. } => {
                file.read_exact_at(&mut scratch[..size], *at)?;
                Ok(&scratch[..size])
            }
        }
    }

    /// Goes on behind the next `size` bytes.
    pub fn advance(&mut self, size: usize) {
        match self {
            Self::Zeros { left } => *left -= size as u64,
            Self::Text { at, .. } => *at += size,
            Self::File { at, left, .. } => {
                *at += size as u64;
                *left -= size as u64;
            }
        }
    }
}

/// Who answers a request.
#[derive(Debug)]
pub enum Responder {
    Here(Answer),
    /// This server has to be asked.
    Upstream(SocketAddr),
}

/// The answer to a request.
pub fn respond(request: &Request, service: &Service) -> Responder {
    let (hosts, types) = match service {
        Service::Fixed { status, bytes } => {
            let fields = vec![field("content-length", bytes)];
            return Responder::Here(answer(*status, fields, Body::Zeros { left: *bytes }));
        }
        Service::Hosts { hosts, types, .. } => (hosts, types),
    };
    let Some(host) = hosts.get(&request.host) else {
        return Responder::Here(text(404, UNKNOWN_HOST));
    };
    if !matches!(request.method.as_str(), "GET" | "HEAD") {
        let mut refused = text(405, "");
        refused.fields.push(field("allow", &"GET, HEAD"));
        return Responder::Here(refused);
    }
    if let Some(upstream) = host.upstream {
        return Responder::Upstream(upstream);
    }
    let Some(path) = request.path() else {
        return Responder::Here(answer(400, Vec::new(), Body::empty()));
    };
    Responder::Here(own_answer(host, &path, request).unwrap_or_else(|| {
        let kind = |name: &Path| {
            let ending = name.extension().and_then(|ending| ending.to_str());
            ending.and_then(|ending| types.get(&ending.to_ascii_lowercase()))
        };
        let file = host.root.as_deref().and_then(|root| open(root, &path));
        file.map_or_else(
            || answer(404, Vec::new(), Body::empty()),
            |(name, file, facts)| {
                let kind = kind(&name).map_or(ANYTHING, String::as_str);
                serve_file(request, kind, file, &facts)
            },
        )
    }))
}

/// Whether requests to this host are logged.
pub fn is_logged(request: &Request, service: &Service) -> bool {
    match service {
        Service::Fixed { .. } => false,
        Service::Hosts { hosts, .. } => hosts.get(&request.host).is_some_and(|host| host.log),
    }
}

fn own_answer(host: &Host, path: &str, request: &Request) -> Option<Answer> {
    let fixed = host.answers.get(path)?;
    if fixed
        .method
        .as_ref()
        .is_some_and(|method| *method != request.method)
    {
        return None;
    }
    let mut made = text(fixed.status, &fixed.text);
    if let Some(location) = &fixed.location {
        made.fields.push(field("location", location));
    }
    Some(made)
}

/// A file below `root`, or the start page of a folder.
fn open(root: &Path, path: &str) -> Option<(PathBuf, File, Metadata)> {
    let mut name = root.join(path.strip_prefix('/')?);
    if path.ends_with('/') {
        name.push("index.html");
    }
    let file = File::open(&name).ok()?;
    let facts = file.metadata().ok()?;
    facts.is_file().then_some((name, file, facts))
}

fn serve_file(request: &Request, kind: &str, file: File, facts: &Metadata) -> Answer {
    let size = facts.len();
    let mut fields = vec![
        field("content-type", &kind),
        field("etag", &etag(facts.mtime(), size)),
    ];
    if let Ok(modified) = facts.modified() {
        fields.push(field("last-modified", &httpdate::fmt_http_date(modified)));
    }
    // RFC 9110, section 13.1.5: we compare no validators, so with If-Range the range is passed over.
    let range = if request.field("if-range").is_empty() {
        Range::parse(request.field("range"), size)
    } else {
        Range::Whole
    };
    let (at, left, status) = match range {
        Range::Whole => (0, size, 200),
        Range::Part { first, last } => {
            let value = format!("bytes {first}-{last}/{size}");
            fields.push(field("content-range", &value));
            (first, last - first + 1, 206)
        }
        Range::Outside => {
            fields.push(field("content-range", &format!("bytes */{size}")));
            return answer(416, fields, Body::empty());
        }
    };
    fields.push(field("accept-ranges", &"bytes"));
    fields.push(field("content-length", &left));
    answer(status, fields, Body::File { file, at, left })
}

/// What a Range field asks for (RFC 9110, section 14.2): one range of bytes, else it is passed over.
#[derive(Debug, PartialEq, Eq)]
enum Range {
    Whole,
    Part { first: u64, last: u64 },
    Outside,
}

impl Range {
    fn parse(value: &str, size: u64) -> Self {
        let Some((first, last)) = value
            .strip_prefix("bytes=")
            .and_then(|range| range.split_once('-'))
        else {
            return Self::Whole;
        };
        let end = size.saturating_sub(1);
        match (first.trim().parse::<u64>(), last.trim().parse::<u64>()) {
            (Ok(first), Ok(last)) if first <= last && first < size => Self::Part {
                first,
                last: last.min(end),
            },
            (Ok(first), Err(_)) if last.trim().is_empty() && first < size => {
                Self::Part { first, last: end }
            }
            (Err(_), Ok(count)) if first.trim().is_empty() && count > 0 && size > 0 => Self::Part {
                first: size.saturating_sub(count),
                last: end,
            },
            (Ok(first), Ok(last)) if first > last => Self::Whole,
            (Ok(_), Ok(_)) => Self::Outside,
            (Ok(_), Err(_)) if last.trim().is_empty() => Self::Outside,
            _ => Self::Whole,
        }
    }
}

/// As Caddy 2 makes it: modification time [s] and size, both to the base 36.
fn etag(modified_s: i64, size: u64) -> String {
    format!(
        "\"{}{}\"",
        base36(u64::try_from(modified_s).unwrap_or(0)),
        base36(size)
    )
}

fn base36(mut number: u64) -> String {
    let mut digits = Vec::new();
    loop {
        digits.push(
            b"0123456789abcdefghijklmnopqrstuvwxyz"[usize::try_from(number % 36).unwrap_or(0)],
        );
        number /= 36;
        if number == 0 {
            break;
        }
    }
    digits.reverse();
    String::from_utf8(digits).unwrap_or_default()
}

fn text(status: u16, text: &str) -> Answer {
    let mut fields = Vec::new();
    if !text.is_empty() {
        fields.push(field("content-type", &TEXT));
        fields.push(field("content-length", &text.len()));
    }
    let data = text.as_bytes().to_vec();
    answer(status, fields, Body::Text { data, at: 0 })
}

fn answer(status: u16, mut fields: Vec<(String, Vec<u8>)>, body: Body) -> Answer {
    fields.insert(0, field("server", &SERVER));
    Answer {
        status,
        fields,
        body,
    }
}

fn field(name: &str, value: &impl ToString) -> (String, Vec<u8>) {
    (name.to_owned(), value.to_string().into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_those_of_caddy() {
        // Seen from Caddy 2.6.2: a file of 1,000,000 bytes, modified on 22 November 2026, 04:38:46 UTC.
        assert_eq!(etag(1_795_322_326, 1_000_000), "\"tovzkmlfls\"");
        assert_eq!(base36(0), "0");
    }

    #[test]
    fn ranges() {
        let part = |first, last| Range::Part { first, last };
        for (value, range) in [
            ("", Range::Whole),
            ("bytes=0-9", part(0, 9)),
            ("bytes=90-", part(90, 99)),
            ("bytes=-5", part(95, 99)),
            ("bytes=-500", part(0, 99)),
            ("bytes=50-500", part(50, 99)),
            ("bytes=100-", Range::Outside),
            ("bytes=100-200", Range::Outside),
            ("bytes=9-0", Range::Whole),
            ("bytes=0-1,5-6", Range::Whole),
            ("lines=1-2", Range::Whole),
        ] {
            assert_eq!(Range::parse(value, 100), range, "{value}");
        }
    }
}
