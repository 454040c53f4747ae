//! The kernel's data path: who carries the frames, and what happens when a link dies.

use super::stream::{Stream, now_s};
use super::{Bench, KUMI};
use kumi_lab::topology::{Direction, LinkChange, Probability};
use kumi_testlab::star;
use serde_json::Value;
use std::time::{Duration, Instant};

/// Options of the kernel's data path.
const KERNEL: [&str; 3] = ["--plain", "--datapath", "kernel"];

/// Returns the wire bytes that the kernel of a host has sent to its first peer, by link.
fn sent_bytes(state: &Value) -> Vec<u64> {
    let paths = state["peers"][0]["paths"].as_array().unwrap().iter();
    paths
        .map(|path| path["kernel"]["tx_bytes"].as_u64().unwrap_or(0))
        .collect()
}

/// Waits until a host's frames to all its peers go this way.
fn await_datapath(bench: &Bench, host: &str, datapath: &str) -> Value {
    await_field(bench, host, "datapath", datapath)
}

/// Waits until a host tells this of all its peers.
fn await_field(bench: &Bench, host: &str, field: &str, value: &str) -> Value {
    await_state(bench, host, |state| {
        let peers = state["peers"].as_array().unwrap();
        !peers.is_empty() && peers.iter().all(|peer| peer[field] == value)
    })
}

