//! Tests `kumi topo` as a user runs it, on the network file of the packages.

use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

const KUMI: &str = env!("CARGO_BIN_EXE_kumi");
const NETWORK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/network.toml");

fn topo(argv: &[&str]) -> Output {
    Command::new(KUMI).arg("topo").args(argv).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Writes a file for one test and returns its path.
fn write_file(test: &str, text: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("kumi-topo-{test}-{}", std::process::id()));
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn show__network_file__is_drawn_as_a_tree() {
    let drawing = stdout(&topo(&["show", NETWORK]));
    let expected = "leaf1\n├─ n1 n2  (1Gbit, 25us)\n└─ leaf2  (10Gbit down, 1Gbit up, 50us)\n   \
                    ├─ n3  (1Gbit, 25us, 1500Mbit both ways at once)\n   └─ n4  (1Gbit, 25us)\n";
    assert_eq!(drawing, expected);
    let object: Value = serde_json::from_str(&stdout(&topo(&["show", "-j", NETWORK]))).unwrap();
    assert_eq!(object["schema"], 1);
    assert_eq!(object["links"][0]["rates_bps"][1], 1_000_000_000);
}

#[test]
fn plan__gather__is_checked_and_lists_its_transfers() {
    let plan = topo(&[
        "plan", NETWORK, "--root", "n2", "--bytes", "1MiB", "--check", "-j",
    ]);
    let plan: Value = serde_json::from_str(&stdout(&plan)).unwrap();
    assert_eq!(plan["is_checked"], true);
    assert_eq!(plan["transfers"].as_array().unwrap().len(), 3);
    assert_eq!(plan["transfers"][0]["to"], "n2");
    // Three blocks of 1 MiB cross a link of 1 Gb/s.
    let bound_s = plan["bound_s"].as_f64().unwrap();
    assert!((bound_s - 3.0 * 1_048_576.0 * 8.0 / 1e9).abs() < 1e-9);
    assert!(plan["predicted_s"].as_f64().unwrap() >= bound_s);
    let text = stdout(&topo(&["plan", NETWORK, "--check"]));
    assert!(text.contains("no two messages meet"), "{text}");
}

#[test]
fn plan__every_operation__passes_the_check() {
    let operations = [
        "gather",
        "scatter",
        "broadcast",
        "reduce",
        "all-gather",
        "reduce-scatter",
        "all-reduce",
        "all-to-all",
    ];
    for operation in operations {
        let text = stdout(&topo(&[
            "plan",
            NETWORK,
            "--operation",
            operation,
            "--check",
        ]));
        assert!(text.starts_with(operation), "{text}");
        assert!(text.contains("checked: it does the operation"), "{text}");
    }
    let output = topo(&[
        "plan",
        NETWORK,
        "--operation",
        "reduce",
        "--algorithm",
        "paper",
    ]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("the paper has no plan for reduce"));
}

#[test]
fn plan__unknown_host_or_missing_file__is_named_and_exits_with_2() {
    let unknown = topo(&["plan", NETWORK, "--root", "n22"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(stderr(&unknown).contains("no host `n22`; did you mean `n2`?"));
    let folder = env!("CARGO_MANIFEST_DIR");
    let missing = "No such file or directory";
    for (verb, file, reason) in [
        ("show", "/no/such/file", missing),
        ("plan", "/no/such/file", missing),
        ("export", "/no/such/topology.yaml", missing),
        ("verify", "/no/such/topology.conf", missing),
        ("import", "/no/such/file", missing),
        ("import", "/no/such/topology.yaml", missing),
        ("import", folder, "Is a directory"),
        ("show", folder, "Is a directory"),
    ] {
        let output = topo(&[verb, file]);
        assert_eq!(output.status.code(), Some(2), "{verb} {file}");
        let message = format!("kumi: {file}: cannot be read: {reason}");
        assert!(stderr(&output).starts_with(&message), "{verb} {file}");
    }
    for folder in ["/no/such/folder", NETWORK] {
        let output = topo(&["learn", NETWORK, "--from", folder]);
        assert_eq!(output.status.code(), Some(2), "{folder}");
        let message = format!("kumi: --from {folder}: cannot be read: ");
        let text = stderr(&output);
        assert!(text.starts_with(&message), "{text}");
        assert!(
            text.ends_with("; expected the folder of `kumi run --learn`\n"),
            "{text}"
        );
    }
}

#[test]
fn import_and_export__slurm_file__round_trips() {
    let conf = "SwitchName=top Switches=leaf[0-1]\nSwitchName=leaf0 Nodes=n[1-2]\n\
                SwitchName=leaf1 Nodes=n3\n";
    let conf = write_file("conf", conf);
    let import = topo(&["import", conf.to_str().unwrap(), "--rate", "100Mbit"]);
    let network = write_file("network", &stdout(&import));
    let export = stdout(&topo(&["export", network.to_str().unwrap()]));
    for line in [
        "SwitchName=top Switches=leaf0,leaf1",
        "SwitchName=leaf0 Nodes=n1,n2",
        "SwitchName=leaf1 Nodes=n3",
    ] {
        assert!(export.lines().any(|row| row == line), "{export}");
    }
    let _ = std::fs::remove_file(conf);
    let _ = std::fs::remove_file(network);
}

#[test]
fn export__mpich_coordinates__have_one_line_per_rank() {
    let text = stdout(&topo(&[
        "export", NETWORK, "--format", "mpich", "--ranks", "n4,n1,n3",
    ]));
    assert_eq!(
        text,
        "# rank: group id, switch id, port number\n0: 1 1 0\n1: 0 0 0\n2: 1 1 1\n"
    );
    let unknown = topo(&["export", NETWORK, "--format", "mpich", "--ranks", "n1,n44"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(stderr(&unknown).contains("--ranks: no host `n44`; did you mean `n4`?"));
    let yaml = stdout(&topo(&["export", NETWORK, "--format", "slurm-yaml"]));
    assert!(
        yaml.contains("- switch: \"leaf2\"\n        nodes: \"n3,n4\""),
        "{yaml}"
    );
}

#[test]
fn show__as_svg__is_a_complete_image() {
    let svg = stdout(&topo(&["show", NETWORK, "--svg"]));
    assert!(svg.starts_with("<svg xmlns=") && svg.ends_with("</svg>\n"));
    assert!(svg.contains(">n1 n2<") && svg.contains(">leaf2<"));
}

#[test]
fn plan__simulated__takes_little_longer_than_predicted() {
    let plan = stdout(&topo(&["plan", NETWORK, "--simulate", "-j"]));
    let plan: Value = serde_json::from_str(&plan).unwrap();
    let [seconds, predicted_s] =
        [&plan["simulated"]["seconds"], &plan["predicted_s"]].map(|value| value.as_f64().unwrap());
    assert!((1.0..1.15).contains(&(seconds / predicted_s)), "{plan}");
    assert!(plan["simulated"]["port_bytes"].as_u64().unwrap() <= 64 << 10);
    let small = topo(&["plan", NETWORK, "--simulate", "--port-queue", "1KB"]);
    assert!(
        stderr(&small).contains("overflowed the port"),
        "{}",
        stderr(&small)
    );
}

#[test]
fn learn__flow_logs_of_jobs__names_the_slow_link_and_writes_the_corrected_file() {
    let folder = std::env::temp_dir().join(format!("kumi-learn-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let line = |from: &str, to: &str, mbps: u32| {
        format!("{{\"from\":\"{from}\",\"to\":\"{to}\",\"bps\":{mbps}000000}}\n")
    };
    // The trunk is slow from leaf1 to leaf2, and correct in the other direction. The last line of
    // n3's file is truncated.
    let n3 =
        line("n1", "n3", 471) + &line("n2", "n3", 470) + &line("n4", "n3", 940) + "{\"from\":\"n";
    let n4 = line("n1", "n4", 465) + &line("n3", "n4", 935);
    std::fs::write(folder.join("n3.ndjson"), n3).unwrap();
    std::fs::write(folder.join("n4.ndjson"), n4).unwrap();
    std::fs::write(folder.join("n1.ndjson"), line("n3", "n1", 938)).unwrap();
    let corrected = folder.join("better.toml");
    let output = topo(&[
        "learn",
        NETWORK,
        "--from",
        folder.to_str().unwrap(),
        "--corrected",
        corrected.to_str().unwrap(),
    ]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.starts_with("from leaf1 to leaf2: 500"), "{text}");
    assert_eq!(text.lines().count(), 2, "{text}");
    // The corrected file agrees with the records.
    let second = topo(&[
        "learn",
        corrected.to_str().unwrap(),
        "--from",
        folder.to_str().unwrap(),
    ]);
    assert!(second.status.success(), "{}", stdout(&second));
    std::fs::remove_dir_all(folder).unwrap();
}

/// Two switches in a lab. The link between them is slower than in the file, and one host is on the
/// other switch.
#[test]
#[ignore = "needs root"]
fn verify__network_differs_from_the_file__names_the_differences() {
    let lab = format!("verify-{}", std::process::id());
    let mut topology_text = format!(
        "name = \"{lab}\"\nfabric = \"emulator\"\n[[switch]]\nname = \"s\"\n[[switch]]\nname = \"t\"\n"
    );
    let mut network_text =
        "name = \"cluster\"\n[[switch]]\nname = \"left\"\n[[switch]]\nname = \"right\"\n"
            .to_owned();
    for host in 1..=6 {
        let is_left = host <= 3;
        let (actual, expected) = (
            if is_left { "s" } else { "t" },
            if is_left || host == 4 {
                "left"
            } else {
                "right"
            },
        );
        topology_text += &format!(
            "[[host]]\nname = \"h{host}\"\n[[link]]\nbetween = [\"h{host}:eth1\", \"{actual}\"]\nrate = \"20Mbit\"\ndelay = \"200us\"\n"
        );
        network_text += &format!(
            "[[host]]\nname = \"h{host}\"\n[[link]]\nbetween = [\"h{host}\", \"{expected}\"]\nrate = \"20Mbit\"\n"
        );
    }
    topology_text += "[[link]]\nbetween = [\"s\", \"t\"]\nrate = \"10Mbit\"\ndelay = \"200us\"\n";
    network_text += "[[link]]\nbetween = [\"left\", \"right\"]\nrate = \"40Mbit\"\n";
    let (topology, network) = (
        write_file("verify-lab", &topology_text),
        write_file("verify-file", &network_text),
    );
    let corrected = write_file("verify-corrected", "");
    let kumi = |argv: &[&str]| {
        Command::new(KUMI)
            .args(argv)
            .env("KUMI_LAB", &lab)
            .output()
            .unwrap()
    };
    let up = kumi(&["lab", "up", topology.to_str().unwrap()]);
    assert!(up.status.success(), "{}", stderr(&up));
    let shell = format!("{KUMI} lab rsh");
    let verify = |file: &str| {
        kumi(&[
            "topo",
            "verify",
            file,
            "--shell",
            &shell,
            "--command",
            KUMI,
            "--corrected",
            corrected.to_str().unwrap(),
        ])
    };
    let first = verify(network.to_str().unwrap());
    // The measured network must pass as a file.
    let second_file = write_file(
        "verify-second",
        &std::fs::read_to_string(&corrected).unwrap_or_default(),
    );
    let second = verify(second_file.to_str().unwrap());
    kumi(&["lab", "down", &lab]);
    for file in [topology, network, corrected, second_file] {
        let _ = std::fs::remove_file(file);
    }
    assert_eq!(
        first.status.code(),
        Some(1),
        "{} {}",
        stdout(&first),
        stderr(&first)
    );
    assert!(
        stdout(&first).contains("h4 is connected to right, not to left"),
        "{}",
        stdout(&first)
    );
    assert!(
        second.status.success(),
        "{} {}",
        stdout(&second),
        stderr(&second)
    );
}

/// Writes a shell for `--shell`: a program that is called with a host and a command.
fn shell(name: &str, body: &str) -> PathBuf {
    let path = write_file(name, &format!("#!/bin/sh\n{body}\n"));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn discover__hanging_shell__names_the_hosts_and_ends_in_time() {
    let path = shell("hanging-shell", "trap '' TERM HUP; exec sleep 600");
    let start = Instant::now();
    let output = Command::new(KUMI)
        .args([
            "topo",
            "discover",
            "--hosts",
            "one,two",
            "--start-limit",
            "1",
        ])
        .args(["--shell", path.to_str().unwrap()])
        .output()
        .unwrap();
    let _ = std::fs::remove_file(&path);
    assert!(!output.status.success());
    assert!(
        stderr(&output).contains("one two: no answer"),
        "{}",
        stderr(&output)
    );
    assert!(
        start.elapsed() < Duration::from_secs(10),
        "{:?}",
        start.elapsed()
    );
}

#[test]
#[ignore = "needs root, netns"]
fn discover__one_host_under_two_names__is_refused_with_both_names() {
    let path = shell("local-shell", "shift; exec \"$@\"");
    let line = format!(
        "ip link add d0 type veth peer name d1 && ip address add 10.99.0.1/24 dev d0 && \
         ip link set d0 up && ip link set d1 up && \
         exec {KUMI} topo discover --hosts one,two --shell {} --command {KUMI}",
        path.display()
    );
    let output = Command::new("unshare")
        .args(["--net", "sh", "-c", &line])
        .output()
        .unwrap();
    let _ = std::fs::remove_file(&path);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("one and two are the same host, 10.99.0.1"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn file__of_another_kind__is_read_or_the_error_names_the_right_command() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../");
    let file = |name: &str| format!("{folder}{name}");
    let tree = file("bench/topologies/one-switch-32k.toml");
    let drawing = topo(&["show", &tree]);
    assert!(drawing.status.success(), "{}", stderr(&drawing));
    let export = topo(&["export", "--format", "kumi", &tree]);
    let network = write_file("exported", &stdout(&export));
    let export_drawing = stdout(&topo(&["show", network.to_str().unwrap()]));
    assert_eq!(export_drawing, stdout(&drawing));

    let cables = file("bench/topologies/two-links.toml");
    let devices = file("packaging/kumi.toml");
    let slurm = write_file("slurm.conf", "SwitchName=s0 Nodes=n[1-3]\n");
    let slurm = slurm.to_str().unwrap();
    assert!(stdout(&topo(&["show", slurm])).starts_with("s0\n"));
    for (args, hint) in [
        (vec!["topo", "show", &cables], "`kumi lab up "),
        (vec!["topo", "verify", &cables], "`kumi lab up "),
        (vec!["topo", "plan", &devices], "`kumi up -c "),
        (vec!["lab", "up", &devices], "`kumi up -c "),
        (vec!["lab", "up", slurm], "`kumi topo import "),
        (vec!["lab", "up", "two-linx"], "two-links"),
        // The program starts anyway.
        (
            vec!["run", "--topology", &tree, "--", "true"],
            "`kumi topo export --format kumi ",
        ),
        (
            vec!["run", "--topology", slurm, "--", "true"],
            "`kumi topo import ",
        ),
    ] {
        let output = Command::new(KUMI).args(&args).output().unwrap();
        let code = if args[0] == "run" { 0 } else { 2 };
        assert_eq!(output.status.code(), Some(code), "{args:?}: {output:?}");
        assert!(
            stderr(&output).contains(hint),
            "{args:?}: {}",
            stderr(&output)
        );
    }
    std::fs::remove_file(network).unwrap();
    std::fs::remove_file(slurm).unwrap();
}
