//! What is compared: ways to use the links between two hosts.
//!
//! Each run of a variant sets it up on the hosts, and undoes what it did however the run ends, so
//! that the next variant of the interleaved run finds the hosts as they were.

mod coll;
mod congestion;
pub mod kumi;
mod mptcp;
mod queue_depth;
mod round_robin;
mod tcp;

use super::hosts::Hosts;
use super::workload::mpi;
use crate::interrupt;
use queue_depth::QueueDepth;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What every TCP socket of every plan uses: the default of the kernels that the device will meet.
pub const CONGESTION_CONTROL: &str = "cubic";

/// A way to use the links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Variant {
    /// One bare link.
    Single,
    /// Every packet on the next link, nothing re-ordered: what bonding's balance-rr does.
    Rr,
    /// The same with what is known to help: `tcp_min_rtt_wlen=0`, RPS to one CPU, balance by bytes.
    RrTuned,
    /// MPTCP with a subflow on each link, by `mptcpize`; queue depths swept, the best taken.
    Mptcp,
    /// The paper's protocol with its parameters.
    Ri2n,
    /// The multilink device as a user gets it: authenticated and encrypted.
    Kumi,
    /// The device without AEAD.
    KumiPlain,
    /// The device over the first link only: what striping is to be compared with.
    KumiOneLink,
    /// The device, polling instead of sleeping.
    KumiBusyPoll,
    /// One link, the kernel's default.
    Cubic,
    /// The same without slow start after idle time (`tcp_slow_start_after_idle=0`).
    CubicIdle0,
    /// The same with a floor of 5 ms under the retransmission timeout.
    CubicRto5,
    /// One link, BBR.
    Bbr,
    /// One link, `kumi tcp` with every mechanism.
    KumiTcp,
    /// Of these the short timeout only: column RTO of the paper's table 2.
    KumiTcpRto,
    /// Of these the paced start only: column PCE.
    KumiTcpPce,
    /// All but what is kept per phase: column RTO+PCE.
    KumiTcpNoPhases,
    /// All but the forgiveness of local stalls.
    KumiTcpNoStall,
    /// All but the acknowledgements' band.
    KumiTcpNoBand,
    /// `kumi tcp` with every mechanism over the multilink device.
    KumiLinkTcp,
    /// MPI collectives by a plan on the network that is there; the kernel's TCP.
    KumiColl,
}

impl Variant {
    /// Every variant, in the order of tables.
    pub const ALL: [Self; 21] = [
        Self::Single,
        Self::Rr,
        Self::RrTuned,
        Self::Mptcp,
        Self::Ri2n,
        Self::Kumi,
        Self::KumiPlain,
        Self::KumiOneLink,
        Self::KumiBusyPoll,
        Self::Cubic,
        Self::CubicIdle0,
        Self::CubicRto5,
        Self::Bbr,
        Self::KumiTcp,
        Self::KumiTcpRto,
        Self::KumiTcpPce,
        Self::KumiTcpNoPhases,
        Self::KumiTcpNoStall,
        Self::KumiTcpNoBand,
        Self::KumiLinkTcp,
        Self::KumiColl,
    ];

