use super::*;
use crate::topology::Probability;

/// Sends numbered frames at a fixed pace, over its NICs in turn, and records the frames it
/// receives.
#[derive(Debug, Default)]
struct Pacer {
    target: u8,
    remaining: u32,
    gap_ns: u64,
    next_ns: u64,
    nics: usize,
    sent: u32,
    is_due: bool,
    received: Vec<(u64, u32)>,
    carriers: Vec<(u64, usize, bool)>,
}

impl Node for Pacer {
    fn handle_frame(&mut self, now_ns: u64, _nic: usize, frame: &[u8]) {
        self.received.push((
            now_ns,
            u32::from_be_bytes(frame[14..18].try_into().unwrap()),
        ));
    }
    fn handle_timeout(&mut self, _now_ns: u64) {
        self.is_due = true;
    }
    fn poll_timeout(&self) -> Option<u64> {
        (self.remaining > 0 && !self.is_due).then_some(self.next_ns)
    }
    fn poll_transmit(&mut self, now_ns: u64) -> Option<(usize, Vec<u8>)> {
        if !std::mem::take(&mut self.is_due) {
            return None;
        }
        let mut frame = vec![0; 1514];
        frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, self.target]);
        frame[14..18].copy_from_slice(&self.sent.to_be_bytes());
        let nic = self.sent as usize % self.nics;
        self.sent += 1;
        self.remaining -= 1;
        self.next_ns = now_ns + self.gap_ns;
        Some((nic, frame))
    }
    fn handle_carrier(&mut self, now_ns: u64, nic: usize, up: bool) {
        self.carriers.push((now_ns, nic, up));
    }
}

fn two_links(keys: &str, frames: u32, seed: u64) -> Sim<Pacer> {
    let mut text = "name = \"t\"\n[[host]]\nname = \"h1\"\n[[host]]\nname = \"h2\"\n".to_owned();
    for n in 1..=2 {
        text += &format!(
            "[[link]]\nbetween = [\"h1:eth{n}\", \"h2:eth{n}\"]\nrate = \"1Gbit\"\n{keys}\n"
        );
    }
    let topology = Topology::parse("test", &text).unwrap();
    let sender = Pacer {
        target: 2,
        remaining: frames,
        gap_ns: 6_152,
        nics: 2,
        ..Pacer::default()
    };
    Sim::new(&topology, vec![sender, Pacer::default()], seed)
}

/// Returns the number of frames that arrive directly after a frame with a higher number.
fn overtakes(sim: &Sim<Pacer>) -> usize {
    let received = &sim.node(1).received;
    received
        .windows(2)
        .filter(|pair| pair[1].1 < pair[0].1)
        .count()
}

#[test]
fn round_robin__without_coalescing__stays_in_order() {
    let mut sim = two_links("", 1000, 1);
    sim.run_until(1_000_000_000);
    assert_eq!((sim.node(1).received.len(), overtakes(&sim)), (1000, 0));
}

#[test]
fn round_robin__with_coalescing__is_reordered() {
    let mut sim = two_links("rx_coalesce = \"50us\"", 1000, 1);
    sim.run_until(1_000_000_000);
    assert_eq!(sim.node(1).received.len(), 1000);
    assert!(overtakes(&sim) > 50, "{} overtaken", overtakes(&sim));
}

#[test]
fn change_at__carrier_down_and_up__is_seen_by_both_hosts_and_affects_that_link_only() {
    let mut sim = two_links("", 10_000, 1);
    sim.change_at(10_000_000, "h1:eth1", LinkChange::carrier(false));
    sim.change_at(20_000_000, "h1:eth1", LinkChange::carrier(true));
    sim.run_until(100_000_000);
    for host in 0..2 {
        let expected = [(10_000_000, 0, false), (20_000_000, 0, true)];
        assert_eq!(sim.node(host).carriers, expected);
    }
    let lost = 10_000 - sim.node(1).received.len();
    assert!(
        (800..830).contains(&lost),
        "{lost} lost in 10 ms of one of two links"
    );
}

#[test]
fn run__same_seed__delivers_the_same_frames_at_the_same_times() {
    let received = |seed| {
        let mut sim = two_links("loss = 0.1\njitter = \"20us\"", 500, seed);
        sim.run_until(1_000_000_000);
        sim.node(1).received.clone()
    };
    assert_eq!(received(3), received(3));
    assert_ne!(received(3), received(4));
}

#[test]
fn meter__paced_sender__counts_the_rate_in_every_bin() {
    let mut sim = two_links("", 2000, 1);
    sim.set_metering(true);
    sim.run_until(1_000_000_000);
    let bins = sim.take_bins();
    let total: u64 = bins.iter().map(|bin| bin.bytes).sum();
    assert_eq!(total, 2000 * 1514);
    assert!(
        bins.iter()
            .filter(|bin| bin.start_ns == 5_000_000)
            .all(|bin| bin.frames.abs_diff(81) <= 1)
    );
}

#[test]
fn loss__set_while_running__takes_effect_at_that_time() {
    let mut sim = two_links("", 2000, 1);
    sim.change_at(
        6_152_000,
        "h1:eth1",
        LinkChange::loss(Probability::new(1.0).unwrap()),
    );
    sim.run_until(1_000_000_000);
    let lost = 2000 - sim.node(1).received.len();
    assert!((499..=502).contains(&lost), "{lost}");
}
