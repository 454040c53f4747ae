use super::*;
use crate::topology::{Delay, Direction, Faults, LinkChange, Probability};
use proptest::prelude::*;

/// Returns a topology of `hosts` hosts, h1 and up, on one switch.
fn star(hosts: usize, link_keys: &str, switch_keys: &str) -> Topology {
    let mut text = format!("name = \"t\"\n[[switch]]\nname = \"s1\"\n{switch_keys}\n");
    for h in 1..=hosts {
        text += &format!("[[host]]\nname = \"h{h}\"\n");
    }
    for h in 1..=hosts {
        text += &format!("[[link]]\nbetween = [\"h{h}:eth1\", \"s1\"]\n{link_keys}\n");
    }
    Topology::parse("test", &text).unwrap()
}

fn cable(link_keys: &str) -> Topology {
    let text = format!(
        "name = \"t\"\n[[host]]\nname = \"h1\"\n[[host]]\nname = \"h2\"\n[[link]]\nbetween = [\"h1:eth1\", \"h2:eth1\"]\n{link_keys}\n"
    );
    Topology::parse("test", &text).unwrap()
}

/// Returns a frame from station `from` to station `to` that carries `number`.
fn frame(to: u8, from: u8, number: u32, bytes: usize) -> Frame {
    let mut frame = vec![0; bytes.max(18)];
    frame[0..6].copy_from_slice(&[2, 0, 0, 0, 0, to]);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, from]);
    frame[14..18].copy_from_slice(&number.to_be_bytes());
    Frame::from(frame)
}

fn number(frame: &Frame) -> u32 {
    u32::from_be_bytes(frame.bytes()[14..18].try_into().unwrap())
}

/// Runs the model until it is at rest. Returns the deliveries with time and NIC.
fn drain(model: &mut Model) -> Vec<(u64, usize, Frame)> {
    let mut deliveries = Vec::new();
    let mut now_ns = 0;
    loop {
        while let Some(Delivery { at_ns, nic, frame }) = model.poll_transmit() {
            // Deliveries from before the first event have times of their own.
            assert!(
                now_ns == 0 || at_ns == now_ns,
                "what is due is delivered then"
            );
            deliveries.push((at_ns, nic, frame));
        }
        let Some(at_ns) = model.poll_timeout() else {
            return deliveries;
        };
        now_ns = at_ns;
        model.handle_timeout(now_ns);
    }
}

#[test]
fn line__one_full_frame__takes_wire_time_and_delay() {
    let mut model = Model::new(
        &cable("rate = \"1Gbit\"\ndelay = \"1ms\""),
        HostSide::Modelled,
        1,
    );
    model.handle_frame(0, 0, frame(2, 1, 0, 1514));
    let deliveries = drain(&mut model);
    assert_eq!((deliveries[0].0, deliveries[0].1), (12_304 + 1_000_000, 1));
}

#[test]
fn line__short_frame__is_padded_and_framed() {
    let mut model = Model::new(&cable("rate = \"1Gbit\""), HostSide::Modelled, 1);
    model.handle_frame(0, 0, frame(2, 1, 0, 40));
    assert_eq!(drain(&mut model)[0].0, 84 * 8);
}

#[test]
fn port_queue__frame_beyond_limit__is_dropped_whole() {
    // Two senders transmit at once into a port that holds ten frames and transmits one more.
    let topology = star(3, "rate = \"1Gbit\"", "port_queue = \"15140B\"");
    let mut model = Model::new(&topology, HostSide::Modelled, 1);
    model.handle_frame(0, 2, frame(9, 3, 0, 60));
    drain(&mut model);
    let start_ns = 1_000_000;
    for n in 0..40 {
        model.handle_frame(start_ns, 0, frame(3, 1, n, 1514));
        model.handle_frame(start_ns, 1, frame(3, 2, 100 + n, 1514));
    }
    let delivered = drain(&mut model)
        .iter()
        .filter(|(_, nic, _)| *nic == 2)
        .count() as u64;
    let port = model.counters(2, 1);
    assert_eq!(port.queue_bytes_peak, 15_140);
    assert_eq!(port.queue_drops + delivered, 80);
    assert!(port.queue_drops >= 28, "{port:?}");
}

#[test]
fn nic_queue__packets_beyond_limit__are_dropped() {
    let mut model = Model::new(
        &cable("rate = \"1Gbit\"\nnic_queue = 30"),
        HostSide::Modelled,
        1,
    );
    for n in 0..50 {
        model.handle_frame(0, 0, frame(2, 1, n, 1514));
    }
    assert_eq!(drain(&mut model).len(), 31);
    assert_eq!(model.counters(0, 0).queue_drops, 19);
}

