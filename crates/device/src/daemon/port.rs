//! A physical interface under the device: its socket, and the bytes that the kernel holds for it.

use super::coalescing::Coalescing;
use super::reception::{self, Reception};
use crate::datapath::UNDERLAY_BYTES;
use kumi_command::errln;
use kumi_multilink::endpoint::{DirectLink, Endpoint, LinkConfig, OVERHEAD_BYTES};
use kumi_multilink::wire::{self, Kind};
use kumi_sys::datagrams::{Datagrams, RECEIVE_BYTES_MAX};
use kumi_sys::netlink::link::Interface;
use kumi_sys::udp::LinkSocket;
use std::io::ErrorKind;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};

/// Multicast group of hellos: link-local and transient, with "kumi" in its last bytes.
pub const GROUP: Ipv6Addr = Ipv6Addr::new(0xff12, 0, 0, 0, 0, 0, 0x6b75, 0x6d69);

/// Length of the shortest datagram of any kind, in bytes: a control datagram without body and tag.
const DATAGRAM_BYTES_MIN: u32 = wire::CONTROL_HEADER_BYTES as u32;
/// Rate assumed for a NIC that does not report its speed, in bits per second.
pub const SPEED_UNKNOWN_BPS: u64 = 1_000_000_000;
/// Number of sends per comparison of the kernel's buffer accounting with the bytes sent.
const CALIBRATE_EVERY: u32 = 16;
/// Time for which a reading of the kernel's send queue is valid, in ns. A link of 10 Gb/s carries
/// 60 KB in it. This is about a batch, which the rate estimate allows for.
const READ_EVERY_NS: u64 = 50_000;
/// Least size of the place for one received datagram, in bytes. The longest hello or handshake is
/// much shorter.
const PLACE_BYTES_MIN: usize = 2048;

/// Purpose of a look at the kernel's send queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// Frames are to be split. The look is worth its time if the link may still be busy.
    Split,
    /// A link is probably idle, and its busy period is to end. The look can wait for the sends.
    Idle,
}

/// Interface and socket of a link.
#[derive(Debug)]
pub struct Port {
    /// Number of the link in the core.
    pub number: u8,
    /// Interface name.
    pub name: String,
    /// Interface index.
    pub index: u32,
    /// UDP socket on the interface.
    pub socket: LinkSocket,
    /// True if the interface has been removed. A later one of the same name takes its place.
    pub is_gone: bool,
    /// True if the socket's send buffer was full at the last send.
    pub is_blocked: bool,
    /// True if receive coalescing (`UDP_GRO`) may be used.
    pub may_coalesce: bool,
    coalescing: Coalescing,
    /// Record of the received datagrams.
    pub reception: Reception,
    /// Number of sends that the kernel refused.
    pub refused_sends: u64,
    /// Bytes of kernel buffer per byte on the wire, smoothed.
    buffer_ratio: f64,
    sends: u32,
    queue_read_at_ns: u64,
    /// Size of the place for one received datagram, in bytes; at least the link's MTU.
    place_bytes: usize,
}

/// Error of a link whose UDP port belongs to another socket.
#[derive(Debug, thiserror::Error)]
#[error(
    "{name}: UDP port {udp_port} is in use, for instance by another kumi device; choose another with --port"
)]
pub struct PortTaken {
    name: String,
    udp_port: u16,
}

impl Port {
    /// Opens the port of `interface`. `may_coalesce` permits receive coalescing.
    pub fn open(
        number: u8,
        interface: &Interface,
        udp_port: u16,
        may_coalesce: bool,
    ) -> anyhow::Result<Self> {
        let name = &interface.name;
        let socket = LinkSocket::open(name, interface.index, udp_port, GROUP)
            .map_err(|error| refusal(name, udp_port, &error))?;
        socket.set_filter(DATAGRAM_BYTES_MIN, &leads())?;
        let may_coalesce =
            may_coalesce && socket.set_coalescing(true) && socket.set_coalescing(false);
        Ok(Self {
            number,
            name: name.clone(),
            index: interface.index,
            socket,
            is_gone: false,
            is_blocked: false,
            may_coalesce,
            coalescing: Coalescing::default(),
            reception: Reception::default(),
            refused_sends: 0,
            buffer_ratio: 1.3,
            sends: 0,
            queue_read_at_ns: 0,
            place_bytes: PLACE_BYTES_MIN.max(interface.mtu as usize),
        })
    }

