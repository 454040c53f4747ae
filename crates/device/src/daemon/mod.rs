//! The daemon of one device: a loop between the TAP, the links' sockets and the core.
//!
//! Where one core is too slow for the links, the device has several queues, each with such a loop
//! (ADR 012).

mod carrier;
mod changes;
mod clock;
mod coalescing;
mod inlet;
mod load;
mod port;
mod queues;
mod reception;
mod setup;
mod shaper;
mod sizing;
mod state;
mod tempo;
mod wait;

use crate::config::{DatapathChoice, DeviceConfig};
use crate::control::{Call, Control, Request, Step, failure};
use crate::datapath::Datapath;
use crate::interface;
use crate::listeners::unix_s;
use crate::ready::Wakers;
use anyhow::{Context, bail};
use carrier::Carrier;
use clock::Clock;
use inlet::Inlet;
use kumi_multilink::endpoint::Endpoint;
use kumi_multilink::lane::Lane;
use kumi_sys::datagrams::Datagrams;
use kumi_sys::netlink::link::LinkMonitor;
use kumi_sys::tap::Tap;
use port::{Look, Port};
use serde_json::json;
use shaper::Shaper;
use std::time::{Duration, Instant};
use tempo::Tempo;

pub use setup::run;

/// Bytes and frames read from the device before the links are served again.
///
/// Sealing and sending a burst of 64 KB takes about 0.3 ms, and acknowledgements wait in that time.
/// Long turns lengthen the round trips, and long round trips lengthen the turns.
const BYTES_PER_TURN: usize = 120_000;
const FRAMES_PER_TURN: usize = 48;
/// Bytes sealed before they are sent. Small frames then share a system call, and the links need not
/// idle while the next burst is sealed.
const BYTES_PER_SEND: usize = 30_000;
/// Bytes received from one link before the others are served again, because acknowledgements wait.
const RECEIVE_BYTES_PER_TURN: usize = 120_000;
/// Places for coalesced datagrams in one receive: about [`RECEIVE_BYTES_PER_TURN`].
const COALESCED_PLACES: usize = 2;
/// Receives from one link before the others are served again. Without receive coalescing, the bytes
/// of a turn arrive in 84 datagrams of 1420 bytes. This leaves room for three times as many smaller
/// ones.
const RECEIVES_PER_TURN: usize = 256;
/// Time spent on one link before the others are served again, in ns: twice the time to seal and
/// send a burst of 64 KB. It bounds a turn of datagrams with few bytes.
const RECEIVE_NS_PER_TURN: u64 = 600_000;
/// Interval between log lines about rejected datagrams.
const LOG_EVERY: Duration = Duration::from_secs(60);
/// Interval between updates of `rto_min` on the device's routes, in ns. The administrator may add
/// routes at any time.
const ROUTES_EVERY_NS: u64 = 5_000_000_000;
/// Interval between attempts to reopen the ports of removed interfaces, in ns. Every change of an
/// interface causes another attempt.
const REOPEN_EVERY_NS: u64 = 500_000_000;

/// A running device, or one queue of it.
struct Device {
    lane: Lane,
    node: u64,
    config: DeviceConfig,
    core: Endpoint,
    tap: Tap,
    ports: Vec<Port>,
    monitor: LinkMonitor,
    control: Control,
    wakers: Wakers,
    shaper: Shaper,
    inlet: Inlet,
    tempo: Tempo,
    clock: Clock,
    datagrams: Datagrams,
    facts: serde_json::Value,
    tap_write_errors: u64,
    last_log: (Instant, kumi_multilink::endpoint::EndpointCounters),
    routes_at_ns: u64,
    reopen_at_ns: u64,
    carrier: Carrier,
    /// The kernel's data path, if the device has one.
    datapath: Option<Datapath>,
    /// A path changed since the data path followed.
    has_path_news: bool,
    /// Last peer that seals differently from this device.
    seal_mismatch: Option<String>,
    /// The host got a frame in this turn, so one of its programs may wait for the processor.
    has_delivered: bool,
    is_ended: bool,
}

