//! `kumi oshrun` with programs of the shell in place of those of OpenSHMEM.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const KUMI: &str = env!("CARGO_BIN_EXE_kumi");

fn oshrun(arguments: &[&str]) -> Command {
    let mut command = Command::new(KUMI);
    command.arg("oshrun").args(arguments);
    command
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// An agent that starts the command on this host, whatever host is named. It is removed on drop.
struct Agent(PathBuf);

impl Agent {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("agent-{name}-{}", std::process::id()));
        std::fs::write(&path, "#!/bin/sh\nHOST=$1 exec sh -c \"$2\"\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        Self(path)
    }

    fn text(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn oshrun__on_one_host__gives_each_pe_its_number_and_a_common_secret() {
    let script = "echo $RANK of $WORLD_SIZE at $MASTER_ADDR $KUMI_JOB_SECRET $KUMI_SHMEM_TRUSTED";
    let output = oshrun(&["-n", "3", "--trusted", "sh", "-c", script]);
    let (stdout, stderr) = texts(&{ output }.output().unwrap());
    let mut lines: Vec<&str> = stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines.len(), 3, "{stdout}{stderr}");
    let secret = lines[0].split(' ').nth(5).unwrap();
    assert_eq!(secret.len(), 32, "{stdout}");
    for (pe, line) in lines.iter().enumerate() {
        assert_eq!(*line, format!("{pe} of 3 at 127.0.0.1 {secret} 1"));
    }
}

#[test]
fn oshrun__one_pe_fails__ends_the_others_and_has_its_status() {
    let began = Instant::now();
    let script = "test $RANK = 1 && exit 9; exec sleep 60";
    let output = oshrun(&["-n", "3", "sh", "-c", script]).output().unwrap();
    assert_eq!(output.status.code(), Some(9));
    let (_, stderr) = texts(&output);
    assert_eq!(stderr, "kumi: PE 1 ended with status 9\n");
    let script = "test $RANK = 0 && kill -SEGV $$; trap '' TERM; while true; do sleep 1; done";
    let output = oshrun(&["-n", "2", "sh", "-c", script]).output().unwrap();
    assert_eq!(output.status.code(), Some(128 + 11));
    assert_eq!(texts(&output).1, "kumi: PE 0 was ended by SIGSEGV\n");
    assert!(began.elapsed() < Duration::from_secs(20));
}

#[test]
fn oshrun__on_hosts__starts_their_pes_in_order_with_exported_variables() {
    let agent = Agent::new("order");
    let script = "echo $RANK on $HOST, $COLOUR $SHMEM_SYMMETRIC_SIZE";
    let hosts = [
        "--agent",
        agent.text(),
        "--host",
        "a,b:2",
        "-x",
        "COLOUR=blue",
    ];
    let mut command = oshrun(&hosts);
    command
        .args(["sh", "-c", script])
        .env("SHMEM_SYMMETRIC_SIZE", "9m");
    let (stdout, stderr) = texts(&command.output().unwrap());
    let mut lines: Vec<&str> = stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        ["0 on a, blue 9m", "1 on b, blue 9m", "2 on b, blue 9m"],
        "{stderr}"
    );
}

#[test]
fn oshrun__killed_with_pes_on_hosts__leaves_none_behind() {
    let agent = Agent::new("killed");
    let mark = format!("71{:05}", std::process::id() % 100_000);
    let hosts = ["--agent", agent.text(), "--host", "a:2,b", "sleep", &mark];
    let mut launcher = oshrun(&hosts).stderr(Stdio::null()).spawn().unwrap();
    let running = || {
        let output = Command::new("pgrep")
            .args(["-fx", &format!("sleep {mark}")])
            .output();
        output.unwrap().stdout.split(|byte| *byte == b'\n').count() - 1
    };
    let wait = |wanted| {
        let deadline = Instant::now() + Duration::from_secs(10);
        while running() != wanted {
            assert!(
                Instant::now() < deadline,
                "{} run, expected {wanted}",
                running()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    wait(3);
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    wait(0);
}

#[test]
fn oshrun__mistakes__are_named() {
    let cases: [(&[&str], &str); 5] = [
        (
            &["-n", "2"],
            "no program: expected `kumi oshrun -n 4 ./program`",
        ),
        (&["-n", "0", "true"], "--count 0: expected 1 or more"),
        (
            &["--host", "a:x", "true"],
            "--host `a:x`: expected NAME or NAME:COUNT",
        ),
        (
            &["--host", "a,b", "-n", "3", "true"],
            "-n 3: expected 1 to 2",
        ),
        (
            &["-x", "NO_SUCH_NAME", "true"],
            "-x NO_SUCH_NAME: the variable is not set",
        ),
    ];
    for (arguments, message) in cases {
        let output = oshrun(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let (_, stderr) = texts(&output);
        assert!(stderr.contains(message), "{stderr}");
    }
    let output = oshrun(&["/nonexistent/program"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let (_, stderr) = texts(&output);
    assert!(
        stderr.contains("cannot start `/nonexistent/program`"),
        "{stderr}"
    );
}
