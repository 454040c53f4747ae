//! Tests of messages to an operator: mistakes, reasons, metrics.

use super::{Bench, KUMI};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn pause(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

/// Returns a command's exit status and both of its outputs.
fn outcome(mut command: Command) -> (Option<i32>, String) {
    let output = command.output().unwrap();
    let bytes = [output.stdout, output.stderr].concat();
    (
        output.status.code(),
        String::from_utf8_lossy(&bytes).into_owned(),
    )
}

#[test]
#[ignore = "needs root, netns, tun"]
fn link_command__mistakes__are_named_and_change_nothing() {
    let bench = Bench::new("mistakes", 2);
    let error = |argv: &[&str]| {
        let (status, output) = outcome(bench.command("h1", &[&[KUMI, "link"][..], argv].concat()));
        assert_eq!(status, Some(2), "{argv:?}: {output}");
        output
    };
    for line in [
        "link add br0 type bridge",
        "link add v1 type veth peer name v2",
        "link set v1 up master br0",
        "link set v2 up",
    ] {
        let arguments: Vec<&str> = line.split(' ').collect();
        bench.run("h1", &[&["ip"][..], &arguments].concat());
    }
    bench.run("h1", &["sysctl", "-qw", "net.ipv6.conf.v2.disable_ipv6=1"]);
    let key = bench.key("cluster");
    let up = |interfaces: &str, options: &[&str]| {
        let up = ["up", "kumi1", "--over", interfaces, "--key", &key];
        error(&[&up[..], options].concat())
    };
    let port = ["--port", "25000"];
    assert!(up("eth1,eth9", &port).contains("no interface `eth9`; this host has"));
    assert!(up("eth1,eth1", &port).contains("named twice"));
    assert!(up("lo", &port).contains("loopback"));
    assert!(up("v1", &port).contains("port of br0 (bridge)"));
    assert!(up("v2", &port).contains("IPv6 disabled"));
    assert!(up("kumi0", &port).contains("a kumi device itself"));
    assert!(up("eth1", &["--mtu", "100"]).contains("expected 1280"));
    assert!(error(&["up", "kumi0", "--over", "eth1", "--key", &key]).contains("already up"));
    assert!(
        error(&["up", "kumi1", "--over", "eth1", "--key", "absent"]).contains("kumi link keygen")
    );
    assert!(error(&["add", "kumi0", "kumi0"]).contains("cannot be under itself"));
    assert!(error(&["add", "kumi0", "lo"]).contains("loopback"));
    assert!(error(&["del", "kumi0", "eth7"]).contains("its links are eth1, eth2"));
    bench.run("h1", &[KUMI, "link", "del", "kumi0", "eth2"]);
    assert!(error(&["del", "kumi0", "eth1"]).contains("is the last link"));
    assert!(error(&["down", "kumi7"]).contains("no kumi device `kumi7`"));
    let second = ["up", "kumi1", "--over", "eth1", "--key", &key];
    let (status, output) = outcome(bench.command("h1", &[&[KUMI, "link"][..], &second].concat()));
    assert_ne!(status, Some(0), "a second device on the same port");
    assert!(output.contains("UDP port 24870 is in use"), "{output}");
    let links = bench.run("h1", &["ip", "-br", "link"]);
    assert!(
        !links.contains("kumi1"),
        "a refused device was left behind: {links}"
    );
    let file = bench.folder.join("kumi.toml");
    let text =
        "[[link]]\nname = \"kumi1\"\nover = [\"eth1\", \"eth9\"]\nkey = \"/absent\"\nmtu = 9\n";
    std::fs::write(&file, text).unwrap();
    let check = [KUMI, "up", "--check", "-c", &file.display().to_string()];
    let (status, output) = outcome(bench.command("h1", &check));
    assert_eq!(status, Some(2), "{output}");
    for mistake in [
        "no interface `eth9`",
        "cluster key /absent",
        "invalid mtu 9",
        "kumi0 has UDP port 24870 on eth1",
    ] {
        assert!(output.contains(mistake), "{mistake} in: {output}");
    }
    let unprivileged = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        KUMI,
        "link",
        "show",
    ];
    let (status, output) = outcome(bench.command("h1", &unprivileged));
    assert_eq!(status, Some(1), "{output}");
    assert!(output.contains("only root may send"), "{output}");
}

