//! Programs that are killed at any moment, and started again.

use super::{KUMI, Lab, Program, connect, operate, wait_for_kernel};
use kumi_wind::{Node, PeerId, Place, Rung, WindError};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Times after its start at which a program is killed, in ms: before, in and after the handshake,
/// and between operations.
const MOMENTS_MS: [u64; 12] = [0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 144, 377];

/// Operates until the peer is lost. It is another program by now.
fn operate_until_lost(node: &Node, peer: PeerId, place: Place) {
    let began = Instant::now();
    loop {
        match operate(node, peer, place, 20) {
            Ok(()) => assert!(
                began.elapsed() < Duration::from_secs(5),
                "the peer is not lost"
            ),
            Err(WindError::Lost(_)) => break,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
}

/// Kills the server while a client operates, at all moments, and starts another one.
fn kill_servers(lab: &Lab, has_kernel: bool) {
    let rung = if has_kernel { Rung::Kernel } else { Rung::User };
    let client = lab.node(rung);
    let mut server = lab.serve();
    for moment_ms in MOMENTS_MS {
        let (peer, place) = connect(&client, lab.server());
        if has_kernel {
            wait_for_kernel(&client, peer);
        }
        server = std::thread::scope(|scope| {
            let next = scope.spawn(|| {
                let moment = Duration::from_millis(moment_ms);
                std::thread::sleep(moment);
                drop(server);
                // One that is killed before it can answer.
                let early = lab.serve();
                std::thread::sleep(moment);
                drop(early);
                lab.serve()
            });
            operate_until_lost(&client, peer, place);
            next.join().unwrap()
        });
    }
    let (peer, place) = connect(&client, lab.server());
    operate(&client, peer, place, 20).unwrap();
}

fn start_client(lab: &Lab) -> Program {
    let mut command = lab.cluster.command("h1", KUMI).unwrap();
    command
        .args(["wind", "perf", "--trusted", "--key"])
        .arg(&lab.key);
    command.arg(lab.server().ip().to_string());
    Program(
        command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    )
}

/// Kills clients at all moments. The server serves the others.
fn kill_clients(lab: &Lab) {
    let _server = lab.serve();
    let client = lab.node(Rung::User);
    let (peer, place) = connect(&client, lab.server());
    for moment_ms in MOMENTS_MS {
        let killed = start_client(lab);
        std::thread::sleep(Duration::from_millis(moment_ms));
        drop(killed);
        operate(&client, peer, place, 5).unwrap();
    }
    let other = lab.node(Rung::User);
    let (peer, place) = connect(&other, lab.server());
    operate(&other, peer, place, 5).unwrap();
}

#[test]
#[ignore = "needs root, netns"]
fn program__killed_at_any_moment__is_lost_and_replaced() {
    let lab = Lab::up("windkilled", &kumi_testlab::cables(1, "1Gbit"));
    lab.cluster.enter_thread("h1").unwrap();
    kill_servers(&lab, false);
    kill_clients(&lab);
}

#[test]
#[ignore = "needs root, netns, bpf"]
fn kernel__programs_killed_at_any_moment__are_lost_and_replaced() {
    let mut lab = Lab::up("windkilledk", &kumi_testlab::cables(1, "1Gbit"));
    lab.begin();
    lab.cluster.enter_thread("h1").unwrap();
    kill_servers(&lab, true);
    kill_clients(&lab);
}
