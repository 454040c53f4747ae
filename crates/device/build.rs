//! Compiles the programs of `bpf/multilink`. Without clang or libbpf's headers the object is empty,
//! and `kumi link up --datapath kernel` reports that this build has no programs.

use kumi_embed::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let folder = PathBuf::from(env("CARGO_MANIFEST_DIR")).join("../../bpf/multilink");
    println!("cargo:rerun-if-changed={}", folder.display());
    let object = PathBuf::from(env("OUT_DIR")).join("multilink.bpf.o");
    let include = format!("-I/usr/include/{}-linux-gnu", env("CARGO_CFG_TARGET_ARCH"));
    let status = Command::new("clang")
        .args(["-g", "-O2", "-Wall", "-target", "bpf", "-mcpu=v3", &include])
        .arg("-c")
        .arg(folder.join("multilink.bpf.c"))
        .arg("-o")
        .arg(&object)
        .status();
    let has_headers = Path::new("/usr/include/bpf/bpf_helpers.h").exists();
    let is_compiled = status.as_ref().is_ok_and(|status| status.success());
    if has_headers && status.is_ok() && !is_compiled {
        panic!("bpf/multilink does not compile; see clang's messages above");
    }
    if !is_compiled {
        println!(
            "cargo:warning=no clang, or no libbpf-dev: `kumi link up` will have no kernel data path"
        );
        if let Err(error) = std::fs::write(&object, b"") {
            panic!("{} cannot be written: {error}", object.display());
        }
    }
}