#[test]
#[ignore = "needs root, netns, tun"]
fn device__without_peers__reports_the_reason_and_has_no_carrier() {
    let bench = Bench::new("key", 2);
    let carrier = |host: &str| {
        let link = bench.run(host, &["ip", "-o", "link", "show", "kumi0"]);
        !link.contains("NO-CARRIER")
    };
    assert!(carrier("h1") && carrier("h2"));
    bench.run("h2", &[KUMI, "link", "down", "kumi0"]);
    bench.run(
        "h2",
        &[KUMI, "link", "keygen", &bench.key("not/there/other")],
    );
    let second_key = bench.key("not/there/other");
    let up = [
        KUMI,
        "link",
        "up",
        "kumi0",
        "--over",
        "eth1,eth2",
        "--key",
        &second_key,
    ];
    let wait_options = ["--wait-peers", "1", "--wait-seconds", "3"];
    let (status, output) = outcome(bench.command("h2", &[&up[..], &wait_options].concat()));
    assert_eq!(status, Some(1), "{output}");
    assert!(
        output.contains("0 of 1 peers are reached") && output.contains("stays up"),
        "{output}"
    );
    for link in ["eth1", "eth2"] {
        let reason = output
            .lines()
            .find(|line| line.contains(&format!("{link}: fe80::")));
        assert!(
            reason.is_some_and(|line| line.contains("another cluster key")),
            "{output}"
        );
    }
    let state = bench.state("h2");
    assert_eq!(
        state["peers"].as_array().map(Vec::len),
        Some(0),
        "{state:#}"
    );
    assert!(
        state["counters"]["wrong_key"].as_u64().unwrap() > 0,
        "{state:#}"
    );
    assert!(!carrier("h1") && !carrier("h2"), "carrier without a peer");
    // A firewall in front of the port, by the only means that iproute2 has.
    let block = "-6 xfrm policy add src ::/0 dst ::/0 proto udp dport 24870 dir in action block";
    bench.run(
        "h2",
        &[&["ip"][..], &block.split(' ').collect::<Vec<_>>()].concat(),
    );
    pause(6000);
    let text = bench.run("h2", &[KUMI, "link", "show"]);
    assert!(
        text.contains("eth1: not even this host's own hellos are received"),
        "{text}"
    );
    let (_, doctor) = outcome(bench.command("h2", &[KUMI, "doctor"]));
    assert!(
        doctor.contains("link kumi0") && doctor.contains("a firewall here drops UDP port 24870"),
        "{doctor}"
    );
}