impl Device {
    fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// Runs the loop until the device ends.
    fn serve(&mut self) -> anyhow::Result<()> {
        while !self.is_ended {
            let ready = self.wait()?;
            let now_ns = self.now_ns();
            self.observe_queues(now_ns, Look::Split);
            for index in 0..self.ports.len() {
                let is_drained = ready.links & 1 << index == 0;
                self.ports[index].adapt_coalescing(now_ns, is_drained);
                if !is_drained {
                    self.receive(index);
                    self.hand_over_frames();
                }
            }
            if ready.tap {
                self.take_frames();
            }
            self.feed();
            let now_ns = self.now_ns();
            if self.core.poll_timeout(now_ns) <= now_ns {
                // Answers that wait are no silence.
                if let Some(datapath) = &mut self.datapath {
                    datapath.hear(&mut self.core, now_ns);
                }
                self.core.handle_timeout(now_ns);
                self.hand_over_frames();
            }
            self.follow_paths(now_ns);
            self.transmit();
            self.observe_queues(now_ns, Look::Idle);
            self.inlet.intake_mut().was_empty |= !ready.tap && self.inlet.has_room();
            let waiting_bytes = self.inlet.waiting_bytes();
            let times_ns = (self.clock.elapsed_ns(), now_ns);
            self.shaper
                .adjust(times_ns, &self.core, waiting_bytes, self.inlet.intake_mut());
            if ready.monitor {
                self.follow_interfaces(now_ns);
            }
            if ready.control {
                self.answer_calls(now_ns);
            }
            self.report_events();
            self.run_periodic_tasks(now_ns);
        }
        // Peers then need not detect the end by silence.
        self.core.say_goodbye(self.clock.now_ns());
        self.transmit();
        Ok(())
    }

    /// Passes the bytes that the kernel holds for the links to the core, where they matter.
    fn observe_queues(&mut self, now_ns: u64, look: Look) {
        for port in &mut self.ports {
            port.observe(&mut self.core, look, now_ns);
        }
    }

    /// Passes changes of the paths to the kernel's data path.
    fn follow_paths(&mut self, now_ns: u64) {
        self.report_events();
        let Some(datapath) = &mut self.datapath else {
            return;
        };
        let has_news = std::mem::take(&mut self.has_path_news) | self.core.take_direct_news();
        if has_news || now_ns >= datapath.due_ns() {
            datapath.follow(&mut self.core, has_news, now_ns);
            if let Some(failure) = datapath.take_failure() {
                interface::log(&self.config.name, &format!("warning: {failure}"));
            }
        }
    }

    /// Receives the datagrams that wait on a link, until none is left or the turn ends.
    ///
    /// Without receive coalescing each read entry is one datagram, and turns may be spaced. When a
    /// turn took only two datagrams, the sockets held 850 KB (`docs/perf-log.md`, 2026-11-22: the
    /// slow regime).
    fn receive(&mut self, index: usize) {
        let (mut received_bytes, mut datagrams) = (0, 0);
        let start_ns = self.clock.now_ns();
        while datagrams < RECEIVES_PER_TURN {
            let port = &mut self.ports[index];
            // Errors of earlier sends (unreachable, refused) appear here too. They need no action.
            if port.receive(&mut self.datagrams).is_err() {
                return;
            }
            // The clock is read each time, because round trips are measured with it.
            let now_ns = self.clock.now_ns();
            for (bytes, received) in self.datagrams.iter_mut() {
                received_bytes += received.bytes;
                datagrams += 1;
                self.tempo.note_received(received.bytes);
                port.note_received(received.bytes.div_ceil(received.segment_bytes));
                for datagram in bytes.chunks_mut(received.segment_bytes) {
                    port.handle(self.node, datagram, received.sender, &mut self.core, now_ns);
                }
            }
            let is_turn_complete =
                received_bytes >= RECEIVE_BYTES_PER_TURN || now_ns > start_ns + RECEIVE_NS_PER_TURN;
            if is_turn_complete || !self.datagrams.is_full() {
                return;
            }
        }
    }

