//! `kumi topo` as a user runs it, on the file that the packages carry.

use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Output};

const KUMI: &str = env!("CARGO_BIN_EXE_kumi");
const NETWORK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/network.toml");

fn topo(argv: &[&str]) -> Output {
    Command::new(KUMI).arg("topo").args(argv).output().unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A file for one test.
fn written(test: &str, text: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("kumi-topo-{test}-{}", std::process::id()));
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn show__network_file__is_drawn_as_a_tree() {
    let drawn = out(&topo(&["show", NETWORK]));
    let expected = "leaf1\n├─ n1 n2  (1Gbit, 25us)\n└─ leaf2  (10Gbit down, 1Gbit up, 50us)\n   \
                    ├─ n3  (1Gbit, 25us, 1500Mbit both ways at once)\n   └─ n4  (1Gbit, 25us)\n";
    assert_eq!(drawn, expected);
    let object: Value = serde_json::from_str(&out(&topo(&["show", "-j", NETWORK]))).unwrap();
    assert_eq!(object["schema"], 1);
    assert_eq!(object["links"][0]["rates_bps"][1], 1_000_000_000);
}

#[test]
fn plan__gather__is_proved_and_names_who_sends_to_whom() {
    let plan = topo(&[
        "plan", NETWORK, "--root", "n2", "--bytes", "1MiB", "--check", "-j",
    ]);
    let plan: Value = serde_json::from_str(&out(&plan)).unwrap();
    assert_eq!(plan["is_checked"], true);
    assert_eq!(plan["transfers"].as_array().unwrap().len(), 3);
    assert_eq!(plan["transfers"][0]["to"], "n2");
    // Three blocks of 1 MiB into a link of 1 Gb/s.
    let bound_s = plan["bound_s"].as_f64().unwrap();
    assert!((bound_s - 3.0 * 1_048_576.0 * 8.0 / 1e9).abs() < 1e-9);
    assert!(plan["predicted_s"].as_f64().unwrap() >= bound_s);
    let text = out(&topo(&["plan", NETWORK, "--check"]));
    assert!(text.contains("no two messages meet"), "{text}");
}

#[test]
fn plan__every_operation__is_proved() {
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
        let text = out(&topo(&[
            "plan",
            NETWORK,
            "--operation",
            operation,
            "--check",
        ]));
        assert!(text.starts_with(operation), "{text}");
        assert!(text.contains("checked: it does the operation"), "{text}");
    }
    let papers = topo(&[
        "plan",
        NETWORK,
        "--operation",
        "reduce",
        "--algorithm",
        "paper",
    ]);
    assert_eq!(papers.status.code(), Some(2));
    assert!(said(&papers).contains("the paper has no plan for reduce"));
}

#[test]
fn plan__what_the_network_has_not__is_named_and_exits_with_2() {
    let strange = topo(&["plan", NETWORK, "--root", "n22"]);
    assert_eq!(strange.status.code(), Some(2));
    assert!(said(&strange).contains("no host `n22`; did you mean `n2`?"));
    let missing = topo(&["show", "/no/such/file"]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(said(&missing).contains("/no/such/file: cannot be read"));
}

#[test]
fn import_and_export__slurms_file__comes_back_as_it_was() {
    let conf = "SwitchName=top Switches=leaf[0-1]\nSwitchName=leaf0 Nodes=n[1-2]\n\
                SwitchName=leaf1 Nodes=n3\n";
    let conf = written("conf", conf);
    let imported = topo(&["import", conf.to_str().unwrap(), "--rate", "100Mbit"]);
    let network = written("network", &out(&imported));
    let exported = out(&topo(&["export", network.to_str().unwrap()]));
    for line in [
        "SwitchName=top Switches=leaf0,leaf1",
        "SwitchName=leaf0 Nodes=n1,n2",
        "SwitchName=leaf1 Nodes=n3",
    ] {
        assert!(exported.lines().any(|one| one == line), "{exported}");
    }
    let _ = std::fs::remove_file(conf);
    let _ = std::fs::remove_file(network);
}
