//! Tests of hosts that lack requirements, and of programs that change while connections use them.

use super::{Control, ECHO, KUMI, LIVE, Program, TURN, kumi, wan_with_control};
use std::process::{Command, Output};
use std::sync::PoisonError;
use std::time::Duration;

/// Runs `kumi ARGV` in a mount namespace of its own, after the shell command `hide` has changed the
/// mounts.
fn kumi_with_mounts(hide: &str, argv: &str) -> Output {
    let script = format!("{hide} && {KUMI} {argv}");
    Command::new("unshare")
        .args(["--mount", "sh", "-c", &script])
        .output()
        .unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
#[ignore = "needs root, netns, bpf"]
fn tcp_up__prerequisite_missing__is_named_and_nothing_remains() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let _ = kumi(&["tcp", "down"]);
    for (hide, reason) in [
        (
            "mount -t bpf bpf /sys/fs/bpf && mount -o remount,ro,bind /sys/fs/bpf",
            "check that a writable bpf file system is mounted at /sys/fs/bpf",
        ),
        (
            "mount -t tmpfs none /sys/kernel/btf",
            "the kernel has no BTF",
        ),
    ] {
        let up = kumi_with_mounts(hide, "tcp up");
        assert_eq!(up.status.code(), Some(1), "{hide}: {up:?}");
        assert!(stderr(&up).contains(reason), "{hide}: {}", stderr(&up));
    }
    assert!(
        kumi(&["tcp", "up"]).status.success(),
        "nothing is in the way"
    );
    assert!(kumi(&["tcp", "down"]).status.success());
}

#[test]
#[ignore = "needs root, netns, bpf"]
fn run__host_without_cgroup_v2__warns_and_runs_the_command() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let _ = kumi(&["tcp", "down"]);
    // The daemon looks for the cgroup, so the daemon must not see one.
    let hide = "umount -a -t cgroup2";
    let run = kumi_with_mounts(
        hide,
        &format!(
            "tcp up && {KUMI} run -- sh -c 'exit 7'; status=$?; {KUMI} tcp down; exit $status"
        ),
    );
    assert_eq!(run.status.code(), Some(7), "{run:?}");
    let stderr = stderr(&run);
    assert!(stderr.contains("not in a version 2 cgroup"), "{stderr}");
}

#[test]
#[ignore = "needs root, netns, bpf"]
fn tcp_up_replace__under_traffic__keeps_old_connections_and_controls_new_ones() {
    let control = Control::up();
    let cluster = wan_with_control("replace", "reno");
    let _server = Program::start(&cluster, "h2", ECHO);
    std::thread::sleep(Duration::from_millis(500));
    let mut old = Program::start(&cluster, "h1", LIVE);
    assert!(old.line().starts_with("kumi "));
    let replacement = kumi(&["tcp", "up", "--replace", "--without", "unsent-cap"]);
    assert!(replacement.status.success(), "{}", stderr(&replacement));
    assert!(old.later_line(0.5).starts_with("kumi "), "goes on");
    let state = control.state();
    let mechanisms = state["mechanisms"].to_string();
    assert!(!mechanisms.contains("unsent-cap"), "{state}");
    drop(old);
    // The echo server has one connection at a time.
    let mut new = Program::start(&cluster, "h1", LIVE);
    assert!(new.line().starts_with("kumi "), "its rank is taken in");
    assert!(kumi(&["tcp", "down"]).status.success());
    assert!(new.later_line(0.5).starts_with("reno "), "given back");
}

/// Echoes messages for a second, with kumi at both ends. Returns the number of acknowledgements
/// that were put first since the programs were installed.
fn acks_first(control: &Control, cluster: &kumi_lab::Cluster, port: &str) -> u64 {
    let _server = Program::start(cluster, "h2", &ECHO.replace("7101", port));
    std::thread::sleep(Duration::from_millis(500));
    let mut client = Program::start(cluster, "h1", &LIVE.replace("7101", port));
    assert!(client.later_line(1.0).starts_with("kumi "));
    let state = control.state();
    state["totals"]["acks_first"].as_u64().expect("a number")
}