#[test]
fn shared_buffer__two_full_ports__share_it() {
    let topology = star(4, "", "shared_buffer = \"15140B\"\nport_queue = \"15140B\"");
    let mut topology = topology;
    for link in &mut topology.links[2..] {
        link.rate = "10Mbit".parse().ok();
    }
    let mut model = Model::new(&topology, HostSide::Modelled, 1);
    model.handle_frame(0, 2, frame(9, 3, 0, 60));
    model.handle_frame(0, 3, frame(9, 4, 0, 60));
    drain(&mut model);
    for n in 0..20 {
        model.handle_frame(1_000_000_000, 0, frame(3, 1, n, 1514));
        model.handle_frame(1_000_000_000, 1, frame(4, 2, n, 1514));
    }
    // One frame is in each of the two transmitters, and ten are in the shared buffer, at either
    // port.
    let deliveries = drain(&mut model);
    assert_eq!(deliveries.len(), 12);
}

#[test]
fn switch__frame_for_a_known_station__goes_to_that_station_only() {
    let mut model = Model::new(&star(4, "rate = \"1Gbit\"", ""), HostSide::Modelled, 1);
    model.handle_frame(0, 0, frame(2, 1, 0, 60));
    assert_eq!(drain(&mut model).len(), 3, "unknown: flooded");
    model.handle_frame(1_000_000, 1, frame(1, 2, 1, 60));
    assert_eq!(
        drain(&mut model).iter().map(|d| d.1).collect::<Vec<_>>(),
        [0]
    );
}

#[test]
fn receiver__coalescing__delivers_batches_by_time_and_by_count() {
    let topology = cable("rate = \"1Gbit\"\nrx_coalesce = \"50us\"\nrx_coalesce_frames = 8");
    let mut model = Model::new(&topology, HostSide::Modelled, 1);
    for n in 0..3 {
        model.handle_frame(0, 0, frame(2, 1, n, 1514));
    }
    // The first frame finds the NIC idle. The others wait for the minimum distance between
    // interrupts.
    let at_ns: Vec<u64> = drain(&mut model).iter().map(|(at_ns, ..)| *at_ns).collect();
    assert_eq!(at_ns, [12_304, 62_304, 62_304]);
    let start_ns = 1_000_000;
    for n in 0..9 {
        model.handle_frame(start_ns, 0, frame(2, 1, n, 60));
    }
    let at_ns: Vec<u64> = drain(&mut model).iter().map(|(at_ns, ..)| *at_ns).collect();
    let batch_ns = start_ns + 9 * 672;
    assert_eq!(
        (at_ns[0], at_ns[1], at_ns[8]),
        (start_ns + 672, batch_ns, batch_ns)
    );
}

#[test]
fn carrier__lost_with_frames_in_flight__drops_them_and_notifies_both_ends() {
    let mut model = Model::new(
        &cable("rate = \"1Gbit\"\ndelay = \"1ms\""),
        HostSide::Modelled,
        1,
    );
    for n in 0..10 {
        model.handle_frame(0, 0, frame(2, 1, n, 1514));
    }
    model.change(30_000, 0, 0, &LinkChange::carrier(false));
    assert_eq!(
        model.poll_event(),
        Some(Event::Carrier { nic: 1, up: false })
    );
    assert_eq!(
        model.poll_event(),
        Some(Event::Carrier { nic: 0, up: false })
    );
    assert!(drain(&mut model).is_empty());
    assert_eq!(model.counters(0, 0).cut, 10);
    model.change(5_000_000, 0, 0, &LinkChange::carrier(true));
    model.handle_frame(5_000_000, 0, frame(2, 1, 99, 60));
    assert_eq!(drain(&mut model).len(), 1);
}

#[test]
fn blackhole__one_way__drops_frames_in_that_direction_only() {
    let mut model = Model::new(&cable("rate = \"1Gbit\""), HostSide::Modelled, 1);
    model.change(0, 0, 0, &LinkChange::blackhole(Direction::Tx));
    model.handle_frame(0, 0, frame(2, 1, 0, 60));
    model.handle_frame(0, 1, frame(1, 2, 0, 60));
    assert_eq!(
        drain(&mut model).iter().map(|d| d.1).collect::<Vec<_>>(),
        [0]
    );
    assert_eq!(model.counters(0, 0).silenced, 1);
}

#[test]
fn rate__changed_while_frames_wait__applies_to_the_next_frame() {
    let mut model = Model::new(&cable("rate = \"1Gbit\""), HostSide::Modelled, 1);
    for n in 0..2 {
        model.handle_frame(0, 0, frame(2, 1, n, 1514));
    }
    model.change(1, 0, 0, &LinkChange::rate("100Mbit".parse().unwrap()));
    assert_eq!(drain(&mut model)[1].0, 12_304 + 123_040);
}

/// Time of a frame of 1514 bytes on a wire of 1 Gb/s, in nanoseconds.
const FRAME_NS: u64 = 12_304;

#[test]
fn emulated_hosts__bucket_sends_ten_frames_at_once__wire_carries_one_by_one() {
    let mut model = Model::new(&cable("rate = \"1Gbit\""), HostSide::Kernel, 1);
    for n in 0..10 {
        model.handle_frame(0, 0, frame(2, 1, n, 1514));
    }
    let times: Vec<u64> = drain(&mut model).iter().map(|(at_ns, ..)| *at_ns).collect();
    let expected: Vec<u64> = (1..=10).map(|n| n * FRAME_NS).collect();
    assert_eq!(times, expected);
}