    /// Returns the link's configuration for the core.
    pub fn link_config(
        interface: &Interface,
        udp_port: u16,
        multicast: bool,
        direct: Option<DirectLink>,
    ) -> LinkConfig {
        let hello = SocketAddrV6::new(GROUP, udp_port, 0, interface.index);
        LinkConfig {
            name: interface.name.clone(),
            datagram_bytes_max: interface.mtu as usize - UNDERLAY_BYTES,
            hello_to: multicast.then_some(SocketAddr::V6(hello)),
            rate_bps: kumi_sys::speed::link_speed_bps(&interface.name).unwrap_or(SPEED_UNKNOWN_BPS),
            is_rate_fixed: false,
            direct,
        }
    }

    /// Receives the available datagrams. Returns the kernel's error; `WouldBlock` if there are
    /// none.
    pub fn receive(&mut self, datagrams: &mut Datagrams) -> std::io::Result<()> {
        let place_bytes = if self.coalescing.is_on() {
            RECEIVE_BYTES_MAX
        } else {
            self.place_bytes
        };
        self.socket.receive(datagrams, place_bytes)
    }

    /// Passes a datagram to the core, and records its use for the device's state.
    pub fn handle(
        &mut self,
        node: u64,
        datagram: &mut [u8],
        sender: SocketAddr,
        core: &mut Endpoint,
        now_ns: u64,
    ) {
        if self.reception.note(node, datagram, now_ns) {
            return;
        }
        let is_introduction = reception::is_introduction(datagram);
        let wrong_key = |core: &Endpoint| core.counters().wrong_key;
        let previous = if is_introduction { wrong_key(core) } else { 0 };
        let outcome = core.handle_datagram(self.number, sender, datagram, now_ns);
        if is_introduction {
            let is_wrong_key = wrong_key(core) > previous;
            self.reception
                .note_outcome(sender, outcome, is_wrong_key, now_ns);
        }
    }

    /// Counts received datagrams, for the choice of receive coalescing.
    pub fn note_received(&mut self, datagrams: usize) {
        self.coalescing.note(datagrams);
    }

    /// Switches receive coalescing by load. `is_drained` states that nothing is left to read.
    pub fn adapt_coalescing(&mut self, now_ns: u64, is_drained: bool) {
        if !self.may_coalesce {
            return;
        }
        if let Some(is_on) = self.coalescing.decide(now_ns, is_drained) {
            self.socket.set_coalescing(is_on);
        }
    }

    /// Passes the number of sent bytes that have not left the host to the core, if the core needs
    /// it.
    pub fn observe(&mut self, core: &mut Endpoint, look: Look, now_ns: u64) {
        let is_wanted = core.link(self.number).is_some_and(|link| match look {
            Look::Split => link.may_be_busy(now_ns),
            Look::Idle => link.is_worth_a_look() && !link.may_be_busy(now_ns),
        });
        if is_wanted {
            self.read_send_queue(core, now_ns);
        }
    }

    fn read_send_queue(&mut self, core: &mut Endpoint, now_ns: u64) {
        if now_ns < self.queue_read_at_ns + READ_EVERY_NS {
            return;
        }
        self.queue_read_at_ns = now_ns;
        if let Ok(bytes) = self.socket.unsent_buffer_bytes() {
            let wire_bytes = (bytes as f64 / self.buffer_ratio) as u64;
            core.observe_unsent(self.number, wire_bytes, now_ns);
        }
    }

    /// Passes all datagrams of the core for this link to the kernel, until the socket's buffer is
    /// full.
    pub fn transmit(&mut self, core: &mut Endpoint, now_ns: u64) {
        self.is_blocked = false;
        if core.poll_transmit(self.number).is_some() {
            self.observe(core, Look::Split, now_ns);
        }
        while let Some(batch) = core.poll_transmit(self.number) {
            let target = batch
                .destination
                .expect("a batch in the queue has a destination");
            let (bytes, datagrams) = (batch.bytes.len(), batch.datagrams());
            self.sends = self.sends.wrapping_add(1);
            let old_bytes = self.calibration_start();
            match self.socket.send(&batch.bytes, batch.segment_bytes, target) {
                Ok(()) => {
                    self.calibrate(old_bytes, bytes + datagrams * OVERHEAD_BYTES);
                    core.transmitted(self.number);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.is_blocked = true;
                    return;
                }
                Err(error) => {
                    self.refused_sends += 1;
                    self.reception.note_refusal(&error, now_ns);
                    self.fall_back(core, datagrams, &error);
                    core.transmitted(self.number);
                }
            }
        }
    }

