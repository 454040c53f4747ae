use super::*;
use crate::trace::{Counters, Limit, Retransmit, State};
use std::sync::Arc;

const MS: u64 = 1_000_000;
const MSS: u32 = 1448;

/// A connection with a round trip of 20 ms and 60 packets per millisecond, whose events are
/// constructed.
struct Stage {
    now_ns: u64,
    una: u32,
    nxt: u32,
    cwnd: u32,
    analysis: Analysis,
    limit: Limit,
    state: State,
    /// Bytes that wait for the window.
    unsent: u32,
    /// Current phase of the program.
    phase: Option<Arc<str>>,
}

impl Stage {
    fn new() -> Self {
        Self {
            now_ns: 1_000 * MS,
            una: 1,
            nxt: 1,
            cwnd: 1000,
            analysis: Analysis::default(),
            limit: Limit::Network,
            state: State::Open,
            unsent: 0,
            phase: None,
        }
    }

    fn event(&self, kind: Kind) -> Event {
        Event {
            at_ns: self.now_ns,
            cookie: 7,
            kind,
            local: "10.0.0.1:1000".parse().unwrap(),
            remote: "10.0.0.2:2000".parse().unwrap(),
            snd_una: self.una,
            snd_nxt: self.nxt,
            write_seq: self.nxt.wrapping_add(self.unsent),
            cwnd: self.cwnd,
            ssthresh: 500,
            in_flight: self.nxt.wrapping_sub(self.una).div_ceil(MSS),
            snd_wnd: 1 << 24,
            rcv_wnd: 1 << 24,
            srtt_us: 20_000,
            rtt_min_us: 20_000,
            rto_us: 220_000,
            mss_bytes: MSS,
            pacing_bps: 0,
            state: self.state,
            limit: self.limit,
            lost: 0,
            rank: 0,
            phase: 0,
            phase_name: self.phase.clone(),
            totals: Counters::default(),
        }
    }

    fn note(&mut self, kind: Kind) {
        let event = self.event(kind);
        self.analysis.note(&event);
    }

    fn wait(&mut self, ms: u64) {
        self.now_ns += ms * MS;
    }

    /// The program writes `packets`, and all are sent.
    fn write(&mut self, packets: u32) {
        self.note(Kind::Write);
        self.nxt = self.nxt.wrapping_add(packets * MSS);
    }

    fn ack(&mut self, packets: u32) {
        let ack = self.una.wrapping_add(packets * MSS);
        self.note(Kind::Segment {
            ack,
            payload_bytes: 0,
        });
        self.una = ack;
    }

    /// Runs a transfer at the path's rate: a round trip, then 60 packets per millisecond.
    fn transfer(&mut self, ms: u32) {
        self.write(60 * ms);
        self.wait(20);
        for _ in 0..ms {
            self.ack(60);
            self.wait(1);
        }
    }

    /// Returns a connection with a known path rate, on which a transfer of `packets` began 5 ms
    /// later.
    fn with_transfer(packets: u32) -> Self {
        let mut stage = Self::new();
        stage.transfer(50);
        stage.wait(5);
        stage.write(packets);
        stage
    }

    /// Returns a connection with a known path rate, on which a transfer of 600 packets began with
    /// a small window, a second later.
    fn after_idle_time() -> Self {
        let mut stage = Self::new();
        stage.transfer(50);
        stage.wait(1000);
        stage.cwnd = 10;
        stage.write(600);
        stage.unsent = 10 * MSS;
        stage
    }

    fn losses(self, cause: Cause) -> (f64, f64) {
        let report = self.analysis.finish();
        let loss = report.losses.iter().find(|loss| loss.cause == cause);
        (loss.map_or(0.0, |loss| loss.lost_s), report.lost_s)
    }
}

#[test]
fn transfer__at_the_path_rate__loses_no_time() {
    let mut stage = Stage::new();
    stage.transfer(50);
    stage.wait(5);
    stage.transfer(50);
    let report = stage.analysis.finish();
    assert_eq!(
        (report.connections[0].transfers, report.connections[0].slow),
        (2, 0)
    );
    assert_eq!(report.lost_s, 0.0);
}

#[test]
fn timeout__last_packets_lost__accounts_for_the_wait() {
    let mut stage = Stage::with_transfer(60);
    stage.wait(20);
    stage.ack(50);
    stage.wait(220);
    stage.note(Kind::Retransmit(Retransmit::Timeout));
    stage.wait(20);
    stage.ack(10);
    let (timeout_s, lost_s) = stage.losses(Cause::Timeout);
    assert!(
        (timeout_s - 0.24).abs() < 0.002 && lost_s - timeout_s < 0.002,
        "{timeout_s} of {lost_s}"
    );
}