    /// The name in plans and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Rr => "rr",
            Self::RrTuned => "rr-tuned",
            Self::Mptcp => "mptcp",
            Self::Ri2n => "ri2n",
            Self::Kumi => "kumi",
            Self::KumiPlain => "kumi-plain",
            Self::KumiOneLink => "kumi-one-link",
            Self::KumiBusyPoll => "kumi-busy-poll",
            Self::Cubic => "cubic",
            Self::CubicIdle0 => "cubic-idle0",
            Self::CubicRto5 => "cubic-rto5",
            Self::Bbr => "bbr",
            Self::KumiTcp => "kumi-tcp",
            Self::KumiTcpRto => "kumi-tcp-rto",
            Self::KumiTcpPce => "kumi-tcp-pce",
            Self::KumiTcpNoPhases => "kumi-tcp-no-phases",
            Self::KumiTcpNoStall => "kumi-tcp-no-stall",
            Self::KumiTcpNoBand => "kumi-tcp-no-band",
            Self::KumiLinkTcp => "kumi-link-tcp",
            Self::KumiColl => "kumi-coll",
        }
    }

    /// Whether it is a device of `kumi link`, which tells of its paths.
    pub fn is_device(self) -> bool {
        let is_links = matches!(
            self,
            Self::Single | Self::Rr | Self::RrTuned | Self::Mptcp | Self::KumiColl
        );
        !is_links && (self == Self::KumiLinkTcp || !tcp::is_one(self))
    }

    /// Depths of the NICs' transmit queues to try, in bytes; the best counts. None: as they are.
    pub fn queue_depths_bytes(self, quick: bool) -> &'static [u64] {
        match (self, quick) {
            (Self::Mptcp, false) => &[150_000, 500_000, 1_500_000],
            (Self::Mptcp, true) => &[1_500_000],
            _ => &[],
        }
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.name())
    }
}

impl FromStr for Variant {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = || Self::ALL.map(Self::name).join(", ");
        Self::ALL
            .into_iter()
            .find(|variant| variant.name() == text)
            .ok_or_else(|| format!("no variant `{text}`; there are: {}", known()))
    }
}

/// A variant that is set up on the hosts; dropping it undoes the set-up.
pub struct Running<'a> {
    /// The hosts it is set up on.
    pub hosts: &'a dyn Hosts,
    /// Which variant it is.
    pub variant: Variant,
    /// Address under which the second host is reached through it.
    pub server_address: String,
    /// The device its traffic enters on the hosts.
    pub device: String,
    /// What programs are wrapped in (`mptcpize run`).
    pub prefix: Vec<String>,
    /// Payload share of the wire that the device reports for its own framing, if it does.
    pub framing: Option<f64>,
    undo: Vec<(String, Vec<String>)>,
    files: Vec<(String, String)>,
    leaves_programs: bool,
    wraps_ranks: bool,
    /// What its TCP connections use.
    pub congestion_control: &'static str,
}

impl<'a> Running<'a> {
    /// Sets `variant` up.
    pub fn start(hosts: &'a dyn Hosts, variant: Variant) -> anyhow::Result<Self> {
        anyhow::ensure!(hosts.names().len() >= 2, "a plan needs two hosts");
        let server = hosts.names()[1].clone();
        let first = hosts.devices(&server).first().cloned().unwrap_or_default();
        let mut running = Self {
            hosts,
            variant,
            server_address: hosts.address(&server, &first)?,
            device: first,
            prefix: Vec::new(),
            framing: None,
            undo: Vec::new(),
            files: Vec::new(),
            leaves_programs: false,
            wraps_ranks: false,
            congestion_control: CONGESTION_CONTROL,
        };
        // Otherwise a run inherits ssthresh and RTT from the variant that ran before it.
        running.set_sysctl("net.ipv4.tcp_no_metrics_save", "1")?;
        match variant {
            Variant::Single => {}
            Variant::KumiColl => coll::start(&mut running)?,
            Variant::Rr => round_robin::start(&mut running, false)?,
            Variant::RrTuned => round_robin::start(&mut running, true)?,
            Variant::Mptcp => mptcp::start(&mut running)?,
            variant if tcp::is_one(variant) => {
                if variant.is_device() {
                    kumi::start(&mut running)?;
                }
                tcp::start(&mut running)?;
                return Ok(running);
            }
            _ => kumi::start(&mut running)?,
        }
        congestion::pin(&mut running, CONGESTION_CONTROL)?;
        Ok(running)
    }

    /// The host that sends.
    pub fn client(&self) -> &str {
        &self.hosts.names()[0]
    }

    /// The host that receives.
    pub fn server(&self) -> &str {
        &self.hosts.names()[1]
    }

