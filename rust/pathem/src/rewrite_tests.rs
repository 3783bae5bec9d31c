use super::*;
use crate::testing::{checksum_is_right, tcp_checksum_is_right, tcp_syn, udp_v4, udp_v6};
use proptest::prelude::*;

/// MSS 1460, SACK permitted, timestamps, NOP, window scale 14: what Linux sends.
const LINUX: &[u8] = &[
    2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 14,
];
/// MSS 1460, two NOPs, timestamps: a SYN-ACK without SACK and window scale.
const PLAIN: &[u8] = &[2, 4, 5, 180, 1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2];

const ALL: [Rule; 12] = [
    Rule::BleachEct,
    Rule::CeToEct0,
    Rule::CeToNotEct,
    Rule::MarkEct0,
    Rule::DropEcnSyn,
    Rule::StripEcn,
    Rule::StripSack,
    Rule::StripWindowScale,
    Rule::StripTimestamps,
    Rule::ForgeEcn,
    Rule::ForgeSack,
    Rule::LowerWindowScale,
];

fn after(rule: Rule, flags: u8, options: &[u8]) -> Syn {
    let mut packet = tcp_syn(flags, 0, options);
    apply(&[rule], &mut packet);
    assert!(
        checksum_is_right(&packet) && tcp_checksum_is_right(&packet),
        "{rule:?}"
    );
    Syn::read(&packet).expect("a SYN")
}

#[test]
fn options_are_stripped_one_by_one() {
    let whole = Syn::read(&tcp_syn(SYN | ECE | CWR, 0, LINUX)).expect("a SYN");
    assert_eq!(
        whole,
        Syn {
            ecn: true,
            sack: true,
            window_scale: Some(14),
            timestamps: true,
            mss: Some(1460),
            window: 64_240
        }
    );
    for flags in [SYN | ECE | CWR, SYN | ACK | ECE] {
        let without = |rule| after(rule, flags, LINUX);
        assert_eq!(
            without(Rule::StripEcn),
            Syn {
                ecn: false,
                ..whole
            }
        );
        assert_eq!(
            without(Rule::StripSack),
            Syn {
                sack: false,
                ..whole
            }
        );
        assert_eq!(
            without(Rule::StripWindowScale),
            Syn {
                window_scale: None,
                ..whole
            }
        );
        assert_eq!(
            without(Rule::StripTimestamps),
            Syn {
                timestamps: false,
                ..whole
            }
        );
        assert_eq!(
            without(Rule::LowerWindowScale),
            Syn {
                window_scale: Some(13),
                ..whole
            }
        );
    }
}

#[test]
fn a_forged_answer_agrees_to_what_nobody_asked() {
    assert!(after(Rule::ForgeEcn, SYN | ACK, PLAIN).ecn);
    assert!(after(Rule::ForgeSack, SYN | ACK, PLAIN).sack);
    assert!(
        !after(Rule::ForgeEcn, SYN, PLAIN).ecn,
        "a SYN is left alone"
    );
    assert!(!after(Rule::ForgeSack, SYN, PLAIN).sack);
    assert!(
        !after(Rule::ForgeSack, SYN | ACK, &[2, 4, 5, 180]).sack,
        "no room"
    );
}

#[test]
fn the_ecn_field_is_changed_in_both_ip_versions() {
    for (rule, expected) in [
        (Rule::BleachEct, [0, 0, 0, 0]),
        (Rule::CeToEct0, [0, 1, 2, 2]),
        (Rule::CeToNotEct, [0, 1, 2, 0]),
        (Rule::MarkEct0, [2, 1, 2, 3]),
    ] {
        for (before, after) in (0u8..).zip(expected) {
            let mut four = udp_v4("198.18.1.1", "198.18.2.2", 1, 2, 0xb8 | before, 100);
            let mut six = udp_v6(1, 2, before, 100);
            apply(&[rule], &mut four);
            apply(&[rule], &mut six);
            assert_eq!((four[1], six[1] >> 4), (0xb8 | after, after), "{rule:?}");
            assert!(checksum_is_right(&four));
        }
    }
}

#[test]
fn only_an_ecn_setup_syn_is_lost() {
    let lost = |flags| is_lost(&[Rule::DropEcnSyn], &tcp_syn(flags, 0, LINUX));
    assert!(lost(SYN | ECE | CWR));
    assert!(!lost(SYN) && !lost(SYN | ECE) && !lost(SYN | ACK | ECE) && !lost(ACK | ECE | CWR));
    assert!(!is_lost(&[], &tcp_syn(SYN | ECE | CWR, 0, LINUX)));
}

proptest! {
    /// Whatever the options are: no panic, no other length, right checksums, nothing but SYNs changed in TCP.
    #[test]
    fn any_segment_survives(flags: u8, ecn in 0u8..4, options in proptest::collection::vec(any::<u8>(), 0..=40)) {
        let padded: Vec<u8> = options.iter().copied().chain(std::iter::repeat(0)).take(options.len().div_ceil(4) * 4).collect();
        let packet = tcp_syn(flags, ecn, &padded);
        for rule in ALL {
            let mut changed = packet.clone();
            apply(&[rule], &mut changed);
            prop_assert_eq!(changed.len(), packet.len());
            prop_assert!(checksum_is_right(&changed) && tcp_checksum_is_right(&changed));
            if flags & SYN == 0 {
                prop_assert_eq!(&changed[20..], &packet[20..]);
            }
        }
    }

    #[test]
    fn any_bytes_survive(mut bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
        apply(&ALL, &mut bytes);
        let _ = (Syn::read(&bytes), is_lost(&ALL, &bytes));
    }
}
