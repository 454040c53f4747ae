use super::*;

pub(super) const MS: u64 = 1_000_000;

/// A reorder buffer and the frames that it delivered.
#[derive(Default)]
struct Bench {
    reorder: Reorder,
    pool: FramePool,
    out: VecDeque<Frame>,
}

impl Bench {
    fn unit(&mut self, now_ns: u64, link: u8, seq: u32, index: u8, last: u8, aux: u16) -> Fate {
        let payload = [seq as u8; 10];
        let unit = Unit {
            seq,
            index,
            last,
            aux,
            has_vnet: false,
            payload: &payload,
        };
        self.reorder
            .push(now_ns, link, false, &unit, &mut self.pool, &mut self.out)
    }

    /// Receives a single-unit frame that follows unit `seq - back` of its flow.
    fn single(&mut self, now_ns: u64, link: u8, seq: u32, back: u16) -> Fate {
        self.unit(now_ns, link, seq, 0, 0, back)
    }

    fn tick(&mut self, now_ns: u64) {
        self.reorder
            .handle_timeout(now_ns, MS / 10, &mut self.pool, &mut self.out);
    }

    /// Returns the first payload byte of each delivered frame, which is the number of its first
    /// unit.
    fn delivered(&mut self) -> Vec<u8> {
        self.out
            .drain(..)
            .map(|frame| frame.ethernet()[0])
            .collect()
    }
}

#[test]
fn reorder__units_in_order__are_delivered_at_once() {
    let mut bench = Bench::default();
    for seq in 0..5 {
        bench.single(0, 0, seq, u16::from(seq > 0));
    }
    assert_eq!(bench.delivered(), [0, 1, 2, 3, 4]);
    assert_eq!(bench.reorder.held_bytes(), 0);
    assert_eq!(bench.reorder.poll_timeout(MS), None);
}

#[test]
fn reorder__units_swapped_between_links__are_delivered_in_order() {
    let mut bench = Bench::default();
    bench.single(0, 0, 0, 0);
    bench.single(0, 0, 2, 1);
    bench.single(0, 0, 3, 1);
    assert_eq!(bench.delivered(), [0]);
    bench.single(0, 1, 1, 1);
    assert_eq!(bench.delivered(), [1, 2, 3]);
}

#[test]
fn reorder__burst_over_two_links__becomes_one_frame() {
    let mut bench = Bench::default();
    bench.unit(0, 1, 2, 2, 3, 10);
    bench.unit(0, 1, 3, 3, 3, 10);
    bench.unit(0, 0, 0, 0, 3, 0);
    assert!(bench.delivered().is_empty());
    bench.unit(0, 0, 1, 1, 3, 10);
    let frame = bench.out.pop_front().unwrap();
    assert_eq!(frame.ethernet().len(), 40);
    assert_eq!(frame.ethernet()[39], 3);
}

#[test]
fn reorder__gap_in_one_flow__does_not_hold_another() {
    let mut bench = Bench::default();
    bench.single(0, 0, 0, 0);
    bench.single(0, 0, 2, 0); // another flow: names no predecessor
    assert_eq!(bench.delivered(), [0, 2]);
}

#[test]
fn reorder__gap_older_than_the_hold__releases_the_frames_behind_it() {
    let mut bench = Bench::default();
    bench.single(0, 0, 0, 0);
    bench.single(0, 1, 2, 1);
    assert_eq!(bench.delivered(), [0]);
    bench.tick(HOLD_MIN_NS - 1);
    bench.tick(HOLD_MAX_NS - 2 * MS);
    assert!(bench.delivered().is_empty());
    bench.tick(HOLD_MAX_NS);
    assert_eq!(bench.delivered(), [2]);
    assert_eq!(bench.single(HOLD_MAX_NS, 0, 1, 1), Fate::Late);
    assert_eq!(
        bench.delivered(),
        [1],
        "a small frame is still worth delivering"
    );
    assert_eq!(bench.single(HOLD_MAX_NS, 0, 1, 1), Fate::Duplicate);
}

#[test]
fn reorder__loss_proven_by_every_link__is_not_waited_for() {
    let mut bench = Bench::default();
    bench.single(0, 0, 0, 0);
    bench.single(0, 1, 1, 1);
    bench.single(MS, 0, 3, 1); // 2 is missing …
    bench.single(MS, 1, 4, 1); // … and both links are past it
    bench.delivered();
    bench.tick(MS + REPAIR_MARGIN_NS + MS / 5);
    assert_eq!(bench.delivered(), [3, 4]);
}

#[test]
fn reorder__gap_while_a_link_is_silent__is_held_for_its_repair() {
    let mut bench = Bench::default();
    bench.single(0, 1, 0, 0);
    for seq in 2..12 {
        bench.single(u64::from(seq) * MS, 0, seq, 1);
    }
    bench.delivered();
    bench.tick(12 * MS);
    assert!(
        bench.delivered().is_empty(),
        "unit 1 may be repaired from the silent link"
    );
    bench.single(13 * MS, 0, 1, 1);
    assert_eq!(bench.delivered().len(), 11);
}

#[test]
fn reorder__burst_still_arriving__is_not_abandoned() {
    let mut bench = Bench::default();
    for index in 0..40u8 {
        let at_ns = u64::from(index) * 2 * MS;
        let aux = if index == 0 { 0 } else { 10 };
        bench.unit(at_ns, 0, u32::from(index), index, 39, aux);
        bench.tick(at_ns + MS);
    }
    assert_eq!(bench.out.pop_front().unwrap().ethernet().len(), 400);
}

