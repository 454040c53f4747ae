//! Sets the soname of `libkumi.so` and the text of `kumi_version()`.

use std::path::{Path, PathBuf};

/// Sources that determine plans, relative to this crate's folder.
const PLANNER: [&str; 7] = [
    "../coll/src",
    "../topo/src",
    "src/equal_blocks.rs",
    "src/rank_plan.rs",
    "src/ranks.rs",
    "src/request.rs",
    "src/work.rs",
];

fn main() {
    let header = "../../bindings/c/kumi_version.h";
    println!("cargo:rerun-if-changed={header}");
    let abi = std::fs::read_to_string(header).ok();
    let abi = abi.as_deref().and_then(parse_abi);
    let abi = abi.unwrap_or_else(|| panic!("{header} has no line `#define KUMI_ABI NUMBER`"));
    println!("cargo:rustc-env=KUMI_ABI={abi}");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libkumi.so.{abi}");

    let mut digest = Digest(0xcbf2_9ce4_8422_2325);
    for path in PLANNER {
        println!("cargo:rerun-if-changed={path}");
        digest.add(Path::new(path));
    }
    let release = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let plans = digest.0 as u32;
    println!("cargo:rustc-env=KUMI_VERSION={release}+{plans:08x}");
}

fn parse_abi(header: &str) -> Option<u32> {
    let line = header
        .lines()
        .find_map(|line| line.strip_prefix("#define KUMI_ABI "));
    line?.trim().parse().ok()
}

/// FNV-1a digest (64 bits) of the contents of files, in the order of their paths.
struct Digest(u64);

impl Digest {
    fn add(&mut self, path: &Path) {
        if path.is_dir() {
            let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
            let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
            paths.sort();
            paths.iter().for_each(|path| self.add(path));
            return;
        }
        // A file that was moved must be named here again, or its changes would not show.
        let contents = std::fs::read(path);
        let contents = contents.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        for byte in contents {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
}
