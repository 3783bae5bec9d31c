//! The conversation above TCP: a request, plain or by TLS, and its answer.

use crate::answer::Answer;
use crate::tls::Tls;

/// One connection's conversation. Memory is kept when it is reset.
#[derive(Default)]
pub struct Talk {
    tls: Option<Box<Tls>>,
    /// The HTTP request, as often as it is pipelined.
    pub request: Vec<u8>,
    /// The answer to the last request.
    pub answer: Answer,
    requested: bool,
    /// Whether we have sent something in answer to the server, and the bytes received since.
    spoken: bool,
    since_spoken: usize,
}

impl Talk {
    /// Forgets everything but the memory; `request` is empty then.
    pub fn reset(&mut self, tls: Option<Box<Tls>>) {
        self.tls = tls;
        self.request.clear();
        self.answer.reset();
        (self.requested, self.spoken, self.since_spoken) = (false, false, 0);
    }

    /// Appends the first bytes to send: the request, or a `ClientHello`.
    pub fn open(&mut self, out: &mut Vec<u8>) {
        match &mut self.tls {
            Some(tls) => tls.output(out),
            None => self.ask(out),
        }
    }

    /// Appends a request; another answer begins.
    pub fn ask(&mut self, out: &mut Vec<u8>) {
        match &mut self.tls {
            Some(tls) => tls.request(&self.request, out),
            None => out.extend_from_slice(&self.request),
        }
        self.answer.reset();
        (self.requested, self.spoken, self.since_spoken) = (true, true, 0);
    }

    /// Reads the server's next bytes; appends what is to be sent now.
    pub fn input(&mut self, data: &[u8], out: &mut Vec<u8>) {
        self.since_spoken += data.len();
        let before = out.len();
        let Some(tls) = &mut self.tls else {
            self.answer.push(data);
            return;
        };
        tls.input(data, |plain| self.answer.push(plain));
        tls.output(out);
        // By TLS 1.3 we have nothing to say before Finished but a ChangeCipherSpec, which the server does not wait for.
        if out.len() > before && tls.version() == 12 {
            (self.spoken, self.since_spoken) = (true, 0);
        }
        if tls.is_open() && !self.requested {
            self.ask(out);
        }
    }

    /// Whether the request was handed out to be sent.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        self.requested
    }

    /// Whether the server has had its turn: the request was sent, or our part of the handshake.
    #[must_use]
    pub fn has_spoken(&self) -> bool {
        self.spoken
    }

    /// Whether the server's answer to what we sent last has begun. By TLS, whole records that hold no answer (tickets) have
    /// not begun it; a record of which only the start is there has.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        let within = |tls: &Tls| self.since_spoken > 0 && tls.is_within_record();
        self.answer.has_begun() || self.spoken && self.tls.as_deref().is_some_and(within)
    }

    /// Whether it is by TLS, which works so far.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| !tls.has_failed())
    }

    /// Whether TLS failed.
    #[must_use]
    pub fn tls_failed(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.has_failed())
    }

    /// 12, 13, or 0: unknown, or no TLS.
    #[must_use]
    pub fn tls_version(&self) -> u8 {
        self.tls.as_ref().map_or(0, |tls| tls.version())
    }
}
