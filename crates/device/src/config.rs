//! Configuration of a device, from the command line of `kumi link up` or a table of `kumi.toml`.

use crate::interface;
use kumi_command::BadInput;
use kumi_multilink::secure::Seal;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// Default UDP port of the multilink protocol. Device queue *n* uses the *n*-th port after it.
pub const PORT: u16 = 24_870;
/// Largest number of queues of a device. Eight queues take eight cores and eight UDP ports.
pub const QUEUES_MAX: u8 = 8;
/// Accepted MTUs of the device, in bytes: from the least of IPv6 to the largest of a TAP
/// (`ETH_MAX_MTU` less the Ethernet header).
const MTU_RANGE: std::ops::RangeInclusive<u32> = 1280..=65_521;
/// Longest name of a device, in bytes: `IFNAMSIZ` less the final zero.
const NAME_BYTES_MAX: usize = 15;
/// Default path of the cluster key file.
pub const KEY_FILE: &str = "/etc/kumi/cluster.key";

/// Protocol of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Preset {
    /// Kumihimo's own.
    #[default]
    Kumi,
    /// RI2N/DRV: raw EtherType frames, round robin, the paper's parameters. No security.
    Ri2n,
}

/// Carrier of the frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum DatapathChoice {
    /// The daemon.
    #[default]
    User,
    /// Programs in the kernel, to peers that have the same. The daemon carries the other frames.
    Kernel,
}

/// Protection of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SealChoice {
    /// Encrypted and authenticated.
    #[default]
    Encrypt,
    /// Authenticated only.
    Authenticate,
    /// Neither encrypted nor authenticated.
    Plain,
}

impl SealChoice {
    /// Returns the value in the protocol core's type.
    pub fn seal(self) -> Seal {
        match self {
            Self::Encrypt => Seal::Encrypt,
            Self::Authenticate => Seal::Authenticate,
            Self::Plain => Seal::Plain,
        }
    }
}

/// Configuration of a multilink device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceConfig {
    /// Name of the device.
    pub name: String,
    /// Names of the physical interfaces under it.
    pub over: Vec<String>,
    /// Addresses with prefix lengths.
    #[serde(default)]
    pub address: Vec<String>,
    /// Path of the cluster key file.
    #[serde(default = "key_file")]
    pub key: PathBuf,
    /// Protection of packets.
    #[serde(default)]
    pub seal: SealChoice,
    /// Protocol of the device.
    #[serde(default)]
    pub preset: Preset,
    /// Peers behind routers. Each entry has the peer's addresses, one per link in the order of
    /// `over`.
    #[serde(default)]
    pub peer: Vec<Vec<IpAddr>>,
    /// UDP port of the first queue.
    #[serde(default = "port")]
    pub port: u16,
    /// MTU of the device, in bytes; if absent, the largest that fits one datagram.
    #[serde(default)]
    pub mtu: Option<u32>,
    /// True if the device spins instead of sleeping: half the latency, but each queue keeps one
    /// core busy.
    #[serde(default)]
    pub busy_poll: bool,
    /// Number of queues: fixed, or as many as the links need and the cores allow.
    #[serde(default)]
    pub queues: Queues,
    /// Kernel features that must not be used.
    #[serde(default)]
    pub without: Vec<Offload>,
    /// Carrier of the frames.
    #[serde(default)]
    pub datapath: DatapathChoice,
}

/// Number of queues of a device. Each queue has a thread and sockets of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "QueuesText", into = "QueuesText")]
pub enum Queues {
    /// As many as the links need, at most half the cores.
    #[default]
    Auto,
    /// This number.
    Exactly(u8),
}

/// Number of queues in a file: `"auto"` or a number.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum QueuesText {
    Number(u64),
    Name(String),
}

impl std::str::FromStr for Queues {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let number = text.parse().ok().filter(|n| (1..=QUEUES_MAX).contains(n));
        number.map(Self::Exactly).ok_or_else(|| {
            format!("invalid queues `{text}`: expected a number from 1 to {QUEUES_MAX}, or auto")
        })
    }
}

