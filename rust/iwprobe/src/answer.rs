//! The HTTP answer: status, length, redirect, cookies, and whether it is whole.
//!
//! Source: RFC 9110, RFC 9112 (HTTP/1.1), RFC 6265 (cookies).

/// Longest head that is read [bytes].
const LONGEST_HEAD: usize = 16_384;
const MOST_HEADERS: usize = 96;

/// What is known of an answer. Memory is kept when it is reset.
#[derive(Debug, Default)]
pub struct Answer {
    head: Vec<u8>,
    state: State,
    /// Status code; 0: the head is not whole.
    pub status: u16,
    /// `Content-Length`.
    pub content_length: Option<u64>,
    /// `Location`, if the answer is a redirect.
    pub location: Vec<u8>,
    /// Names and values of all `Set-Cookie`, as in a `Cookie` header.
    pub cookie: Vec<u8>,
    /// Bytes of interim responses (RFC 9110, section 15.2), which come before the answer.
    interim: u64,
    body: u64,
    total: u64,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Head,
    Body,
    /// Not HTTP, or too long.
    Broken,
}

impl Answer {
    /// Forgets everything.
    pub fn reset(&mut self) {
        self.head.clear();
        self.location.clear();
        self.cookie.clear();
        self.state = State::Head;
        (self.status, self.content_length) = (0, None);
        (self.interim, self.body, self.total) = (0, 0, 0);
    }

    /// Reads the answer's next bytes.
    pub fn push(&mut self, data: &[u8]) {
        self.total += data.len() as u64;
        match self.state {
            State::Body => self.body += data.len() as u64,
            State::Broken => {}
            State::Head => {
                let mut searched = self.head.len().saturating_sub(3);
                let room = LONGEST_HEAD - self.head.len();
                self.head.extend_from_slice(&data[..data.len().min(room)]);
                while self.state == State::Head
                    && let Some(end) = end_of_head(&self.head[searched..])
                {
                    self.read_head(searched + end);
                    searched = 0;
                }
                if self.state == State::Head && self.head.len() == LONGEST_HEAD {
                    self.state = State::Broken;
                }
            }
        }
    }

    fn read_head(&mut self, length: usize) {
        let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
        let mut response = httparse::Response::new(&mut headers);
        if response.parse(&self.head[..length]).is_err() {
            self.state = State::Broken;
            return;
        }
        let status = response.code.unwrap_or(0);
        if (100..200).contains(&status) && status != 101 {
            self.interim += length as u64;
            self.head.drain(..length);
            return;
        }
        self.status = status;
        for header in response.headers.iter() {
            if header.name.eq_ignore_ascii_case("content-length") {
                self.content_length = std::str::from_utf8(header.value)
                    .ok()
                    .and_then(|text| text.trim().parse().ok());
            } else if header.name.eq_ignore_ascii_case("location") {
                self.location.clear();
                self.location.extend_from_slice(header.value);
            } else if header.name.eq_ignore_ascii_case("set-cookie") {
                let pair = header.value.split(|byte| *byte == b';').next();
                if !self.cookie.is_empty() {
                    self.cookie.extend_from_slice(b"; ");
                }
                self.cookie.extend_from_slice(pair.unwrap_or_default());
            }
        }
        self.state = State::Body;
        self.body = self.total - self.interim - length as u64;
    }

    /// Whether the whole body is there, by `Content-Length`.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.state == State::Body
            && self
                .content_length
                .is_some_and(|length| self.body >= length)
    }

    /// Whether anything was received.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.total > 0
    }
}

fn end_of_head(bytes: &[u8]) -> Option<usize> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    Some(end + 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REDIRECT: &[u8] =
        b"HTTP/1.1 301 Moved\r\nLocation: /a\r\nSet-Cookie: a=1; Path=/\r\nset-cookie: b=2\r\n\
        Content-Length: 3\r\n\r\nabc";

    #[test]
    fn interim_responses_are_no_answer() {
        let hints = b"HTTP/1.1 103 Early Hints\r\nLocation: /b\r\n\r\nHTTP/1.1 102 Wait\r\n\r\n";
        let whole = [hints, REDIRECT].concat();
        for cut in 0..whole.len() {
            let mut answer = Answer::default();
            answer.push(&whole[..cut]);
            assert!(!answer.is_complete());
            answer.push(&whole[cut..]);
            assert_eq!((answer.status, answer.content_length), (301, Some(3)));
            assert_eq!(
                (&answer.location[..], answer.is_complete()),
                (&b"/a"[..], true)
            );
        }
    }

    #[test]
    fn a_redirect_however_it_is_cut() {
        for cut in 0..REDIRECT.len() {
            let mut answer = Answer::default();
            answer.push(&REDIRECT[..cut]);
            assert!(!answer.is_complete());
            answer.push(&REDIRECT[cut..]);
            assert_eq!((answer.status, answer.content_length), (301, Some(3)));
            assert_eq!(
                (&answer.location[..], &answer.cookie[..]),
                (&b"/a"[..], &b"a=1; b=2"[..])
            );
            assert!(answer.is_complete(), "{cut}");
        }
    }

    #[test]
    fn what_is_not_http_is_no_answer() {
        let mut answer = Answer::default();
        answer.push(b"220 mail.example ESMTP\r\n\r\n");
        assert_eq!((answer.status, answer.state), (0, State::Broken));
        let mut endless = Answer::default();
        for _ in 0..10_000 {
            endless.push(b"HTTP/1.1 ");
        }
        assert_eq!(endless.state, State::Broken);
        assert!(endless.head.len() <= LONGEST_HEAD);
    }
}