#[test]
#[ignore = "needs root, netns, tun"]
fn device__nic_recreated_and_listeners_gone__reuses_the_nic_and_leaks_nothing() {
    let bench = Bench::new("again", 2);
    let holder = bench.cluster.roster().host("h2").unwrap().pid.to_string();
    let make = || {
        let pair = [
            "ip", "link", "add", "x1", "type", "veth", "peer", "name", "x1", "netns", &holder,
        ];
        bench.run("h1", &pair);
        for host in ["h1", "h2"] {
            bench.run(host, &["ip", "link", "set", "x1", "up"]);
        }
    };
    let await_x1 = |step: &str| {
        let start = Instant::now();
        while !bench
            .path_states("h1")
            .contains(&("x1".to_owned(), "up".to_owned()))
        {
            assert!(
                start.elapsed() < Duration::from_secs(8),
                "{step}: {:#}",
                bench.state("h1")
            );
            pause(50);
        }
        start.elapsed()
    };
    make();
    for host in ["h1", "h2"] {
        bench.run(host, &[KUMI, "link", "add", "kumi0", "x1"]);
    }
    await_x1("added");
    bench.run("h1", &["ip", "link", "del", "x1"]);
    pause(500);
    assert!(
        bench
            .run("h1", &[KUMI, "link", "show"])
            .contains("x1: the interface has been removed")
    );
    make();
    eprintln!(
        "in use {:?} after it was made again",
        await_x1("made again")
    );
    let threads = || {
        let pattern = format!(
            "link up kumi0.*10.77.0.1/24.*device-{}-again",
            std::process::id()
        );
        let pid = bench.run("h1", &["pgrep", "-f", &pattern]);
        let folder = |kind: &str| {
            std::fs::read_dir(format!("/proc/{}/{kind}", pid.trim()))
                .unwrap()
                .count()
        };
        (folder("task"), folder("fd"))
    };
    pause(300);
    let initial = threads();
    let mut listeners: Vec<_> = (0..20)
        .map(|_| {
            let mut command = bench.command("h1", &[KUMI, "link", "events", "kumi0"]);
            command.stdout(Stdio::null()).spawn().unwrap()
        })
        .collect();
    pause(400);
    assert!(threads().0 >= initial.0 + 20, "the listeners are served");
    for listener in &mut listeners {
        listener.kill().unwrap();
        listener.wait().unwrap();
    }
    pause(1500);
    let latest = threads();
    assert!(
        latest.0 <= initial.0 + 1 && latest.1 <= initial.1 + 1,
        "{initial:?}, then {latest:?}"
    );
}

#[test]
#[ignore = "needs root, netns, tun"]
fn metrics__peers_restarted_three_times__have_one_series_per_label_set() {
    let bench = Bench::new("metrics", 3);
    for round in 0..3 {
        for host in [2, 3] {
            bench.run(&format!("h{host}"), &[KUMI, "link", "down", "kumi0"]);
            bench.up(host, "cluster");
            // Host names may be equal, and a device that is created again has a new identity.
            bench.run(
                &format!("h{host}"),
                &["hostname", if round == 1 { "same" } else { "node" }],
            );
        }
    }
    bench.await_peers("h1", 2);
    // An earlier identity may count as up until its liveness times out.
    let deadline = Instant::now() + Duration::from_secs(10);
    let peers_up = || {
        let peers = bench.state("h1")["peers"].as_array().unwrap().clone();
        peers.iter().filter(|peer| peer["up"] == true).count()
    };
    while peers_up() > 2 {
        assert!(Instant::now() < deadline, "{} peers are up", peers_up());
        pause(50);
    }
    bench.run("h1", &["ping", "-c", "2", "-i", "0.2", "10.77.0.2"]);
    let text = bench.run("h1", &[KUMI, "link", "metrics"]);
    let file = bench.folder.join("metrics");
    std::fs::write(&file, &text).unwrap();
    let parse = "import sys,collections\nfrom prometheus_client.openmetrics.parser import text_string_to_metric_families as strict\nfrom prometheus_client.parser import text_string_to_metric_families as plain\ntext=open(sys.argv[1]).read()\nfor parse in strict,plain:\n families=list(parse(text))\n names=collections.Counter((s.name,tuple(sorted(s.labels.items()))) for f in families for s in f.samples)\n twice=[n for n,c in names.items() if c>1]\n assert not twice, twice\nfamilies={f.name:f for f in strict(text)}\nup=[s.value for s in families['kumi_peer_up'].samples]\nassert sum(up)==2, up\nassert families['kumi_peer_hold_seconds'].type=='histogram'\nprint(len(names))";
    let parse = ["/usr/bin/python3", "-c", parse, &file.display().to_string()];
    let (status, output) = outcome(bench.command("h1", &parse));
    assert_eq!(status, Some(0), "{output}\n{text}");
    let series: usize = output.trim().parse().unwrap();
    assert!(series > 50, "{series} series");
}