    /// `argv` as this variant runs it.
    pub fn wrapped<'b>(&'b self, argv: &[&'b str]) -> Vec<&'b str> {
        self.prefix
            .iter()
            .map(String::as_str)
            .chain(argv.iter().copied())
            .collect()
    }

    /// Whether the prefix belongs before each rank of a parallel program, not before its launcher.
    pub fn wraps_ranks(&self) -> bool {
        self.wraps_ranks
    }

    /// Resident memory of the receiving host's daemon, where the variant has one.
    pub fn device_memory_bytes(&self) -> Option<f64> {
        kumi::memory_bytes(self)
    }

    /// Runs `argv` on `host`; when the variant ends, `undo` is run there.
    fn act(&mut self, host: &str, argv: &[&str], undo: &[&str]) -> anyhow::Result<()> {
        let _shield = interrupt::shield();
        self.hosts.run(host, argv)?;
        self.undo.push((
            host.into(),
            undo.iter().map(|word| (*word).into()).collect(),
        ));
        Ok(())
    }

    /// Sets a sysctl on every host until the variant ends.
    fn set_sysctl(&mut self, key: &str, value: &str) -> anyhow::Result<()> {
        for host in self.hosts.names().to_vec() {
            let before = self.hosts.run(&host, &["sysctl", "-n", key])?;
            let set = |value: &str| format!("{key}={}", value.trim());
            if before.trim() != value {
                self.act(
                    &host,
                    &["sysctl", "-qw", &set(value)],
                    &["sysctl", "-qw", &set(&before)],
                )?;
            }
        }
        Ok(())
    }

    /// Puts a file on `host` until the variant ends.
    fn put(&mut self, host: &str, name: &str, content: &[u8]) -> anyhow::Result<String> {
        let _shield = interrupt::shield();
        let path = self.hosts.put(host, name, content)?;
        self.files.push((host.into(), path.clone()));
        Ok(path)
    }

    /// Sets the depth of the NICs' transmit queues until the variant ends, where a token bucket
    /// shapes them; false where none does (a real NIC has the depth it has).
    pub fn set_queue_depth(&mut self, depth_bytes: u64) -> anyhow::Result<bool> {
        let mut found = false;
        for host in self.hosts.names().to_vec() {
            for device in self.hosts.devices(&host) {
                let text = self
                    .hosts
                    .run(&host, &["tc", "qdisc", "show", "dev", &device])?;
                let Some(queue) = QueueDepth::find(&text) else {
                    continue;
                };
                found = true;
                let (set, restore) = (queue.set(&device, depth_bytes), queue.restore(&device));
                self.act(&host, &refs(&set), &refs(&restore))?;
            }
        }
        Ok(found)
    }
}

fn refs(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let _shield = interrupt::shield();
        for (host, argv) in self.undo.iter().rev() {
            if let Err(error) = self.hosts.run(host, &refs(argv)) {
                errln!("kumi: undoing {}: {error:#}", self.variant);
            }
        }
        if self.leaves_programs {
            tcp::end(self);
        }
        mpi::clean(self);
        for (host, path) in &self.files {
            self.hosts.remove(host, path);
        }
        interrupt::undone(|| {
            let (acts, files) = (self.undo.len(), self.files.len());
            format!(
                "{} on {}: {acts} settings, {files} temporary files",
                self.variant,
                self.hosts.names().join(", ")
            )
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device__of_a_variant__is_there_for_the_braided_ones_only() {
        assert!(Variant::KumiLinkTcp.is_device() && Variant::Kumi.is_device());
        assert!(!Variant::KumiTcp.is_device() && !Variant::Cubic.is_device());
    }

    #[test]
    fn variant__name__is_the_same_in_plans_and_tables() {
        for variant in Variant::ALL {
            assert_eq!(variant.name().parse(), Ok(variant));
            let in_plans = serde_json::to_value(variant).expect("is a name");
            assert_eq!(in_plans, variant.name());
        }
        assert!("bonding".parse::<Variant>().is_err());
    }
}
