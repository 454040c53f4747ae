//! Messages after pauses on random paths: the time and the repairs of each control.

use kumi_congestion::control::Control;
use kumi_congestion::kumi::Kumi;
use kumi_congestion::rivals::bbr::Bbr;
use kumi_congestion::rivals::cubic::Cubic;
use kumi_congestion::simulation::path::Path;
use kumi_congestion::simulation::world::{Load, World};

/// Paths of a run of all tests. `KUMI_PATHS=3000` is a full run, of some minutes.
const PATHS: u64 = 40;
/// Messages per connection. The first one finds the path's rate.
const MESSAGES: usize = 6;

fn paths() -> u64 {
    std::env::var("KUMI_PATHS").map_or(PATHS, |paths| paths.parse().expect("a number of paths"))
}

/// Returns a number between two, with all orders of magnitude equally likely.
fn between(random: &mut fastrand::Rng, least: f64, most: f64) -> f64 {
    least * (most / least).powf(random.f64())
}

/// Returns a path of 10 Mb/s to 10 Gb/s and 1 to 100 ms, with 40 to 20 000 packets in flight, and a
/// buffer of at least eight packets.
fn path(random: &mut fastrand::Rng) -> Path {
    loop {
        let mut path = Path {
            bits_ps: between(random, 1e7, 1e10),
            host_bits_ps: 0.0,
            rtt_ns: between(random, 1e6, 1e8) as u64,
            buffer_packets: 0.0,
            loss: 0.0,
            late: 0.0,
            hold_acks_ns: 0,
        };
        path.host_bits_ps = path.bits_ps * between(random, 1.0, 10.0);
        path.buffer_packets = path.bdp_packets() * between(random, 0.05, 1.0);
        if (40.0..20_000.0).contains(&path.bdp_packets()) && path.buffer_packets >= 8.0 {
            return path;
        }
    }
}

/// Time and repairs that a control needed for the messages after pauses.
struct Outcome {
    /// The median of their times, in times of the ideal one.
    median: f64,
    repairs: u64,
}

/// Sends messages of four bandwidth-delay products.
fn run(path: Path, control: Box<dyn Control>, seed: u64) -> Outcome {
    send(
        path,
        control,
        seed,
        ((4.0 * path.bdp_packets()) as u64 + 100, MESSAGES),
    )
}

fn send(
    path: Path,
    control: Box<dyn Control>,
    seed: u64,
    (packets, messages): (u64, usize),
) -> Outcome {
    let load = Load {
        begin_ns: 0,
        packets,
        messages,
        pause_ns: 2_000_000_000,
    };
    let mut world = World::new(path, seed);
    let connection = world.add(control, load);
    world.run(u64::MAX);
    let ideal_ns = path.rtt_ns as f64 / 2.0 + packets as f64 * path.packet_ns();
    let mut times = world.took_ns(connection)[1..].to_vec();
    times.sort_unstable();
    Outcome {
        median: times[times.len() / 2] as f64 / ideal_ns,
        repairs: world.repairs(connection).0,
    }
}

/// Returns the value below which are this part of them.
fn part(mut values: Vec<f64>, part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(values.len() as f64 * part) as usize]
}

#[test]
fn message_after_a_pause__any_path__takes_the_ideal_time_with_a_tenth_of_the_repairs() {
    let mut random = fastrand::Rng::with_seed(1);
    let (mut times, mut repairs, mut repairs_of_bbr) = (Vec::new(), 0, 0);
    for seed in 0..paths() {
        let path = path(&mut random);
        let outcome = run(path, Box::new(Kumi::default()), seed);
        if outcome.median > 1.1 {
            eprintln!("{:.2} of the ideal time: {path:?}", outcome.median);
        }
        times.push(outcome.median);
        repairs += outcome.repairs;
        repairs_of_bbr += run(path, Box::new(Bbr::default()), seed).repairs;
    }
    let time = part(times, 0.9);
    assert!(time <= 1.1, "{time:.2} of the ideal time");
    assert!(
        repairs * 10 <= repairs_of_bbr,
        "{repairs} packets sent again, and {repairs_of_bbr} by BBR"
    );
}

