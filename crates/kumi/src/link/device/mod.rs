//! The daemon of one device: a single loop between the TAP, the links' sockets and the core; where one
//! core cannot follow the links, a loop for each of several queues.

mod carrier;
mod class;
mod clock;
pub mod control;
mod gathering;
mod hearing;
mod inlet;
mod interface;
mod join;
mod listeners;
mod load;
mod port;
mod queues;
mod ready;
mod ri2n;
mod setup;
mod shaper;
mod sizing;
mod state;
mod tempo;
mod wait;

use super::config::{DeviceConfig, Offload, Preset};
use carrier::Carrier;
use clock::Clock;
use control::{Call, Control, Request, failure};
use inlet::Inlet;
use kumi_multilink::endpoint::Endpoint;
use kumi_multilink::lane::Lane;
use kumi_sys::datagrams::Datagrams;
use kumi_sys::netlink::LinkMonitor;
use kumi_sys::tap::Tap;
use port::Port;
use serde_json::json;
use shaper::Shaper;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tempo::Tempo;

pub use interface::remove as remove_orphan;
pub use setup::run;

/// Bytes, and frames, read from the device before the links are served again. A burst of 64 KB takes
/// some 0.3 ms to seal and send, and acknowledgements wait meanwhile: long turns make long round
/// trips, which make long turns.
const BYTES_PER_TURN: usize = 120_000;
const FRAMES_PER_TURN: usize = 48;
/// Bytes gathered before they are sent: small frames share a system call, and the links need not
/// rest while the next burst is sealed.
const BYTES_PER_SEND: usize = 30_000;
/// Bytes received from one link before the others are served again, for the same reason.
const RECEIVE_BYTES_PER_TURN: usize = 120_000;
/// Receives from one link before the others are served again. A turn's bytes come in 84 datagrams of
/// 1420 bytes where nothing is gathered; this leaves room for three times as many smaller ones.
const RECEIVES_PER_TURN: usize = 256;
/// Time spent on one link before the others are served again, whatever comes: twice what a burst of
/// 64 KB takes to seal. Without it, datagrams without bytes could keep a turn going for ever.
const RECEIVE_NS_PER_TURN: u64 = 600_000;
/// How long unusual datagrams are gathered before the log says so.
const LOG_EVERY: Duration = Duration::from_secs(60);
/// How often routes are given their `rto_min`: routes come when the administrator adds them.
const ROUTES_EVERY_NS: u64 = 5_000_000_000;
/// How often the ports of removed interfaces are tried again, besides at every change of interfaces.
const REOPEN_EVERY_NS: u64 = 500_000_000;

/// Seconds since 1970: by an event's `at_s` alone nobody could tell what else happened then.
fn unix_s() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}

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
    shaper: Shaper,
    inlet: Inlet,
    tempo: Tempo,
    clock: Clock,
    datagrams: Datagrams,
    facts: serde_json::Value,
    tap_write_errors: u64,
    logged: (Instant, kumi_multilink::endpoint::EndpointCounters),
    routes_at_ns: u64,
    reopen_at_ns: u64,
    carrier: Carrier,
    /// The last peer that seals otherwise.
    seal_mismatch: Option<String>,
    ends: bool,
}

impl Device {
    fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// Runs until told to end.
    fn serve(&mut self) -> anyhow::Result<()> {
        while !self.ends {
            let ready = self.wait()?;
            let now_ns = self.now_ns();
            for port in &mut self.ports {
                port.observe(&mut self.core, now_ns);
            }
            for at in 0..self.ports.len() {
                let is_drained = ready.links & 1 << at == 0;
                self.ports[at].adapt_gathering(now_ns, is_drained);
                if !is_drained {
                    self.receive(at);
                    self.hand_over_frames();
                }
            }
            if ready.tap {
                self.take_frames();
            }
            self.feed();
            let now_ns = self.now_ns();
            if self.core.poll_timeout(now_ns) <= now_ns {
                self.core.handle_timeout(now_ns);
                self.hand_over_frames();
            }
            self.transmit();
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
            self.tell_events();
            self.keep_house(now_ns);
        }
        // Peers then need not find out by silence.
        self.core.say_goodbye(self.clock.now_ns());
        self.transmit();
        Ok(())
    }

    /// Takes what has come on a link, until nothing is left or the turn is over: what the kernel does
    /// not gather comes singly, and turns may be spaced.
    fn receive(&mut self, at: usize) {
        let (mut taken, mut datagrams) = (0, 0);
        let began_ns = self.clock.now_ns();
        while datagrams < RECEIVES_PER_TURN {
            let port = &mut self.ports[at];
            // Errors of earlier sends (unreachable, refused) surface here too: nothing to do.
            if port.receive(&mut self.datagrams).is_err() {
                return;
            }
            // The clock is read again each time: round trips are measured by it.
            let now_ns = self.clock.now_ns();
            for (bytes, received) in self.datagrams.iter_mut() {
                taken += received.bytes;
                datagrams += 1;
                self.tempo.note_received(received.bytes);
                port.note_received(received.bytes.div_ceil(received.segment_bytes));
                for datagram in bytes.chunks_mut(received.segment_bytes) {
                    port.handle(self.node, datagram, received.from, &mut self.core, now_ns);
                }
            }
            let is_over =
                taken >= RECEIVE_BYTES_PER_TURN || now_ns > began_ns + RECEIVE_NS_PER_TURN;
            if is_over || !self.datagrams.is_full() {
                return;
            }
        }
    }

