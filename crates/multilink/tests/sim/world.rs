//! The simulated cluster: hosts, the network between them, and checks of both.

use crate::account::Account;
use crate::frames::Shape;
use crate::station::{Pace, Setup, Source, Station, sizes};
use kumi_lab::sim::Sim;
use kumi_lab::topology::{LinkChange, Topology};
use kumi_multilink::secure::Seal;
use std::cell::RefCell;
use std::fmt::Write;
use std::rc::Rc;

pub const US: u64 = 1_000;
pub const MS: u64 = 1_000_000;
pub const S: u64 = 1_000_000_000;

/// Layout of the cables between the hosts' links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Two hosts, with one cable per link number.
    Cables,
    /// One switch for each link number.
    Separate,
    /// One switch for all links.
    Shared,
}

/// Properties of one link number, the same at every host.
#[derive(Debug, Clone)]
pub struct LinkPlan {
    pub rate_mbps: u64,
    pub claimed_mbps: u64,
    pub delay_us: u64,
    pub mtu: usize,
    /// Further keys of the topology file.
    pub keys: String,
}

impl LinkPlan {
    pub fn new(rate_mbps: u64) -> Self {
        Self {
            rate_mbps,
            claimed_mbps: rate_mbps,
            delay_us: 20,
            mtu: 1500,
            keys: String::new(),
        }
    }
}

/// Description of a simulated cluster.
#[derive(Debug, Clone)]
pub struct Plan {
    pub hosts: usize,
    pub links: Vec<LinkPlan>,
    pub layout: Layout,
    pub seed: u64,
    /// Value of every byte of each host's cluster key.
    pub keys: Vec<u8>,
    pub seal: Seal,
}

impl Plan {
    pub fn two_hosts(links: Vec<LinkPlan>) -> Self {
        Self {
            hosts: 2,
            links,
            layout: Layout::Cables,
            seed: 1,
            keys: vec![7; 2],
            seal: Seal::Encrypt,
        }
    }

    fn topology(&self) -> Topology {
        let mut text = "name = \"t\"\n".to_owned();
        let switches = match self.layout {
            Layout::Cables => 0,
            Layout::Separate => self.links.len(),
            Layout::Shared => 1,
        };
        for switch in 0..switches {
            writeln!(
                text,
                "[[switch]]\nname = \"s{switch}\"\nport_queue = \"1MB\""
            )
            .unwrap();
        }
        for host in 0..self.hosts {
            writeln!(text, "[[host]]\nname = \"h{host}\"").unwrap();
        }
        for (number, link) in self.links.iter().enumerate() {
            let ends: Vec<[String; 2]> = match self.layout {
                Layout::Cables => vec![[format!("h0:eth{number}"), format!("h1:eth{number}")]],
                Layout::Separate | Layout::Shared => (0..self.hosts)
                    .map(|host| {
                        let switch = if self.layout == Layout::Shared {
                            0
                        } else {
                            number
                        };
                        [format!("h{host}:eth{number}"), format!("s{switch}")]
                    })
                    .collect(),
            };
            for [a, b] in ends {
                let LinkPlan {
                    rate_mbps,
                    delay_us,
                    mtu,
                    keys,
                    ..
                } = link;
                writeln!(
                    text,
                    "[[link]]\nbetween = [\"{a}\", \"{b}\"]\nrate = \"{rate_mbps}Mbit\"\n\
                     delay = \"{delay_us}us\"\nmtu = {mtu}\nnic_queue = \"1000000\"\n{keys}"
                )
                .unwrap();
            }
        }
        Topology::parse("plan", &text).unwrap_or_else(|error| panic!("{error}\n{text}"))
    }
}

/// A simulated cluster with an account of its frames.
pub struct World {
    pub plan: Plan,
    pub sim: Sim<Station>,
    pub account: Rc<RefCell<Account>>,
}

impl World {
    pub fn new(plan: Plan) -> Self {
        let account = Rc::new(RefCell::new(Account::default()));
        let mut rng = fastrand::Rng::with_seed(plan.seed);
        let stations = (0..plan.hosts).map(|host| {
            let setup = Setup {
                host,
                key: [plan.keys[host]; 32],
                seal: plan.seal,
                nics: plan
                    .links
                    .iter()
                    .map(|l| (l.mtu, l.rate_mbps * 1_000_000, l.claimed_mbps * 1_000_000))
                    .collect(),
                clock_ns: rng.u64(0..100 * S),
            };
            Station::new(setup, account.clone(), rng.u64(..))
        });
        let stations: Vec<Station> = stations.collect();
        let sim = Sim::new(&plan.topology(), stations, plan.seed);
        Self { plan, sim, account }
    }

    /// Returns a world of two hosts whose paths are all up.
    pub fn pair(links: Vec<LinkPlan>) -> Self {
        let mut world = Self::new(Plan::two_hosts(links));
        world.run_until_connected(5 * S);
        world
    }

