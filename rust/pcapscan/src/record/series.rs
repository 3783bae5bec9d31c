//! The time series of a connection.

use super::fields::record;
use crate::series::{BIN_NS, Series};
use crate::truth::TrueClass;

record! {
    /// Time series of a connection; `client` is the direction of its client. Times are ns since 1970-01-01 UTC.
    SeriesRecord(series: &Series, client: usize) {
        let bins = |direction: usize| series.bins.iter().map(|bin| bin[direction]).collect();
        let from_client = |direction: u8| usize::from(direction) == client;
    }

    /// Start of the first bin.
    start_ns: i64 = series.start_ns(),
    /// Width of a bin.
    bin_ns: i64 = BIN_NS,
    /// IP bytes of the client, by bin.
    client_bytes: Vec<u64> = bins(client),
    /// IP bytes of the server, by bin.
    server_bytes: Vec<u64> = bins(client ^ 1),
    /// Time, whether the client began the sample (the other side's packet ended it), round-trip time in ns.
    rtt: Vec<(i64, bool, i64)> =
        series.rtt.iter().map(|&(at, direction, rtt)| (at, !from_client(direction), rtt)).collect(),
    /// Time, whether the client sent it, relative sequence number of its end, true class of each segment with data.
    sequence: Vec<(i64, bool, u32, &'static str)> = series
        .sequence
        .iter()
        .map(|&(at, direction, end, class)| {
            (at, from_client(direction), end, TrueClass::ALL[usize::from(class)].name())
        })
        .collect(),
}
