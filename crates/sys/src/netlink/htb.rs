//! The root queue of an interface: an HTB with one class, whose rate changes while traffic flows.

use super::Rtnetlink;
use netlink_packet_core::{DefaultNla, NLM_F_CREATE, NLM_F_REPLACE, Nla, NlasIterator};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage, TcOption};
use std::io;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

// Attributes of linux/pkt_sched.h within TCA_OPTIONS of an HTB.
const TCA_HTB_PARMS: u16 = 1;
const TCA_HTB_INIT: u16 = 2;
const TCA_HTB_RATE64: u16 = 6;
const TCA_HTB_CEIL64: u16 = 7;
const TC_LINKLAYER_ETHERNET: u8 = 1;
/// Version of the interface that the kernel's HTB accepts (`HTB_VER`).
const HTB_VERSION: u32 = 3;
/// Divisor of a class's rate for its quantum. The class sets its quantum itself.
const RATE_TO_QUANTUM: u32 = 10;
/// Tick of the kernel's packet scheduler: 64 ns (`PSCHED_SHIFT`).
const TICK_NS: u64 = 64;
/// Quantum of the class, in bytes. There is one class, so the value has no effect.
const QUANTUM_BYTES: u32 = 65_536;

const ROOT: TcHandle = TcHandle { major: 1, minor: 0 };
const CLASS: TcHandle = TcHandle { major: 1, minor: 1 };

/// `struct tc_htb_glob`.
#[derive(Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Global {
    version: u32,
    rate_to_quantum: u32,
    default_class: u32,
    debug: u32,
    direct_packets: u32,
}

/// `struct tc_ratespec`.
#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
struct RateSpec {
    cell_log: u8,
    link_layer: u8,
    overhead: u16,
    cell_align: i16,
    mpu: u16,
    rate_bytes_per_s: u32,
}

/// `struct tc_htb_opt`.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct ClassOptions {
    rate: RateSpec,
    ceiling: RateSpec,
    burst_ticks: u32,
    ceiling_burst_ticks: u32,
    quantum_bytes: u32,
    level: u32,
    priority: u32,
}

/// The root queue of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RootQueue {
    /// The queue that the kernel installs by itself, or none.
    Default,
    /// The queue that [`install`] installs.
    Kumi,
    /// Another queue, of this kind (`fq`, `htb`, …).
    Foreign(String),
}

/// Returns the root queue of an interface of this namespace.
pub fn root_queue(interface_index: u32) -> io::Result<RootQueue> {
    let request = TcMessage::with_index(interface_index as i32);
    let queues = Rtnetlink::open()?.dump(RouteNetlinkMessage::GetQueueDiscipline(request))?;
    let root = queues.into_iter().find_map(|queue| match queue {
        RouteNetlinkMessage::NewQueueDiscipline(queue)
            if queue.header.index == interface_index as i32
                && queue.header.parent == TcHandle::ROOT =>
        {
            Some(queue)
        }
        _ => None,
    });
    Ok(root.map_or(RootQueue::Default, |root| kind_of(&root)))
}

fn kind_of(root: &TcMessage) -> RootQueue {
    // The kernel gives no handle to a queue that it installs by itself.
    if root.header.handle == TcHandle::UNSPEC {
        return RootQueue::Default;
    }
    let mut kind = String::new();
    let mut default_class = None;
    for attribute in &root.attributes {
        match attribute {
            TcAttribute::Kind(name) => kind.clone_from(name),
            TcAttribute::Options(options) => {
                default_class = options.iter().find_map(default_class_in);
            }
            _ => {}
        }
    }
    let is_kumi = kind == "htb"
        && root.header.handle == ROOT
        && default_class == Some(u32::from(CLASS.minor));
    if is_kumi {
        RootQueue::Kumi
    } else {
        RootQueue::Foreign(kind)
    }
}

/// Returns the default class in the options of an HTB, which the crate does not parse.
fn default_class_in(options: &TcOption) -> Option<u32> {
    let TcOption::Other(options) = options else {
        return None;
    };
    let mut bytes = vec![0; options.value_len()];
    options.emit_value(&mut bytes);
    let mut parts = NlasIterator::new(&bytes[..]).flatten();
    let global = parts.find(|part| part.kind() == TCA_HTB_INIT)?;
    let (global, _) = Global::read_from_prefix(global.value()).ok()?;
    Some(global.default_class)
}

/// Removes the root queue of an interface. The kernel then installs its own.
pub fn remove(interface_index: u32) -> io::Result<()> {
    let mut message = TcMessage::with_index(interface_index as i32);
    message.header.parent = TcHandle::ROOT;
    Rtnetlink::open()?.change(RouteNetlinkMessage::DelQueueDiscipline(message), 0)
}

