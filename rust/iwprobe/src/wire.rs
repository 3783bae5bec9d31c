//! Requests and replies over pipes (docs/design/iw.md). `survey/iw/wire.py` is the other side.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use thiserror::Error;

use crate::answer::Answer;
use crate::flight::Arrival;
use crate::probe::{Mode, Plan, Probe};
use crate::verdict::{Verdict, note};

const HEADER: usize = 48;
const LOCATION: usize = 512;
const SET_COOKIE: usize = 256;
const FIXED: usize = 844;
const LONGEST: [usize; 4] = [255, 2_048, 1_024, 512];
const MS: u64 = 1_000_000;
const UNKNOWN: u32 = u32::MAX;

/// A request that is not valid: an error of the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("request {number}: {what}")]
pub struct RequestError {
    number: u32,
    what: &'static str,
}

/// One request; its texts are parts of the message.
#[derive(Debug)]
pub struct Request<'a> {
    /// Comes back in the reply.
    pub number: u32,
    /// The server.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// Whether by TLS.
    pub tls: bool,
    /// Copies of the HTTP request.
    pub pipeline: u8,
    /// Numbers of the state machine; arrivals and the device's size are the caller's.
    pub plan: Plan,
    /// `Host`.
    pub host: &'a str,
    path: &'a str,
    cookie: &'a str,
    agent: &'a str,
}

impl<'a> Request<'a> {
    /// Reads the first message of `data`, and says how long it is. `None`: it is not whole yet.
    ///
    /// # Errors
    /// It is not valid.
    pub fn read(data: &'a [u8]) -> Result<Option<(Self, usize)>, RequestError> {
        let Some(head) = data.first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let u16_at = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
        let u32_at =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let number = u32_at(0);
        let wrong = |what| RequestError { number, what };
        let mut texts = [""; 4];
        let mut at = HEADER;
        for (index, text) in texts.iter_mut().enumerate() {
            let length = usize::from(u16_at(40 + 2 * index));
            if length > LONGEST[index] {
                return Err(wrong("a text is too long"));
            }
            let Some(bytes) = data.get(at..at + length) else {
                return Ok(None);
            };
            if !bytes.iter().all(|byte| (b' '..=b'~').contains(byte)) {
                return Err(wrong("a text is not printable ASCII"));
            }
            *text = std::str::from_utf8(bytes).map_err(|_| wrong("a text is not ASCII"))?;
            at += length;
        }
        let bytes: [u8; 16] = head[8..24].try_into().unwrap_or_default();
        let address = match head[4] {
            4 => IpAddr::V4(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3])),
            6 => IpAddr::V6(Ipv6Addr::from(bytes)),
            _ => return Err(wrong("no such IP version")),
        };
        let mode = match head[5] {
            0 => Mode::Window,
            1 => Mode::Fetch,
            2 => Mode::Again,
            _ => return Err(wrong("no such mode")),
        };
        let plan = Plan {
            mode,
            mss: u16_at(26),
            ack_delay: u64::from(u16_at(28)) * MS,
            limit: u64::from(u16_at(30)) * MS,
            ack_every: u16_at(32),
            idle: u64::from(u16_at(34)) * MS,
            most_bytes: u32_at(36),
            ..Plan::default()
        };
        let [host, path, cookie, agent] = texts;
        let request = Self {
            number,
            address,
            port: u16_at(24),
            tls: head[6] == 1,
            pipeline: head[7],
            plan,
            host,
            path,
            cookie,
            agent,
        };
        request.check().map_err(wrong)?;
        Ok(Some((request, at)))
    }

    /// `Host`: an IPv6 address in brackets, and the port unless it is the scheme's (RFC 9110, section 7.2).
    fn write_host(&self, out: &mut Vec<u8>) {
        let is_ipv6 = self.host.contains(':') && !self.host.starts_with('[');
        let (open, close): (&[u8], &[u8]) = if is_ipv6 { (b"[", b"]") } else { (b"", b"") };
        for part in [open, self.host.as_bytes(), close] {
            out.extend_from_slice(part);
        }
        if self.port != if self.tls { 443 } else { 80 } {
            out.extend_from_slice(format!(":{}", self.port).as_bytes());
        }
    }

    fn check(&self) -> Result<(), &'static str> {
        let plan = &self.plan;
        let limits = match plan.mode {
            Mode::Window => plan.limit <= 15_000 * MS && plan.most_bytes <= 600_000,
            Mode::Fetch | Mode::Again => plan.most_bytes <= 64_000_000,
        };
        if self.port == 0 || plan.mss < 48 || self.host.is_empty() || !self.path.starts_with('/') {
            Err("port, MSS, host or path is not valid")
        } else if !limits || plan.limit == 0 || plan.most_bytes == 0 || plan.ack_delay > 900 * MS {
            Err("a limit is not valid")
        } else if !(1..=16).contains(&self.pipeline) || plan.ack_every == 0 {
            Err("the pipeline or the segments per ACK are not valid")
        } else {
            Ok(())
        }
    }

    /// Appends the HTTP request, as often as it is pipelined. No `Connection: close`: a FIN would not wait for the window
    /// (`tcp_cwnd_test` in `net/ipv4/tcp_output.c`).
    pub fn write_http(&self, out: &mut Vec<u8>) {
        for _ in 0..self.pipeline {
            for part in ["GET ", self.path, " HTTP/1.1\r\nHost: "] {
                out.extend_from_slice(part.as_bytes());
            }
            self.write_host(out);
            if !self.agent.is_empty() {
                out.extend_from_slice(b"\r\nUser-Agent: ");
                out.extend_from_slice(self.agent.as_bytes());
            }
            out.extend_from_slice(b"\r\nAccept: */*\r\nAccept-Encoding: identity");
            if !self.cookie.is_empty() {
                out.extend_from_slice(b"\r\nCookie: ");
                out.extend_from_slice(self.cookie.as_bytes());
            }
            out.extend_from_slice(b"\r\n\r\n");
        }
    }
}