#[test]
fn losses__program_that_names_its_phases__are_reported_per_phase() {
    let mut stage = Stage::with_transfer(60);
    stage.wait(20);
    stage.ack(50);
    stage.wait(220);
    stage.phase = Some("MPI_Alltoall".into());
    stage.note(Kind::Retransmit(Retransmit::Timeout));
    stage.wait(20);
    stage.ack(10);
    let report = stage.analysis.finish();
    let phases = &report.losses[0].phases;
    assert_eq!(report.losses[0].cause, Cause::Timeout);
    assert_eq!(phases.len(), 1, "{phases:?}");
    assert_eq!((&*phases[0].name, phases[0].count), ("MPI_Alltoall", 1));
    assert!((phases[0].summed_s - 0.24).abs() < 0.002, "{phases:?}");
}

#[test]
fn loss__spanning_two_phases__counts_in_both() {
    let mut stage = Stage::with_transfer(600);
    stage.limit = Limit::FarWindow;
    stage.wait(20);
    for name in ["MPI_Alltoall", "point-to-point"] {
        stage.phase = Some(name.into());
        for _ in 0..3 {
            stage.ack(100);
            stage.wait(30);
        }
    }
    let report = stage.analysis.finish();
    let window = report.losses.iter();
    let window = window
        .clone()
        .find(|loss| loss.cause == Cause::ReceiverWindow);
    let phases = &window.expect("the window held it up").phases;
    assert_eq!(phases.len(), 2, "{phases:?}");
    assert!(phases.iter().all(|phase| phase.count == 1), "{phases:?}");
}

#[test]
fn tail_loss_probe__followed_by_a_timeout__counts_as_a_timeout() {
    let mut stage = Stage::with_transfer(10);
    stage.wait(60);
    stage.note(Kind::Retransmit(Retransmit::Probe));
    stage.wait(200);
    stage.note(Kind::Retransmit(Retransmit::Timeout));
    stage.wait(20);
    stage.ack(10);
    assert!(stage.losses(Cause::Timeout).0 > 0.25);
}

#[test]
fn single_packet__answered_40_ms_late__is_a_delayed_acknowledgement() {
    let mut stage = Stage::with_transfer(1);
    stage.wait(60);
    stage.ack(1);
    let (delay_s, lost_s) = stage.losses(Cause::DelayedAck);
    assert!(
        (delay_s - 0.04).abs() < 0.002 && delay_s == lost_s,
        "{delay_s} of {lost_s}"
    );
}

#[test]
fn receiver_window__full__is_named_as_the_cause() {
    let mut stage = Stage::with_transfer(120);
    stage.wait(20);
    stage.limit = Limit::FarWindow;
    stage.ack(60);
    stage.wait(100);
    stage.ack(60);
    assert!(stage.losses(Cause::ReceiverWindow).0 > 0.09);
}

#[test]
fn small_window__after_idle_time__is_an_idle_collapse() {
    let mut stage = Stage::after_idle_time();
    for _ in 0..6 {
        stage.wait(20);
        stage.ack(100);
    }
    let (collapse_s, lost_s) = stage.losses(Cause::IdleCollapse);
    assert!(
        collapse_s > 0.08 && lost_s - collapse_s < 0.005,
        "{collapse_s} of {lost_s}"
    );
}

#[test]
fn small_window__with_a_silent_path_meanwhile__loses_the_round_trip_and_the_path_the_rest() {
    let mut stage = Stage::after_idle_time();
    for late_ms in [0, 0, 0, 10, 0, 0] {
        stage.wait(20 + late_ms);
        stage.ack(100);
    }
    let report = stage.analysis.finish();
    let loss = |cause| report.losses.iter().find(|loss| loss.cause == cause);
    let collapse = loss(Cause::IdleCollapse).unwrap();
    assert!(collapse.lost_s > 0.08, "{report:?}");
    assert_eq!(collapse.count, 1, "the silence does not divide it");
    let path = loss(Cause::Path).unwrap();
    assert!((path.lost_s - 0.010).abs() < 0.002, "{report:?}");
}

#[test]
fn local_send_stall__followed_by_a_small_window__accounts_for_the_time_lost() {
    let mut stage = Stage::with_transfer(600);
    stage.wait(20);
    stage.ack(100);
    stage.note(Kind::LocalDrop);
    stage.note(Kind::State(State::Reduced));
    stage.cwnd = 100;
    stage.unsent = 10 * MSS;
    for _ in 0..5 {
        stage.wait(20);
        stage.ack(100);
    }
    assert!(stage.losses(Cause::SendStall).0 > 0.08);
}

#[test]
fn local_send_stalls__several_in_a_row__count_until_the_first_window_is_restored() {
    let mut stage = Stage::with_transfer(600);
    stage.unsent = 10 * MSS;
    for cwnd in [200, 100] {
        stage.note(Kind::LocalDrop);
        stage.note(Kind::State(State::Reduced));
        stage.state = State::Reduced;
        stage.ack(1); // the kernel cuts it packet by packet
        stage.state = State::Open;
        stage.cwnd = cwnd;
    }
    // As large again as before the second cut, but not as before the first.
    stage.cwnd = 200;
    for _ in 0..3 {
        stage.wait(20);
        stage.ack(200);
    }
    assert!(stage.losses(Cause::SendStall).0 > 0.02);
}

