//! Names the code of the engine, so that a row can say by which code it was made (`SOURCE`).

use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    let home = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let mut files = Vec::new();
    for folder in ["src", "../pcapscan/src"] {
        println!("cargo:rerun-if-changed={folder}");
        collect(&home.join(folder), &mut files);
    }
    files.sort();
    // FNV-1a: the same for each compiler, which std's hash need not be.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for file in files {
        for byte in fs::read(&file).expect("a source file can be read") {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    println!("cargo:rustc-env=SOURCE={:012x}", hash >> 16);
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a source folder can be read") {
        let path = entry.expect("its entries, too").path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|suffix| suffix == "rs") {
            files.push(path);
        }
    }
}
