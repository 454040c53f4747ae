//! Tests of the installed command, outside the checkout of its build.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

/// The command, copied into a prefix of its own. The prefix is removed on drop.
struct Installed(PathBuf);

impl Installed {
    fn new(name: &str) -> Self {
        let prefix = std::env::temp_dir().join(format!("kumi-{name}-{}", std::process::id()));
        std::fs::create_dir_all(prefix.join("bin")).unwrap();
        std::fs::copy(env!("CARGO_BIN_EXE_kumi"), prefix.join("bin/kumi")).unwrap();
        Self(prefix)
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(self.0.join("bin/kumi"));
        command
            .args(args)
            .current_dir("/")
            .env("XDG_STATE_HOME", self.0.join("state"));
        loop {
            match command.output() {
                // A child that another test has just forked may still have the copy open for
                // writing.
                Err(busy) if busy.kind() == ErrorKind::ExecutableFileBusy => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                output => return output.unwrap(),
            }
        }
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn bench__outside_the_checkout__has_every_plan() {
    let output = Installed::new("list").run(&["bench", "--list"]);
    assert!(output.status.success(), "{output:?}");
    let stdout = String::from_utf8(output.stdout).unwrap();
    let plans = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/plans");
    assert_eq!(
        stdout.lines().count(),
        std::fs::read_dir(plans).unwrap().count()
    );
}

#[test]
fn bench__users_own_plan__is_read_from_its_path() {
    let installed = Installed::new("own");
    let file = installed.0.join("own.toml");
    std::fs::write(&file, "name = \"own\"\nshow = \"x\"\n").unwrap();
    let output = installed.run(&["bench", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.contains("own.toml") && stderr.contains("show"),
        "{stderr}"
    );
}

#[test]
fn demo__libkumi_and_report_folder_missing__reports_both_before_it_starts() {
    let output = Installed::new("demo").run(&["demo", "--report", "/nowhere/demo.html"]);
    assert_eq!(output.status.code(), Some(2));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("libkumi.so not found in"), "{stderr}");
    assert!(stderr.contains("/nowhere/demo.html"), "{stderr}");
    assert!(!stderr.contains("[1/7]"), "{stderr}");
}