#[test]
fn emulated_hosts__more_than_the_bucket_holds__no_frame_waits_longer_than_the_bucket() {
    let mut model = Model::new(&cable("rate = \"1Gbit\""), HostSide::Kernel, 1);
    for n in 0..100 {
        model.handle_frame(0, 0, frame(2, 1, n, 1514));
    }
    let deliveries = drain(&mut model);
    assert_eq!(deliveries.len(), 100);
    let order: Vec<u32> = deliveries.iter().map(|(.., frame)| number(frame)).collect();
    assert!(order.is_sorted(), "{order:?}");
    assert_eq!(deliveries[99].0, 250_000 + FRAME_NS);
}

#[test]
fn emulated_hosts__slow_link__bucket_has_two_frames() {
    let mut model = Model::new(&cable("rate = \"10Mbit\""), HostSide::Kernel, 1);
    for n in 0..3 {
        model.handle_frame(0, 0, frame(2, 1, n, 1514));
    }
    assert_eq!(drain(&mut model)[2].0, 300 * FRAME_NS);
}

#[test]
fn meter__line_that_returns_to_a_bin_after_a_cut__has_one_bin_of_that_time() {
    let mut meter = Meter::new(1);
    // A frame that leaves in the next bin, then one of the present bin, then one more.
    for at_ns in [BIN_NS, 0, BIN_NS] {
        meter.count(0, at_ns, 100);
    }
    assert_eq!(meter.take(BIN_NS).len(), 1, "the next bin has not ended");
    let bins = meter.take(2 * BIN_NS);
    assert_eq!(bins.len(), 1, "{bins:?}");
    assert_eq!((bins[0].frames, bins[0].bytes), (2, 200));
}

fn faults() -> impl Strategy<Value = Faults> {
    let p = || (0.0..0.3).prop_map(|p| Probability::new(p).unwrap());
    (p(), p(), p(), 0_u64..200_000).prop_map(|(loss, corrupt, duplicate, jitter_ns)| Faults {
        loss,
        corrupt,
        duplicate,
        jitter: Delay::from_ns(jitter_ns),
        ..Faults::default()
    })
}

/// Runs arbitrary traffic over three hosts on a switch. Returns the deliveries, and the network
/// afterwards.
fn run(
    traffic: &[(u64, usize, u8, usize)],
    faults: Faults,
    seed: u64,
) -> (Vec<(u64, usize, Frame)>, Model) {
    let mut topology = star(
        3,
        "rate = \"100Mbit\"\ndelay = \"100us\"",
        "port_queue = \"8KiB\"",
    );
    topology
        .links
        .iter_mut()
        .for_each(|link| link.faults = faults);
    let mut model = Model::new(&topology, HostSide::Modelled, seed);
    let mut now_ns = 0;
    for (n, (gap_ns, from, to, bytes)) in traffic.iter().enumerate() {
        now_ns += gap_ns;
        model.handle_frame(now_ns, *from, frame(*to, *from as u8, n as u32, *bytes));
    }
    (drain(&mut model), model)
}

fn traffic() -> impl Strategy<Value = Vec<(u64, usize, u8, usize)>> {
    prop::collection::vec(
        (0_u64..300_000, 0_usize..3, 0_u8..4, 60_usize..1515),
        1..200,
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn frames__any_traffic_and_faults__are_conserved_on_every_line(traffic in traffic(), faults in faults(), seed: u64) {
        let (_, model) = run(&traffic, faults, seed);
        prop_assert_eq!(model.frames_inside(), 0);
        for link in 0..3 {
            for side in 0..2 {
                let c = model.counters(link, side);
                prop_assert_eq!(c.offered + c.duplicated, c.queue_drops + c.lost + c.silenced + c.cut + c.arrived);
                let limit_bytes = [u64::MAX, 8192][side];
                prop_assert!(c.queue_bytes_peak <= limit_bytes);
            }
        }
    }

    #[test]
    fn frames__without_reorder_fault__stay_in_order_per_path(traffic in traffic(), faults in faults(), seed: u64) {
        let faults = Faults { corrupt: Probability::ZERO, ..faults };
        let (deliveries, _) = run(&traffic, faults, seed);
        for (source, nic) in (0..3_u8).flat_map(|s| (0..3).map(move |n| (s, n))) {
            let numbers: Vec<u32> = deliveries.iter()
                .filter(|(_, receiver, frame)| *receiver == nic && frame.source()[5] == source)
                .map(|(.., frame)| number(frame))
                .collect();
            prop_assert!(numbers.is_sorted(), "{:?}", numbers);
        }
    }

    #[test]
    fn run__same_seed__is_identical_to_the_byte(traffic in traffic(), faults in faults(), seed: u64) {
        prop_assert_eq!(run(&traffic, faults, seed).0, run(&traffic, faults, seed).0);
    }
}