    /// Writes the frames that are in order to the host.
    fn hand_over_frames(&mut self) {
        while let Some(frame) = self.core.poll_frame() {
            if self.tap.write(frame.as_slice()).is_err() {
                self.tap_write_errors += 1; // the device is down, or the kernel refuses the header
            }
            self.has_delivered = true;
            self.core.give_buffer(frame);
        }
    }

    /// Returns whether a socket's send buffer is full. The kernel reports when it has room again.
    fn is_blocked(&self) -> bool {
        self.ports.iter().any(|port| port.is_blocked)
    }

    /// Takes frames from the host, until none is left or the turn ends.
    ///
    /// Sends the first frame before it reads the next one, except in bulk traffic and in floods.
    fn take_frames(&mut self) {
        let mut taken_bytes = 0;
        for _ in 0..FRAMES_PER_TURN {
            if taken_bytes > BYTES_PER_TURN || !self.inlet.has_room() {
                return;
            }
            match self.inlet.take(&self.tap, &mut self.core) {
                Ok(0) => return,
                Ok(bytes) => {
                    let is_alone = taken_bytes == 0 && !self.tempo.expects_many();
                    taken_bytes += bytes;
                    self.tempo.note_received(bytes);
                    if is_alone {
                        self.feed();
                        self.transmit();
                    }
                }
                Err(_) => {
                    self.is_ended = true;
                    return;
                }
            }
        }
    }

    /// Passes waiting frames to the links while these have room.
    fn feed(&mut self) {
        let (mut fed_bytes, mut unsent_bytes) = (0, 0);
        while fed_bytes < BYTES_PER_TURN && !self.is_blocked() {
            let now_ns = self.now_ns();
            if self.core.frames_wait_until(now_ns).is_some() {
                return;
            }
            let Some(frame) = self.inlet.next() else {
                return;
            };
            let bytes = frame.as_slice().len();
            self.core.handle_frame(frame, now_ns);
            fed_bytes += bytes;
            unsent_bytes += bytes;
            if unsent_bytes > BYTES_PER_SEND {
                self.transmit();
                unsent_bytes = 0;
            }
        }
    }

    fn transmit(&mut self) {
        let now_ns = self.now_ns();
        for port in &mut self.ports {
            port.transmit(&mut self.core, now_ns);
        }
    }

    /// Follows carriers, and interfaces that are removed and return.
    fn follow_interfaces(&mut self, now_ns: u64) {
        let changes = self.monitor.changes().unwrap_or_else(|error| {
            // For example, the kernel has no memory for the answer. The next change of the
            // interface reports its state again.
            let message = format!("changes of interfaces were lost: {error}");
            interface::log(&self.config.name, &message);
            Vec::new()
        });
        for change in changes {
            let mut ports = self.ports.iter_mut();
            let Some(port) = ports.find(|port| port.index == change.index) else {
                continue;
            };
            port.is_gone = change.is_gone;
            let has_carrier = change.has_carrier && !change.is_gone;
            self.core.handle_carrier(port.number, has_carrier, now_ns);
        }
        self.reopen_links(now_ns);
        self.transmit();
    }

    /// Removes the device's carrier while no peer is reached, and restores it.
    fn follow_peers(&mut self, now_ns: u64) {
        let peers = || self.core.peers().any(|peer| peer.is_up());
        let Some(is_on) = self.carrier.follow(now_ns, peers) else {
            return;
        };
        let message = match (self.tap.set_carrier(is_on), is_on) {
            (Ok(()), true) => "carrier: a peer is reached".to_owned(),
            (Ok(()), false) => "no carrier: no peer is reached".to_owned(),
            (Err(error), _) => {
                format!("cannot set the device's carrier ({error}); use Linux 5.0 or later")
            }
        };
        interface::log(&self.config.name, &message);
    }

