//! A bounded number of connections is held: who leaves, in what order, and that nothing else changes.

use pcapscan::testing::{Packet, Writer};
use pcapscan::{Capture, Connection, Engine, PacketRow, Record, Settings, Sink};
use std::io::Cursor;

const SYN: u16 = 0x02;
const ACK: u16 = 0x10;
const FIN: u16 = 0x11;

#[derive(Default)]
struct Taken {
    records: Vec<Record>,
    /// Frame, connection, whether the client sent it.
    rows: Vec<(u64, u32, bool)>,
}

impl Sink for Taken {
    fn packet(&mut self, row: &PacketRow) {
        self.rows.push((row.frame, row.connection, row.from_client));
    }

    fn leaves(&mut self, connection: Box<Connection>) {
        self.records.push(Record::new(&connection, false));
    }
}

fn scan(writer: &Writer, most_connections: usize) -> (Taken, Vec<String>) {
    let mut capture = Capture::from_reader(Box::new(Cursor::new(writer.bytes().to_vec()))).unwrap();
    let mut engine = Engine::new(Settings {
        most_connections,
        ..Settings::default()
    });
    let mut taken = Taken::default();
    engine.run(&mut capture, &mut taken, u64::MAX);
    assert!(engine.connections().len() <= most_connections);
    engine.finish(&mut taken);
    assert_eq!(engine.connections().len(), 0);
    (taken, engine.warnings())
}

fn numbers(taken: &Taken) -> Vec<u32> {
    taken.records.iter().map(|record| record.number).collect()
}

/// Handshake, request, answer and both FINs, 1 ms apart.
fn download(writer: &mut Writer, client_port: u16, start_ns: u64, seq: u32) {
    let steps = [
        (true, 0, 0, SYN, 0),
        (false, 0, 1, SYN | ACK, 0),
        (true, 1, 1, ACK, 0),
        (true, 1, 1, ACK, 100),
        (false, 1, 101, ACK, 1000),
        (false, 1001, 101, ACK, 1000),
        (true, 101, 2001, ACK, 0),
        (false, 2001, 101, FIN, 0),
        (true, 101, 2002, FIN, 0),
        (false, 2002, 102, ACK, 0),
    ];
    for (step, (from_client, at, ack, flags, len)) in (0u32..).zip(steps) {
        writer.packet_of(
            client_port,
            &Packet {
                time_ns: start_ns + u64::from(step) * 1_000_000,
                from_client,
                seq: seq + at,
                ack: seq + ack,
                flags,
                window: 500,
                len,
                id: u16::try_from(step).unwrap(),
                timestamps: Some((1000 + step, 999 + step)),
            },
        );
    }
}

fn syn(writer: &mut Writer, client_port: u16, time_ns: u64) {
    writer.packet_of(
        client_port,
        &Packet {
            time_ns,
            from_client: true,
            seq: 7,
            ack: 0,
            flags: SYN,
            window: 500,
            len: 0,
            id: 0,
            timestamps: None,
        },
    );
}

const SECOND: u64 = 1_000_000_000;

#[test]
fn connections_that_are_over_leave_and_nothing_else_changes() {
    let mut writer = Writer::default();
    for number in 0..200u16 {
        download(
            &mut writer,
            10_000 + number,
            (1 + u64::from(number)) * SECOND,
            5000,
        );
    }
    let (all, silence) = scan(&writer, 1_000);
    let (few, warnings) = scan(&writer, 8);
    assert_eq!(all.records.len(), 200);
    assert!(all.records == few.records, "records, and their order");
    assert_eq!(all.rows, few.rows);
    assert!(silence.is_empty());
    assert!(
        matches!(&warnings[..], [one] if one.starts_with("more than 8 connections at once: 19")),
        "{warnings:?}"
    );
}

#[test]
fn a_connection_that_goes_on_outlives_a_flood_of_syns() {
    let mut writer = Writer::default();
    let mut flood = 0u16;
    let mut parts = Writer::default();
    download(&mut parts, 9, SECOND, 5000);
    let (quiet, _) = scan(&parts, 8);
    // The same download; once it is answered, with 100 SYNs between any two of its packets.
    let packets = parts.bytes()[24..].chunks_exact(16 + 14 + 52);
    for (step, packet) in (0u64..).zip(packets) {
        writer.append(packet);
        for _ in 0..if step == 0 { 0 } else { 100 } {
            flood += 1;
            syn(&mut writer, 10_000 + flood, SECOND + step * 1_000_000 + 500);
        }
    }
    let (taken, _) = scan(&writer, 8);
    let whole: Vec<_> = taken
        .records
        .iter()
        .filter(|record| record.client_port == 9)
        .collect();
    assert!(whole == quiet.records.iter().collect::<Vec<_>>());
    assert_eq!(taken.records.len(), 1 + usize::from(flood));
}

#[test]
fn rows_come_in_order_where_connections_end_in_order() {
    let mut writer = Writer::default();
    for number in 0..1000u16 {
        syn(&mut writer, 10_000 + number, SECOND + u64::from(number));
    }
    let (taken, _) = scan(&writer, 64);
    assert_eq!(numbers(&taken), (0..1000).collect::<Vec<_>>());
}

#[test]
fn what_was_replaced_leaves_first_and_its_successor_stays() {
    let mut writer = Writer::default();
    for number in 0..3u16 {
        download(&mut writer, 10_000 + number, SECOND, 5000);
    }
    // Again from port 10001, with another sequence number, and then there is no room for one more.
    download(&mut writer, 10_001, 2 * SECOND, 900_000);
    syn(&mut writer, 20_000, 2 * SECOND + 100_000_000);
    let (taken, _) = scan(&writer, 4);
    assert_eq!(numbers(&taken), [1, 0, 2, 3, 4]);
}
