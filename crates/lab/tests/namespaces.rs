//! Tests of the lab on this machine's kernel. They need root. Without it, a test prints its name
//! and that it was skipped. The plug test is ignored by default.

use kumi_lab::topology::{Direction, FabricChoice, LinkChange, Probability};
use kumi_lab::{Cluster, Topology, UpOptions};
use std::io::{BufRead, BufReader};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

const TWO_HOSTS: &str = r#"
name = "t"
[[host]]
name = "h1"
[[host]]
name = "h2"
[[switch]]
name = "s1"
[[link]]
between = ["h1:eth1", "s1"]
rate = "1Gbit"
[[link]]
between = ["h2:eth1", "s1"]
rate = "1Gbit"
[[link]]
between = ["h1:eth2", "h2:eth2"]
rate = "100Mbit"
"#;

/// Returns whether `test` can run, and prints a message if not.
fn may_run(test: &str) -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED {test}: needs root");
    }
    root
}

fn options(test: &str, fabric: FabricChoice) -> UpOptions {
    let name = format!("test-{}-{test}", std::process::id());
    UpOptions {
        name: Some(name),
        fabric: Some(fabric),
        seed: 1,
    }
}

fn up(test: &str, fabric: FabricChoice) -> Cluster {
    let topology = Topology::parse("test", TWO_HOSTS).unwrap();
    Cluster::up(&topology, options(test, fabric)).unwrap()
}

fn run(cluster: &Cluster, host: &str, line: &str) -> Output {
    cluster
        .command(host, "sh")
        .unwrap()
        .args(["-c", line])
        .output()
        .unwrap()
}

fn text(cluster: &Cluster, host: &str, line: &str) -> String {
    String::from_utf8(run(cluster, host, line).stdout).unwrap()
}

/// Returns the number of echo replies to `count` requests from h1 to `target`.
fn replies(cluster: &Cluster, target: &str, count: u32) -> u32 {
    let line = format!("ping -q -c {count} -i 0.005 -W 0.3 {target}");
    let out = text(cluster, "h1", &line);
    let field = out.split(", ").nth(1).unwrap_or("");
    field
        .split(' ')
        .next()
        .and_then(|n| n.parse().ok())
        .unwrap_or(0)
}

#[test]
fn host__in_a_lab__has_its_own_name_files_and_devices() {
    if !may_run("host__in_a_lab__has_its_own_name_files_and_devices") {
        return;
    }
    let cluster = up("identity", FabricChoice::Kernel);
    assert_eq!(text(&cluster, "h1", "hostname"), "h1\n");
    assert_eq!(text(&cluster, "h2", "cat /etc/hostname"), "h2\n");
    assert!(text(&cluster, "h1", "cat /etc/hosts").contains("10.1.0.2 h2\n"));
    assert_eq!(
        text(&cluster, "h1", "ls /sys/class/net"),
        "eth1\neth2\nlo\n"
    );
    assert_eq!(run(&cluster, "h1", "exit 7").status.code(), Some(7));
}

#[test]
fn addresses__right_after_up__answer_at_once_on_both_fabrics() {
    if !may_run("addresses__right_after_up__answer_at_once_on_both_fabrics") {
        return;
    }
    for fabric in [FabricChoice::Kernel, FabricChoice::Emulator] {
        let cluster = up("addresses", fabric);
        let start = Instant::now();
        for target in ["h2", "10.2.0.2", "fe80::6b:75ff:fe02:1%eth1"] {
            assert_eq!(replies(&cluster, target, 3), 3, "{target} on {fabric:?}");
        }
        assert!(
            start.elapsed() < Duration::from_millis(500),
            "{:?}",
            start.elapsed()
        );
    }
}

#[test]
fn set_link__carrier_blackhole_and_loss__take_effect_on_both_fabrics() {
    if !may_run("set_link__carrier_blackhole_and_loss__take_effect_on_both_fabrics") {
        return;
    }
    for fabric in [FabricChoice::Auto, FabricChoice::Emulator] {
        let mut cluster = up("faults", fabric);
        let mut set = |change: LinkChange| cluster.set_link("h1:eth1", &change).unwrap();
        set(LinkChange::carrier(false));
        let state = text(&cluster, "h1", "cat /sys/class/net/eth1/carrier");
        assert_eq!(state, "0\n");
        let mut set = |change: LinkChange| cluster.set_link("h1:eth1", &change).unwrap();
        set(LinkChange::heal());
        assert_eq!(replies(&cluster, "h2", 10), 10, "healed, {fabric:?}");
        for direction in [Direction::Tx, Direction::Rx, Direction::Both] {
            cluster
                .set_link("h1:eth1", &LinkChange::blackhole(direction))
                .unwrap();
            assert_eq!(replies(&cluster, "h2", 3), 0, "{direction:?}, {fabric:?}");
            assert_eq!(
                replies(&cluster, "10.2.0.2", 3),
                3,
                "the other link, {fabric:?}"
            );
            cluster.set_link("h1:eth1", &LinkChange::heal()).unwrap();
        }
        cluster
            .set_link("h1:eth1", &LinkChange::loss(Probability::new(0.5).unwrap()))
            .unwrap();
        // A quarter of the round trips succeeds, because each direction loses half of the frames.
        let survived = replies(&cluster, "h2", 200);
        assert!(
            (20..=85).contains(&survived),
            "{survived} of 200 on {fabric:?}"
        );
    }
}

