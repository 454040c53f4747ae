//! Hosts that lack what the programs need, and programs that change while connections use them.

use super::{Control, ECHO, KUMI, LIVE, Program, TURN, kumi, wan_under};
use std::process::{Command, Output};
use std::sync::PoisonError;
use std::time::Duration;

/// Runs `kumi ARGV` where `hide`, a shell command, has changed the mounts: in a mount namespace of its own.
fn kumi_where(hide: &str, argv: &str) -> Output {
    let script = format!("{hide} && {KUMI} {argv}");
    Command::new("unshare")
        .args(["--mount", "sh", "-c", &script])
        .output()
        .unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
#[ignore = "needs root, netns, bpf"]
fn up__host_without_what_it_needs__names_it_and_leaves_nothing() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let _ = kumi(&["tcp", "down"]);
    for (hide, named) in [
        (
            "mount -t bpf bpf /sys/fs/bpf && mount -o remount,ro,bind /sys/fs/bpf",
            "is a writable bpf file system at /sys/fs/bpf?",
        ),
        (
            "mount -t tmpfs none /sys/kernel/btf",
            "the kernel has no BTF",
        ),
    ] {
        let up = kumi_where(hide, "tcp up");
        assert_eq!(up.status.code(), Some(1), "{hide}: {up:?}");
        assert!(said(&up).contains(named), "{hide}: {}", said(&up));
    }
    assert!(
        kumi(&["tcp", "up"]).status.success(),
        "nothing is in the way"
    );
    assert!(kumi(&["tcp", "down"]).status.success());
}

#[test]
#[ignore = "needs root, netns, bpf"]
fn run__host_with_cgroups_of_the_first_version_only__says_so_and_runs_the_command() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let _ = kumi(&["tcp", "down"]);
    // The daemon is what looks for the cgroup: it is the one that must not see any.
    let hide = "umount -a -t cgroup2";
    let run = kumi_where(
        hide,
        &format!(
            "tcp up && {KUMI} run -- sh -c 'exit 7'; status=$?; {KUMI} tcp down; exit $status"
        ),
    );
    assert_eq!(run.status.code(), Some(7), "{run:?}");
    let said = said(&run);
    assert!(said.contains("in no cgroup of version 2"), "{said}");
}

#[test]
#[ignore = "needs root, netns, bpf"]
fn up__replacing_under_traffic__keeps_old_connections_and_takes_new_ones() {
    let control = Control::up();
    let cluster = wan_under("replace", "reno");
    let _server = Program::start(&cluster, "h2", ECHO);
    std::thread::sleep(Duration::from_millis(500));
    let mut old = Program::start(&cluster, "h1", LIVE);
    assert!(old.line().starts_with("kumi "));
    let other = kumi(&["tcp", "up", "--replace", "--without", "unsent-cap"]);
    assert!(other.status.success(), "{}", said(&other));
    assert!(old.line_in(0.5).starts_with("kumi "), "goes on");
    let shown = control.shown();
    let mechanisms = shown["mechanisms"].to_string();
    assert!(!mechanisms.contains("unsent-cap"), "{shown}");
    drop(old);
    // The echo has one connection at a time.
    let mut new = Program::start(&cluster, "h1", LIVE);
    assert!(new.line().starts_with("kumi "), "its rank is taken in");
    assert!(kumi(&["tcp", "down"]).status.success());
    assert!(new.line_in(0.5).starts_with("reno "), "given back");
}
