use super::*;
use proptest::prelude::*;

const GOOD: &str = r#"{"schema":1,"nodes":[
{"name":"MUC","netns":"/run/netns/MUC","device":"tun0","addresses":["198.18.1.1","fd00:198:18:1::1"]},
{"name":"srv1","netns":"/run/netns/srv1","device":"tun0","addresses":["198.19.20.1"]}],
"pairs":[{"from":"srv1","to":"MUC","delay_us":20000,"rate_bps":20000000,"queue_bytes":50000,
"loss":{"probability":0.01,"seed":7},"ecn_threshold_bytes":15000},
{"from":"MUC","to":"srv1","delay_us":20000,"rate_bps":null,"queue_bytes":50000,"loss":null,"ecn_threshold_bytes":null}],
"delay_compensation_us":30,"txqueuelen":20000}"#;

fn error(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from), "{from}");
    parse(&GOOD.replacen(from, to, 1))
        .expect_err("refused")
        .to_string()
}

#[test]
fn reads_what_the_lab_writes() {
    let config = parse(GOOD).expect("good");
    assert_eq!(
        (
            config.nodes.len(),
            config.compensation_ns,
            config.txqueuelen
        ),
        (2, 30_000, 20_000)
    );
    let pair = &config.pairs[0];
    assert_eq!(
        (pair.from, pair.to, pair.params.delay_ns),
        (1, 0, 20_000_000)
    );
    assert_eq!(
        pair.params.loss,
        Some(Loss::Random {
            probability: 0.01,
            seed: 7
        })
    );
    assert_eq!(config.pairs[1].params.rate_bps, None);
}

#[test]
fn refuses_addresses_outside_the_lab() {
    for address in ["192.0.2.1", "198.17.255.255", "198.20.0.0", "8.8.8.8"] {
        let error = error("198.18.1.1", address);
        assert!(
            error.contains("nodes[0].addresses[0]") && error.contains("198.18.0.0/15"),
            "{error}"
        );
    }
    assert!(error("fd00:198:18:1::1", "fd00:198:19::1").contains("not a lab address"));
    assert!(error("fd00:198:18:1::1", "::ffff:198.18.1.2").contains("not a lab address"));
}

#[test]
fn errors_name_the_field_and_the_remedy() {
    for (from, to, field, remedy) in [
        ("\"schema\":1", "\"schema\":2", "schema", "same release"),
        (
            "\"MUC\",\"netns\":\"/run/netns/MUC\"",
            "\"MUC\",\"netns\":\"\"",
            "nodes[0].netns",
            "absolute path",
        ),
        (
            "\"MUC\",\"netns\":\"/run/netns/MUC\",",
            "\"MUC\",",
            "nodes[0]",
            "netns",
        ),
        ("tun0", "../../tun0", "nodes[0].device", "letters"),
        (
            "tun0",
            "a-device-name-that-is-long",
            "nodes[0].device",
            "15",
        ),
        (
            "198.19.20.1",
            "198.18.1.1",
            "nodes[1].addresses[0]",
            "another address",
        ),
        (
            "\"srv1\",\"netns\"",
            "\"MUC\",\"netns\"",
            "nodes[1].name",
            "its own name",
        ),
        (
            "\"from\":\"srv1\"",
            "\"from\":\"srv2\"",
            "pairs[0].from",
            "name from nodes",
        ),
        (
            "\"from\":\"srv1\"",
            "\"from\":\"MUC\"",
            "pairs[0]",
            "itself",
        ),
        (
            "\"from\":\"MUC\",\"to\":\"srv1\"",
            "\"from\":\"srv1\",\"to\":\"MUC\"",
            "pairs[1]",
            "keep one",
        ),
        ("20000000,", "0,", "pairs[0].rate_bps", "null for unlimited"),
        ("20000000,", "-1,", "pairs[0].rate_bps", "u64"),
        ("50000", "1000", "pairs[0].queue_bytes", "at least 1500"),
        ("50000", "null", "pairs[0].queue_bytes", "give the queue"),
        ("0.01", "1.5", "pairs[0].loss.probability", "0 to 1"),
        (",\"seed\":7", "", "pairs[0].loss", "probability and seed"),
        ("\"seed\"", "\"sede\"", "pairs[0].loss", "sede"),
        (
            "\"seed\":7",
            "\"seed\":7,\"count\":\"payload\"",
            "pairs[0].loss",
            "pattern and optionally count",
        ),
        (
            "\"probability\":0.01,\"seed\":7",
            "\"pattern\":[0],\"count\":\"bytes\"",
            "pairs[0].loss.count",
            "payload",
        ),
        (
            "\"delay_us\":20000",
            "\"delay_us\":99000000",
            "pairs[0].delay_us",
            "at most",
        ),
        (
            "\"txqueuelen\":20000",
            "\"txqueuelen\":0",
            "txqueuelen",
            "20000",
        ),
    ] {
        let error = error(from, to);
        assert!(
            error.contains(field) && error.contains(remedy),
            "{to}: {error}"
        );
        assert!(!error.contains('\n'));
    }
}