/// Waits until the state of a host is as it should be.
fn await_state(bench: &Bench, host: &str, is_right: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let state = bench.state(host);
        if is_right(&state) {
            return state;
        }
        let log = || bench.log(host);
        assert!(Instant::now() < deadline, "{state:#}\n{}", log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Most that a stream has over one of the links of [`over_kernel`]. Over both it had 220 to 334
/// Mb/s in 13 runs of the first test.
const ONE_LINK_MBPS: f64 = 190.0;

/// Returns two hosts whose frames the kernel carries over two links of 200 Mb/s. Two processors
/// carry both together.
fn over_kernel(test: &str) -> Bench {
    let bench = Bench::start(test, &["auto"; 2], &star(2, 2, "200Mbit"), &KERNEL);
    for host in ["h1", "h2"] {
        await_datapath(&bench, host, "kernel");
    }
    bench
}

#[test]
#[ignore = "needs root, netns, tun, bpf"]
fn datapath__kernel_at_both_ends__carries_streams_over_both_links() {
    let bench = over_kernel("kernel");
    let start_s = now_s();
    let record = Stream::start(&bench, 2.0).finish();
    let state = bench.state("h1");
    let sent = sent_bytes(&state);
    assert!(sent.iter().all(|bytes| *bytes > 20_000_000), "{sent:?}");
    let daemon_bytes: u64 = state["peers"][0]["paths"]
        .as_array()
        .unwrap()
        .iter()
        .map(|path| path["tx_bytes"].as_u64().unwrap())
        .sum();
    assert!(
        daemon_bytes < 2_000_000,
        "the daemon sent {daemon_bytes} bytes"
    );
    let mbps = record.mbps(start_s + 1.0, start_s + 2.0);
    assert!(mbps > ONE_LINK_MBPS, "{mbps} Mb/s");
}

#[test]
#[ignore = "needs root, netns, tun, bpf"]
fn datapath__kernel_at_one_end__is_the_daemons() {
    let bench = Bench::with_options("mixed", 2, &["--plain"]);
    bench.run("h2", &[KUMI, "link", "down", "kumi0"]);
    bench.up_with(2, "cluster", &KERNEL);
    bench.await_peers("h1", 1);
    bench.await_peers("h2", 1);
    bench.run("h2", &["ping", "-c", "3", "-i", "0.2", "10.77.0.1"]);
    let state = await_datapath(&bench, "h2", "user");
    assert_eq!(sent_bytes(&state), [0, 0]);
}

#[test]
#[ignore = "needs root, netns, tun, bpf"]
fn datapath__change_of_the_burst_length__keeps_the_path_mtus_that_were_learnt() {
    let mut bench = over_kernel("pmtu");
    // A network with a smaller MTU behind h2.
    for command in [
        "ip link add small mtu 1000 type veth peer name other",
        "ip address add 10.99.0.1/24 dev small",
        "ip link set small up",
        "ip link set other up",
        "sysctl -qw net.ipv4.ip_forward=1",
    ] {
        bench.run("h2", &["sh", "-c", command]);
    }
    bench.run(
        "h1",
        &["ip", "route", "add", "10.99.0.0/24", "via", "10.77.0.2"],
    );
    // The daemon replaces a new route once, by one with a floor of the timeout.
    let deadline = Instant::now() + Duration::from_secs(8);
    let route = ["ip", "route", "show", "10.99.0.0/24"];
    while !bench.run("h1", &route).contains("rto_min") {
        assert!(Instant::now() < deadline, "no floor");
        std::thread::sleep(Duration::from_millis(50));
    }
    let ping = "ping -c 1 -W 1 -M do -s 1300 10.99.0.9 || true";
    bench.run("h1", &["sh", "-c", ping]);
    for link in ["h1:eth1", "h1:eth2", "h2:eth1", "h2:eth2"] {
        let faster = LinkChange::rate("1Gbit".parse().unwrap());
        bench.cluster.set_link(link, &faster).unwrap();
    }
    let learnt = |bench: &Bench| bench.run("h1", &["ip", "route", "get", "10.99.0.9"]);
    assert!(learnt(&bench).contains("mtu 1000"), "{}", learnt(&bench));
    let segments = |bench: &Bench| {
        let link = bench.run("h1", &["ip", "-details", "link", "show", "kumi0"]);
        let mut words = link.split_whitespace();
        words.find(|word| *word == "gso_max_segs");
        words.next().unwrap().to_owned()
    };
    let await_segments = |is_reached: fn(u32) -> bool| {
        let deadline = Instant::now() + Duration::from_secs(8);
        while !is_reached(segments(&bench).parse().unwrap()) {
            assert!(Instant::now() < deadline, "{} segments", segments(&bench));
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    // At 1 Gb/s, a burst has six segments, and forty while there is a long stream.
    await_segments(|segments| segments == 6);
    let stream = Stream::start(&bench, 3.0);
    await_segments(|segments| segments >= 12);
    stream.finish();
    await_segments(|segments| segments == 6);
    assert!(learnt(&bench).contains("mtu 1000"), "{}", learnt(&bench));
}

#[test]
#[ignore = "needs root, netns, tun, bpf"]
fn datapath__kernel__a_silent_link_is_left_within_50_ms() {
    let mut bench = Bench::with_options("silent", 2, &KERNEL);
    await_datapath(&bench, "h1", "kernel");
    let stream = Stream::start(&bench, 3.0);
    std::thread::sleep(Duration::from_millis(1300));
    let cut_s = now_s();
    let change = LinkChange::blackhole(Direction::Both);
    bench.cluster.set_link("h2:eth2", &change).unwrap();
    let record = stream.finish();
    let silence_s = record.longest_silence(cut_s - 0.2, cut_s + 1.0);
    assert!(silence_s < 0.1, "silent for {silence_s} s");
    let state = bench.state("h1");
    assert_eq!(
        state["peers"][0]["datapath"],
        "kernel",
        "{state:#}\n{}",
        bench.log("h1")
    );
}

#[test]
#[ignore = "needs root, netns, tun, bpf"]
fn datapath__link_that_loses_frames__is_the_daemons_until_it_is_clean() {
    let mut bench = over_kernel("lossy");
    let stream = Stream::start(&bench, 7.0);
    std::thread::sleep(Duration::from_millis(1000));
    let change = LinkChange::loss(Probability::new(0.08).unwrap());
    bench.cluster.set_link("h2:eth2", &change).unwrap();
    let is_lossy = |state: &Value| state["peers"][0]["paths"][1]["kernel"]["lossy"] == true;
    let state = await_state(&bench, "h1", is_lossy);
    let reasons = state["reasons"].to_string();
    assert!(
        reasons.contains("eth2 loses frames to peer h2"),
        "{reasons}"
    );
    let left_s = now_s();
    assert_eq!(state["peers"][0]["bulk_datapath"], "user", "{state:#}");
    std::thread::sleep(Duration::from_millis(2000));
    bench
        .cluster
        .set_link("h2:eth2", &LinkChange::heal())
        .unwrap();
    let is_clean =
        |state: &Value| !is_lossy(state) && state["peers"][0]["bulk_datapath"] == "kernel";
    await_state(&bench, "h1", is_clean);
    let record = stream.finish();
    let mbps = record.mbps(left_s + 0.5, left_s + 2.0);
    // Without the daemon, a stream had 21 and 34 Mb/s over a link that loses a tenth.
    assert!(mbps > 120.0, "{mbps} Mb/s");
}

/// Starts devices over two links with these rates in Mb/s. The links are virtual, so each claims 10
/// Gb/s.
fn unlike_links(test: &str, rates_mbps: [u32; 2]) -> Bench {
    let mut topology =
        "name = \"unequal\"\n[[host]]\nname = \"h1\"\n[[host]]\nname = \"h2\"\n".to_owned();
    for (link, mbps) in (1..).zip(rates_mbps) {
        topology += &format!(
            "[[link]]\nbetween = [\"h1:eth{link}\", \"h2:eth{link}\"]\nrate = \"{mbps}Mbit\"\n"
        );
    }
    let bench = Bench::start(test, &["auto", "auto"], &topology, &KERNEL);
    await_datapath(&bench, "h1", "kernel");
    bench
}

/// Returns the rate of a stream of 5 s over two links with these rates in Mb/s, in its last two
/// seconds, and the state of the sender's device towards its end.
fn stream_over(test: &str, rates_mbps: [u32; 2]) -> (f64, Value) {
    // The processors' limits are not the links': a run in which the hypervisor took them is void.
    let mut runs_left = 5;
    loop {
        let mut bench = unlike_links(test, rates_mbps);
        bench.cluster.begin_watch();
        let start_s = now_s();
        let stream = Stream::start(&bench, 5.0);
        std::thread::sleep(Duration::from_millis(4000));
        // A path may be down for some milliseconds while this machine is late.
        let all_up = |state: &Value| {
            let mut paths = state["peers"][0]["paths"].as_array().unwrap().iter();
            paths.all(|path| path["state"] == "up")
        };
        let state = await_state(&bench, "h1", all_up);
        let mbps = stream.finish().mbps(start_s + 3.0, start_s + 5.0);
        runs_left -= 1;
        let void = bench.cluster.validity().void;
        if void.is_empty() || runs_left == 0 {
            return (mbps, state);
        }
        eprintln!("repeated, {mbps} Mb/s: {void:?}");
    }
}

#[test]
#[ignore = "needs root, netns, tun, bpf"]
fn datapath__wrong_rates__use_both_links_of_different_speed() {
    let (mbps, state) = stream_over("rates", [400, 300]);
    let sent = sent_bytes(&state);
    assert_eq!(state["peers"][0]["bulk_datapath"], "kernel", "{state:#}");
    // The faster link alone has 386 Mb/s.
    assert!(mbps > 450.0, "{mbps} Mb/s, {sent:?}");
    assert!(sent[1] > sent[0] / 2, "{sent:?}");
}

#[test]
#[ignore = "needs root, netns, tun, bpf"]
fn datapath__links_too_unlike_for_the_kernel__leave_long_streams_to_the_daemon() {
    // The daemons and the lab's links together need both processors for 400 and 100 Mb/s.
    let (mbps, state) = stream_over("unlike", [200, 70]);
    let peer = &state["peers"][0];
    assert_eq!(peer["datapath"], "kernel", "{state:#}");
    assert_eq!(peer["bulk_datapath"], "user", "{state:#}");
    let paths = peer["paths"].as_array().unwrap().iter();
    let daemons: Vec<u64> = paths
        .map(|path| path["tx_bytes"].as_u64().unwrap())
        .collect();
    assert!(daemons[1] > daemons[0] / 5, "{daemons:?}");
    // The faster link alone has 193 Mb/s, both have 260.
    assert!(mbps > 210.0, "{mbps} Mb/s, {daemons:?}");
}

#[test]
#[ignore = "needs root, netns, tun, bpf"]
fn datapath__slow_link_whose_rate_is_not_known__does_not_keep_a_stream() {
    let (mbps, state) = stream_over("slow", [100, 20]);
    // The slow link was taken for one of 10 Gb/s, and the stream had 22 to 28 Mb/s.
    assert!(mbps > 50.0, "{mbps} Mb/s, {state:#}");
}

#[test]
#[ignore = "needs root, netns, tun, bpf"]
fn datapath__killed_daemon__is_followed_by_one_with_either_data_path() {
    let bench = Bench::with_options("killed", 2, &KERNEL);
    await_datapath(&bench, "h1", "kernel");
    for (options, datapath) in [(&KERNEL[..], "kernel"), (&["--plain"], "user")] {
        bench.kill_first("killed");
        bench.up_with(1, "cluster", options);
        bench.await_peers("h1", 1);
        await_datapath(&bench, "h2", datapath);
        bench.run("h1", &["ping", "-c", "3", "-i", "0.2", "10.77.0.2"]);
    }
    assert!(filters(&bench, "eth1").is_empty());
}

#[test]
#[ignore = "needs root, netns, tun, bpf"]
fn datapath__daemon_killed_under_load__streams_go_on_and_the_next_daemon_takes_over() {
    let bench = over_kernel("heir");
    let stream = Stream::start(&bench, 6.0);
    std::thread::sleep(Duration::from_millis(1300));
    let killed_s = now_s();
    bench.kill_first("heir");
    std::thread::sleep(Duration::from_millis(2000));
    let state = bench.state("h2");
    let peer = &state["peers"][0];
    assert_eq!(
        (&peer["datapath"], &peer["daemon"]),
        (&"kernel".into(), &false.into())
    );
    let restarted_s = now_s();
    bench.up_with(1, "cluster", &KERNEL);
    for host in ["h1", "h2"] {
        // The new daemon inherits the data path, and has not met the peer yet.
        await_state(&bench, host, |state| {
            let peer = &state["peers"][0];
            peer["datapath"] == "kernel" && peer["daemon"] == true
        });
    }
    let record = stream.finish();
    let silences_s = [killed_s, restarted_s].map(|at_s| record.longest_silence(at_s, at_s + 1.5));
    assert!(
        silences_s.iter().all(|silence_s| *silence_s < 0.1),
        "{silences_s:?}"
    );
    let mbps = record.mbps(killed_s + 0.5, killed_s + 1.9);
    assert!(mbps > ONE_LINK_MBPS, "{mbps} Mb/s without a daemon");
}

#[test]
#[ignore = "needs root, netns, tun, bpf"]
fn datapath__daemon_killed_that_carried_a_long_stream__leaves_it_to_the_kernel() {
    // Where a hypervisor takes processors, links of 400 and 100 Mb/s are found alike at times.
    let bench = unlike_links("orphan", [400, 50]);
    let stream = Stream::start(&bench, 10.0);
    await_field(&bench, "h1", "bulk_datapath", "user");
    std::thread::sleep(Duration::from_millis(500));
    let killed_s = now_s();
    bench.kill_first("orphan");
    std::thread::sleep(Duration::from_millis(2500));
    bench.up_with(1, "cluster", &KERNEL);
    let record = stream.finish();
    // What waited in the device is lost, and TCP repairs it after its timeout of 0.2 s or more.
    let silence_s = record.longest_silence(killed_s, killed_s + 2.5);
    assert!(silence_s < 1.0, "{silence_s} s");
    let mbps = record.mbps(killed_s + 1.0, killed_s + 2.5);
    assert!(mbps > 200.0, "{mbps} Mb/s without a daemon");
}

#[test]
#[ignore = "needs root, netns, tun, bpf"]
fn datapath__moved_100_times_under_load__breaks_no_connection_and_changes_no_byte() {
    let bench = over_kernel("moved");
    let transfers = [
        bench.transfer_to(2, 7001, 300),
        bench.transfer_to(1, 7002, 300),
    ];
    for carrier in ["user", "kernel"].into_iter().cycle().take(100) {
        for host in ["h1", "h2"] {
            bench.run(host, &[KUMI, "link", "datapath", "kumi0", carrier]);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let state = await_datapath(&bench, "h1", "kernel");
    let daemons = state["peers"][0]["paths"].as_array().unwrap().iter();
    let daemons: u64 = daemons.map(|path| path["tx_bytes"].as_u64().unwrap()).sum();
    let kernels: u64 = sent_bytes(&state).iter().sum();
    assert!(
        daemons > 10_000_000 && kernels > 10_000_000,
        "{daemons}, {kernels}"
    );
    transfers.into_iter().for_each(super::Transfer::finish);
}

#[test]
#[ignore = "needs root, netns, tun, bpf"]
fn datapath__device_without_one__says_how_to_get_it() {
    let bench = Bench::with_options("plain", 2, &["--plain"]);
    let argv = [KUMI, "link", "datapath", "kumi0", "kernel"];
    let output = bench.command("h1", &argv).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.contains("start it with `--datapath kernel`"),
        "{stderr}"
    );
    assert_eq!(output.status.code(), Some(2));
}

#[test]
#[ignore = "needs root, netns, tun, bpf"]
fn datapath__kernel_that_does_not_answer__leaves_the_frames_to_the_daemon() {
    let bench = Bench::with_options("mute", 2, &KERNEL);
    await_datapath(&bench, "h1", "kernel");
    // As if something on the way dropped the frames from aliases.
    for link in ["eth1", "eth2"] {
        bench.run("h2", &["tc", "filter", "del", "dev", link, "ingress"]);
    }
    // It is offered again when the paths have healed.
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let state = bench.state("h1");
        let reasons = state["reasons"].to_string();
        if reasons.contains("peer h2: its kernel does not answer") {
            break;
        }
        assert!(Instant::now() < deadline, "{state:#}");
        std::thread::sleep(Duration::from_millis(50));
    }
    bench.run("h1", &["ping", "-c", "3", "-i", "0.2", "10.77.0.2"]);
    assert_eq!(
        bench.state("h1")["peers"][0]["datapath"],
        "user",
        "it stays so"
    );
}

#[test]
#[ignore = "needs root, netns, tun, bpf"]
fn datapath__device_that_a_killed_daemon_left__is_removed_with_its_programs() {
    let bench = Bench::with_options("left", 2, &KERNEL);
    assert!(!filters(&bench, "eth1").is_empty());
    bench.kill_first("left");
    bench.run("h1", &[KUMI, "link", "down", "kumi0"]);
    assert!(filters(&bench, "eth1").is_empty());
}

/// Returns what `tc` says of the programs at the ingress of an interface of h1.
fn filters(bench: &Bench, interface: &str) -> String {
    let args = ["tc", "filter", "show", "dev", interface, "ingress"];
    bench.run("h1", &args)
}
