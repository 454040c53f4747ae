//! Build script of the `kumi` command. It compiles the preload library of `kumi run` from
//! `bindings/`. Without a C compiler the library is empty, and the command reports that it marks no
//! phases.

use kumi_embed::{env, files};
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let bindings = PathBuf::from(env("CARGO_MANIFEST_DIR")).join("../../bindings");
    let library = PathBuf::from(env("OUT_DIR")).join("libkumi_preload.so");
    let mut sources = Vec::new();
    println!("cargo:rerun-if-changed={}", bindings.join("c").display());
    sources.push(bindings.join("c/kumi_phase.c"));
    for folder in ["mpi", "socket"] {
        println!("cargo:rerun-if-changed={}", bindings.join(folder).display());
        sources.extend(files(&bindings.join(folder), "c"));
    }
    sources.sort();
    let preload = digest(&bindings, &sources);
    let status = Command::new("cc")
        .args([
            "-std=gnu11",
            "-O2",
            "-g",
            "-fPIC",
            "-shared",
            "-Wall",
            "-Wextra",
        ])
        .arg(format!("-DKUMI_PRELOAD_DIGEST={preload}u"))
        .arg("-I")
        .arg(bindings.join("c"))
        .args(&sources)
        .arg("-o")
        .arg(&library)
        .args(["-ldl", "-pthread"])
        .status();
    if !status.is_ok_and(|status| status.success()) {
        println!("cargo:warning=bindings/ do not compile: this build marks no phases");
        if let Err(error) = std::fs::write(&library, b"") {
            panic!("{} cannot be written: {error}", library.display());
        }
    }
}

/// Returns the FNV-1a digest, 64 bits, of the sources and the headers beside them. Ranks compare
/// it. If their preload libraries differ, they could decide differently, so they leave collectives
/// to the MPI library.
fn digest(bindings: &Path, sources: &[PathBuf]) -> u64 {
    let headers = |folder: &str| files(&bindings.join(folder), "h");
    let headers = ["c", "mpi"].into_iter().flat_map(headers);
    let mut digest = 0xcbf2_9ce4_8422_2325_u64;
    for file in sources.iter().cloned().chain(headers) {
        for byte in std::fs::read(&file).unwrap_or_default() {
            digest = (digest ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
    digest
}