impl TryFrom<QueuesText> for Queues {
    type Error = String;

    fn try_from(text: QueuesText) -> Result<Self, String> {
        match text {
            QueuesText::Number(number) => number.to_string().parse(),
            QueuesText::Name(name) => name.parse(),
        }
    }
}

impl From<Queues> for QueuesText {
    fn from(queues: Queues) -> Self {
        match queues {
            Queues::Auto => Self::Name("auto".into()),
            Queues::Exactly(number) => Self::Number(number.into()),
        }
    }
}

/// Kernel feature that can be switched off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Offload {
    /// Segmentation of sent datagrams (`UDP_SEGMENT`).
    UdpSegment,
    /// Receive coalescing of datagrams (`UDP_GRO`).
    UdpGro,
    /// TCP bursts between the kernel and the device.
    TapTso,
    /// UDP bursts between the kernel and the device.
    TapUso,
    /// Queue in front of the device that gives TCP backpressure.
    Shaper,
    /// Priority of the daemon over ordinary programs, under load.
    Priority,
}

fn key_file() -> PathBuf {
    KEY_FILE.into()
}

fn port() -> u16 {
    PORT
}

impl DeviceConfig {
    /// Returns whether `offload` may be used.
    pub fn uses(&self, offload: Offload) -> bool {
        !self.without.contains(&offload)
    }

    /// Returns an error with all mistakes that can be found without access to the system.
    pub fn check(&self) -> Result<(), BadInput> {
        BadInput::of_all(self.mistakes())
    }

    /// Returns all mistakes that can be found without access to the system.
    pub fn mistakes(&self) -> Vec<String> {
        let mut mistakes = Vec::new();
        if !is_device_name(&self.name) {
            mistakes.push(format!(
                "invalid device name `{}`: expected 1 to {NAME_BYTES_MAX} ASCII characters without \
                 spaces, `/`, `:` or `%`, and not `.` or `..`",
                self.name
            ));
        }
        self.check_links(&mut mistakes);
        self.check_preset(&mut mistakes);
        self.check_ports(&mut mistakes);
        self.check_datapath(&mut mistakes);
        if let Some(mtu) = self.mtu.filter(|mtu| !MTU_RANGE.contains(mtu)) {
            mistakes.push(format!(
                "invalid mtu {mtu}: expected {} (the least of IPv6) to {}; omit it to get the largest that \
                 fits one datagram",
                MTU_RANGE.start(),
                MTU_RANGE.end()
            ));
        }
        mistakes.extend(self.address.iter().filter_map(|text| address_mistake(text)));
        for addresses in &self.peer {
            if addresses.is_empty() || addresses.len() > self.over.len() {
                mistakes.push(format!(
                    "peer: {} addresses for {} links: expected one per link, in the order of `over`",
                    addresses.len(),
                    self.over.len()
                ));
            }
        }
        mistakes
    }

    fn check_links(&self, mistakes: &mut Vec<String>) {
        if self.over.is_empty() || self.over.len() > kumi_multilink::wire::LINKS_MAX {
            mistakes.push(format!(
                "over: {} interfaces given: expected 1 to {}",
                self.over.len(),
                kumi_multilink::wire::LINKS_MAX
            ));
        }
        for (index, link) in self.over.iter().enumerate() {
            if self.over[..index].contains(link) {
                mistakes.push(format!("over: `{link}` is named twice"));
            }
            if *link == self.name {
                mistakes.push(format!("over: `{link}` cannot be under itself"));
            }
        }
    }

    /// Checks for settings that RI2N/DRV does not have.
    fn check_preset(&self, mistakes: &mut Vec<String>) {
        if self.preset != Preset::Ri2n {
            return;
        }
        if self.seal == SealChoice::Authenticate {
            mistakes.push(
                "seal `authenticate`: preset ri2n authenticates nothing; omit it \
                 (--authenticate-only), or use preset kumi"
                    .to_owned(),
            );
        }
        if let Some(addresses) = self.peer.first() {
            let addresses: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
            mistakes.push(format!(
                "peer {}: preset ri2n uses Ethernet frames, which do not cross routers; omit \
                 `peer` (--peer), or use preset kumi",
                addresses.join(",")
            ));
        }
        if let Queues::Exactly(queues @ 2..) = self.queues {
            mistakes.push(format!(
                "queues {queues}: preset ri2n has only one queue; set 1 or auto"
            ));
        }
    }

