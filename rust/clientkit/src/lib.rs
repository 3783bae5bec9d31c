//! What Upshift's download clients share: arguments in, one JSON document out. A client adds its transport.
//!
//! A client implements [`Client`], and its `main` is `clientkit::main::<ItsType>()`. The contract of all clients,
//! in any language, is in `docs/design/house.md` (keys of the document, arguments) and
//! `docs/method/failures.md` (which fault has which cause). This crate does not depend on a QUIC or TLS library.

mod arguments;
mod body;
mod client;
mod clock;
mod close;
mod code;
mod confine;
mod failure;
mod program;
mod reach;
mod record;
mod response;
mod socket;
mod text;
mod url;

pub use arguments::{Request, UnreadableCa, Windows, parse_seconds};
pub use client::Client;
pub use clock::{Clock, Usage};
pub use close::{Close, Rejected, stream_reset};
pub use code::{FailureCode, Icmp};
pub use confine::{User, confine};
pub use failure::{Failure, Outcome, Verdict};
pub use program::main;
pub use reach::{Prefix, PrefixError, Reach, ReachError, VARIABLE as REACH_VARIABLE};
pub use record::{Library, Record, seconds};
pub use response::{Field, Response};
pub use socket::{Batch, RECEIVE_SIZE, Socket};
pub use text::one_line;
pub use url::{Url, UrlError};