#[test]
#[ignore = "needs root, netns, bpf"]
fn tcp_up_without_ack_band__echoed_messages__puts_no_acknowledgement_first() {
    let control = Control::up();
    let cluster = wan_with_control("ack-band", "reno");
    assert!(acks_first(&control, &cluster, "7101") > 0);
    assert!(kumi(&["tcp", "down"]).status.success());
    let output = kumi(&["tcp", "up", "--without", "ack-band"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(acks_first(&control, &cluster, "7102"), 0);
}

/// Returns the command `kumi ARGV` of a user without privileges.
fn kumi_as_nobody(argv: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .arg(KUMI)
        .args(argv);
    command
}

#[test]
#[ignore = "needs root, netns, bpf"]
fn run__runtime_folder_missing__still_starts_the_command() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let _ = kumi(&["tcp", "down"]);
    let launch = |temporary: &str| {
        let run = kumi_as_nobody(&["run", "--", "sh", "-c", "exit 7"])
            .env("XDG_RUNTIME_DIR", "/run/user/65534")
            .env("TMPDIR", temporary)
            .output()
            .unwrap();
        assert_eq!(run.status.code(), Some(7), "{run:?}");
        stderr(&run)
    };
    let lines = launch("/tmp");
    assert_eq!(lines.matches("warning").count(), 1, "{lines}");
    // If no folder is available at all, the message names the losses.
    let lines = launch("/proc/none");
    assert!(
        lines.contains("/proc/none") && lines.contains("runs without"),
        "{lines}"
    );
}

#[test]
#[ignore = "needs root, netns, bpf"]
fn tcp_up__lock_held_by_the_caller__is_not_inherited_by_the_daemon() {
    let _control = Control::up();
    let lock = std::env::temp_dir().join(format!("kumi-lock-{}", std::process::id()));
    let script = format!(
        "exec 9>{0}; flock 9; {KUMI} tcp down; {KUMI} tcp up",
        lock.display()
    );
    assert!(
        Command::new("sh")
            .args(["-c", &script])
            .output()
            .unwrap()
            .status
            .success()
    );
    let status = Command::new("flock")
        .arg("-n")
        .arg(&lock)
        .arg("true")
        .status()
        .unwrap();
    std::fs::remove_file(&lock).unwrap();
    assert!(status.success(), "the daemon holds the lock");
}

#[test]
#[ignore = "needs root, netns, bpf"]
fn tcp_down__unprivileged_user__is_refused_and_changes_nothing() {
    let control = Control::up();
    let down = kumi_as_nobody(&["tcp", "down"]).output().unwrap();
    assert!(!down.status.success());
    assert!(stderr(&down).contains("run as root"), "{}", stderr(&down));
    assert_eq!(control.state()["tier"], "full");
}

#[test]
#[ignore = "needs root, netns, bpf"]
fn daemon__300_silent_clients__do_not_block_a_new_one() {
    let _control = Control::up();
    // Another user holds the connections, and sends nothing on them.
    let script = "import socket,time
held=[]
for _ in range(300):
    s=socket.socket(socket.AF_UNIX);s.settimeout(2);s.connect('/run/kumi/tcp.sock');held.append(s)
print('held',flush=True);time.sleep(5)";
    let mut client = kumi_as_nobody(&["run", "--", "python3", "-c", script])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut line = [0; 4];
    std::io::Read::read_exact(&mut client.stdout.take().unwrap(), &mut line).unwrap();
    assert_eq!(&line, b"held");
    let start = std::time::Instant::now();
    let run = kumi(&["run", "--require", "--", "true"]);
    assert!(run.status.success(), "{}", stderr(&run));
    assert!(
        start.elapsed() < Duration::from_secs(1),
        "{:?}",
        start.elapsed()
    );
    client.kill().unwrap();
    client.wait().unwrap();
}

/// Creates a cgroup of version 2 and returns its folder, or `None` if that is not possible.
fn new_cgroup(name: &str) -> Option<std::path::PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
    let mount = mounts
        .lines()
        .find(|line| line.split(' ').nth(2) == Some("cgroup2"))?;
    let folder = std::path::Path::new(mount.split(' ').nth(1)?).join(name);
    std::fs::create_dir(&folder).ok()?;
    Some(folder)
}

#[test]
#[ignore = "needs root, netns, bpf"]
fn cgroup__removed_while_in_use__does_not_block_a_replacement_and_leaves_no_program() {
    let control = Control::up();
    let folder = new_cgroup(&format!("kumi-{}", std::process::id())).expect("root may make one");
    let prefix = format!("echo $$ > {}/cgroup.procs; exec ", folder.display());
    let run = |command: &str| {
        let script = format!("{prefix}{KUMI} run --require -- {command}");
        Command::new("sh").args(["-c", &script]).spawn().unwrap()
    };
    let links = std::path::Path::new("/sys/fs/bpf/kumi/tcp/cgroups");
    let count = || std::fs::read_dir(links).unwrap().count();
    // The cgroup is removed while its process lives. Its links are then dead, and would obstruct a
    // replacement.
    let mut child = run("sleep 60");
    let start = std::time::Instant::now();
    while count() == 0 && start.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(count(), 1);
    let parent_procs = folder.parent().unwrap().join("cgroup.procs");
    std::fs::write(parent_procs, child.id().to_string()).unwrap();
    std::fs::remove_dir(&folder).unwrap();
    let output = kumi(&["tcp", "up", "--replace"]);
    assert!(output.status.success(), "{}", stderr(&output));
    child.kill().unwrap();
    child.wait().unwrap();
    let start = std::time::Instant::now();
    while count() > 0 && start.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(count(), 0, "no process is left");
    assert_eq!(control.state()["tier"], "full");
}
