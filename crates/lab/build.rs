//! Compiles `bpf/lab/fault.bpf.c` if clang is installed. Otherwise the object is empty, and the lab
//! uses its emulator for the faults that the program would have produced. The script also embeds
//! the topologies of `bench/`.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    carry(&PathBuf::from(env("CARGO_MANIFEST_DIR")).join("../../bench"));
    let source = PathBuf::from(env("CARGO_MANIFEST_DIR")).join("../../bpf/lab/fault.bpf.c");
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

/// Writes `carried.rs`: name and text of every topology of `bench`.
fn carry(bench: &Path) {
    let folder = bench.join("topologies");
    println!("cargo:rerun-if-changed={}", folder.display());
    let mut table = "pub static TOPOLOGIES: &[(&str, &str)] = &[\n".to_owned();
    for file in files(&folder, "toml") {
        let stem = file.file_stem().unwrap_or_default().to_string_lossy();
        let path = file.display().to_string();
        table += &format!("({stem:?}, include_str!({path:?})),\n");
    }
    table += "];\n";
    let file = PathBuf::from(env("OUT_DIR")).join("carried.rs");
    if let Err(error) = std::fs::write(&file, table) {
        panic!("cannot write {}: {error}", file.display());
    }
}

fn files(folder: &Path, kind: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == kind))
        .collect();
    files.sort();
    files
}

fn env(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}
