//! The bindings, by their own script: C, Fortran and Python, under Open MPI and MPICH.

use std::path::Path;
use std::process::Command;

#[test]
#[ignore = "needs mpi"]
fn bindings__every_claim_of_their_script__holds() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bindings/tests/run.sh");
    let output = Command::new("bash").arg(script).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let failed: Vec<&str> = said
        .lines()
        .filter(|line| !line.starts_with("ok"))
        .collect();
    assert!(output.status.success(), "{}", failed.join("\n"));
    assert!(said.lines().count() > 50, "{said}");
}
