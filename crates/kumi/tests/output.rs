//! What happens when nobody reads on.

use std::process::{Command, Stdio};

#[test]
fn printing__to_a_reader_who_leaves__ends_without_a_word() {
    let mut kumi = Command::new(env!("CARGO_BIN_EXE_kumi"))
        .args(["completions", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(kumi.stdout.take());
    let output = kumi.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}
