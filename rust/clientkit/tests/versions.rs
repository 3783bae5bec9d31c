//! Clients report the version of their library as a literal: it has to be the locked one.

use std::fs;

fn read(path: &str) -> String {
    fs::read_to_string(format!("{}/../{path}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// The text of a field of the client's `LIBRARY`.
fn literal<'a>(source: &'a str, field: &str) -> &'a str {
    let (_, rest) = source.split_once("const LIBRARY").unwrap();
    let (_, rest) = rest.split_once(&format!("{field}: \"")).unwrap();
    rest.split_once('"').unwrap().0
}

#[test]
fn the_version_is_the_locked_one() {
    for client in ["h3get", "quinnget"] {
        let source = read(&format!("{client}/src/quic.rs"));
        let (name, version) = (literal(&source, "name"), literal(&source, "version"));
        let entry = format!("name = \"{name}\"\nversion = \"{version}\"");
        assert!(
            read("../Cargo.lock").contains(&entry),
            "Cargo.lock does not hold {name} {version}"
        );
    }
}