    /// Checks for settings that the kernel's data path does not have.
    fn check_datapath(&self, mistakes: &mut Vec<String>) {
        if self.datapath == DatapathChoice::User {
            return;
        }
        let mut refuse = |is_set: bool, text: &str| {
            if is_set {
                mistakes.push(format!("datapath kernel: {text}"));
            }
        };
        refuse(
            self.preset == Preset::Ri2n,
            "preset ri2n has no such data path; omit it, or use preset kumi",
        );
        refuse(
            self.seal != SealChoice::Plain,
            "the kernel seals no frames; add --plain (seal `plain`) if no other host can send on the \
             links, or use datapath user",
        );
        refuse(
            !self.peer.is_empty(),
            "frames without a header do not cross routers; omit `peer` (--peer)",
        );
        refuse(
            matches!(self.queues, Queues::Exactly(2..)),
            "the daemon carries few frames and has one queue; set queues to 1 or auto",
        );
    }

    fn check_ports(&self, mistakes: &mut Vec<String>) {
        if self.port == 0 {
            mistakes.push("invalid port 0: expected 1 to 65535".to_owned());
        }
        let Queues::Exactly(queues) = self.queues else {
            return;
        };
        if self.port.checked_add(u16::from(queues) - 1).is_none() {
            mistakes.push(format!(
                "port {}: {queues} queues need {queues} ports from this one on; the last port is 65535",
                self.port
            ));
        }
    }

    /// Returns the largest number of UDP ports that the device can take on this host, from
    /// [`Self::port`] on.
    pub fn ports_max(&self) -> u16 {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        match (self.preset, self.queues) {
            (Preset::Ri2n, _) => 0,
            (_, Queues::Auto) if self.datapath == DatapathChoice::Kernel => 1,
            (_, Queues::Exactly(queues)) => queues.into(),
            (_, Queues::Auto) => (cores / 2).clamp(1, QUEUES_MAX.into()) as u16,
        }
    }

    /// Returns the floor of TCP's timeout that fits the data path.
    pub fn rto_floor(&self) -> interface::RtoFloor {
        match self.datapath {
            DatapathChoice::User => interface::RtoFloor::User,
            DatapathChoice::Kernel => interface::RtoFloor::Kernel,
        }
    }

    /// Returns whether peers are reached by IPv6 over the link at index `link_index` of `over`.
    /// Peers that multicast finds always are.
    pub fn needs_ipv6(&self, link_index: usize) -> bool {
        let is_ipv6 = |ips: &Vec<IpAddr>| ips.get(link_index).is_some_and(IpAddr::is_ipv6);
        self.preset == Preset::Kumi && (self.peer.is_empty() || self.peer.iter().any(is_ipv6))
    }

    /// Returns the static peers in the core's form: for each peer, pairs of link number and
    /// address.
    pub fn static_peers(&self) -> Vec<Vec<(u8, SocketAddr)>> {
        let link_address = |(link, ip): (usize, &IpAddr)| {
            let address = kumi_sys::udp::to_ipv6_mapped(SocketAddr::new(*ip, self.port));
            (link as u8, SocketAddr::from(address))
        };
        self.peer
            .iter()
            .map(|ips| ips.iter().enumerate().map(link_address).collect())
            .collect()
    }
}

/// Returns whether `name` can name an interface. The kernel refuses spaces, `/`, `:` and the names
/// of folders, and expands `%d`.
fn is_device_name(name: &str) -> bool {
    let is_accepted = |c: char| c.is_ascii_graphic() && !"/:%".contains(c);
    (1..=NAME_BYTES_MAX).contains(&name.len())
        && name.chars().all(is_accepted)
        && !matches!(name, "." | "..")
}

