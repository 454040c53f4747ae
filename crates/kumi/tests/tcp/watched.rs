//! Tests of the start and end of a trace: connections that exist before, and the end by the
//! command, the process or a signal.

use super::KUMI;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

fn start_trace(args: &[&str]) -> Child {
    // A shell's background job ignores SIGINT, and what it starts does as well.
    let mut command = Command::new("env");
    command.args(["--default-signal=INT", KUMI]);
    command.args(["tcp", "trace", "-o", "/dev/null"]).args(args);
    command.spawn().unwrap()
}

/// Returns the exit status of `child`, which must end within 5 s.
fn exit_status(mut child: Child) -> ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if start.elapsed() > Duration::from_secs(5) {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("goes on");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns whether a process with exactly this command line runs.
fn is_running(command: &str) -> bool {
    let output = Command::new("pgrep").args(["-f", "-x", command]).output();
    output.unwrap().status.success()
}

#[test]
fn explain__folder_that_is_no_cgroup__is_refused_with_what_is_accepted() {
    for folder in ["/no/such/folder", "/proc"] {
        let explain = Command::new(KUMI)
            .args(["tcp", "explain", "--cgroup", folder])
            .output()
            .unwrap();
        assert_eq!(explain.status.code(), Some(2), "{folder}");
        let message = String::from_utf8_lossy(&explain.stderr).into_owned();
        assert_eq!(
            message,
            format!(
                "kumi: --cgroup: {folder} is not a version 2 cgroup, whose folder has a file \
                 cgroup.controllers; expected a folder such as /sys/fs/cgroup/system.slice\n"
            )
        );
    }
}

#[test]
#[ignore = "needs root, netns, bpf"]
fn trace_of_a_command__interrupted_or_timed_out__ends_the_command_too() {
    let command = format!("sleep 60.{}", std::process::id());
    let args: Vec<&str> = command.split(' ').collect();
    let trace = start_trace(&[&["--"], &args[..]].concat());
    let start = Instant::now();
    while !is_running(&command) && start.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(20));
    }
    kill(
        Pid::from_raw(trace.id().try_into().unwrap()),
        Signal::SIGINT,
    )
    .unwrap();
    assert_eq!(exit_status(trace).code(), Some(128 + 2));
    assert!(!is_running(&command), "the command is left behind");
    let timed_trace = start_trace(&[&["--seconds", "0.2", "--"], &args[..]].concat());
    assert_eq!(exit_status(timed_trace).code(), Some(128 + 15));
    assert!(!is_running(&command), "the command is left behind");
}

#[test]
#[ignore = "needs root, netns, bpf"]
fn trace_of_a_process__process_exits__ends() {
    let mut process = Command::new("sleep").arg("0.7").spawn().unwrap();
    let trace = start_trace(&["--pid", &process.id().to_string()]);
    process.wait().unwrap();
    assert!(exit_status(trace).success());
}

/// Python server that runs before the trace starts. A child of the traced process has the listener
/// too.
const SERVER: &str = "import os,socket,time
s=socket.create_server(('127.0.0.1',0));print(s.getsockname()[1],flush=True)
if os.fork(): os.wait()
while True:
    c,_=s.accept();c.recv(9);c.sendall(b'x'*100000);c.close()";

const CLIENT: &str = "import socket,sys
s=socket.create_connection(('127.0.0.1',int(sys.argv[1])));s.sendall(b'x')
while s.recv(65536): pass";

#[test]
#[ignore = "needs root, netns, bpf"]
fn trace_of_a_running_server__new_connection__is_shown() {
    let mut server = Command::new("python3")
        .args(["-c", SERVER])
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(server.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    let pid = server.id().to_string();
    let trace = Command::new(KUMI)
        .args(["tcp", "trace", "--seconds", "1.2", "--pid", &pid])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(700));
    let client = Command::new("python3")
        .args(["-c", CLIENT, line.trim()])
        .status();
    assert!(client.unwrap().success());
    let output = trace.wait_with_output().unwrap();
    let group = Pid::from_raw(-i32::try_from(server.id()).unwrap());
    kill(group, Signal::SIGKILL).unwrap();
    assert_eq!(server.wait().unwrap().signal(), Some(9));
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let last = lines.lines().last().expect("the connection is seen");
    let event: Value = serde_json::from_str(last).unwrap();
    assert_eq!(event["schema"], 2, "{event}");
    assert_eq!(event["bytes_sent"], 100_000, "{event}");
    assert!(
        event["network_limited_us"].is_u64() && event["dupacks"] == 0,
        "{event}"
    );
}
