//! Compiles `bpf/lab/fault.bpf.c` if clang is installed. Otherwise the object is empty, and the lab
//! uses its emulator for the faults that the program would have produced. The script also embeds
//! the topologies of `bench/`.

use kumi_embed::{env, write_table};
use std::path::PathBuf;
use std::process::Command;

fn main() {
    let root = PathBuf::from(env("CARGO_MANIFEST_DIR")).join("../..");
    write_table("TOPOLOGIES", &root.join("bench/topologies"));
    let source = root.join("bpf/lab/fault.bpf.c");
    let object = PathBuf::from(env("OUT_DIR")).join("fault.bpf.o");
    println!("cargo:rerun-if-changed={}", source.display());
    let multiarch = format!("-I/usr/include/{}-linux-gnu", env("CARGO_CFG_TARGET_ARCH"));
    let status = Command::new("clang")
        .args([
            "-g", "-O2", "-Wall", "-target", "bpf", "-mcpu=v3", &multiarch, "-c",
        ])
        .arg(&source)
        .arg("-o")
        .arg(&object)
        .status();
    if !status.is_ok_and(|status| status.success()) {
        println!(
            "cargo:warning=no clang for BPF: the lab's kernel fabric will not support faults; its emulator will"
        );
        if let Err(error) = std::fs::write(&object, b"") {
            panic!("{} cannot be written: {error}", object.display());
        }
    }
}
