//! Tests of messages about mistakes in a command line or a file. Each names what was wrong, the
//! value, and what is accepted.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

const KUMI: &str = env!("CARGO_BIN_EXE_kumi");
const NETWORK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/network.toml");
const DEVICES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/kumi.toml");
/// Topology of a lab that is a tree of switches.
const TREE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../bench/topologies/one-switch-32k.toml"
);
/// Topology of a lab whose hosts have two links.
const CABLES: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../bench/topologies/two-links.toml"
);

fn kumi(args: &[&str]) -> Output {
    Command::new(KUMI).args(args).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Creates a folder for one test.
fn folder(test: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("kumi-messages-{test}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Checks a command's exit status, and that it prints this message only.
fn assert_fails(status: i32, args: &[&str], message: &str) {
    let output = kumi(args);
    assert_eq!(stderr(&output), format!("kumi: {message}\n"), "{args:?}");
    assert_eq!(output.status.code(), Some(status), "{args:?}");
}

#[test]
fn option__invalid_value__is_named_with_what_is_accepted() {
    let rate = "expected a positive number with kbit, mbit or gbit, such as 950mbit, or auto";
    let first_rate = "expected a positive number with kbit, mbit or gbit, such as 250mbit";
    let seconds = "expected a number of seconds from 0 to 1000000000, such as 10";
    let name = "expected 1 to 40 letters, digits, `-`, `_` or `.`, a letter or digit first";
    let long_name = "n".repeat(41);
    let set = ["link", "set", "kumi0", "eth1"];
    let tcp_up = ["tcp", "up"];
    let trace = ["tcp", "trace"];
    let lab_up = ["lab", "up", "two-links"];
    let link_up = ["link", "up", "kumi0", "--over=eth1"];
    type Case<'a> = (&'a [&'a str], &'a str, &'a str, &'a [&'a str], &'a str);
    let cases: [Case<'_>; 6] = [
        (
            &set,
            "--rate",
            "<RATE>",
            &[
                "950",
                "fastmbit",
                "950xbit",
                "-5mbit",
                "0.0001kbit",
                "5 mbit",
            ],
            rate,
        ),
        (
            &tcp_up,
            "--first-rate",
            "<RATE>",
            &["auto", "250", "-1mbit", "0mbit", "infgbit"],
            first_rate,
        ),
        (
            &trace,
            "--seconds",
            "<SECONDS>",
            &["soon", "-1", "NaN", "inf", "1e10"],
            seconds,
        ),
        (
            &lab_up,
            "--name",
            "<NAME>",
            &["a/b", ".hidden", "two words", long_name.as_str()],
            name,
        ),
        (
            &lab_up,
            "--fabric",
            "<FABRIC>",
            &["copper"],
            "expected auto, kernel or emulator",
        ),
        (
            &link_up,
            "--queues",
            "<N|auto>",
            &["9"],
            "invalid queues `9`: expected a number from 1 to 8, or auto",
        ),
    ];
    for (args, option, placeholder, values, message) in cases {
        for value in values {
            let argument = format!("{option}={value}");
            let output = kumi(&[args, &[argument.as_str()]].concat());
            let text = stderr(&output);
            let line = format!("error: invalid value '{value}' for '{option} {placeholder}': ");
            assert_eq!(text.lines().next(), Some((line + message).as_str()));
            assert_eq!(output.status.code(), Some(2), "{text}");
        }
    }
}

#[test]
fn lab_link_set__invalid_change__is_named_with_what_is_accepted() {
    let known = "(known: rate, delay, loss, corrupt, duplicate, reorder, reorder_delay, jitter, \
                 dir, blackhole, down, up, heal)";
    for (change, message) in [
        (
            "los 1%",
            format!("unknown keyword `los`; did you mean `loss`? {known}"),
        ),
        ("colour blue", format!("unknown keyword `colour` {known}")),
        ("loss", "loss: no value; write `loss VALUE`".to_owned()),
        (
            "dir sideways",
            "dir: `sideways` is not a direction; write tx, rx or both".to_owned(),
        ),
        (
            "blackhole sideways",
            "blackhole: `sideways` is not a direction; write tx, rx or both, or another keyword"
                .to_owned(),
        ),
    ] {
        let words: Vec<&str> = change.split(' ').collect();
        let args = [&["lab", "link", "set", "h1:eth1"][..], &words].concat();
        assert_fails(2, &args, &format!("link set: {message}"));
    }
}

#[test]
fn lab_up__kernel_fabric_for_an_emulated_topology__is_refused_with_the_reason() {
    let refusal = "invalid --fabric `kernel`: it does not emulate delay, jitter, reordering or \
                   shared buffers, which this topology has; omit it or use `emulator`";
    assert_fails(2, &["lab", "up", "wan", "--fabric", "kernel"], refusal);
    // Properties that no lab emulates are named first.
    let notes = format!(
        "{NETWORK}: n3: the lab does not limit the sum of both directions to 1500Mbit\n\
         kumi: {NETWORK}: leaf1 to leaf2: 10Gbit, and 1Gbit back; the lab's link has 1Gbit in both \
         directions\nkumi: {refusal}"
    );
    assert_fails(2, &["lab", "up", NETWORK, "--fabric", "kernel"], &notes);
}

#[test]
fn link_command__invalid_arguments__are_named_with_what_is_accepted() {
    let up = ["link", "up", "kumi0", "--over", "eth1"];
    for (options, message) in [
        (
            "--peer 10.1.0.x",
            "invalid --peer `10.1.0.x`: expected an IP address, such as 10.1.0.2",
        ),
        (
            "--peer 10.1.0.2,,10.1.0.3",
            "invalid --peer ``: expected an IP address, such as 10.1.0.2",
        ),
        (
            "--port 0 --mtu 1279",
            "invalid port 0: expected 1 to 65535\ninvalid mtu 1279: expected 1280 (the least of \
             IPv6) to 65521; omit it to get the largest that fits one datagram",
        ),
        (
            "--preset ri2n --peer 10.1.0.2",
            "peer 10.1.0.2: preset ri2n uses Ethernet frames, which do not cross routers; omit \
             `peer` (--peer), or use preset kumi",
        ),
    ] {
        let options: Vec<&str> = options.split(' ').collect();
        assert_fails(2, &[&up[..], &options].concat(), message);
    }
    let folder = folder("key");
    let file = folder.join("cluster.key").display().to_string();
    std::fs::write(&file, "").unwrap();
    let message =
        format!("{file} exists; a key is never overwritten: remove it first or name another file");
    assert_fails(2, &["link", "keygen", &file], &message);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn up_check__mistakes__are_all_named_with_the_file_and_the_device() {
    let folder = folder("check");
    let key = folder.join("cluster.key").display().to_string();
    assert!(kumi(&["link", "keygen", &key]).status.success());
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    let file = folder.join("kumi.toml").display().to_string();
    let text = format!(
        "[[link]]\nname = \"kumi:0\"\nover = [\"kumi-absent\"]\npreset = \"ri2n\"\n\
         seal = \"authenticate\"\nqueues = 2\npeer = [[\"10.1.0.2\"]]\n\
         [[link]]\nname = \"kumi:0\"\nover = [\"lo\"]\nkey = \"{key}\"\n"
    );
    std::fs::write(&file, text).unwrap();
    let output = kumi(&["up", "--check", "-c", &file]);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    let warning =
        format!("kumi: warning: {key} is accessible to others (mode 644); run `chmod 600 {key}`\n");
    assert!(text.starts_with(&warning), "{text}");
    for mistake in [
        "invalid device name `kumi:0`: expected 1 to 15 ASCII characters without spaces, `/`, `:` \
         or `%`, and not `.` or `..`\n",
        "seal `authenticate`: preset ri2n authenticates nothing; omit it (--authenticate-only), or \
         use preset kumi\n",
        "peer 10.1.0.2: preset ri2n uses Ethernet frames, which do not cross routers; omit `peer` \
         (--peer), or use preset kumi\n",
        "queues 2: preset ri2n has only one queue; set 1 or auto\n",
        "over: no interface `kumi-absent`; this host has ",
        "over: `lo` is the loopback interface; a link is a NIC to other hosts\n",
        "configured twice; give each device its own name\n",
    ] {
        let line = format!("{file}: link `kumi:0`: {mistake}");
        assert!(text.contains(&line), "{line} in: {text}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn up__file_that_cannot_be_used__is_named_with_the_place_and_what_is_accepted() {
    let absent = "/no/such/kumi.toml";
    let message =
        format!("cannot read {absent}: No such file or directory (os error 2); set --config");
    assert_fails(2, &["up", "-c", absent], &message);
    let folder = folder("up");
    let file = folder.join("kumi.toml").display().to_string();
    let table = "[[link]]\nname = \"kumi0\"";
    for (text, start, end) in [
        (
            String::new(),
            "no [[link]] table: expected at least one",
            "",
        ),
        (
            format!("{table}\novr = [\"eth1\"]\n"),
            "TOML parse error at line 3, column 1\n",
            "\nunknown field `ovr`, expected one of `name`, `over`, `address`, `key`, `seal`, \
             `preset`, `peer`, `port`, `mtu`, `busy_poll`, `queues`, `without`, `datapath`",
        ),
        (
            format!("{table}\nover = [\"eth1\"]\nqueues = 9\n"),
            "TOML parse error at line 4, column 10\n",
            "\ninvalid queues `9`: expected a number from 1 to 8, or auto",
        ),
    ] {
        std::fs::write(&file, text).unwrap();
        let output = kumi(&["up", "--check", "-c", &file]);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(
            text.starts_with(&format!("kumi: {file}: {start}")),
            "{text}"
        );
        assert!(text.trim_end().ends_with(end), "{text}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn tcp_command__invalid_arguments__are_named_and_change_nothing() {
    let folder = folder("tcp");
    let trace = folder.join("trace.ndjson").display().to_string();
    std::fs::write(&trace, "earlier trace").unwrap();
    let nothing = "nothing to observe: give -- CMD, --pid PID or --cgroup FOLDER";
    // Linux has no process numbers above 4194304.
    let no_process = "--pid 4194305: there is no such process";
    let unit = "expected a service, scope or slice, such as slurmd.service";
    let disabled = "kumi-absent.service is not enabled: there is no \
                    /etc/systemd/system/kumi-absent.service.d/50-kumi-tcp.conf";
    let no_unit = format!("invalid unit `slurmd`: {unit}");
    let path = format!("invalid unit `../slurmd.service`: {unit}");
    let cases: [(&[&str], &str); 8] = [
        (&["trace"], nothing),
        (&["trace", "-o", trace.as_str()], nothing),
        (
            &["trace", "-o", trace.as_str(), "--pid", "4194305"],
            no_process,
        ),
        (&["explain"], nothing),
        (&["explain", "--pid", "4194305"], no_process),
        (&["enable", "slurmd"], &no_unit),
        (&["disable", "../slurmd.service"], &path),
        (&["disable", "kumi-absent.service"], disabled),
    ];
    for (args, message) in cases {
        assert_fails(2, &[&["tcp"][..], args].concat(), message);
    }
    assert_eq!(std::fs::read(&trace).unwrap(), b"earlier trace");
    let args = ["tcp", "trace", "-o", "/dev/null/trace", "--", "true"];
    let message = "cannot create /dev/null/trace: Not a directory (os error 20)";
    assert_fails(1, &args, message);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn topo_command__invalid_arguments__are_named_with_what_is_accepted() {
    let cases: [(&[&str], &str); 6] = [
        (
            &["plan", NETWORK, "--root", "n22"],
            "--root: no host `n22`; did you mean `n2`?",
        ),
        (
            &["plan", NETWORK, "--root", "login"],
            "--root: no host `login` (known: n1, n2, n3, n4)",
        ),
        (
            &[
                "plan",
                NETWORK,
                "--operation",
                "reduce",
                "--algorithm",
                "paper",
            ],
            "the paper has no plan for reduce; --algorithm paper is for gather",
        ),
        (
            &[
                "export", NETWORK, "--format", "mpich", "--ranks", "n1,login",
            ],
            "--ranks: no host `login` (known: n1, n2, n3, n4)",
        ),
        (
            &["export", NETWORK, "--ranks", "n1"],
            "--ranks with --format slurm: expected --format mpich; other formats have no ranks",
        ),
        (
            &["verify", NETWORK, "--tolerance", "1"],
            "invalid --tolerance 1: expected a share from 0 to below 1, such as 0.15",
        ),
    ];
    for (args, message) in cases {
        assert_fails(2, &[&["topo"][..], args].concat(), message);
    }
}

#[test]
fn file__of_another_kind__is_refused_with_the_command_that_takes_it() {
    let folder = folder("kinds");
    let slurm = folder.join("topology.conf").display().to_string();
    std::fs::write(&slurm, "SwitchName=s0 Nodes=n[1-3]\n").unwrap();
    let devices = format!(
        "{DEVICES} is a configuration of devices, not a network file; use it with `kumi up -c \
         {DEVICES}`"
    );
    let cables = format!(
        "{CABLES} is the topology of a lab, but not a tree of hosts with one link each, which \
         `kumi topo` requires; use it with `kumi lab up {CABLES}`"
    );
    let lab_from_slurm = format!(
        "{slurm} is a Slurm topology; run `kumi topo import {slurm} > network.toml`, then `kumi \
         lab up network.toml`"
    );
    let cases: [(&[&str], &str); 5] = [
        (&["topo", "show", DEVICES], &devices),
        (&["lab", "up", DEVICES], &devices),
        (&["topo", "plan", CABLES], &cables),
        (&["topo", "verify", CABLES], &cables),
        (&["lab", "up", slurm.as_str()], &lab_from_slurm),
    ];
    for (args, message) in cases {
        assert_fails(2, args, message);
    }
    let unknown = stderr(&kumi(&["lab", "up", "two-linx"]));
    let message = "kumi: two-linx: cannot be read: No such file or directory (os error 2); \
                   expected a topology file, or the name of a built-in topology: ";
    assert!(unknown.starts_with(message), "{unknown}");
    assert!(unknown.contains(", two-links,"), "{unknown}");
    // A program starts all the same, because other hosts' ranks may wait for it.
    for (file, message) in [
        (
            TREE,
            format!(
                "{TREE} is the topology of a lab, not a network file; convert it with `kumi topo \
                 export --format kumi {TREE} > network.toml`"
            ),
        ),
        (
            slurm.as_str(),
            format!(
                "{slurm} is a Slurm topology, not a network file; convert it with `kumi topo \
                 import {slurm} > network.toml`"
            ),
        ),
        (DEVICES, devices),
    ] {
        let text = stderr(&kumi(&["run", "--topology", file, "--", "true"]));
        let warning =
            format!("kumi: warning: {message}; collectives are left to the MPI library\n");
        assert!(text.contains(&warning), "{text}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn run__command_or_setting_that_cannot_be_used__is_named() {
    for (program, status, reason) in [
        (
            "/no/such/program",
            127,
            "No such file or directory (os error 2)",
        ),
        ("/etc/passwd", 126, "Permission denied (os error 13)"),
    ] {
        let output = kumi(&["run", "--", program]);
        let text = stderr(&output);
        let line = format!("kumi: {program}: {reason}");
        assert_eq!(text.lines().last(), Some(line.as_str()));
        assert_eq!(output.status.code(), Some(status), "{text}");
    }
    let learn = "--learn /dev/null/x: cannot create the folder: Not a directory (os error 20)";
    assert_fails(1, &["run", "--learn", "/dev/null/x", "--", "true"], learn);
    let coll = "KUMI_COLL: no collective `altoall`; did you mean `alltoall`? (known: all, auto, \
                off, alltoall, alltoallv, gather, gatherv, scatter, scatterv, allgather, \
                allgatherv, bcast, allreduce, reduce, reduce_scatter, reduce_scatter_block, \
                barrier)";
    assert_fails(2, &["run", "--coll", "gather,altoall", "--", "true"], coll);
}

#[test]
fn man__folder_that_cannot_be_written__is_named() {
    let message = "cannot write pages into /dev/null/man1: Not a directory (os error 20)";
    assert_fails(1, &["man", "/dev/null/man1"], message);
}

#[test]
fn interrupt__second_signal__is_answered_while_the_undo_goes_on() {
    let folder = folder("interrupt");
    // The undo waits for this shell, which ignores the request to end.
    let shell = folder.join("shell");
    std::fs::write(&shell, "#!/bin/sh\ntrap '' TERM HUP\nexec sleep 60\n").unwrap();
    std::fs::set_permissions(&shell, std::fs::Permissions::from_mode(0o755)).unwrap();
    let child = Command::new(KUMI)
        .args(["topo", "discover", "--hosts", "a,b", "--shell"])
        .arg(&shell)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = Pid::from_raw(child.id().try_into().unwrap());
    for (wait_ms, signal) in [(500, Signal::SIGINT), (100, Signal::SIGTERM)] {
        std::thread::sleep(Duration::from_millis(wait_ms));
        kill(pid, signal).unwrap();
    }
    let output = child.wait_with_output().unwrap();
    let text = stderr(&output);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[..2],
        [
            "kumi: SIGINT: stopping, and undoing what was set up",
            "kumi: SIGINT was received; undoing takes a moment",
        ],
        "{text}"
    );
    assert_eq!(lines.last(), Some(&"kumi: stopped by SIGINT"), "{text}");
    assert_eq!(output.status.code(), Some(130));
    std::fs::remove_dir_all(folder).unwrap();
}
