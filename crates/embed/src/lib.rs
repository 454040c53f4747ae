//! Parts of build scripts: they find files, embed texts in a crate, and compile BPF programs.
#![forbid(unsafe_code)]

mod bpf;

pub use bpf::{compile_bpf, hash_bpf};

use std::path::{Path, PathBuf};

/// Returns the files of `folder` with this extension, in alphabetical order.
pub fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|suffix| suffix == extension))
        .collect();
    files.sort();
    files
}

/// Returns a variable of cargo's environment; empty if it is not set.
pub fn env(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

/// Writes `embedded.rs` into the build folder: a table `NAME` with the name, without its extension,
/// and the text of each TOML file of `folder`. A change of the folder runs the script again.
///
/// # Panics
/// The file cannot be written.
pub fn write_table(name: &str, folder: &Path) {
    println!("cargo:rerun-if-changed={}", folder.display());
    let mut table = format!("pub static {name}: &[(&str, &str)] = &[\n");
    for file in files(folder, "toml") {
        let stem = file.file_stem().unwrap_or_default().to_string_lossy();
        let path = file.display().to_string();
        table += &format!("({stem:?}, include_str!({path:?})),\n");
    }
    table += "];\n";
    let file = PathBuf::from(env("OUT_DIR")).join("embedded.rs");
    if let Err(error) = std::fs::write(&file, table) {
        panic!("cannot write {}: {error}", file.display());
    }
}
