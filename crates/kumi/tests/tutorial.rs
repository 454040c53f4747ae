//! Runs the commands of the first tutorial in order, as a reader would, and checks its claims.

use std::path::Path;
use std::process::Command;

const TUTORIAL: &str = include_str!("../../../docs/tutorials/one-machine.md");

/// Returns the commands in the document's console blocks, in order.
fn commands(text: &str) -> Vec<&str> {
    let mut is_console = false;
    let mut commands = Vec::new();
    for line in text.lines() {
        match line {
            "```console" => is_console = true,
            "```" => is_console = false,
            _ if is_console => commands.extend(line.strip_prefix("# ")),
            _ => {}
        }
    }
    commands
}

/// Removes the lab and the key of a tutorial that failed half-way.
struct CleanUp;

impl Drop for CleanUp {
    fn drop(&mut self) {
        let _ = Command::new(env!("CARGO_BIN_EXE_kumi"))
            .args(["lab", "down", "two-links"])
            .output();
        let _ = std::fs::remove_file("/tmp/tutorial.key");
    }
}

/// Returns iperf3's rate at the receiver, in Mb/s.
fn received_mbps(output: &str) -> f64 {
    let line = output.lines().find(|line| line.ends_with("receiver"));
    let fields: Vec<&str> = line.expect("a summary").split_whitespace().collect();
    let index = fields.iter().position(|field| field.ends_with("bits/sec"));
    let index = index.expect("a rate");
    let scale = if fields[index].starts_with('G') {
        1e3
    } else {
        1.0
    };
    fields[index - 1].parse::<f64>().expect("a number") * scale
}

#[test]
#[ignore = "needs root, netns, tun, iperf3"]
fn tutorial__commands_in_order__succeed_and_give_the_stated_results() {
    let _clean_up = CleanUp;
    let folder = Path::new(env!("CARGO_BIN_EXE_kumi")).parent().unwrap();
    let path = format!(
        "{}:{}",
        folder.display(),
        std::env::var("PATH").unwrap_or_default()
    );
    let mut rates_mbps = Vec::new();
    let commands = commands(TUTORIAL);
    assert!(commands.len() > 12, "{commands:?}");
    for command in commands {
        let output = Command::new("sh")
            .args(["-c", command])
            .env("PATH", &path)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command}\n{text}{errors}");
        if command.contains("iperf3 --client") {
            rates_mbps.push(received_mbps(&text));
        }
        if command.contains(" ping ") {
            assert!(text.contains("3 received"), "{text}");
        }
    }
    let [single_mbps, pair_mbps] = rates_mbps[..] else {
        panic!("{rates_mbps:?}");
    };
    assert!(
        (850.0..960.0).contains(&single_mbps),
        "one cable: {single_mbps} Mb/s"
    );
    assert!(
        pair_mbps > 1.6 * single_mbps,
        "both cables: {pair_mbps} Mb/s, one: {single_mbps}"
    );
}