#[test]
fn message_after_a_pause__shorter_than_a_round_trip__finds_the_rate_with_few_losses() {
    let mut random = fastrand::Rng::with_seed(4);
    let (mut times, mut repairs, mut repairs_of_bbr) = (Vec::new(), 0, 0);
    for seed in 0..paths() {
        let (path, packets) = loop {
            let path = path(&mut random);
            let packets = path.bdp_packets() * between(&mut random, 0.25, 1.0);
            // A train of less than a millisecond shows no rate.
            if packets * path.packet_ns() >= 2e6 && packets >= 32.0 {
                break (path, packets as u64);
            }
        };
        let messages = (packets, 2 * MESSAGES);
        let outcome = send(path, Box::new(Kumi::default()), seed, messages);
        if outcome.median > 1.1 {
            eprintln!("{:.2} with {packets} packets: {path:?}", outcome.median);
        }
        times.push(outcome.median);
        repairs += outcome.repairs;
        repairs_of_bbr += send(path, Box::new(Bbr::default()), seed, messages).repairs;
    }
    let time = part(times, 0.9);
    assert!(time <= 1.1, "{time:.2} of the ideal time");
    assert!(
        repairs * 5 <= repairs_of_bbr * 3,
        "{repairs} packets sent again, and {repairs_of_bbr} by BBR"
    );
}

#[test]
fn message_after_a_pause__random_loss__takes_little_more_and_cubic_much_more() {
    let mut random = fastrand::Rng::with_seed(2);
    let (mut times, mut times_of_cubic) = (Vec::new(), Vec::new());
    for seed in 0..paths() {
        let path = Path {
            loss: 0.001,
            ..path(&mut random)
        };
        times.push(run(path, Box::new(Kumi::default()), seed).median);
        times_of_cubic.push(run(path, Box::new(Cubic::default()), seed).median);
    }
    let middle = part(times.clone(), 0.5);
    let (time, time_of_cubic) = (part(times, 0.9), part(times_of_cubic, 0.9));
    assert!(middle <= 1.15, "{middle:.2} of the ideal time");
    assert!(time <= 1.3, "{time:.2} of the ideal time");
    assert!(time_of_cubic > 1.5, "{time_of_cubic:.2} by CUBIC");
}

/// Returns any path: 1 Mb/s to 100 Gb/s, 20 us to 300 ms, buffers of 0.02 to 4 bandwidth-delay
/// products, and every second one with loss, re-ordering, or acknowledgements that gather.
fn any_path(random: &mut fastrand::Rng) -> Path {
    loop {
        let bits_ps = between(random, 1e6, 1e11);
        let rtt_ns = between(random, 2e4, 3e8);
        let mut path = Path {
            bits_ps,
            host_bits_ps: bits_ps * between(random, 1.0, 10.0),
            rtt_ns: rtt_ns as u64,
            buffer_packets: 0.0,
            loss: [0.0, between(random, 1e-5, 1e-2)][random.usize(..2)],
            late: [0.0, between(random, 1e-4, 1e-1)][random.usize(..2)],
            hold_acks_ns: [0, (rtt_ns * random.f64() / 4.0) as u64][random.usize(..2)],
        };
        path.buffer_packets = (path.bdp_packets() * between(random, 0.02, 4.0)).max(4.0);
        // A larger product only takes longer.
        if path.bdp_packets() < 50_000.0 {
            return path;
        }
    }
}

#[test]
fn messages__any_path__all_arrive_and_seldom_later_than_by_cubic() {
    let mut random = fastrand::Rng::with_seed(3);
    let mut ratios = Vec::new();
    for seed in 0..paths() {
        let path = any_path(&mut random);
        let by_cubic = run(path, Box::new(Cubic::default()), seed).median;
        let by_kumi = run(path, Box::new(Kumi::default()), seed).median;
        if by_kumi > 1.5 * by_cubic {
            eprintln!("{by_kumi:.2} of the ideal time, CUBIC {by_cubic:.2}: {path:?}");
        }
        ratios.push(by_kumi / by_cubic);
    }
    let ratio = part(ratios, 0.9);
    assert!(ratio <= 1.2, "{ratio:.2} of CUBIC's time");
}
