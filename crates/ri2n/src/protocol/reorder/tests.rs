//! Tests of the rules of §4.5, §4.6 and §5.5, one by one and together.

use super::*;
use proptest::prelude::*;

const MS: u64 = 1_000_000;

/// A list for two NICs, and the frames that it delivers.
struct Bench {
    list: Reorder<u32>,
    out: VecDeque<u32>,
}

impl Bench {
    fn new() -> Self {
        Self {
            list: Reorder::new(2),
            out: VecDeque::new(),
        }
    }

    /// Receives `sequence` on NIC1 or NIC2. Returns the numbers that are delivered.
    fn arrive(&mut self, sequence: u32, nic: usize, now_ns: u64) -> Vec<u32> {
        let out = &mut self.out;
        self.list
            .arrive(sequence, nic - 1, sequence, |_| true, now_ns, out);
        out.drain(..).collect()
    }

    fn timer(&mut self, now_ns: u64) -> Vec<u32> {
        self.list.release_expired(now_ns, &mut self.out);
        self.out.drain(..).collect()
    }
}

/// §5.5: the next frame is delivered at once. Any other waits for the frames before it.
#[test]
fn reorder__next_in_sequence__releases_the_waiting_frames() {
    let mut bench = Bench::new();
    assert_eq!(bench.arrive(101, 1, 0), [101]);
    assert!(bench.arrive(103, 1, 0).is_empty());
    assert!(bench.arrive(105, 1, 0).is_empty());
    assert_eq!(bench.arrive(102, 2, 0), [102, 103]);
    assert_eq!(bench.arrive(104, 2, 0), [104, 105]);
    assert_eq!(bench.list.waiting(), 0);
}

/// §4.6, figure 6: 103 is lost. NIC2 is past it with 104 and 105, NIC1 with 106. Only 106 proves
/// the loss; no time has passed.
#[test]
fn early_detection__figure_6__fires_with_106_on_nic1() {
    let mut bench = Bench::new();
    assert_eq!(bench.arrive(101, 1, 0), [101]);
    assert_eq!(bench.arrive(102, 2, 0), [102]);
    assert!(bench.arrive(104, 2, 0).is_empty());
    assert!(bench.arrive(105, 2, 0).is_empty());
    assert_eq!(bench.list.counts().lost_early, 0);
    assert_eq!(bench.arrive(106, 1, 0), [104, 105, 106]);
    assert_eq!(bench.list.counts().lost_early, 1);
    assert_eq!(bench.list.waiting(), 0);
}

/// §4.6: the loss of the last frame of a link is not detected early. It takes the timeout of §4.5.
#[test]
fn early_detection__last_frame_of_a_link__is_left_to_fast_tout() {
    let mut bench = Bench::new();
    bench.arrive(101, 1, 0);
    bench.arrive(102, 2, 0);
    assert!(bench.arrive(104, 2, 0).is_empty()); // 103 was the last frame on NIC1
    assert!(bench.timer(FAST_TOUT_NS - 1).is_empty());
    assert_eq!(bench.timer(FAST_TOUT_NS), [104]);
    assert_eq!(bench.list.counts().lost_timeout, 1);
}

/// §4.6 with a failed link: a NIC that receives nothing is ignored.
#[test]
fn early_detection__failed_nic__is_ignored() {
    let mut bench = Bench::new();
    bench.arrive(101, 1, 0);
    bench.arrive(102, 2, 0);
    let (list, out) = (&mut bench.list, &mut bench.out);
    list.arrive(104, 1, 104, |link| link == 1, 0, out);
    assert_eq!(bench.out, [104]);
}

/// §5.5: an expired frame is delivered with all frames before it, in order or not. Consecutive
/// frames after it follow.
#[test]
fn fast_tout__expired_frame__is_delivered_with_all_before_it() {
    let mut bench = Bench::new();
    bench.arrive(1, 1, 0);
    bench.arrive(6, 1, 0);
    bench.arrive(3, 1, 5 * MS);
    bench.arrive(4, 1, 5 * MS);
    bench.arrive(7, 1, 5 * MS);
    bench.arrive(9, 1, 5 * MS);
    assert_eq!(bench.timer(20 * MS), [3, 4, 6, 7]);
    assert!(bench.timer(24 * MS).is_empty());
    assert_eq!(bench.timer(25 * MS), [9]);
}

/// §5.5: an in-order delivery also checks for expired frames, in addition to the timer.
#[test]
fn fast_tout__in_order_arrival__releases_expired_frames() {
    let mut bench = Bench::new();
    bench.arrive(1, 1, 0);
    bench.arrive(4, 1, 0);
    assert_eq!(bench.arrive(2, 1, 21 * MS), [2, 4]);
}