    /// Switches segmentation off after a refused burst, so that each datagram is sent alone.
    ///
    /// The error may be a defect or limit of the kernel's or the NIC's segmentation. EIO means no
    /// checksum offload; EINVAL and EMSGSIZE mean exceeded limits. The lost datagrams are repaired
    /// like any loss.
    fn fall_back(&mut self, core: &mut Endpoint, datagrams: usize, error: &std::io::Error) {
        let is_segmentation = matches!(
            error.raw_os_error(),
            Some(nix::libc::EIO | nix::libc::EINVAL | nix::libc::EMSGSIZE)
        );
        if datagrams == 1 || !is_segmentation {
            return;
        }
        if let Some(link) = core.link_mut(self.number) {
            link.queue.segmentation = false;
            errln!(
                "{}: UDP segmentation refused ({error}); sending datagrams one by one",
                self.name
            );
        }
    }

    fn calibration_start(&self) -> Option<usize> {
        if self.sends % CALIBRATE_EVERY == 0 {
            self.socket.unsent_buffer_bytes().ok()
        } else {
            None
        }
    }

    fn calibrate(&mut self, old_bytes: Option<usize>, wire_bytes: usize) {
        let Some(old_bytes) = old_bytes else { return };
        let Ok(new_bytes) = self.socket.unsent_buffer_bytes() else {
            return;
        };
        // A send that left at once shows nothing.
        if new_bytes > old_bytes {
            let ratio = (new_bytes - old_bytes) as f64 / wire_bytes as f64;
            self.buffer_ratio += (ratio.clamp(0.5, 8.0) - self.buffer_ratio) / 8.0;
        }
    }
}

/// Returns the error of link `name` whose socket the kernel refuses.
fn refusal(name: &str, udp_port: u16, error: &std::io::Error) -> anyhow::Error {
    if error.kind() == ErrorKind::AddrInUse {
        let name = name.to_owned();
        return anyhow::Error::new(PortTaken { name, udp_port });
    }
    let remedy = match error.kind() {
        ErrorKind::PermissionDenied => "run as root or with CAP_NET_ADMIN".to_owned(),
        ErrorKind::NetworkDown => format!("run `ip link set {name} up`"),
        ErrorKind::NotFound | ErrorKind::InvalidInput => format!("`{name}` was just removed"),
        _ => format!("if IPv6 is off, run `sysctl -w net.ipv6.conf.{name}.disable_ipv6=0`"),
    };
    anyhow::anyhow!("{name}: cannot open UDP port {udp_port}: {error}; {remedy}")
}

/// Returns the first bytes of datagrams that the socket filter passes: every kind of this version,
/// data first, and hellos of all versions. The latter show a peer that is too old or too new.
fn leads() -> Vec<u8> {
    let is_hello = |lead: u8| lead >> 4 == Kind::Hello as u8;
    let all = 0..=u8::MAX;
    all.filter(|lead| is_hello(*lead) || wire::kind_of(&[*lead]).is_ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port__refused_by_the_kernel__is_named_with_the_link_and_the_remedy() {
        let message = |kind: ErrorKind| refusal("eth1", 24_870, &kind.into()).to_string();
        assert_eq!(
            message(ErrorKind::AddrInUse),
            "eth1: UDP port 24870 is in use, for instance by another kumi device; choose another \
             with --port"
        );
        for (kind, text) in [
            (
                ErrorKind::PermissionDenied,
                "permission denied; run as root or with CAP_NET_ADMIN",
            ),
            (
                ErrorKind::NetworkDown,
                "network down; run `ip link set eth1 up`",
            ),
            (
                ErrorKind::NotFound,
                "entity not found; `eth1` was just removed",
            ),
            (
                ErrorKind::AddrNotAvailable,
                "address not available; if IPv6 is off, run `sysctl -w \
                 net.ipv6.conf.eth1.disable_ipv6=0`",
            ),
        ] {
            assert_eq!(
                message(kind),
                format!("eth1: cannot open UDP port 24870: {text}")
            );
        }
    }

    #[test]
    fn filter__kinds_of_this_version_and_hellos_of_any_version__pass() {
        let leads = leads();
        assert_eq!(leads[0], wire::lead(Kind::Data));
        for kind in [Kind::Control, Kind::Hello, Kind::Init, Kind::Reply] {
            assert!(leads.contains(&wire::lead(kind)), "{kind:?}");
        }
        assert!(leads.contains(&0x3f), "a hello of a later version");
        assert!(!leads.contains(&0) && !leads.contains(&0x1f));
    }
}
