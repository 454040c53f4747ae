//! Embeds the bench plans and records the commit of the build.

use kumi_embed::{env, write_table};
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let root = PathBuf::from(env("CARGO_MANIFEST_DIR")).join("../..");
    write_table("PLANS", &root.join("bench/plans"));
    note_commit(&root);
}

/// Sets `KUMI_COMMIT` for the compiler: the checkout's commit. It ends in `-dirty` if files of the
/// checkout differ from the commit. Outside a checkout it is empty.
fn note_commit(root: &Path) {
    let crates = std::fs::read_dir(root.join("crates")).into_iter().flatten();
    let sources = crates.flatten().map(|entry| entry.path().join("src"));
    let files = [".git/HEAD", ".git/logs/HEAD", "bpf", "Cargo.lock"].map(|file| root.join(file));
    for file in sources.chain(files) {
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