    /// Gives the host what is in order.
    fn hand_over_frames(&mut self) {
        while let Some(frame) = self.core.poll_frame() {
            if self.tap.write(frame.as_slice()).is_err() {
                self.tap_write_errors += 1; // the device is down, or the kernel refuses the header
            }
            self.core.give_buffer(frame);
        }
    }

    /// Whether a socket's buffer is full: the kernel says when it no longer is.
    fn is_blocked(&self) -> bool {
        self.ports.iter().any(|port| port.is_blocked)
    }

    /// Takes what the host has for the links, and gives them what they have room for.
    fn take_frames(&mut self) {
        let mut taken = 0;
        for _ in 0..FRAMES_PER_TURN {
            if taken > BYTES_PER_TURN || !self.inlet.has_room() {
                return;
            }
            match self.inlet.take(&self.tap, &mut self.core) {
                Ok(0) => return,
                Ok(bytes) => {
                    taken += bytes;
                    self.tempo.note_received(bytes);
                }
                Err(_) => {
                    self.ends = true;
                    return;
                }
            }
        }
    }

    /// Gives the links what they have room for of what waits.
    fn feed(&mut self) {
        let (mut fed, mut unsent) = (0, 0);
        while fed < BYTES_PER_TURN && !self.is_blocked() {
            let now_ns = self.now_ns();
            if self.core.frames_wait_until(now_ns).is_some() {
                return;
            }
            let Some(frame) = self.inlet.next() else {
                return;
            };
            let bytes = frame.as_slice().len();
            self.core.handle_frame(frame, now_ns);
            fed += bytes;
            unsent += bytes;
            if unsent > BYTES_PER_SEND {
                self.transmit();
                unsent = 0;
            }
        }
    }

    fn transmit(&mut self) {
        let now_ns = self.now_ns();
        for port in &mut self.ports {
            port.transmit(&mut self.core, now_ns);
        }
    }

    /// Follows carriers, and interfaces that go and come back.
    fn follow_interfaces(&mut self, now_ns: u64) {
        let changes = self.monitor.changes().unwrap_or_else(|error| {
            // The kernel has no memory for the answer, say: the next change tells the state again.
            let what = format!("changes of interfaces were lost: {error}");
            interface::log(&self.config.name, &what);
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

    /// Takes the device's carrier away while no peer is reached.
    fn follow_peers(&mut self, now_ns: u64) {
        let peers = || self.core.peers().any(|peer| peer.is_up());
        let Some(is_on) = self.carrier.follow(now_ns, peers) else {
            return;
        };
        let what = match (self.tap.set_carrier(is_on), is_on) {
            (Ok(()), true) => "carrier: a peer is reached".to_owned(),
            (Ok(()), false) => "no carrier: no peer is reached".to_owned(),
            (Err(error), _) => {
                format!("its carrier cannot be set ({error}); use Linux 5.0 or later")
            }
        };
        interface::log(&self.config.name, &what);
    }

    fn answer_calls(&mut self, now_ns: u64) {
        while let Some(Call { request, answer }) = self.control.next_call() {
            let text = match request {
                Request::Show => self.state().to_string(),
                Request::Events => continue, // the control socket's own matter
                Request::Down => {
                    self.ends = true;
                    "{}".to_owned()
                }
                Request::Add { link } => self.outcome(|device| device.add_link(&link, now_ns)),
                Request::Del { link } => self.outcome(|device| device.remove_link(&link, now_ns)),
                Request::Set { link, rate_bps } => {
                    self.outcome(|device| device.set_rate(&link, rate_bps))
                }
            };
            let _ = answer.try_send(text);
        }
    }

    fn outcome(&mut self, act: impl FnOnce(&mut Self) -> anyhow::Result<()>) -> String {
        match act(self) {
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
        for link in state["links"].as_array_mut().into_iter().flatten() {
            link["busy"] = is_busy.into();
        }
        state
    }

    /// Events to the log and to whoever listens.
    fn tell_events(&mut self) {
        while let Some(event) = self.core.poll_event() {
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

    /// Now and then: the log's account of unwelcome datagrams, and routes.
    fn keep_house(&mut self, now_ns: u64) {
        if now_ns >= self.routes_at_ns && self.lane.number == 0 {
            self.routes_at_ns = now_ns + ROUTES_EVERY_NS;
            let device = self.config.name.clone();
            // The kernel's configuration lock may be held for long. A thread that cannot be started is
            // made up for the next time.
            let set = move || interface::set_rto_min(&device);
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
            let what = format!("this process was stopped for {} ms", pause_ns / 1_000_000);
            interface::log(&self.config.name, &what);
        }
        if self.logged.0.elapsed() < LOG_EVERY {
            return;
        }
        let (counters, before) = (self.core.counters(), self.logged.1);
        for (what, now, then) in [
            (
                "signed with another cluster key",
                counters.wrong_key,
                before.wrong_key,
            ),
            ("forged or damaged", counters.forged, before.forged),
            ("replayed", counters.replayed, before.replayed),
            ("malformed", counters.malformed, before.malformed),
        ] {
            if now > then {
                interface::log(
                    &self.config.name,
                    &format!("{} datagrams {what} in the last minute", now - then),
                );
            }
        }
        self.logged = (Instant::now(), counters);
    }
}
