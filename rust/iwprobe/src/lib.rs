//! Initial windows of servers, measured by a TCP of its own whose ACKs are withheld.
//!
//! [`probe`] is the pure state machine of one connection, [`prober`] runs thousands of them over a packet socket.

pub mod answer;
pub mod args;
pub mod clock;
pub mod flight;
pub mod input;
pub mod link;
pub mod outbox;
pub mod pace;
pub mod packet;
pub mod poll;
pub mod probe;
pub mod prober;
pub mod segment;
pub mod stream;
pub mod talk;
pub mod tls;
pub mod verdict;
pub mod wire;
