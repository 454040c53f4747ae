//! Runs the model in virtual time. The same seed gives the same run, byte for byte.
//!
//! A [`Sim`] owns one [`Node`] per host and moves frames between the nodes through
//! [`crate::model`]. Time jumps from event to event. The cost of a run therefore depends on its
//! number of frames, not on its simulated duration.

use crate::model::{Bin, Delivery, Event, Frame, HostSide, LineCounters, Model};
use crate::topology::{LinkChange, Rate, Topology};
use std::collections::BTreeMap;

/// Most rounds without an advance of time. At this limit the simulation assumes a live-lock of a
/// node and panics. It is far above the number of frames that any host sends at one instant.
const ROUNDS_AT_ONE_TIME_MAX: u32 = 1_000_000;

/// Software of a host. NICs are numbered from 0, in the order of the topology's links.
pub trait Node {
    /// Handles a frame received at NIC `nic`.
    fn handle_frame(&mut self, now_ns: u64, nic: usize, frame: &[u8]);
    /// Handles the timeout that [`Node::poll_timeout`] announced.
    fn handle_timeout(&mut self, now_ns: u64);
    /// Returns the time at which [`Node::handle_timeout`] is due, in nanoseconds.
    fn poll_timeout(&self) -> Option<u64>;
    /// Returns the next frame to send and the NIC to send it through. It is called until it returns
    /// `None`.
    fn poll_transmit(&mut self, now_ns: u64) -> Option<(usize, Vec<u8>)>;
    /// Handles a change of the carrier of NIC `nic`.
    fn handle_carrier(&mut self, _now_ns: u64, _nic: usize, _up: bool) {}
}

impl<N: Node + ?Sized> Node for Box<N> {
    fn handle_frame(&mut self, now_ns: u64, nic: usize, frame: &[u8]) {
        (**self).handle_frame(now_ns, nic, frame);
    }
    fn handle_timeout(&mut self, now_ns: u64) {
        (**self).handle_timeout(now_ns);
    }
    fn poll_timeout(&self) -> Option<u64> {
        (**self).poll_timeout()
    }
    fn poll_transmit(&mut self, now_ns: u64) -> Option<(usize, Vec<u8>)> {
        (**self).poll_transmit(now_ns)
    }
    fn handle_carrier(&mut self, now_ns: u64, nic: usize, up: bool) {
        (**self).handle_carrier(now_ns, nic, up);
    }
}

/// A simulated network with one node per host.
#[derive(Debug)]
pub struct Sim<N> {
    model: Model,
    nodes: Vec<N>,
    /// Host of each NIC of the topology, and the NIC's number in that host.
    nic_places: Vec<(usize, usize)>,
    /// NICs of each host, as indices into [`Topology::nics`].
    host_nics: Vec<Vec<usize>>,
    links: Vec<(String, usize, usize)>,
    changes: BTreeMap<(u64, u64), (usize, usize, LinkChange)>,
    now_ns: u64,
}

impl<N: Node> Sim<N> {
    /// Creates a simulation of `topology` at time 0. `nodes` are its hosts, in the order of the
    /// topology. All randomness of the network derives from `seed`.
    ///
    /// # Panics
    /// If the number of nodes differs from the number of hosts.
    pub fn new(topology: &Topology, nodes: Vec<N>, seed: u64) -> Self {
        assert_eq!(nodes.len(), topology.hosts.len(), "one node a host");
        let mut host_nics = vec![Vec::new(); nodes.len()];
        let mut nic_places = Vec::new();
        for (nic, position) in topology.nics().enumerate() {
            nic_places.push((position.nic.host, host_nics[position.nic.host].len()));
            host_nics[position.nic.host].push(nic);
        }
        let links = topology
            .nic_names()
            .into_iter()
            .zip(topology.nics())
            .map(|(name, position)| (name, position.link, position.side))
            .collect();
        let model = Model::new(topology, HostSide::Modelled, seed);
        Self {
            model,
            nodes,
            nic_places,
            host_nics,
            links,
            changes: BTreeMap::new(),
            now_ns: 0,
        }
    }

    /// Returns the virtual time, in nanoseconds since the start.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Returns the node of host `host`, an index into the topology's hosts.
    pub fn node(&self, host: usize) -> &N {
        &self.nodes[host]
    }

    /// Returns the node of host `host` for modification. The frames that it then wants to send are
    /// fetched when the simulation runs on.
    pub fn node_mut(&mut self, host: usize) -> &mut N {
        &mut self.nodes[host]
    }