    fn answer_calls(&mut self, now_ns: u64) {
        while let Some(call) = self.control.next_call() {
            let Call {
                request,
                step,
                answer,
            } = call;
            let text = match (request, step) {
                (Request::Show, _) => self.state().to_string(),
                (Request::Events, _) => continue, // served by the control socket's thread
                (Request::Down, _) => {
                    self.is_ended = true;
                    "{}".to_owned()
                }
                (request, Step::Check) => self.perform(|device| device.check(&request)),
                (Request::Add { link }, Step::Act) => {
                    self.perform(|device| device.add_link(&link, now_ns))
                }
                (Request::Del { link }, Step::Act) => {
                    self.perform(|device| device.remove_link(&link, now_ns))
                }
                (Request::Datapath { carrier }, Step::Act) => {
                    self.perform(|device| device.set_carrier_of_frames(carrier))
                }
                (Request::Set { link, rate_bps }, Step::Act) => {
                    self.perform(|device| device.set_rate(&link, rate_bps))
                }
            };
            let _ = answer.try_send(text);
        }
    }

    /// Checks a change of the links.
    fn check(&self, request: &Request) -> anyhow::Result<()> {
        match request {
            Request::Add { link } => self.links().check_new(link),
            Request::Del { link } => self.links().find_removable(link).map(drop),
            Request::Set { link, rate_bps } => {
                self.links().find_for_rate(link, *rate_bps).map(drop)
            }
            Request::Datapath { .. } if self.datapath.is_none() => {
                let reason = self.facts["datapath_refusal"].as_str();
                bail!(
                    "{} has no data path in the kernel: {}",
                    self.config.name,
                    reason.unwrap_or("start it with `--datapath kernel`")
                )
            }
            Request::Datapath { .. } | Request::Show | Request::Down | Request::Events => Ok(()),
        }
    }

    /// Gives the frames to the kernel or to the daemon.
    fn set_carrier_of_frames(&mut self, carrier: DatapathChoice) -> anyhow::Result<()> {
        let datapath = self
            .datapath
            .as_mut()
            .context("no data path in the kernel")?;
        datapath.set_paused(carrier == DatapathChoice::User);
        self.has_path_news = true;
        Ok(())
    }

    fn perform(&mut self, action: impl FnOnce(&mut Self) -> anyhow::Result<()>) -> String {
        match action(self) {
            Ok(()) => "{}".to_owned(),
            Err(error) => failure(&format!("{error:#}")),
        }
    }

    fn state(&self) -> serde_json::Value {
        let mut facts = self.facts.clone();
        facts["tap_write_errors"] = self.tap_write_errors.into();
        facts["shaper_rate_bps"] = self.shaper.rate_bps().into();
        facts["carrier"] = self.carrier.is_on().into();
        facts["waiting_bytes"] = self.inlet.waiting_bytes().into();
        let seal = self.config.seal.seal().name();
        let is_busy = self.shaper.is_busy(self.clock.elapsed_ns());
        let ports = &self.ports;
        facts["up_s"] = (self.clock.elapsed_ns() as f64 / 1e9).into();
        facts["seal_mismatch"] = self.seal_mismatch.clone().into();
        facts["multicast"] = self.config.peer.is_empty().into();
        let now_ns = self.now_ns();
        let mut state = state::device(&self.config.name, seal, &self.core, (ports, now_ns), &facts);
        state["queue"] = json!({"number": self.lane.number, "busy": is_busy});
        self.show_datapath(&mut state);
        for link in state["links"].as_array_mut().into_iter().flatten() {
            link["busy"] = is_busy.into();
        }
        state
    }