#[test]
fn a_policer_lets_something_pass() {
    for policer in [
        "{\"packets\":0,\"every_us\":9}",
        "{\"packets\":2,\"every_us\":0}",
    ] {
        let with = format!("\"policer\":{policer},\"loss\":{{");
        let error = error("\"loss\":{", &with);
        assert!(
            error.contains("pairs[0].policer must have packets"),
            "{error}"
        );
    }
}

#[test]
fn prefixes_are_whole_and_inside_the_lab() {
    for (prefix, remedy) in [
        ("198.16.0.0/12", "a part of 198.18.0.0/15"),
        ("198.18.1.0/24", "another prefix"),
        ("198.19.20.1/24", "set them to 0"),
    ] {
        let owned = format!("[\"198.19.20.1\"],\"prefixes\":[\"{prefix}\"]");
        let error = error("[\"198.19.20.1\"]", &owned);
        assert!(
            error.contains("nodes[1].prefixes[0]") && error.contains(remedy),
            "{error}"
        );
    }
}

#[test]
fn prefixes_of_different_nodes_do_not_overlap() {
    let with = |own: &str, other: &str| {
        let text = GOOD
            .replacen(
                "[\"198.18.1.1\",",
                &format!("[\"198.18.1.1\",\"{own}\","),
                1,
            )
            .replacen(
                "\"fd00:198:18:1::1\"]",
                "\"fd00:198:18:1::1\"],\"prefixes\":[\"198.18.0.0/24\"]",
                1,
            )
            .replacen(
                "[\"198.19.20.1\"]",
                &format!("[\"198.19.20.1\"],\"prefixes\":[\"{other}\"]"),
                1,
            );
        parse(&text)
    };
    let good = with("198.18.0.9", "198.19.0.0/16").expect("its own address lies in its own prefix");
    assert_eq!(good.nodes[1].prefixes[0].to_string(), "198.19.0.0/16");
    let sentence = with("198.18.0.9", "198.18.0.128/25")
        .expect_err("overlap")
        .to_string();
    assert!(sentence.contains("overlaps what \"MUC\" has"), "{sentence}");
}

#[test]
fn pattern_counts_packets_unless_it_says_payload() {
    for (extra, expected) in [
        ("", Count::Packets),
        (",\"count\":\"payload\"", Count::Payload),
    ] {
        let loss = format!("\"pattern\":[9,0]{extra}");
        let config =
            parse(&GOOD.replacen("\"probability\":0.01,\"seed\":7", &loss, 1)).expect("good");
        let indices = vec![0, 9];
        let count = expected;
        assert_eq!(
            config.pairs[0].params.loss,
            Some(Loss::Pattern { indices, count })
        );
    }
}

#[test]
fn file_is_named() {
    let error = load(Path::new("/nonexistent/net.json"))
        .expect_err("no such file")
        .to_string();
    assert!(error.starts_with("/nonexistent/net.json: "), "{error}");
}

proptest! {
    #[test]
    fn damaged_text_never_panics(at in 0..GOOD.len(), byte in 32u8..127) {
        let mut text = GOOD.as_bytes().to_vec();
        text[at] = byte;
        let _ = parse(std::str::from_utf8(&text).expect("ASCII"));
    }
}
