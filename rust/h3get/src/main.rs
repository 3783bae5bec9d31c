//! h3get: see the crate description.

fn main() {
    println!("{}", env!("CARGO_PKG_DESCRIPTION"));
}
