//! Tests of a connection whose daemon is killed, restarted or stopped.

use super::Bench;
use super::stream::{Stream, now_s};
use kumi_lab::topology::LinkChange;
use std::time::Duration;

/// Target for the longest stall of a connection after a restart, in seconds. Measured: 0.10-0.12 s
/// (`docs/perf-log.md`, 2026-11-24).
const RESTART_STALL_S_MAX: f64 = 1.0;
/// Target for the longest stall after the daemon was stopped for 3 s and continued, in seconds.
/// Measured: 0.01-0.10 s (`docs/perf-log.md`, 2026-11-24).
const STOP_STALL_S_MAX: f64 = 1.0;

#[test]
#[ignore = "needs root, netns, tun"]
fn device__restarted_with_a_cable_out_and_later_paused__recovers_quickly() {
    // The rates are low enough for two processors, so that the links are the limit.
    let mut bench = Bench::with_rate("restart", &["auto"; 2], "100Mbit");
    let pause = |seconds| std::thread::sleep(Duration::from_secs_f64(seconds));
    let mac = bench.state("h2")["peers"][0]["mac"].clone();
    let stream = Stream::start(&bench, 11.5);
    pause(1.6);
    let cut_s = now_s();
    let cable = |bench: &mut Bench, is_plugged| {
        let change = LinkChange::carrier(is_plugged);
        bench.cluster.set_link("h1:eth2", &change).unwrap();
    };
    cable(&mut bench, false);
    pause(0.3);
    bench.kill_first("restart");
    pause(0.1);
    bench.up(1, "cluster");
    let restarted_s = now_s();
    pause(1.0);
    cable(&mut bench, true);
    let plugged_s = now_s();
    pause(2.6);
    let stopped_s = now_s();
    bench.signal_first("restart", "STOP");
    pause(3.0);
    bench.signal_first("restart", "CONT");
    let continued_s = now_s();
    let delivered = stream.finish();
    let before_mbps = delivered.mbps(cut_s - 0.8, cut_s);
    let one_link_mbps = delivered.mbps(plugged_s - 0.5, plugged_s);
    let after_mbps = delivered.mbps(plugged_s + 2.0, plugged_s + 2.6);
    let end_s = delivered.end_s();
    let stalls_s = [
        delivered.longest_silence(restarted_s, stopped_s),
        delivered.longest_silence(continued_s, end_s),
    ];
    let summary = format!(
        "{before_mbps:.0} Mb/s, one link {one_link_mbps:.0}, 2 s after the plug {after_mbps:.0}; \
         from the plug on {:?}; silent for {:.2} s after the restart, {:.2} s after the stop",
        delivered.course(plugged_s, plugged_s + 2.6, 13),
        stalls_s[0],
        stalls_s[1]
    );
    eprintln!("{summary}");
    assert!(after_mbps > 0.85 * before_mbps, "{summary}");
    assert!(one_link_mbps < 0.7 * before_mbps, "{summary}");
    assert!(end_s > continued_s, "nothing after the stop: {summary}");
    assert!(stalls_s[0] <= RESTART_STALL_S_MAX, "{summary}");
    assert!(stalls_s[1] <= STOP_STALL_S_MAX, "{summary}");
    let current = &bench.state("h2")["peers"][0]["mac"];
    assert_eq!(*current, mac, "the device has kept its address");
    check_foreign_queue(&bench);
}

/// Gives the device another root queue while no daemon runs. The next daemon must not replace it.
fn check_foreign_queue(bench: &Bench) {
    let tc = |arguments: &str| {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        bench.run("h1", &[&["tc", "qdisc"][..], &arguments].concat())
    };
    assert!(tc("show dev kumi0").contains("htb 1: root"));
    bench.kill_first("restart");
    std::thread::sleep(Duration::from_millis(100));
    tc("replace dev kumi0 root handle 7: pfifo limit 777");
    bench.up(1, "cluster");
    let (queue, log) = (tc("show dev kumi0"), bench.log("h1"));
    assert!(queue.contains("pfifo 7: root"), "{queue}\n{log}");
    assert!(log.contains("which is left alone"), "{log}");
}
