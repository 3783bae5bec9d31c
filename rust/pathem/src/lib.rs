//! pathem: one process that emulates the network between lab namespaces.
//!
//! Each lab node is a network namespace with a TUN device whose other end this process holds. Every
//! ordered pair of nodes has its own path: loss, a drop-tail bottleneck, one AQM law, a delay, and
//! middleboxes that change headers.
//! `docs/design/pathem.md` states the laws, the configuration and the control protocol.
//!
//! The modules [`config`], [`config_error`], [`packet`], [`prefix`], [`loss`], [`policer`], [`syn`], [`rewrite`], [`path`], [`flows`], [`stats`], [`lead`] and [`router`] are
//! pure: the time is an argument, in nanoseconds of a monotonic clock, so the tests run on a virtual
//! clock. [`tun`], [`netlink`], [`host`], [`awake`], [`control`], [`jobs`], [`snapshot`], [`answer`], [`packet_log`], [`world`] and [`engine`] talk to
//! the kernel.

pub mod answer;
pub mod awake;
pub mod config;
pub mod config_error;
pub mod control;
pub mod engine;
pub mod flows;
pub mod host;
pub mod jobs;
pub mod lead;
pub mod loss;
pub mod netlink;
pub mod packet;
pub mod packet_log;
pub mod path;
pub mod policer;
pub mod prefix;
pub mod rewrite;
pub mod router;
pub mod snapshot;
pub mod stats;
pub mod syn;
#[cfg(test)]
mod testing;
pub mod tun;
pub mod world;