fn address_mistake(text: &str) -> Option<String> {
    let hint = "expected an IP address and a prefix length, such as 10.77.0.1/24";
    interface::parse_address(text)
        .is_none()
        .then(|| format!("invalid address `{text}`: {hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(links: &[&str], address: &str) -> DeviceConfig {
        DeviceConfig {
            name: "kumi0".into(),
            over: links.iter().map(|link| (*link).to_owned()).collect(),
            address: vec![address.to_owned()],
            key: key_file(),
            seal: SealChoice::Encrypt,
            preset: Preset::Kumi,
            peer: Vec::new(),
            port: PORT,
            mtu: None,
            busy_poll: false,
            queues: Queues::Auto,
            without: Vec::new(),
            datapath: DatapathChoice::User,
        }
    }

    #[test]
    fn datapath__kernel_with_a_seal_or_routers__is_refused_with_the_remedy() {
        let kernel = |change: fn(&mut DeviceConfig)| {
            let mut config = config(&["eth1"], "10.0.0.1/24");
            config.datapath = DatapathChoice::Kernel;
            config.seal = SealChoice::Plain;
            change(&mut config);
            config.check().map_err(|error| error.0)
        };
        assert_eq!(kernel(|_| ()), Ok(()));
        let refused = |change| kernel(change).unwrap_err();
        assert!(refused(|config| config.seal = SealChoice::Encrypt).contains("add --plain"));
        assert!(refused(|config| config.queues = Queues::Exactly(2)).contains("queues to 1"));
        let peer = |config: &mut DeviceConfig| config.peer = vec![vec![[10, 0, 0, 2].into()]];
        assert!(refused(peer).contains("omit `peer`"));
    }

    #[test]
    fn config__several_mistakes__are_all_named() {
        assert!(config(&["eth1", "eth2"], "10.0.0.1/24").check().is_ok());
        let says = |config: DeviceConfig| config.check().unwrap_err().0;
        assert!(says(config(&["eth1", "eth1"], "10.0.0.1/24")).contains("named twice"));
        assert!(says(config(&["eth1"], "10.0.0.1")).contains("prefix length"));
        assert!(says(config(&["eth1"], "10.0.0.1/33")).contains("10.0.0.1/33"));
        assert!(says(config(&[], "10.0.0.1/24")).contains("0 interfaces"));
        let mut portless = config(&["eth1"], "10.0.0.1/24");
        portless.port = 0;
        assert!(says(portless).contains("invalid port 0: expected 1 to 65535"));
        let mut small = config(&["eth1", "eth1"], "10.0.0.1");
        small.mtu = Some(100);
        let error = says(small);
        for mistake in [
            "named twice",
            "invalid mtu 100: expected 1280",
            "prefix length",
        ] {
            assert!(error.contains(mistake), "every mistake is named: {error}");
        }
        let mut last_port = config(&["eth1"], "10.0.0.1/24");
        (last_port.port, last_port.queues) = (65_535, Queues::Exactly(2));
        assert!(says(last_port).contains("the last port is 65535"));
    }

    #[test]
    fn config__invalid_values__are_named_with_what_is_accepted() {
        type Change = fn(&mut DeviceConfig);
        const NAMES: &str = "expected 1 to 15 ASCII characters without spaces, `/`, `:` or `%`, \
                             and not `.` or `..`";
        let name_changes: [(Change, &str); 9] = [
            (|config| config.name = String::new(), ""),
            (
                |config| config.name = "kumi-16-letters0".into(),
                "kumi-16-letters0",
            ),
            (|config| config.name = "kumi 0".into(), "kumi 0"),
            (|config| config.name = "kumi/0".into(), "kumi/0"),
            (|config| config.name = "kumi:0".into(), "kumi:0"),
            (|config| config.name = "kumi%d".into(), "kumi%d"),
            (|config| config.name = "組紐".into(), "組紐"),
            (|config| config.name = ".".into(), "."),
            (|config| config.name = "..".into(), ".."),
        ];
        let changes: [(Change, &str); 11] = [
            (
                |config| config.over.clear(),
                "over: 0 interfaces given: expected 1 to 16",
            ),
            (
                |config| config.over = (0..17).map(|number| format!("eth{number}")).collect(),
                "over: 17 interfaces given: expected 1 to 16",
            ),
            (
                |config| config.over = vec!["eth1".into(), "eth1".into()],
                "over: `eth1` is named twice",
            ),
            (
                |config| config.over.push("kumi0".into()),
                "over: `kumi0` cannot be under itself",
            ),
            (
                |config| config.port = 0,
                "invalid port 0: expected 1 to 65535",
            ),
            (
                |config| (config.port, config.queues) = (65_534, Queues::Exactly(4)),
                "port 65534: 4 queues need 4 ports from this one on; the last port is 65535",
            ),
            (
                |config| config.mtu = Some(1279),
                "invalid mtu 1279: expected 1280 (the least of IPv6) to 65521; omit it to get the \
                 largest that fits one datagram",
            ),
            (
                |config| config.mtu = Some(65_522),
                "invalid mtu 65522: expected 1280 (the least of IPv6) to 65521; omit it to get the \
                 largest that fits one datagram",
            ),
            (
                |config| config.address = vec!["10.0.0.1/33".into()],
                "invalid address `10.0.0.1/33`: expected an IP address and a prefix length, such \
                 as 10.77.0.1/24",
            ),
            (
                |config| config.peer = vec![Vec::new()],
                "peer: 0 addresses for 1 links: expected one per link, in the order of `over`",
            ),
            (
                |config| config.peer = vec![vec![IpAddr::from([10, 1, 0, 2]); 2]],
                "peer: 2 addresses for 1 links: expected one per link, in the order of `over`",
            ),
        ];
        let messages = name_changes.map(|(change, name)| {
            let message = format!("invalid device name `{name}`: {NAMES}");
            (change, message)
        });
        let others = changes.map(|(change, message)| (change, message.to_owned()));
        for (change, message) in messages.into_iter().chain(others) {
            let mut config = config(&["eth1"], "10.0.0.1/24");
            change(&mut config);
            assert_eq!(config.mistakes(), [message]);
        }
    }

    #[test]
    fn config__settings_that_ri2n_lacks__are_all_refused() {
        let mut config = config(&["eth1", "eth2"], "10.0.0.1/24");
        config.preset = Preset::Ri2n;
        assert!(config.mistakes().is_empty());
        config.seal = SealChoice::Authenticate;
        config.queues = Queues::Exactly(2);
        config.peer = vec![[2, 3].map(|host| IpAddr::from([10, 1, 0, host])).to_vec()];
        let expected = [
            "seal `authenticate`: preset ri2n authenticates nothing; omit it \
             (--authenticate-only), or use preset kumi",
            "peer 10.1.0.2,10.1.0.3: preset ri2n uses Ethernet frames, which do not cross routers; \
             omit `peer` (--peer), or use preset kumi",
            "queues 2: preset ri2n has only one queue; set 1 or auto",
        ];
        assert_eq!(config.mistakes(), expected);
    }

    #[test]
    fn config__queues__are_a_number_or_auto() {
        assert_eq!("auto".parse(), Ok(Queues::Auto));
        assert_eq!("8".parse(), Ok(Queues::Exactly(8)));
        for text in ["0", "9", "-1", "many"] {
            let message =
                format!("invalid queues `{text}`: expected a number from 1 to 8, or auto");
            assert_eq!(text.parse::<Queues>(), Err(message));
        }
        for (value, queues) in [("4", Queues::Exactly(4)), ("\"auto\"", Queues::Auto)] {
            let text = format!("name = \"kumi0\"\nover = [\"eth1\"]\nqueues = {value}\n");
            assert_eq!(
                toml::from_str::<DeviceConfig>(&text).unwrap().queues,
                queues
            );
        }
    }
}