    /// Adds what the kernel's data path carries.
    fn show_datapath(&self, state: &mut serde_json::Value) {
        let Some(datapath) = &self.datapath else {
            state["datapath"] = "user".into();
            return;
        };
        let is_paused = datapath.is_paused();
        state["datapath"] = if is_paused { "user" } else { "kernel" }.into();
        let now_ns = self.now_ns();
        let macs = self.core.peers().map(|peer| peer.mac());
        for (mac, peer) in macs.zip(state["peers"].as_array_mut().into_iter().flatten()) {
            let is_kernel = datapath.carries(mac);
            peer["datapath"] = if is_kernel { "kernel" } else { "user" }.into();
            peer["kernel_offered"] = datapath.is_offered(mac).into();
            peer["daemon"] = datapath.has_daemon(mac).into();
            let has_bulk = is_kernel && !datapath.daemon_has_bulk(mac);
            peer["bulk_datapath"] = if has_bulk { "kernel" } else { "user" }.into();
            for path in peer["paths"].as_array_mut().into_iter().flatten() {
                let mut ports = self.ports.iter();
                let number = ports.find(|port| path["link"] == port.name.as_str());
                let carried = number.and_then(|port| datapath.path(mac, port.number, now_ns));
                if let Some(carried) = carried {
                    path["kernel"] = json!({
                        "tx_bytes": carried.count.sent_bytes,
                        "rx_bytes": carried.count.received_bytes,
                        "rate_bps": carried.rate_bps.round(),
                        "rests": carried.rests,
                        "loss": carried.loss,
                        "lossy": carried.is_lossy,
                    });
                }
            }
        }
    }

    /// Writes events to the log and passes them to the listeners.
    fn report_events(&mut self) {
        while let Some(event) = self.core.poll_event() {
            self.has_path_news = true;
            if let kumi_multilink::endpoint::Event::SealMismatch { name, theirs } = &event {
                self.seal_mismatch = Some(format!("{name} ({})", theirs.name()));
            }
            let at_s = self.clock.elapsed_ns() as f64 / 1e9;
            let mut line = state::event(&event, &self.ports, at_s);
            line["unix_s"] = unix_s().into();
            if self.lane != Lane::ONLY {
                line["queue"] = self.lane.number.into();
            }
            let text = line.to_string();
            interface::log(&self.config.name, &text);
            self.control.listeners.tell(&text);
        }
    }

    /// Does periodic work: routes, carrier, removed interfaces, and log lines about rejected
    /// datagrams.
    fn run_periodic_tasks(&mut self, now_ns: u64) {
        if now_ns >= self.routes_at_ns && self.lane.number == 0 {
            self.routes_at_ns = now_ns + ROUTES_EVERY_NS;
            let device = self.config.name.clone();
            // Others may hold the kernel's configuration lock for a long time, so a thread does
            // this. If it cannot be started, the next interval tries again.
            let floor = self.config.rto_floor();
            let set = move || interface::set_rto_min(&device, floor);
            let _ = std::thread::Builder::new().spawn(set);
        }
        if self.lane.number == 0 {
            self.follow_peers(now_ns);
        }
        if now_ns >= self.reopen_at_ns {
            self.reopen_at_ns = now_ns + REOPEN_EVERY_NS;
            self.reopen_links(now_ns);
        }
        if let Some(pause_ns) = self.clock.take_pause() {
            let message = format!("this process was stopped for {} ms", pause_ns / 1_000_000);
            interface::log(&self.config.name, &message);
        }
        if self.last_log.0.elapsed() < LOG_EVERY {
            return;
        }
        let (counters, previous) = (self.core.counters(), self.last_log.1);
        for (description, count, previous_count) in [
            (
                "signed with another cluster key",
                counters.wrong_key,
                previous.wrong_key,
            ),
            ("forged or damaged", counters.forged, previous.forged),
            ("replayed", counters.replayed, previous.replayed),
            ("malformed", counters.malformed, previous.malformed),
        ] {
            if count > previous_count {
                interface::log(
                    &self.config.name,
                    &format!(
                        "{} datagrams {description} in the last minute",
                        count - previous_count
                    ),
                );
            }
        }
        self.last_log = (Instant::now(), counters);
    }
}