#[test]
fn set_link__delay_on_a_kernel_fabric__switches_to_the_emulator_and_keeps_the_nics() {
    if !may_run("set_link__delay_on_a_kernel_fabric__switches_to_the_emulator_and_keeps_the_nics") {
        return;
    }
    let mut cluster = up("move", FabricChoice::Auto);
    assert_eq!(cluster.roster().fabric, "kernel");
    let initial = text(&cluster, "h1", "cat /sys/class/net/eth1/carrier_changes");
    cluster
        .set_link("h1:eth1", &LinkChange::delay("20ms".parse().unwrap()))
        .unwrap();
    assert_eq!(cluster.roster().fabric, "emulator");
    assert_eq!(
        text(&cluster, "h1", "cat /sys/class/net/eth1/carrier_changes"),
        initial
    );
    let out = text(&cluster, "h1", "ping -q -c 30 -i 0.01 h2");
    // The minimum is used, because the first round trip includes address resolution, and any may be
    // late on a busy machine.
    let min_ms = out
        .split("= ")
        .nth(1)
        .and_then(|tail| tail.split('/').next()?.parse::<f64>().ok());
    assert!(min_ms.is_some_and(|ms| (40.0..45.0).contains(&ms)), "{out}");
}

#[test]
fn down__with_programs_running__leaves_nothing() {
    if !may_run("down__with_programs_running__leaves_nothing") {
        return;
    }
    let cluster = up("down", FabricChoice::Kernel);
    let roster = cluster.roster();
    let dir = cluster.dir().to_owned();
    let mut sleeper = cluster
        .command("h1", "sleep")
        .unwrap()
        .arg("1000")
        .spawn()
        .unwrap();
    drop(cluster);
    assert!(
        !sleeper.wait().unwrap().success(),
        "the program went with its host"
    );
    assert!(!dir.exists());
    for host in &roster.hosts {
        assert!(
            !std::path::Path::new(&format!("/proc/{}", host.pid)).exists(),
            "{host:?}"
        );
    }
}

#[test]
fn up__name_taken__is_refused_and_disturbs_nothing() {
    if !may_run("up__name_taken__is_refused_and_disturbs_nothing") {
        return;
    }
    let cluster = up("taken", FabricChoice::Kernel);
    let second = Cluster::up(cluster.topology(), options("taken", FabricChoice::Kernel));
    assert!(second.unwrap_err().to_string().contains("kumi lab down"));
    assert_eq!(replies(&cluster, "h2", 3), 3);
}

#[test]
fn meter__known_traffic__is_counted_in_both_directions_on_both_fabrics() {
    if !may_run("meter__known_traffic__is_counted_in_both_directions_on_both_fabrics") {
        return;
    }
    for fabric in [FabricChoice::Kernel, FabricChoice::Emulator] {
        let cluster = up("meter", fabric);
        replies(&cluster, "h2", 1);
        let meter = cluster.meter().unwrap();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(replies(&cluster, "h2", 50), 50);
        std::thread::sleep(Duration::from_millis(20));
        let rows = meter.take();
        for direction in ["tx", "rx"] {
            let nic_rows = rows
                .iter()
                .filter(|r| r.nic == "h1:eth1" && r.direction == direction);
            let echoes: u64 = nic_rows.map(|row| row.bytes / 98).sum();
            assert!(
                (50..=52).contains(&echoes),
                "{echoes} {direction} on {fabric:?}"
            );
        }
    }
}

#[test]
fn validity__quiet_lab__is_measured_and_any_void_has_a_reason() {
    if !may_run("validity__quiet_lab__is_measured_and_any_void_has_a_reason") {
        return;
    }
    let cluster = up("validity", FabricChoice::Emulator);
    replies(&cluster, "h2", 20);
    let validity = cluster.validity();
    assert!(validity.lateness.is_some());
    // On a loaded machine the run may be void. The reasons must then be sentences.
    validity
        .void
        .iter()
        .for_each(|reason| assert!(reason.contains("the limit is") || reason.contains("late")));
}

/// Longest time that plugging a cable may take while the lab carries traffic.
const PLUG_MAX: Duration = Duration::from_millis(50);

#[test]
#[ignore = "needs root, netns, iperf3"]
fn plug__twenty_times_under_load__each_takes_at_most_50_ms() {
    let mut cluster = up("plug", FabricChoice::Kernel);
    let _latency = kumi_lab::CpuLatency::hold_on_virtual_machine();
    let mut server = cluster.command("h2", "iperf3").unwrap();
    let server = server.args(["-s", "-1", "--forceflush"]);
    let mut server = server.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let is_listening = lines.any(|line| line.unwrap().contains("listening"));
    assert!(is_listening, "iperf3 ended");
    let mut client = cluster.command("h1", "iperf3").unwrap();
    let client = client.args(["-c", "10.1.0.2", "-t", "60"]);
    let mut client = client.stdout(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(500));

    let mut durations = Vec::new();
    for _ in 0..20 {
        cluster
            .set_link("h1:eth2", &LinkChange::carrier(false))
            .unwrap();
        std::thread::sleep(Duration::from_millis(20));
        let start = Instant::now();
        cluster
            .set_link("h1:eth2", &LinkChange::carrier(true))
            .unwrap();
        durations.push(start.elapsed());
        assert_eq!(
            text(&cluster, "h1", "cat /sys/class/net/eth2/carrier"),
            "1\n"
        );
    }
    assert!(client.try_wait().unwrap().is_none(), "the load ended early");
    for program in [&mut client, &mut server] {
        program.kill().unwrap();
        program.wait().unwrap();
    }
    let slowest = durations.iter().max().unwrap();
    assert!(*slowest <= PLUG_MAX, "plugging took {durations:?}");
}
