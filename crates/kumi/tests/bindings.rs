//! Runs the test script of the bindings: C, Fortran and Python, under Open MPI and MPICH.

use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
#[ignore = "needs mpi"]
fn bindings__test_script__passes_every_claim() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bindings/tests/run.sh");
    let mut command = Command::new("bash");
    command.arg(script);
    // `cargo build` puts the library beside the command, and `cargo test` into `deps`. The newer
    // one is used.
    let built = Path::new(env!("CARGO_BIN_EXE_kumi")).parent().unwrap();
    let places = [built.join("libkumi.so"), built.join("deps/libkumi.so")];
    let built_at = |place: &&PathBuf| place.metadata().and_then(|file| file.modified()).ok();
    let library = places.iter().filter(|place| place.exists());
    let library = library.max_by_key(built_at);
    command.env("KUMI_TEST_LIBRARY", library.expect("libkumi.so is built"));
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let failed: Vec<&str> = said
        .lines()
        .filter(|line| !line.starts_with("ok"))
        .collect();
    assert!(output.status.success(), "{}", failed.join("\n"));
    assert!(said.lines().count() > 50, "{said}");
}