/// Replaces the root queue of an interface by an HTB. The kernel refuses this if the queue is an
/// HTB already.
pub fn install(interface_index: u32) -> io::Result<()> {
    let global = Global {
        version: HTB_VERSION,
        rate_to_quantum: RATE_TO_QUANTUM,
        default_class: u32::from(CLASS.minor),
        ..Global::default()
    };
    let mut message = TcMessage::with_index(interface_index as i32);
    message.header.handle = ROOT;
    message.header.parent = TcHandle::ROOT;
    message.attributes = htb(vec![(TCA_HTB_INIT, global.as_bytes())]);
    let request = RouteNetlinkMessage::NewQueueDiscipline(message);
    Rtnetlink::open()?.change(request, NLM_F_CREATE | NLM_F_REPLACE)
}

/// The class of [`RootQueue::Kumi`].
pub struct HtbClass {
    kernel: Rtnetlink,
    interface_index: u32,
}

impl HtbClass {
    /// Creates the class under the root queue, or takes the one that is there, and sets its rate.
    pub fn create(interface_index: u32, rate_bytes_per_s: u64, burst_ns: u64) -> io::Result<Self> {
        let mut class = Self {
            kernel: Rtnetlink::open()?,
            interface_index,
        };
        class.change(rate_bytes_per_s, burst_ns, NLM_F_CREATE | NLM_F_REPLACE)?;
        Ok(class)
    }

    /// Sets rate and ceiling, in bytes per second, and the burst, in ns of that rate.
    ///
    /// # Errors
    /// The kernel's error, ENOENT if the class has been removed.
    pub fn set_rate(&mut self, rate_bytes_per_s: u64, burst_ns: u64) -> io::Result<()> {
        self.change(rate_bytes_per_s, burst_ns, 0)
    }

    fn change(&mut self, rate_bytes_per_s: u64, burst_ns: u64, flags: u16) -> io::Result<()> {
        let rate = RateSpec {
            cell_log: 0,
            link_layer: TC_LINKLAYER_ETHERNET,
            overhead: 0,
            cell_align: 0,
            mpu: 0,
            rate_bytes_per_s: u32::try_from(rate_bytes_per_s).unwrap_or(u32::MAX),
        };
        let burst_ticks = u32::try_from(burst_ns / TICK_NS).unwrap_or(u32::MAX);
        let options = ClassOptions {
            rate,
            ceiling: rate,
            burst_ticks,
            ceiling_burst_ticks: burst_ticks,
            quantum_bytes: QUANTUM_BYTES,
            level: 0,
            priority: 0,
        };
        let mut message = TcMessage::with_index(self.interface_index as i32);
        message.header.handle = CLASS;
        message.header.parent = ROOT;
        message.attributes = htb(vec![
            (TCA_HTB_PARMS, options.as_bytes()),
            (TCA_HTB_RATE64, &rate_bytes_per_s.to_ne_bytes()),
            (TCA_HTB_CEIL64, &rate_bytes_per_s.to_ne_bytes()),
        ]);
        let request = RouteNetlinkMessage::NewTrafficClass(message);
        self.kernel.change(request, flags)
    }
}

/// Returns the attributes of a queue or class of kind HTB with `options`.
fn htb(options: Vec<(u16, &[u8])>) -> Vec<TcAttribute> {
    let options = options
        .into_iter()
        .map(|(kind, value)| TcOption::Other(DefaultNla::new(kind, value.to_vec())));
    vec![
        TcAttribute::Kind("htb".to_owned()),
        TcAttribute::Options(options.collect()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A root queue as the kernel describes it.
    fn root(kind: &str, handle: TcHandle, default_class: u32) -> TcMessage {
        let global = Global {
            default_class,
            ..Global::default()
        };
        let mut nested = ((4 + size_of::<Global>()) as u16).to_ne_bytes().to_vec();
        nested.extend_from_slice(&TCA_HTB_INIT.to_ne_bytes());
        nested.extend_from_slice(global.as_bytes());
        let mut message = TcMessage::with_index(7);
        message.header.handle = handle;
        message.attributes = vec![
            TcAttribute::Kind(kind.to_owned()),
            TcAttribute::Options(vec![TcOption::Other(DefaultNla::new(2, nested))]),
        ];
        message
    }

    #[test]
    fn root_queue__each_kind__is_recognized() {
        let foreign = |kind: &str| RootQueue::Foreign(kind.to_owned());
        let fq = TcHandle {
            major: 0x8002,
            minor: 0,
        };
        assert_eq!(kind_of(&root("htb", ROOT, 1)), RootQueue::Kumi);
        assert_eq!(kind_of(&root("htb", ROOT, 0x30)), foreign("htb"));
        assert_eq!(kind_of(&root("htb", fq, 1)), foreign("htb"));
        assert_eq!(kind_of(&root("fq", fq, 0)), foreign("fq"));
        let default = root("fq_codel", TcHandle::UNSPEC, 0);
        assert_eq!(kind_of(&default), RootQueue::Default);
    }
}
