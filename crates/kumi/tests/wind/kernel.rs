//! Operations that the kernel of the target executes, between hosts of a lab.

use super::{KUMI, Lab, connect, operate, succeed, wait_for_kernel};
use kumi_wind::{Place, Rung, WindError, perf};
use nix::sys::signal::Signal;
use std::process::Command;
use std::time::{Duration, Instant};

#[test]
#[ignore = "needs root, netns, bpf"]
fn kernel__target_stopped_killed_and_daemon_ended__completes_or_reports() {
    let mut lab = Lab::up("windkernel", &kumi_testlab::cables(1, "1Gbit"));
    lab.begin();
    let shown = succeed(Command::new(KUMI).args(["wind", "show", "-j"]));
    assert!(shown.contains("\"devices\":[\"eth1\",\"eth1\"]"), "{shown}");
    assert!(shown.contains("\"nodes\":[]"), "{shown}");
    lab.cluster.enter_thread("h1").unwrap();

    let (server, client, peer, place) = lab.connect_to_kernel(Rung::Kernel);
    operate(&client, peer, place, 50).unwrap();
    let shown = succeed(
        lab.cluster
            .command("h2", KUMI)
            .unwrap()
            .args(["wind", "show", "-j"]),
    );
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let node = &shown["nodes"][0];
    assert_eq!(
        (&node["executor"], &node["regions"]),
        (&"kernel".into(), &1.into())
    );
    let executed = &node["peers"][0]["executed"];
    assert_eq!(
        (&executed["atomics"], &executed["forged"]),
        (&51.into(), &0.into())
    );
    let shown = succeed(Command::new(KUMI).args(["wind", "show"]));
    assert!(
        shown.contains("kernel at eth1, eth1: programs 2, sessions 2, regions 1"),
        "{shown}"
    );

    // A stopped target, longer than the time after which a silent peer is lost.
    server.signal(Signal::SIGSTOP);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(4) {
        operate(&client, peer, place, 20).unwrap();
    }
    let wrong = Place {
        key: [0; 16],
        ..place
    };
    let refused = client.put(peer, wrong, b"x").unwrap_err().to_string();
    assert_eq!(
        refused,
        "the peer refused: no such region at the peer, or another key"
    );
    let outside = client.get(peer, place.plus(16 << 20), 1).unwrap_err();
    assert!(
        outside.to_string().contains("outside the region"),
        "{outside}"
    );
    server.signal(Signal::SIGCONT);
    // Its program has not lost the session.
    perf::latency(&client, peer, place, perf::Exchange::Echo, 8, 10).unwrap();

    // Without the daemon, the target's program executes the requests of the session.
    lab.end();
    operate(&client, peer, place, 50).unwrap();
    let shown = succeed(
        lab.cluster
            .command("h1", KUMI)
            .unwrap()
            .args(["wind", "show"]),
    );
    assert!(shown.starts_with("no daemon: programs execute"), "{shown}");
    assert!(shown.contains(" kernel "), "{shown}");

    server.signal(Signal::SIGKILL);
    let began = Instant::now();
    let error = operate(&client, peer, place, 1_000_000).unwrap_err();
    assert!(matches!(error, WindError::Lost(_)), "{error}");
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
}

#[test]
#[ignore = "needs root, netns, bpf"]
fn kernel__killed_program__loses_its_sessions_and_regions() {
    let mut lab = Lab::up("windkill", &kumi_testlab::cables(1, "1Gbit"));
    lab.begin();
    lab.cluster.enter_thread("h1").unwrap();
    let (server, client, peer, place) = lab.connect_to_kernel(Rung::User);
    operate(&client, peer, place, 5).unwrap();
    drop(server);
    let error = operate(&client, peer, place, 1_000).unwrap_err();
    assert!(matches!(error, WindError::Lost(_)), "{error}");
    let shown = succeed(Command::new(KUMI).args(["wind", "show"]));
    let expected = "kernel at eth1, eth1: programs 0, sessions 0, regions 0";
    assert!(shown.starts_with(expected), "{shown}");
    // A new process at the address is a new peer.
    let _server = lab.serve();
    let (peer, place) = connect(&client, lab.server());
    wait_for_kernel(&client, peer);
    operate(&client, peer, place, 5).unwrap();
}

/// A cable without emulation: two ends of a veth pair, which pass super-packets.
const BARE_CABLE: &str = r#"
name = "t"
[[host]]
name = "h1"
[[host]]
name = "h2"
[[link]]
between = ["h1:eth1", "h2:eth1"]
"#;

#[test]
#[ignore = "needs root, netns, bpf"]
fn kernel__device_with_super_packets__executes_long_operations_of_a_stopped_target() {
    let mut lab = Lab::up("windsuper", BARE_CABLE);
    for host in ["h1", "h2"] {
        // The lab turns this off, because its wires have frames.
        let mut command = lab.cluster.command(host, "ethtool").unwrap();
        succeed(command.args(["-K", "eth1", "tx", "on", "tx-udp-segmentation", "on"]));
    }
    lab.begin();
    lab.cluster.enter_thread("h1").unwrap();
    let (server, client, peer, place) = lab.connect_to_kernel(Rung::User);
    server.signal(Signal::SIGSTOP);
    let bytes: Vec<u8> = (0..1_000_000_u32).map(|at| (at * 7) as u8).collect();
    let began = Instant::now();
    for _ in 0..10 {
        client.put(peer, place, &bytes).unwrap();
        assert!(client.get(peer, place, bytes.len()).unwrap() == bytes);
    }
    // It takes 0.1 s. When gets were sent together in a super-packet, all but the first were lost:
    // it took 2 s, and a program that polled took the peer for lost.
    assert!(
        began.elapsed() < Duration::from_secs(1),
        "{:?}",
        began.elapsed()
    );
}

/// The kernel writes the bytes while the program is stopped; the notice waits for the program.
#[test]
#[ignore = "needs root, netns, bpf"]
fn kernel__put_with_a_notice__is_there_before_the_program_goes_on() {
    let mut lab = Lab::up("windnotice", &kumi_testlab::cables(1, "1Gbit"));
    lab.begin();
    lab.cluster.enter_thread("h1").unwrap();
    let (server, client, peer, place) = lab.connect_to_kernel(Rung::User);
    server.signal(Signal::SIGSTOP);
    let bytes = vec![7; 50_000];
    // The server sends a message back that begins with this byte.
    client
        .put_and_notify(peer, place, &bytes, b"e the notice")
        .unwrap();
    assert_eq!(client.get(peer, place, bytes.len()).unwrap(), bytes);
    assert!(client.receive(Some(Duration::from_millis(50))).is_none());
    server.signal(Signal::SIGCONT);
    let echo = client.receive(Some(Duration::from_secs(5))).unwrap();
    assert_eq!(echo.message.data, b"e the notice");
}
