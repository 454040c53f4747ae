//! Compiles the preload library of `kumi run` from `bindings/`. Without a C compiler it is empty, and
//! the command says that phases are not marked.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let bindings = PathBuf::from(env("CARGO_MANIFEST_DIR")).join("../../bindings");
    let library = PathBuf::from(env("OUT_DIR")).join("libkumi_preload.so");
    let mut sources = Vec::new();
    println!("cargo:rerun-if-changed={}", bindings.join("c").display());
    for folder in ["mpi", "socket"] {
        println!("cargo:rerun-if-changed={}", bindings.join(folder).display());
        sources.extend(c_files(&bindings.join(folder)));
    }
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

fn c_files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
        .collect();
    files.sort();
    files
}

fn env(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}