/// Bytes of a reply with room for so many arrivals.
#[must_use]
pub fn reply_bytes(arrivals: usize) -> usize {
    FIXED + 8 * arrivals
}

/// Appends the reply to a request that was not begun.
pub fn write_refusal(number: u32, verdict: Verdict, arrivals: usize, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(&[verdict as u8, 0, 0, 0]);
    out.extend_from_slice(&[0; 14]);
    out.extend_from_slice(&UNKNOWN.to_le_bytes()); // content length
    out.extend_from_slice(&[0, 0, 255, 0, 0, 0, 0, 0]); // MSS, scale, SYNs, requests
    for _ in 0..3 {
        out.extend_from_slice(&UNKNOWN.to_le_bytes());
    }
    out.resize(start + reply_bytes(arrivals), 0);
}

/// Appends the reply to a probe that has ended.
pub fn write_reply(
    number: u32,
    verdict: Verdict,
    probe: &Probe,
    arrivals: usize,
    out: &mut Vec<u8>,
) {
    let start = out.len();
    let (numbers, flight, answer) = (&probe.numbers, &probe.flight, &probe.talk.answer);
    let (location, cookie, cut) = texts(answer);
    let put = |out: &mut Vec<u8>, value: u32| out.extend_from_slice(&value.to_le_bytes());
    let put16 = |out: &mut Vec<u8>, value: u16| out.extend_from_slice(&value.to_le_bytes());
    put(out, number);
    out.extend_from_slice(&[verdict as u8, probe.talk.tls_version()]);
    put16(out, numbers.notes | cut);
    put16(out, narrow(flight.largest()));
    put16(out, narrow(flight.holes()));
    put16(out, answer.status);
    put(out, flight.extent());
    put(out, flight.segments());
    let length = answer
        .content_length
        .map(|length| u32::try_from(length).unwrap_or(UNKNOWN - 1));
    put(out, length.unwrap_or(UNKNOWN));
    put16(out, numbers.server_mss.unwrap_or(0));
    out.extend_from_slice(&[
        numbers.server_scale.unwrap_or(255),
        numbers.syns,
        numbers.requests,
    ]);
    out.extend_from_slice(&[0; 3]);
    for time in [numbers.rtt, numbers.handshake, numbers.retransmission] {
        put(out, time.map_or(UNKNOWN, micros));
    }
    put(
        out,
        micros(flight.last_at().saturating_sub(flight.first_at())),
    );
    put(out, micros(numbers.total));
    for value in [
        numbers.received,
        numbers.packets_in,
        numbers.packets_out,
        numbers.handshake_bytes,
    ] {
        put(out, value);
    }
    let kept = &flight.arrivals()[..flight.arrivals().len().min(arrivals)];
    for count in [kept.len(), location.len(), cookie.len()] {
        put16(out, u16::try_from(count).unwrap_or(u16::MAX));
    }
    for (text, size) in [(location, LOCATION), (cookie, SET_COOKIE)] {
        let end = out.len() + size;
        out.extend_from_slice(text);
        out.resize(end, 0);
    }
    for Arrival { at_ns, end } in kept {
        put(out, micros(u64::try_from(*at_ns).unwrap_or(0)));
        put(out, *end);
    }
    out.resize(start + reply_bytes(arrivals), 0);
}

