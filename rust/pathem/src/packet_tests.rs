use super::*;
use crate::testing::{checksum_is_right, tcp_v4, udp_v4, udp_v6};
use proptest::prelude::*;

#[test]
fn reads_ipv4_tcp_syn() {
    let packet = tcp_v4("198.18.1.1", "198.18.2.2", 4000, 443, 0x02, 77, 0);
    let header = parse(&packet).expect("a packet");
    assert_eq!(header.flow.src.to_string(), "198.18.1.1");
    assert_eq!(
        (header.flow.protocol, header.flow.sport, header.flow.dport),
        (TCP, 4000, 443)
    );
    assert_eq!(header.syn_isn, Some(77));
    assert_eq!(header.ecn, Ecn::NotEct);
}

#[test]
fn syn_ack_has_an_isn_and_a_plain_ack_has_none() {
    let isn = |flags| {
        parse(&tcp_v4("198.18.1.1", "198.18.2.2", 1, 2, flags, 9, 0))
            .and_then(|header| header.syn_isn)
    };
    assert_eq!(isn(0x12), Some(9));
    assert_eq!(isn(0x10), None);
}

#[test]
fn reads_ipv6_udp_and_its_ecn_bits() {
    for (bits, ecn) in [
        (0, Ecn::NotEct),
        (1, Ecn::Ect1),
        (2, Ecn::Ect0),
        (3, Ecn::Ce),
    ] {
        let header = parse(&udp_v6(5000, 443, bits, 100)).expect("a packet");
        assert_eq!(
            (header.flow.protocol, header.flow.sport, header.flow.dport),
            (UDP, 5000, 443)
        );
        assert_eq!(header.ecn, ecn);
    }
}

#[test]
fn skips_ipv6_extension_headers() {
    let mut packet = udp_v6(5000, 443, 0, 100);
    packet[6] = 60; // destination options of 8 bytes, then UDP
    packet.splice(40..40, [UDP, 0, 1, 4, 0, 0, 0, 0]);
    packet[5] += 8;
    let flow = parse(&packet).expect("a packet").flow;
    assert_eq!((flow.protocol, flow.sport), (UDP, 5000));
}

#[test]
fn fragments_have_no_ports() {
    let mut packet = udp_v4("198.18.1.1", "198.18.2.2", 4000, 443, 0, 100);
    packet[6] = 0x20; // more fragments
    assert_eq!(parse(&packet).expect("a packet").flow.sport, 0);
    let mut packet = udp_v6(5000, 443, 0, 100);
    packet[6] = 44;
    packet.splice(40..40, [UDP, 0, 0, 1, 0, 0, 0, 0]);
    packet[5] += 8;
    let flow = parse(&packet).expect("a packet").flow;
    assert_eq!((flow.protocol, flow.sport), (UDP, 0));
}

#[test]
fn refuses_wrong_lengths() {
    let packet = udp_v4("198.18.1.1", "198.18.2.2", 4000, 443, 0, 100);
    assert!(parse(&packet[..99]).is_none());
    assert!(parse(&[packet.clone(), vec![0]].concat()).is_none());
    assert!(parse(&[]).is_none());
}

#[test]
fn knows_chatter() {
    let is_chatter = |dst| {
        parse(&udp_v4("198.18.1.1", dst, 1, 2, 0, 40))
            .expect("a packet")
            .is_chatter()
    };
    assert!(is_chatter("224.0.0.1") && is_chatter("255.255.255.255") && is_chatter("169.254.1.1"));
    assert!(!is_chatter("198.18.2.2") && !is_chatter("8.8.8.8"));
}

#[test]
fn marking_keeps_the_checksum_right_for_every_tos() {
    for tos in 0..=255u8 {
        for length in [28, 100, 1500] {
            let mut packet = udp_v4("198.18.1.1", "198.18.2.2", 4000, 443, tos, length);
            assert!(checksum_is_right(&packet));
            mark_ce(&mut packet);
            assert!(checksum_is_right(&packet), "tos {tos} length {length}");
            assert_eq!(packet[1], tos | 3);
        }
    }
}

#[test]
fn marking_ipv6_sets_only_the_ecn_bits() {
    let before = udp_v6(5000, 443, 2, 100);
    let mut after = before.clone();
    mark_ce(&mut after);
    assert_eq!(parse(&after).expect("a packet").ecn, Ecn::Ce);
    assert_eq!(before[0], after[0]);
    assert_eq!(before[2..], after[2..]);
}

fn nearly_a_packet() -> impl Strategy<Value = Vec<u8>> {
    let first = prop_oneof![0x40u8..=0x4f, 0x60u8..=0x6f, any::<u8>()];
    (first, proptest::collection::vec(any::<u8>(), 0..200)).prop_map(|(first, mut rest)| {
        rest.insert(0, first);
        // Right lengths let the garbage reach the inner parsers.
        let length = u16::try_from(rest.len()).unwrap_or(0);
        match first >> 4 {
            4 if rest.len() >= 4 => rest[2..4].copy_from_slice(&length.to_be_bytes()),
            6 if rest.len() >= 40 => rest[4..6].copy_from_slice(&(length - 40).to_be_bytes()),
            _ => {}
        }
        rest
    })
}

proptest! {
    #[test]
    fn garbage_never_panics(mut packet in nearly_a_packet()) {
        let header = parse(&packet);
        let length = packet.len();
        mark_ce(&mut packet);
        prop_assert_eq!(packet.len(), length);
        if header.is_some() {
            prop_assert_eq!(parse(&packet).map(|marked| marked.ecn), Some(Ecn::Ce));
        }
    }
}