#[test]
fn reorder__jump_beyond_the_window__releases_the_frames_on_hold() {
    let mut bench = Bench::default();
    bench.single(0, 0, 0, 0);
    bench.single(0, 0, 2, 1);
    bench.single(0, 0, 100_000, 1);
    assert_eq!(
        bench.delivered(),
        [0, 2],
        "the jumped-to frame waits for its own predecessor"
    );
    bench.tick(30 * MS);
    assert_eq!(bench.delivered().len(), 1);
    assert_eq!(bench.reorder.held_bytes(), 0);
}

#[test]
fn reorder__contradicting_units__are_refused() {
    let mut bench = Bench::default();
    assert_eq!(bench.unit(0, 0, 5, 1, 3, 10), Fate::Accepted);
    assert_eq!(
        bench.unit(0, 0, 6, 2, 3, 11),
        Fate::Malformed,
        "another slice length"
    );
    assert_eq!(
        bench.unit(0, 0, 7, 1, 1, 10),
        Fate::Malformed,
        "another first unit"
    );
    assert_eq!(
        bench.unit(0, 0, 0, 1, 3, 10),
        Fate::Malformed,
        "before the first number"
    );
    assert_eq!(bench.unit(0, 0, 5, 1, 3, 10), Fate::Duplicate);
}

#[test]
fn reorder__burst_that_arrives_entirely_late__is_delivered_and_counted() {
    let mut bench = Bench::default();
    bench.single(0, 0, 0, 0);
    bench.single(0, 0, 3, 1); // units 1 and 2 are a burst on a slow link
    bench.tick(HOLD_MAX_NS);
    bench.tick(2 * HOLD_MAX_NS);
    assert_eq!(bench.delivered(), [0, 3]);
    assert_eq!(bench.unit(50 * MS, 1, 1, 0, 1, 1), Fate::Late);
    assert_eq!(bench.unit(50 * MS, 1, 2, 1, 1, 10), Fate::Late);
    assert_eq!(bench.delivered(), [1], "late is better than lost");
    assert_eq!(bench.unit(50 * MS, 1, 2, 1, 1, 10), Fate::Duplicate);
    assert_eq!(
        (bench.reorder.counts().late, bench.reorder.held_bytes()),
        (1, 0)
    );
}

#[test]
fn reorder__new_packet__does_not_postpone_the_timeout_of_held_frames() {
    let mut bench = Bench::default();
    bench.single(0, 0, 0, 0);
    bench.single(0, 1, 2, 1);
    bench.tick(3 * MS);
    let due_ns = bench.reorder.poll_timeout(MS).unwrap();
    bench.single(due_ns - 1, 0, 3, 0);
    assert_eq!(
        bench.reorder.poll_timeout(MS),
        Some(due_ns),
        "a packet puts nothing off"
    );
}

#[test]
fn reorder__burst_over_a_formerly_idle_link__is_not_declared_lost() {
    let mut bench = Bench::default();
    bench.single(0, 0, 0, 0);
    bench.single(0, 1, 1, 0);
    let later_ns = 500 * MS;
    bench.reorder.note_heard(1, later_ns); // a heartbeat: the link is alive
    bench.unit(later_ns, 0, 2, 0, 1, 0);
    bench.single(later_ns, 0, 4, 0);
    bench.delivered();
    bench.tick(later_ns + 2 * MS);
    bench.tick(later_ns + 5 * MS / 2);
    assert!(bench.delivered().is_empty());
    assert_eq!(
        bench.unit(later_ns + 5 * MS / 2, 1, 3, 1, 1, 10),
        Fate::Accepted
    );
    assert_eq!(bench.delivered(), [2]);
}

#[test]
fn reorder__late_unit__increases_the_learned_skew() {
    let mut bench = Bench::default();
    bench.reorder.skew_ns = 0;
    bench.single(0, 0, 0, 0);
    bench.single(0, 1, 2, 1);
    bench.tick(HOLD_MIN_NS);
    bench.tick(HOLD_MIN_NS + CHECK_NS);
    assert_eq!(bench.single(4 * MS, 0, 1, 1), Fate::Late);
    assert_eq!(bench.reorder.skew_ns(), SKEW_LATE_MIN_NS);
}

#[test]
fn reorder__long_burst_with_a_lost_unit__is_held_until_the_repair() {
    let mut bench = Bench::default();
    for index in (0..40u8).filter(|index| *index != 20) {
        let at_ns = u64::from(index) * MS / 4;
        let aux = if index == 0 { 0 } else { 10 };
        bench.unit(at_ns, 0, u32::from(index), index, 39, aux);
        bench.tick(at_ns);
    }
    bench.single(10 * MS, 0, 40, 0);
    bench.tick(10 * MS + MS / 2);
    bench.tick(11 * MS);
    assert_eq!(bench.delivered(), [40], "the burst waits for the repair");
    assert_eq!(bench.unit(11 * MS, 0, 20, 20, 39, 10), Fate::Accepted);
    assert_eq!(bench.delivered(), [0]);
}

#[test]
fn reorder__chain_of_damaged_bursts__is_released_within_one_hold() {
    let mut bench = Bench::default();
    for burst in 0..10 {
        // The middle unit of each burst of three is missing.
        let aux = u16::from(burst > 0);
        bench.unit(0, 0, 3 * burst, 0, 2, aux);
        bench.unit(0, 0, 3 * burst + 2, 2, 2, 10);
    }
    bench.tick(HOLD_MAX_NS);
    bench.tick(HOLD_MAX_NS + CHECK_NS);
    assert_eq!(bench.reorder.held_bytes(), 0);
}
