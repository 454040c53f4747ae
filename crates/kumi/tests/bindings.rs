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
    let folder = Path::new(env!("CARGO_BIN_EXE_kumi")).parent().unwrap();
    let places = [folder.join("libkumi.so"), folder.join("deps/libkumi.so")];
    let build_time = |place: &&PathBuf| place.metadata().and_then(|file| file.modified()).ok();
    let library = places.iter().filter(|place| place.exists());
    let library = library.max_by_key(build_time);
    command.env("KUMI_TEST_LIBRARY", library.expect("libkumi.so is built"));
    let output = command.output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let failures: Vec<&str> = stdout
        .lines()
        .filter(|line| !line.starts_with("ok"))
        .collect();
    assert!(output.status.success(), "{}", failures.join("\n"));
    assert!(stdout.lines().count() > 50, "{stdout}");
}