#[test]
fn transfer__incomplete_at_the_end__is_explained_up_to_that_point() {
    let mut stage = Stage::with_transfer(120);
    stage.wait(20);
    stage.limit = Limit::FarWindow;
    stage.ack(60);
    stage.wait(100);
    stage.ack(30);
    assert!(stage.losses(Cause::ReceiverWindow).0 > 0.09);
}

#[test]
fn congestion_window__no_unsent_data__is_not_the_cause() {
    let mut stage = Stage::with_transfer(120);
    stage.wait(20);
    stage.limit = Limit::SendBuffer;
    stage.ack(20);
    stage.limit = Limit::Network;
    stage.cwnd = 30;
    for _ in 0..5 {
        stage.wait(20);
        stage.ack(20);
    }
    let (buffer_s, lost_s) = stage.losses(Cause::SenderBuffer);
    assert!(
        buffer_s > 0.08 && buffer_s == lost_s,
        "{buffer_s} of {lost_s}"
    );
}

#[test]
fn events__any_kind_in_any_order__never_cause_a_panic() {
    let mut seed = 1_u64;
    let mut random = move |limit: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % limit
    };
    let mut analysis = Analysis::default();
    for _ in 0..20_000 {
        let mut stage = Stage::new();
        stage.now_ns = random(1 << 40);
        stage.una = random(1 << 32) as u32;
        stage.nxt = random(1 << 32) as u32;
        stage.cwnd = random(1 << 32) as u32;
        let kind = match random(7) {
            0 => Kind::Segment {
                ack: random(1 << 32) as u32,
                payload_bytes: 0,
            },
            1 => Kind::Retransmit(Retransmit::Timeout),
            2 => Kind::State(State::Loss),
            3 => Kind::Write,
            4 => Kind::LocalDrop,
            5 => Kind::HeldAck {
                held_us: random(1 << 32) as u32,
            },
            _ => Kind::Close,
        };
        let mut event = stage.event(kind);
        event.cookie = random(5);
        event.srtt_us = random(1 << 20) as u32;
        analysis.note(&event);
    }
    let report = analysis.finish();
    assert!(report.lost_s >= 0.0);
}

#[test]
fn loss__at_the_end_of_slow_start__is_an_overshoot_and_not_congestion() {
    let mut stage = Stage::with_transfer(600);
    stage.wait(20);
    stage.ack(1);
    let slow_start = Event {
        ssthresh: 0x7fff_ffff,
        ..stage.event(Kind::Write)
    };
    stage.analysis.note(&slow_start);
    stage.note(Kind::State(State::Recovery));
    stage.state = State::Recovery;
    stage.cwnd = 100;
    stage.unsent = 100 * MSS;
    for _ in 0..10 {
        stage.wait(15);
        stage.ack(20);
    }
    let report = stage.analysis.finish();
    let causes: Vec<Cause> = report.losses.iter().map(|loss| loss.cause).collect();
    assert!(causes.contains(&Cause::Overshoot), "{causes:?}");
    assert!(!causes.contains(&Cause::Congestion), "{causes:?}");
    assert_eq!(report.losses[0].place, Place::Wan { is_shared: false });
}

#[test]
fn reply__delayed_by_the_remote_program__is_charged_to_the_application() {
    let mut stage = Stage::with_transfer(1);
    stage.wait(300);
    let ack = stage.una.wrapping_add(MSS);
    stage.note(Kind::Segment {
        ack,
        payload_bytes: 500,
    });
    let (waited_s, lost_s) = stage.losses(Cause::Application);
    assert!(
        waited_s > 0.25 && (lost_s - waited_s).abs() < 0.01,
        "{waited_s} {lost_s}"
    );
}

#[test]
fn acknowledgements__beyond_the_limit__are_joined_and_counted() {
    let mut stage = Stage::new();
    stage.analysis.room = Room(10);
    stage.transfer(50);
    assert_eq!(stage.analysis.connections[&7].intervals.len(), 10);
    let report = stage.analysis.finish();
    assert_eq!(report.acknowledgements_joined, 40);
    assert_eq!(report.connections[0].bytes, 60 * 50 * u64::from(MSS));
}

#[test]
fn analysis__connections_beyond_the_limit__are_counted_once_each() {
    let mut stage = Stage::new();
    let event = stage.event(Kind::Write);
    for cookie in 0..CONNECTIONS_MAX as u64 + 2 {
        for _ in 0..3 {
            stage.analysis.note(&Event {
                cookie,
                ..event.clone()
            });
        }
    }
    assert_eq!(stage.analysis.finish().connections_left, 2);
}