/// Where a redirect goes and the cookies, each left out if it is too long, and the note of that.
fn texts(answer: &Answer) -> (&[u8], &[u8], u16) {
    let is_redirect = (300..400).contains(&answer.status);
    let location: &[u8] = if is_redirect { &answer.location } else { &[] };
    let is_cut = location.len() > LOCATION;
    let location = if is_cut { &[] } else { location };
    let cookie = if answer.cookie.len() > SET_COOKIE {
        &[]
    } else {
        &answer.cookie[..]
    };
    (
        location,
        cookie,
        if is_cut { note::LOCATION_CUT } else { 0 },
    )
}

fn narrow(value: u32) -> u16 {
    u16::try_from(value).unwrap_or(u16::MAX)
}

/// Rounded to microseconds.
fn micros(ns: u64) -> u32 {
    u32::try_from((ns + 500) / 1_000).unwrap_or(UNKNOWN - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `survey.iw.wire.encode` writes.
    fn message(texts: [&str; 4]) -> Vec<u8> {
        let mut data = vec![7, 0, 0, 0, 4, 0, 1, 2, 198, 18, 0, 1];
        data.resize(24, 0);
        for value in [443_u16, 64, 50, 15_000, 2, 0] {
            data.extend_from_slice(&value.to_le_bytes());
        }
        data.extend_from_slice(&600_000_u32.to_le_bytes());
        for text in texts {
            data.extend_from_slice(&u16::try_from(text.len()).unwrap().to_le_bytes());
        }
        data.extend(texts.concat().bytes());
        data
    }

    #[test]
    fn a_request_however_it_is_cut() {
        let data = message(["a.test", "/x?y", "c=1", "upshift (+me)"]);
        for cut in 0..data.len() {
            assert!(Request::read(&data[..cut]).unwrap().is_none());
        }
        let (request, length) = Request::read(&data).unwrap().unwrap();
        assert_eq!((request.number, request.port, length), (7, 443, data.len()));
        assert!(request.tls && request.plan.mss == 64 && request.plan.ack_delay == 50 * MS);
        let mut http = Vec::new();
        request.write_http(&mut http);
        let one = "GET /x?y HTTP/1.1\r\nHost: a.test\r\nUser-Agent: upshift (+me)\r\nAccept: */*\r\n\
            Accept-Encoding: identity\r\nCookie: c=1\r\n\r\n";
        assert_eq!(String::from_utf8(http).unwrap(), one.repeat(2));
    }

    #[test]
    fn a_host_as_rfc_9110_writes_it() {
        let host = |name, port: u16| {
            let mut data = message([name, "/", "", ""]);
            data[24..26].copy_from_slice(&port.to_le_bytes());
            let mut http = Vec::new();
            let (request, _) = Request::read(&data).unwrap().unwrap();
            request.write_http(&mut http);
            let text = String::from_utf8(http).unwrap();
            text.lines().nth(1).unwrap().to_owned()
        };
        assert_eq!(host("a.test", 443), "Host: a.test");
        assert_eq!(host("a.test", 80), "Host: a.test:80", "by TLS");
        assert_eq!(host("fd00::1", 8443), "Host: [fd00::1]:8443");
    }

    #[test]
    fn requests_that_are_not_valid() {
        assert!(Request::read(&message(["", "/", "", ""])).is_err());
        assert!(Request::read(&message(["a", "x", "", ""])).is_err());
        assert!(Request::read(&message(["a", "/\r\nX: y", "", ""])).is_err());
        assert!(Request::read(&message(["a", "/", "", &"u".repeat(513)])).is_err());
        for (at, value) in [(4, 5), (5, 3), (7, 0), (24, 0), (26, 47), (39, 1)] {
            let mut data = message(["a", "/", "", ""]);
            data[at] = value;
            if at == 24 {
                data[25] = 0;
            }
            assert!(Request::read(&data).is_err(), "{at}");
        }
    }

    #[test]
    fn a_refusal_has_the_size_of_a_reply() {
        let mut out = Vec::new();
        write_refusal(1, Verdict::AddressRefused, 3, &mut out);
        assert_eq!(out.len(), reply_bytes(3));
        let mut other = Vec::new();
        write_reply(1, Verdict::AddressRefused, &Probe::default(), 3, &mut other);
        assert_eq!(out, other);
    }
}
