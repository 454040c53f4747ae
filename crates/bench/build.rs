//! Embeds the bench plans and records the commit of the build.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let root = PathBuf::from(env("CARGO_MANIFEST_DIR")).join("../..");
    carry(&root.join("bench"));
    note_commit(&root);
}

/// Writes `carried.rs`: name and text of every plan of `bench`.
fn carry(bench: &Path) {
    let folder = bench.join("plans");
    println!("cargo:rerun-if-changed={}", folder.display());
    let mut table = "pub static PLANS: &[(&str, &str)] = &[\n".to_owned();
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

fn env(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}
