//! Tests of Ctrl-C: each command undoes its setup and prints a message about it.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const KUMI: &str = env!("CARGO_BIN_EXE_kumi");

/// Bench plan: a stream over the device, on two links.
const PLAN: &str = r#"
name = "own"
shows = "nothing"
topology = "two-links"
variants = ["kumi"]
repetitions = 1
[[case]]
name = "tcp"
workload = { kind = "stream", seconds = 20 }
"#;

/// Time limit for the undo.
const UNDO_MAX: Duration = Duration::from_secs(20);

/// A running command with a folder of its own for temporary files.
struct RunningCommand {
    child: Child,
    temporary: PathBuf,
}

impl RunningCommand {
    fn new(name: &str, args: &[&str]) -> Self {
        let folder = format!("kumi-interrupt-{name}-{}", std::process::id());
        let temporary = std::env::temp_dir().join(folder);
        std::fs::create_dir_all(&temporary).unwrap();
        let child = Command::new(KUMI)
            .args(args)
            .current_dir(&temporary)
            .env("TMPDIR", &temporary)
            .env("XDG_STATE_HOME", temporary.join("state"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self { child, temporary }
    }

    /// Returns the entries of the temporary folder, without the folder for results.
    fn files(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&self.temporary).unwrap().flatten();
        let paths = entries.map(|entry| entry.path());
        paths.filter(|path| !path.ends_with("state")).collect()
    }

    fn interrupt(mut self, signal: Signal) -> Output {
        assert!(self.child.try_wait().unwrap().is_none(), "ended too early");
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
        let deadline = Instant::now() + UNDO_MAX;
        while self.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(self.files(), Vec::<PathBuf>::new(), "is left behind");
        std::fs::remove_dir_all(&self.temporary).unwrap();
        self.child.wait_with_output().unwrap()
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns the labs that are up.
fn labs() -> Vec<Value> {
    let output = Command::new(KUMI)
        .args(["lab", "ls", "-j"])
        .output()
        .unwrap();
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    list["labs"].as_array().unwrap().clone()
}

/// Waits for the lab of process `pid` and returns it.
fn find_lab(pid: u32) -> Value {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(lab) = labs().into_iter().find(|lab| lab["pid"] == pid) {
            return lab;
        }
        assert!(Instant::now() < deadline, "no lab of {pid}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Returns the folders of the devices of a lab's hosts.
fn run_folders(lab: &Value) -> Vec<PathBuf> {
    let hosts = lab["hosts"].as_array().unwrap().iter();
    let inode = |host: &Value| {
        let file = format!("/proc/{}/ns/net", host["pid"]);
        std::fs::metadata(file).unwrap().ino()
    };
    hosts
        .map(|host| PathBuf::from(format!("/run/kumi/net-{}", inode(host))))
        .collect()
}

fn assert_gone(lab: &Value) {
    let is_same = |running: &Value| running["name"] == lab["name"];
    assert!(!labs().iter().any(is_same), "{lab} is up");
    for host in lab["hosts"].as_array().unwrap() {
        let process = format!("/proc/{}", host["pid"]);
        assert!(!std::path::Path::new(&process).exists(), "{host} lives");
    }
}

#[test]
#[ignore = "needs root, netns, tun, iperf3"]
fn bench__interrupted_with_a_device_up__leaves_no_key_no_lab_and_no_folder() {
    let plan = std::env::temp_dir().join(format!("kumi-plan-{}.toml", std::process::id()));
    std::fs::write(&plan, PLAN).unwrap();
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let bench = RunningCommand::new("bench", &["bench", plan.to_str().unwrap()]);
        let lab = find_lab(bench.child.id());
        let folders = run_folders(&lab);
        // From here on, a file contains a key, and a daemon runs.
        let deadline = Instant::now() + Duration::from_secs(60);
        while !folders[0].join("kumi0.sock").exists() {
            assert!(Instant::now() < deadline, "no device");
            std::thread::sleep(Duration::from_millis(20));
        }
        let output = bench.interrupt(signal);
        let stderr = stderr(&output);
        assert_eq!(output.status.code(), Some(128 + signal as i32), "{stderr}");
        assert!(
            stderr.contains(&format!("kumi: {signal}: stopping")),
            "{stderr}"
        );
        assert!(stderr.contains("undone: kumi"), "{stderr}");
        assert!(stderr.contains("undone: lab bench-two-links"), "{stderr}");
        assert_gone(&lab);
        folders.iter().for_each(|folder| assert!(!folder.exists()));
    }
    std::fs::remove_file(plan).unwrap();
}

#[test]
#[ignore = "needs root, netns, tun, iperf3"]
fn lab__interrupted_in_the_foreground__reports_that_it_is_down() {
    let name = format!("interrupt-{}", std::process::id());
    let up = ["lab", "up", "two-links", "--name", &name, "--foreground"];
    let command = RunningCommand::new("lab", &up);
    let lab = find_lab(command.child.id());
    // Files of a device, which must be removed with the host.
    let folder = &run_folders(&lab)[0];
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join("kumi0.log"), "").unwrap();
    let output = command.interrupt(Signal::SIGINT);
    assert!(output.status.success());
    let down = format!("lab {name} is down: 2 hosts");
    assert!(stderr(&output).contains(&down), "{}", stderr(&output));
    assert_gone(&lab);
    assert!(!folder.exists());
}

#[test]
#[ignore = "needs root, netns, tun, iperf3"]
fn lab__interrupted_during_setup__is_removed() {
    let name = format!("built-{}", std::process::id());
    let command = RunningCommand::new("built", &["lab", "up", "coll-tree-56", "--name", &name]);
    std::thread::sleep(Duration::from_millis(300));
    let output = command.interrupt(Signal::SIGINT);
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    assert!(stderr(&output).contains(&format!("undone: lab {name}")));
    assert!(!labs().iter().any(|lab| lab["name"] == name.as_str()));
}

#[test]
fn discover__interrupted_while_a_shell_hangs__ends_with_a_message() {
    let hang = std::env::temp_dir().join(format!("kumi-hang-{}", std::process::id()));
    std::fs::write(&hang, "#!/bin/sh\nexec sleep 60\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&hang, mode).unwrap();
    let shell = hang.to_str().unwrap();
    let args = ["topo", "discover", "--hosts", "a,b", "--shell", shell];
    let command = RunningCommand::new("discover", &args);
    std::thread::sleep(Duration::from_millis(500));
    let output = command.interrupt(Signal::SIGINT);
    std::fs::remove_file(&hang).unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert!(stderr(&output).contains("undone: kumi topo probe on a, b"));
}

#[test]
#[ignore = "needs root, netns, tun"]
fn link_up__sigint_or_sigterm__removes_the_device_or_keeps_it() {
    let name = format!("links-{}", std::process::id());
    let up = ["lab", "up", "two-links", "--name", &name, "--foreground"];
    let command = RunningCommand::new("links", &up);
    let lab = find_lab(command.child.id());
    let folder = &run_folders(&lab)[0];
    let key = std::env::temp_dir().join(format!("{name}.key"));
    let keygen = [KUMI, "link", "keygen", key.to_str().unwrap()];
    assert!(
        Command::new(KUMI)
            .args(&keygen[1..])
            .status()
            .unwrap()
            .success()
    );
    let exec = ["lab", "exec", "--lab", &name, "h1", "--"];
    let link = |options: &[&str]| {
        let up = [
            "link",
            "up",
            "kumi0",
            "--over",
            "eth1,eth2",
            "--key",
            keygen[3],
        ];
        let args = [&exec[..], &[KUMI], &up, options].concat();
        let device = RunningCommand::new("link", &args);
        let deadline = Instant::now() + Duration::from_secs(10);
        while !folder.join("kumi0.sock").exists() {
            assert!(Instant::now() < deadline, "no device");
            std::thread::sleep(Duration::from_millis(20));
        }
        device
    };
    let has_device = || {
        let show = [&exec[..], &["ip", "link", "show", "kumi0"]].concat();
        Command::new(KUMI)
            .args(show)
            .output()
            .unwrap()
            .status
            .success()
    };

    let output = link(&["--foreground"]).interrupt(Signal::SIGINT);
    assert!(
        output.status.success() && !has_device(),
        "{}",
        stderr(&output)
    );
    assert!(
        stderr(&output).contains("taking kumi0 down"),
        "{}",
        stderr(&output)
    );
    assert!(!folder.exists());

    let output = link(&["--wait-peers", "1"]).interrupt(Signal::SIGINT);
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("undone: kumi0"),
        "{}",
        stderr(&output)
    );
    assert!(!has_device() && !folder.exists());

    let output = link(&["--foreground"]).interrupt(Signal::SIGTERM);
    assert!(output.status.success() && has_device());
    assert!(
        stderr(&output).contains("kumi0 stays for the next start"),
        "{}",
        stderr(&output)
    );

    command.interrupt(Signal::SIGINT);
    assert!(!folder.exists());
    std::fs::remove_file(key).unwrap();
}
