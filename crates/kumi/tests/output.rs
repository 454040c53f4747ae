//! Tests of output that cannot be written: to a full disk, or to a reader that has left.

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

const NETWORK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/network.toml");

/// Commands that print on any machine, without a device or a privilege.
const PRINTING: [&[&str]; 21] = [
    &["--help"],
    &["--version"],
    &["help", "link"],
    &["bench", "--list"],
    &["completions", "bash"],
    &["completions", "zsh"],
    &["man"],
    &["doctor"],
    &["doctor", "-j"],
    &["lab", "ls"],
    &["lab", "ls", "-j"],
    &["link", "show", "-j"],
    &["link", "metrics"],
    &["topo", "show", NETWORK],
    &["topo", "show", NETWORK, "-j"],
    &["topo", "show", NETWORK, "--svg"],
    &["topo", "export", NETWORK],
    &["topo", "export", NETWORK, "--format", "mpich"],
    &["topo", "plan", NETWORK, "--operation", "all-to-all"],
    &["topo", "plan", NETWORK, "--operation", "all-to-all", "-j"],
    &["tcp", "show", "-j"],
];

fn kumi(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kumi"));
    command.args(args);
    command
}

/// Returns whether the command prints something here. Some commands need a kernel feature.
fn prints(args: &[&str]) -> bool {
    let output = kumi(args).output().unwrap();
    !output.stdout.is_empty()
}

#[test]
fn output__to_a_full_disk__fails_with_an_error_message() {
    let mut count = 0;
    for args in PRINTING.into_iter().filter(|args| prints(args)) {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = kumi(args).stdout(full).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {stderr}");
        assert!(
            stderr.contains("standard output cannot be written to: No space left on device"),
            "{args:?}: {stderr}"
        );
        assert!(!stderr.contains("panicked"), "{args:?}: {stderr}");
        count += 1;
    }
    assert!(count >= 18, "only {count} commands print here");
}

#[test]
fn output__to_a_closed_pipe__ends_by_sigpipe_without_a_message() {
    for args in PRINTING.into_iter().filter(|args| prints(args)) {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = kumi(args);
        let command = command.stdout(writer).stderr(Stdio::piped());
        let output = command.spawn().unwrap().wait_with_output().unwrap();
        // SIGPIPE, which also ends `cat` and `ls`. A shell reports 141.
        assert_eq!(output.status.signal(), Some(13), "{args:?}: {output:?}");
        let usual = kumi(args).stdout(Stdio::null()).output().unwrap().stderr;
        assert_eq!(output.stderr, usual, "{args:?}: says more than otherwise");
    }
}

#[test]
fn error_message__to_a_full_disk__does_not_change_the_exit_status() {
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let absent = kumi(&["topo", "show", "/nowhere"]).stderr(full()).status();
    assert_eq!(absent.unwrap().code(), Some(2));
    let unknown = kumi(&["no-such-command"]).stderr(full()).status();
    assert_eq!(unknown.unwrap().code(), Some(2));
}
