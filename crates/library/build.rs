//! Sets the soname of `libkumi.so` and the text of `kumi_version()`.

use std::path::{Path, PathBuf};

/// Sources that determine plans, relative to this crate's folder.
const PLANNER: [&str; 6] = [
    "../coll/src",
    "../topo/src",
    "src/like.rs",
    "src/ranks.rs",
    "src/seen.rs",
    "src/work.rs",
];

fn main() {
    let header = "../../bindings/c/kumi_version.h";
    println!("cargo:rerun-if-changed={header}");
    let abi = std::fs::read_to_string(header).ok();
    let abi = abi.as_deref().and_then(abi_of);
    let abi = abi.unwrap_or_else(|| panic!("{header} has no line `#define KUMI_ABI NUMBER`"));
    println!("cargo:rustc-env=KUMI_ABI={abi}");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libkumi.so.{abi}");

    let mut digest = Digest(0xcbf2_9ce4_8422_2325);
    for place in PLANNER {
        println!("cargo:rerun-if-changed={place}");
        digest.add(Path::new(place));
    }
    let release = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let plans = digest.0 as u32;
    println!("cargo:rustc-env=KUMI_VERSION={release}+{plans:08x}");
}

fn abi_of(header: &str) -> Option<u32> {
    let line = header
        .lines()
        .find_map(|line| line.strip_prefix("#define KUMI_ABI "));
    line?.trim().parse().ok()
}

/// FNV-1a digest (64 bits) of the contents of files, in the order of their paths.
struct Digest(u64);

impl Digest {
    fn add(&mut self, place: &Path) {
        if place.is_dir() {
            let entries = std::fs::read_dir(place).into_iter().flatten().flatten();
            let mut inside: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
            inside.sort();
            inside.iter().for_each(|place| self.add(place));
            return;
        }
        for byte in std::fs::read(place).unwrap_or_default() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
}