    pub fn now_ns(&self) -> u64 {
        self.sim.now_ns()
    }

    pub fn run_for(&mut self, ns: u64) {
        let until_ns = self.now_ns() + ns;
        self.sim.run_until(until_ns);
    }

    /// Runs until every link of every host is in use towards every other host, for at most
    /// `limit_ns`.
    pub fn run_until_connected(&mut self, limit_ns: u64) {
        let (until_ns, hosts) = (self.now_ns() + limit_ns, self.plan.hosts);
        let mut checked_ns = 0;
        let is_connected = self.sim.run_until_or(until_ns, |sim| {
            if sim.now_ns() < checked_ns + MS {
                return false;
            }
            checked_ns = sim.now_ns();
            (0..hosts).all(|host| sim.node(host).is_connected(hosts))
        });
        assert!(
            is_connected,
            "after {} s not every link is in use: {}",
            limit_ns / S,
            self.paths()
        );
    }

    /// Returns the state of every path, for messages.
    pub fn paths(&self) -> String {
        let mut text = String::new();
        for host in 0..self.plan.hosts {
            for peer in self.sim.node(host).core.peers() {
                write!(text, "\n {:?} {:?}", peer.memory(), peer.reorder().0).unwrap();
                write!(
                    text,
                    "\n h{host} to {} session {}:",
                    peer.name(),
                    peer.has_session()
                )
                .unwrap();
                for path in peer.paths() {
                    let (link, state) = (path.link, path.state.name());
                    write!(
                        text,
                        " {link} {state} ({} failures, loss {:.3}, {:?} to {:?})",
                        path.failures, path.loss, path.datagram_bytes, path.to
                    )
                    .unwrap();
                }
            }
        }
        text
    }

    /// Starts a program at `from` that sends to `to`.
    pub fn start(
        &mut self,
        from: usize,
        to: usize,
        shape: Shape,
        pace: Pace,
        remaining: Option<u32>,
    ) -> u16 {
        self.start_sized(from, to, shape, pace, remaining, sizes(shape))
    }

    pub fn start_sized(
        &mut self,
        from: usize,
        to: usize,
        shape: Shape,
        pace: Pace,
        remaining: Option<u32>,
        bytes: std::ops::RangeInclusive<usize>,
    ) -> u16 {
        let segment_bytes = 1448;
        let flow = self
            .account
            .borrow_mut()
            .add(from, to, shape, segment_bytes);
        let next_ns = self.now_ns();
        self.sim.node_mut(from).start(Source {
            flow,
            pace,
            bytes,
            remaining,
            next_ns,
        });
        flow
    }

    /// Stops all programs and waits for the frames in flight.
    pub fn stop(&mut self) {
        for host in 0..self.plan.hosts {
            self.sim.node_mut(host).stop();
        }
        let until_ns = self.now_ns() + 2 * S;
        let is_quiet = |sim: &Sim<Station>| sim.model().frames_inside() == 0;
        self.run_for(100 * MS);
        self.sim.run_until_or(until_ns, is_quiet);
        self.run_for(100 * MS);
    }

    pub fn change(&mut self, nic: &str, change: LinkChange) {
        let now_ns = self.now_ns();
        self.sim.change_at(now_ns, nic, change);
    }

    /// Makes the switches of link `number` silently drop packets longer than `mtu` bytes.
    pub fn clamp(&mut self, number: usize, mtu: usize) {
        for host in 0..self.plan.hosts {
            self.sim.node_mut(host).switch_mtus[number] = mtu;
        }
    }

    /// Asserts that all frames sent since `from_ns` have arrived.
    pub fn assert_all_arrived(&self, from_ns: u64) {
        let account = self.account.borrow();
        let missing = account.missing(from_ns, self.now_ns(), self.plan.hosts);
        assert!(
            missing.is_empty(),
            "{} of {} frames did not arrive, first {:?}{}",
            missing.len(),
            account.accepted(),
            &missing[..missing.len().min(5)],
            self.paths()
        );
    }

    /// Returns the frames from `peer` that `host`'s core counts as late.
    pub fn late_frames(&self, host: usize, peer: usize) -> u64 {
        let mut peers = self.sim.node(host).core.peers();
        let view = peers.find(|view| view.node() == peer as u64 + 1);
        view.map_or(0, |view| view.reorder().0.late)
    }

    /// Asserts that only frames counted as late arrived out of order.
    pub fn assert_order(&self) {
        let restarted = (0..self.plan.hosts).any(|host| self.sim.node(host).restarts > 0);
        for host in 0..self.plan.hosts {
            for peer in (0..self.plan.hosts).filter(|peer| *peer != host && !restarted) {
                let overtaken = self.account.borrow().overtaken(host, peer);
                let late = self.late_frames(host, peer);
                assert!(
                    overtaken <= late,
                    "h{host} from h{peer}: {overtaken} out of order, {late} late"
                );
            }
        }
    }
}
