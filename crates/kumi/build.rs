//! Build script of the `kumi` command. It compiles the preload library of `kumi run` from
//! `bindings/`. Without a C compiler the library is empty, and the command reports that it marks no
//! phases. The script also embeds the bench plans and topologies, and records the commit of the
//! build.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    carry(&PathBuf::from(env("CARGO_MANIFEST_DIR")).join("../../bench"));
    note_commit(&PathBuf::from(env("CARGO_MANIFEST_DIR")).join("../.."));
    let bindings = PathBuf::from(env("CARGO_MANIFEST_DIR")).join("../../bindings");
    let library = PathBuf::from(env("OUT_DIR")).join("libkumi_preload.so");
    let mut sources = Vec::new();
    println!("cargo:rerun-if-changed={}", bindings.join("c").display());
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

/// Writes `carried.rs`: name and text of every plan and topology of `bench`.
fn carry(bench: &Path) {
    let mut table = String::new();
    for (folder, name) in [("plans", "PLANS"), ("topologies", "TOPOLOGIES")] {
        let folder = bench.join(folder);
        println!("cargo:rerun-if-changed={}", folder.display());
        table += &format!("pub static {name}: &[(&str, &str)] = &[\n");
        for file in files(&folder, "toml") {
            let stem = file.file_stem().unwrap_or_default().to_string_lossy();
            table += &format!(
                "({stem:?}, include_str!({:?})),\n",
                file.display().to_string()
            );
        }
        table += "];\n";
    }
    let file = PathBuf::from(env("OUT_DIR")).join("carried.rs");
    if let Err(error) = std::fs::write(&file, table) {
        panic!("{} cannot be written: {error}", file.display());
    }
}

/// Sets `KUMI_COMMIT` for the compiler: the checkout's commit. It ends in `-dirty` if files of the
/// checkout differ from the commit. Outside a checkout it is empty.
fn note_commit(root: &Path) {
    let crates = std::fs::read_dir(root.join("crates")).into_iter().flatten();
    let sources = crates.flatten().map(|one| one.path().join("src"));
    let others = [".git/HEAD", ".git/logs/HEAD", "bpf", "Cargo.lock"].map(|file| root.join(file));
    for file in sources.chain(others) {
        if file.exists() {
            println!("cargo:rerun-if-changed={}", file.display());
        }
    }
    let output = Command::new("git")
        .args(["describe", "--always", "--dirty", "--abbrev=12"])
        .current_dir(root)
        .output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_string());
    println!("cargo:rustc-env=KUMI_COMMIT={}", text.unwrap_or_default());
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

fn env(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}
