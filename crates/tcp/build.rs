//! Compiles the programs of `bpf/tcp`, `bpf/trace` and `bpf/silence`. Without clang or libbpf's
//! headers the objects are empty, and the command reports that this build has no congestion
//! control.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let bpf = PathBuf::from(env("CARGO_MANIFEST_DIR")).join("../../bpf");
    // The last two are for tests.
    for (folder, name) in [
        ("tcp", "kumi.bpf"),
        ("trace", "trace.bpf"),
        ("silence", "silence.bpf"),
        ("tcp", "disturb.bpf"),
        ("layout", "layout.bpf"),
    ] {
        println!("cargo:rerun-if-changed={}", bpf.join(folder).display());
        compile(&bpf.join(folder).join(format!("{name}.c")), name);
    }
}

fn compile(source: &Path, name: &str) {
    let object = PathBuf::from(env("OUT_DIR")).join(format!("{name}.o"));
    let arch = env("CARGO_CFG_TARGET_ARCH");
    let kernel_arch = match arch.as_str() {
        "x86_64" => "x86",
        "aarch64" => "arm64",
        other => other,
    };
    let status = Command::new("clang")
        .args(["-g", "-O2", "-Wall", "-target", "bpf", "-mcpu=v3"])
        .arg(format!("-D__TARGET_ARCH_{kernel_arch}"))
        .arg(format!("-I/usr/include/{arch}-linux-gnu"))
        .arg("-c")
        .arg(source)
        .arg("-o")
        .arg(&object)
        .status();
    let has_headers = Path::new("/usr/include/bpf/bpf_helpers.h").exists();
    if has_headers && status.as_ref().is_ok_and(|status| !status.success()) {
        panic!(
            "{} does not compile; see clang's messages above",
            source.display()
        );
    }
    if !status.is_ok_and(|status| status.success()) {
        println!("cargo:warning=no clang, or no libbpf-dev: this build has no congestion control");
        if let Err(error) = std::fs::write(&object, b"") {
            panic!("{} cannot be written: {error}", object.display());
        }
    }
}

fn env(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}