/// §5.5: a frame that exceeds `MAXBUF` causes the delivery of all frames.
#[test]
fn maxbuf__one_frame_more__flushes_the_list() {
    let mut bench = Bench::new();
    bench.arrive(0, 1, 0);
    for sequence in 2..2 + MAXBUF as u32 {
        assert!(bench.arrive(sequence, 1, 0).is_empty());
    }
    let next = 2 + MAXBUF as u32;
    let out = bench.arrive(next, 1, 0);
    assert_eq!(out, (2..=next).collect::<Vec<_>>());
    assert_eq!((bench.list.waiting(), bench.list.counts().overruns), (0, 1));
}

#[test]
fn reorder__late_frame__is_delivered_at_once() {
    let mut bench = Bench::new();
    bench.arrive(1, 1, 0);
    bench.arrive(3, 1, 0);
    assert_eq!(bench.timer(FAST_TOUT_NS), [3]);
    assert_eq!(bench.arrive(2, 2, FAST_TOUT_NS), [2]);
    assert_eq!(bench.list.counts().late, 1);
    assert_eq!(bench.arrive(4, 2, FAST_TOUT_NS), [4]);
}

#[test]
fn reorder__sequence_number_wraps__delivery_continues() {
    let mut bench = Bench::new();
    assert_eq!(bench.arrive(u32::MAX, 1, 0), [u32::MAX]);
    assert!(bench.arrive(1, 1, 0).is_empty());
    assert_eq!(bench.arrive(0, 2, 0), [0, 1]);
}

#[test]
fn reorder__restarted_sender__is_followed() {
    let mut bench = Bench::new();
    bench.arrive(3_000_000, 1, 0);
    assert_eq!(bench.arrive(7, 1, 0), [7]);
    assert!(bench.arrive(9, 1, 0).is_empty());
    assert_eq!(bench.arrive(8, 2, 0), [8, 9]);
}

/// Returns the frames of a random run: whether the frame is lost, its link, and the link's delay at
/// that time.
fn run() -> impl Strategy<Value = Vec<(bool, usize, u64)>> {
    let frame = (prop::bool::weighted(0.1), 1usize..=2, 0u64..3 * MS);
    prop::collection::vec(frame, 1..250)
}

/// Returns the arrivals of a run in time order. Each link is a FIFO whose frames never overtake
/// each other.
fn arrivals(run: &[(bool, usize, u64)], has_loss: bool) -> Vec<(u64, usize, u32)> {
    let mut free_ns = [0; 3];
    let mut arrivals = Vec::new();
    for (sequence, (is_lost, nic, delay_ns)) in run.iter().enumerate() {
        // The receiver starts at the first number that arrives. The first frame must therefore
        // arrive first.
        let is_first = sequence == 0;
        let delay_ns = if is_first { 0 } else { *delay_ns };
        free_ns[*nic] = (sequence as u64 * MS / 10 + delay_ns).max(free_ns[*nic]);
        if !(has_loss && *is_lost) || is_first {
            arrivals.push((free_ns[*nic], *nic, sequence as u32));
        }
    }
    arrivals.sort();
    arrivals
}

proptest! {
    /// §4.5: without loss, frames are delivered in order, for any interleaving of the links' FIFOs.
    #[test]
    fn reorder__no_loss__delivers_in_order(run in run()) {
        let mut bench = Bench::new();
        let mut out = Vec::new();
        for (at_ns, nic, sequence) in arrivals(&run, false) {
            out.extend(bench.arrive(sequence, nic, at_ns));
        }
        prop_assert_eq!(out, (0..run.len() as u32).collect::<Vec<_>>());
        prop_assert_eq!(bench.list.counts().late, 0);
    }

    /// §4.5: with loss, all frames that arrived are delivered within twice `FAST_TOUT`, since the
    /// timer runs every `FAST_TOUT`. No frame is late.
    #[test]
    fn reorder__loss__delivers_all_within_twice_fast_tout(run in run()) {
        let mut bench = Bench::new();
        let arrivals = arrivals(&run, true);
        let mut arrived_ns = std::collections::BTreeMap::new();
        let mut timer_ns = FAST_TOUT_NS;
        let end_ns = arrivals.last().map_or(0, |arrival| arrival.0) + 2 * FAST_TOUT_NS;
        let mut next = arrivals.iter().peekable();
        while timer_ns <= end_ns {
            let (now_ns, out) = match next.next_if(|arrival| arrival.0 < timer_ns) {
                Some((at_ns, nic, sequence)) => {
                    arrived_ns.insert(*sequence, *at_ns);
                    (*at_ns, bench.arrive(*sequence, *nic, *at_ns))
                }
                None => {
                    let out = bench.timer(timer_ns);
                    timer_ns += FAST_TOUT_NS;
                    (timer_ns - FAST_TOUT_NS, out)
                }
            };
            for sequence in out {
                let waited_ns = now_ns - arrived_ns.remove(&sequence).expect("goes up once");
                prop_assert!(waited_ns <= 2 * FAST_TOUT_NS, "{} waited {}", sequence, waited_ns);
            }
        }
        prop_assert!(arrived_ns.is_empty(), "never went up: {:?}", arrived_ns);
        prop_assert_eq!(bench.list.counts().late, 0);
    }
}
