//! BPF programs: compiled by clang when the crate is built.

use super::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles `bpf/NAME/NAME.bpf.c` of the repository into `NAME.bpf.o` in the build folder. A change
/// of that folder, or of `bpf/crypto`, runs the script again.
///
/// Without clang or libbpf's headers the object is empty, and cargo prints a warning that ends with
/// `loss`: the part of kumi that this build lacks.
///
/// # Panics
/// The programs do not compile, or the object cannot be written.
pub fn compile_bpf(name: &str, loss: &str) {
    let all = PathBuf::from(env("CARGO_MANIFEST_DIR")).join("../../bpf");
    let folder = all.join(name);
    for watched in [&folder, &all.join("crypto")] {
        println!("cargo:rerun-if-changed={}", watched.display());
    }
    let object = PathBuf::from(env("OUT_DIR")).join(format!("{name}.bpf.o"));
    let include = format!("-I/usr/include/{}-linux-gnu", env("CARGO_CFG_TARGET_ARCH"));
    let status = Command::new("clang")
        .args(["-g", "-O2", "-Wall", "-target", "bpf", "-mcpu=v3", &include])
        .arg("-c")
        .arg(folder.join(format!("{name}.bpf.c")))
        .arg("-o")
        .arg(&object)
        .status();
    let has_headers = Path::new("/usr/include/bpf/bpf_helpers.h").exists();
    let is_compiled = status.as_ref().is_ok_and(|status| status.success());
    if has_headers && status.is_ok() && !is_compiled {
        panic!("bpf/{name} does not compile; see clang's messages above");
    }
    if !is_compiled {
        println!("cargo:warning=no clang, or no libbpf-dev: {loss}");
        if let Err(error) = std::fs::write(&object, b"") {
            panic!("{} cannot be written: {error}", object.display());
        }
    }
}

/// Returns the 64-bit FNV-1a hash of `files` in `bpf/NAME` of the repository. It differs between
/// two builds if one of the files does, in one byte at least.
///
/// # Panics
/// A file cannot be read.
pub fn hash_bpf(name: &str, files: &[&str]) -> u64 {
    let folder = PathBuf::from(env("CARGO_MANIFEST_DIR"))
        .join("../../bpf")
        .join(name);
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for file in files {
        let path = folder.join(file);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) => panic!("{} cannot be read: {error}", path.display()),
        };
        for byte in bytes {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    hash
}