    /// Schedules a change of the link of the NIC called `nic` (`h1:eth1`) at `at_ns`.
    ///
    /// # Panics
    /// If the topology has no such NIC, which is a mistake in the test.
    pub fn change_at(&mut self, at_ns: u64, nic: &str, change: LinkChange) {
        let (_, link, side) = *self
            .links
            .iter()
            .find(|(name, ..)| name == nic)
            .unwrap_or_else(|| panic!("no NIC `{nic}` in {:?}", self.links));
        let order = self.changes.len() as u64;
        self.changes
            .insert((at_ns.max(self.now_ns), order), (link, side, change));
    }

    /// Sets the rate of one direction of a link from now on. `side` is the sending end.
    pub fn set_rate(&mut self, link: usize, side: usize, rate: Rate) {
        self.model.set_rate(self.now_ns, link, side, rate);
    }

    /// Returns the counters of the frames that the NIC called `nic` sent, and of those sent to it.
    pub fn counters(&self, nic: &str) -> Option<(LineCounters, LineCounters)> {
        let (_, link, side) = self.links.iter().find(|(name, ..)| name == nic)?;
        Some((
            self.model.counters(*link, *side),
            self.model.counters(*link, 1 - *side),
        ))
    }

    /// Returns the network, for inspection.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Switches the traffic meter on or off, as [`Model::set_metering`] does.
    pub fn set_metering(&mut self, on: bool) {
        self.model.set_metering(on);
    }

    /// Returns the traffic meter's finished bins that were not returned before.
    pub fn take_bins(&mut self) -> Vec<Bin> {
        self.model.take_bins(self.now_ns)
    }

    /// Runs the simulation until `until_ns`.
    pub fn run_until(&mut self, until_ns: u64) {
        self.run_until_or(until_ns, |_| false);
    }

    /// Runs until `until_ns` or until `stop` returns true. Returns true if `stop` ended the run.
    ///
    /// # Panics
    /// If a node requests work at the same instant without end.
    pub fn run_until_or(&mut self, until_ns: u64, mut stop: impl FnMut(&Self) -> bool) -> bool {
        let mut rounds = 0;
        loop {
            self.settle();
            if stop(self) {
                return true;
            }
            let next_ns = match self.next_ns() {
                Some(next_ns) if next_ns <= until_ns => next_ns,
                _ => {
                    self.now_ns = self.now_ns.max(until_ns);
                    return false;
                }
            };
            rounds = if next_ns > self.now_ns { 0 } else { rounds + 1 };
            assert!(
                rounds < ROUNDS_AT_ONE_TIME_MAX,
                "simulated time does not advance beyond {} ns",
                self.now_ns
            );
            self.now_ns = self.now_ns.max(next_ns);
            self.act();
        }
    }

    /// Returns the time of the earliest event of the network, the nodes and the scheduled changes.
    fn next_ns(&self) -> Option<u64> {
        let change = self.changes.keys().next().map(|(at_ns, _)| *at_ns);
        let nodes = self.nodes.iter().filter_map(Node::poll_timeout);
        nodes.chain(self.model.poll_timeout()).chain(change).min()
    }

    /// Executes the events that are due now.
    fn act(&mut self) {
        while let Some(entry) = self.changes.first_entry() {
            if entry.key().0 > self.now_ns {
                break;
            }
            let (link, side, change) = entry.remove();
            self.model.change(self.now_ns, link, side, &change);
        }
        self.model.handle_timeout(self.now_ns);
        for node in &mut self.nodes {
            if node
                .poll_timeout()
                .is_some_and(|at_ns| at_ns <= self.now_ns)
            {
                node.handle_timeout(self.now_ns);
            }
        }
    }

    /// Moves frames and carrier events between nodes and network until neither has more for now.
    fn settle(&mut self) {
        let mut has_moved = true;
        while has_moved {
            has_moved = false;
            for (host, node) in self.nodes.iter_mut().enumerate() {
                while let Some((nic, bytes)) = node.poll_transmit(self.now_ns) {
                    let nic = self.host_nics[host][nic];
                    self.model
                        .handle_frame(self.now_ns, nic, Frame::from(bytes));
                    has_moved = true;
                }
            }
            while let Some(Event::Carrier { nic, up }) = self.model.poll_event() {
                let (host, nic) = self.nic_places[nic];
                self.nodes[host].handle_carrier(self.now_ns, nic, up);
                has_moved = true;
            }
            while let Some(Delivery { nic, frame, .. }) = self.model.poll_transmit() {
                let (host, nic) = self.nic_places[nic];
                self.nodes[host].handle_frame(self.now_ns, nic, frame.bytes());
                has_moved = true;
            }
        }
    }
}

#[cfg(test)]
mod tests;
