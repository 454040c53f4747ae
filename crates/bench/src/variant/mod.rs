//! Variants: the ways to use the links between two hosts that a plan compares.
//!
//! Each run of a variant sets it up on the hosts, and undoes the set-up however the run ends. The
//! next variant of the interleaved run then finds the hosts as they were.

mod coll;
mod congestion;
pub mod kumi;
mod mptcp;
mod queue_depth;
mod round_robin;
mod tcp;
mod wind;

use super::hosts::Hosts;
use kumi_command::errln;
use kumi_command::interrupt;
use queue_depth::QueueDepth;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Congestion control of every TCP socket whose variant selects no other. It is the default of the
/// kernels that the device will meet.
pub const CONGESTION_CONTROL: &str = "cubic";

/// A way to use the links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Variant {
    /// One bare link.
    Single,
    /// Each packet on the next link, without a reorder buffer, as in bonding's balance-rr.
    Rr,
    /// `Rr` with the settings that help it: `tcp_min_rtt_wlen=0`, RPS to one CPU, balance by bytes.
    RrTuned,
    /// MPTCP with a subflow on each link, by `mptcpize`. Several queue depths are tried, and the
    /// best counts (ADR 006).
    Mptcp,
    /// The protocol of the RI2N/DRV paper, with its parameters.
    Ri2n,
    /// The multilink device as a user gets it: authenticated and encrypted.
    Kumi,
    /// The device without AEAD.
    KumiPlain,
    /// The multilink device whose frames the kernel carries: `--plain --datapath kernel`.
    KumiKernel,
    /// The device over the first link only, as the baseline for striping.
    KumiOneLink,
    /// The device, polling instead of sleeping.
    KumiBusyPoll,
    /// One link with CUBIC, the kernel's default.
    Cubic,
    /// `Cubic` without slow start after idle time (`tcp_slow_start_after_idle=0`).
    CubicIdle0,
    /// `Cubic` with a floor of 5 ms under the retransmission timeout.
    CubicRto5,
    /// One link with BBR.
    Bbr,
    /// One link with `kumi tcp` and every mechanism.
    KumiTcp,
    /// `KumiTcp` with the short retransmission timeout only: column RTO of Matsuda et al., table 2.
    KumiTcpRto,
    /// `KumiTcp` with the paced start and restart only: column PCE of that table.
    KumiTcpPce,
    /// `KumiTcp` without phase memory: column RTO+PCE of that table.
    KumiTcpNoPhases,
    /// `KumiTcp` without the forgiveness of local send stalls.
    KumiTcpNoStall,
    /// `KumiTcp` without the queue band for acknowledgements.
    KumiTcpNoBand,
    /// `kumi tcp` with every mechanism, over the multilink device.
    KumiLinkTcp,
    /// MPI collectives by a plan for the actual network, over the kernel's TCP.
    KumiColl,
    /// As [`Self::KumiColl`], with `kumi tcp` and every mechanism.
    KumiCollTcp,
    /// As [`Self::KumiCollTcp`], and `auto` decides which collectives are planned.
    KumiAuto,
    /// Collectives of a group by a plan, over Wind.
    KumiCollWind,
    /// As [`Self::KumiCollWind`], and the kernel of each host executes puts.
    KumiCollWindKernel,
    /// Wind as a program gets it: encrypted, operations executed by the target's program.
    Wind,
    /// `Wind`, polling instead of sleeping.
    WindSpin,
    /// `WindSpin` without a seal.
    WindPlain,
    /// Wind, authenticated and not encrypted, operations executed by the target's program.
    WindTrusted,
    /// `WindTrusted` with operations executed by the target's kernel.
    WindKernel,
    /// A UDP socket, without repair.
    Udp,
    /// A UDP socket that is polled.
    UdpSpin,
    /// A TCP socket that is polled, with CUBIC.
    TcpSpin,
    /// One-sided operations of Open MPI over TCP.
    MpiOneSided,
    /// The same with a lock of all targets and flushes, where another one has fences.
    MpiFlush,
    /// Open MPI's OpenSHMEM over TCP.
    Oshmem,
    /// UCX over TCP, both sides polling.
    Ucx,
    /// Shared memory over Wind, encrypted.
    Dsm,
    /// Shared memory that is updated on all nodes at barriers, over Wind, encrypted.
    DsmUpdated,
    /// The same, whose updates are messages that the receiver takes in.
    DsmMessages,
    /// OpenSHMEM over Wind, encrypted.
    Shmem,
    /// OpenSHMEM over Wind, authenticated, with operations that kernels execute.
    ShmemKernel,
    /// libfabric's own program with the provider `kumi`, encrypted.
    FabricKumi,
    /// libfabric's own program with its provider for TCP.
    FabricTcp,
    /// Open MPI over libfabric with the provider `kumi`, encrypted.
    MpiFabricKumi,
    /// Open MPI over libfabric with its provider for TCP.
    MpiFabricTcp,
}

impl Variant {
    /// Every variant, in the order of tables.
    pub const ALL: [Self; 47] = [
        Self::Single,
        Self::Rr,
        Self::RrTuned,
        Self::Mptcp,
        Self::Ri2n,
        Self::Kumi,
        Self::KumiPlain,
        Self::KumiKernel,
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
        Self::KumiCollTcp,
        Self::KumiAuto,
        Self::KumiCollWind,
        Self::KumiCollWindKernel,
        Self::Wind,
        Self::WindSpin,
        Self::WindPlain,
        Self::WindTrusted,
        Self::WindKernel,
        Self::Udp,
        Self::UdpSpin,
        Self::TcpSpin,
        Self::MpiOneSided,
        Self::MpiFlush,
        Self::Oshmem,
        Self::Ucx,
        Self::Dsm,
        Self::DsmUpdated,
        Self::DsmMessages,
        Self::Shmem,
        Self::ShmemKernel,
        Self::FabricKumi,
        Self::FabricTcp,
        Self::MpiFabricKumi,
        Self::MpiFabricTcp,
    ];

    /// Returns the name in plans and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Rr => "rr",
            Self::RrTuned => "rr-tuned",
            Self::Mptcp => "mptcp",
            Self::Ri2n => "ri2n",
            Self::Kumi => "kumi",
            Self::KumiPlain => "kumi-plain",
            Self::KumiKernel => "kumi-kernel",
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
            Self::KumiCollTcp => "kumi-coll-tcp",
            Self::KumiAuto => "kumi-auto",
            Self::KumiCollWind => "kumi-coll-wind",
            Self::KumiCollWindKernel => "kumi-coll-wind-kernel",
            Self::Wind => "wind",
            Self::WindSpin => "wind-spin",
            Self::WindPlain => "wind-plain",
            Self::WindTrusted => "wind-trusted",
            Self::WindKernel => "wind-kernel",
            Self::Udp => "udp",
            Self::UdpSpin => "udp-spin",
            Self::TcpSpin => "tcp-spin",
            Self::MpiOneSided => "mpi-one-sided",
            Self::MpiFlush => "mpi-flush",
            Self::Oshmem => "oshmem",
            Self::Ucx => "ucx",
            Self::Dsm => "dsm",
            Self::DsmUpdated => "dsm-updated",
            Self::DsmMessages => "dsm-messages",
            Self::Shmem => "shmem",
            Self::ShmemKernel => "shmem-kernel",
            Self::FabricKumi => "fabric-kumi",
            Self::FabricTcp => "fabric-tcp",
            Self::MpiFabricKumi => "mpi-fabric-kumi",
            Self::MpiFabricTcp => "mpi-fabric-tcp",
        }
    }

    /// Returns whether the variant is a device of `kumi link`, which reports the state of its
    /// paths.
    pub fn is_device(self) -> bool {
        let is_multilink = matches!(
            self,
            Self::Ri2n
                | Self::Kumi
                | Self::KumiPlain
                | Self::KumiKernel
                | Self::KumiOneLink
                | Self::KumiBusyPoll
                | Self::KumiLinkTcp
        );
        is_multilink
    }

    /// Returns whether the variant needs libkumi.so or a library beside it.
    pub fn needs_planning_library(self) -> bool {
        matches!(
            self,
            Self::KumiColl
                | Self::KumiCollTcp
                | Self::KumiAuto
                | Self::KumiCollWind
                | Self::KumiCollWindKernel
                | Self::FabricKumi
                | Self::MpiFabricKumi
        )
    }

    /// Returns the depths of the NICs' transmit queues to try, in bytes. The best result counts. If
    /// the list is empty, the queues stay as they are.
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
            .ok_or_else(|| format!("no variant `{text}`; known variants: {}", known()))
    }
}

/// A variant that is set up on the hosts. Dropping it undoes the set-up.
pub struct Running<'a> {
    /// Hosts on which the variant is set up.
    pub hosts: &'a dyn Hosts,
    /// Variant that is set up.
    pub variant: Variant,
    /// Address by which the variant reaches the second host.
    pub server_address: String,
    /// Device by which the variant's traffic leaves and enters the hosts.
    pub device: String,
    /// Command that programs are run under, such as `mptcpize run`. Empty if the variant needs
    /// none.
    pub prefix: Vec<String>,
    /// Payload share of the wire in the device's own framing, if the device reports one.
    pub framing: Option<f64>,
    undo: Vec<(String, Vec<String>)>,
    files: Vec<(String, String)>,
    leaves_programs: bool,
    wraps_ranks: bool,
    /// Congestion control of the variant's TCP connections.
    pub congestion_control: &'static str,
    /// File with the secret of Wind, the same on every host.
    pub secret: Option<String>,
    /// Folder of the libfabric provider; `None` for where libfabric finds it itself.
    pub provider: Option<String>,
}

impl<'a> Running<'a> {
    /// Sets up `variant`.
    pub fn start(hosts: &'a dyn Hosts, variant: Variant) -> anyhow::Result<Self> {
        anyhow::ensure!(
            hosts.names().len() >= 2,
            "{} hosts ({}): expected two or more, in the topology or in --hosts",
            hosts.names().len(),
            hosts.names().join(", ")
        );
        let server = hosts.names()[1].clone();
        let device = hosts.devices(&server).first().cloned().unwrap_or_default();
        let mut running = Self {
            hosts,
            variant,
            server_address: hosts.address(&server, &device)?,
            device,
            prefix: Vec::new(),
            framing: None,
            undo: Vec::new(),
            files: Vec::new(),
            leaves_programs: false,
            wraps_ranks: false,
            congestion_control: CONGESTION_CONTROL,
            secret: None,
            provider: None,
        };
        // Otherwise, a run would inherit ssthresh and RTT from the variant that ran before it.
        running.set_sysctl("net.ipv4.tcp_no_metrics_save", "1")?;
        match variant {
            Variant::Single => {}
            Variant::KumiColl => coll::start(&mut running, "tcp", "all")?,
            Variant::KumiCollWind => coll::start(&mut running, "wind", "all")?,
            Variant::KumiCollTcp | Variant::KumiAuto => {
                tcp::start(&mut running)?;
                let is_automatic = variant == Variant::KumiAuto;
                coll::start(
                    &mut running,
                    "tcp",
                    if is_automatic { "auto" } else { "all" },
                )?;
                return Ok(running);
            }
            Variant::ShmemKernel => {
                let hosts = running.hosts.names().to_vec();
                wind::execute_in_kernel(&mut running, &hosts)?;
            }
            Variant::KumiCollWindKernel => {
                coll::start(&mut running, "wind", "all")?;
                let hosts = running.hosts.names().to_vec();
                wind::execute_in_kernel(&mut running, &hosts)?;
            }
            Variant::Udp
            | Variant::UdpSpin
            | Variant::TcpSpin
            | Variant::MpiOneSided
            | Variant::MpiFlush
            | Variant::Oshmem
            | Variant::Ucx
            | Variant::Dsm
            | Variant::DsmUpdated
            | Variant::DsmMessages
            | Variant::Shmem
            | Variant::FabricTcp
            | Variant::MpiFabricTcp => {}
            Variant::FabricKumi | Variant::MpiFabricKumi => wind::start_fabric(&mut running)?,
            variant if wind::is_wind(variant) => wind::start(&mut running)?,
            Variant::Rr => round_robin::start(&mut running, false)?,
            Variant::RrTuned => round_robin::start(&mut running, true)?,
            Variant::Mptcp => mptcp::start(&mut running)?,
            variant if tcp::is_tcp(variant) => {
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

    /// Returns the host that sends.
    pub fn client(&self) -> &str {
        &self.hosts.names()[0]
    }

    /// Returns the host that receives.
    pub fn server(&self) -> &str {
        &self.hosts.names()[1]
    }

    /// Returns `argv` with the variant's prefix in front.
    pub fn wrapped<'b>(&'b self, argv: &[&'b str]) -> Vec<&'b str> {
        self.prefix
            .iter()
            .map(String::as_str)
            .chain(argv.iter().copied())
            .collect()
    }

    /// Returns whether the prefix belongs before each rank of a parallel program, rather than
    /// before its launcher.
    pub fn wraps_ranks(&self) -> bool {
        self.wraps_ranks
    }

    /// Returns the folder on each host for compiled programs. It is removed when the variant ends.
    pub fn programs_folder(&self) -> String {
        format!("/tmp/kumi-bench-mpi-{}", std::process::id())
    }

    /// Returns the resident memory of the receiving host's daemon, in bytes, if the variant has a
    /// daemon.
    pub fn device_memory_bytes(&self) -> Option<f64> {
        kumi::memory_bytes(self)
    }

    /// Runs `argv` on `host`, and `undo` on the same host when the variant ends.
    fn act(&mut self, host: &str, argv: &[&str], undo: &[&str]) -> anyhow::Result<()> {
        let _shield = interrupt::shield();
        self.hosts.run(host, argv)?;
        self.undo.push((
            host.into(),
            undo.iter().map(|argument| (*argument).into()).collect(),
        ));
        Ok(())
    }

    /// Sets a sysctl on every host until the variant ends.
    fn set_sysctl(&mut self, key: &str, value: &str) -> anyhow::Result<()> {
        for host in self.hosts.names().to_vec() {
            let previous = self.hosts.run(&host, &["sysctl", "-n", key])?;
            let assignment = |value: &str| format!("{key}={}", value.trim());
            if previous.trim() != value {
                self.act(
                    &host,
                    &["sysctl", "-qw", &assignment(value)],
                    &["sysctl", "-qw", &assignment(&previous)],
                )?;
            }
        }
        Ok(())
    }

    /// Puts a file on `host` until the variant ends, and returns its path.
    fn put(&mut self, host: &str, name: &str, content: &[u8]) -> anyhow::Result<String> {
        let _shield = interrupt::shield();
        let path = self.hosts.put(host, name, content)?;
        self.files.push((host.into(), path.clone()));
        Ok(path)
    }

    /// Sets the depth of the NICs' transmit queues until the variant ends, if a token bucket shapes
    /// them. Returns false if none does: the depth of a real NIC is not changed.
    pub fn set_queue_depth(&mut self, depth_bytes: u64) -> anyhow::Result<bool> {
        let mut has_bucket = false;
        for host in self.hosts.names().to_vec() {
            for device in self.hosts.devices(&host) {
                let text = self
                    .hosts
                    .run(&host, &["tc", "qdisc", "show", "dev", &device])?;
                let Some(queue) = QueueDepth::find(&text) else {
                    continue;
                };
                has_bucket = true;
                let (set, restore) = (queue.set(&device, depth_bytes), queue.restore(&device));
                self.act(&host, &refs(&set), &refs(&restore))?;
            }
        }
        Ok(has_bucket)
    }
}

fn refs(arguments: &[String]) -> Vec<&str> {
    arguments.iter().map(String::as_str).collect()
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let _shield = interrupt::shield();
        for (host, argv) in self.undo.iter().rev() {
            if let Err(error) = self.hosts.run(host, &refs(argv)) {
                errln!("kumi: cannot undo {}: {error:#}", self.variant);
            }
        }
        if self.leaves_programs {
            tcp::end(self);
        }
        let folder = self.programs_folder();
        for host in self.hosts.names() {
            let _ = self.hosts.run(host, &["rm", "-rf", &folder]);
        }
        for (host, path) in &self.files {
            self.hosts.remove(host, path);
        }
        interrupt::undone(|| {
            let (settings, files) = (self.undo.len(), self.files.len());
            format!(
                "{} on {}: {settings} settings, {files} temporary files",
                self.variant,
                self.hosts.names().join(", ")
            )
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::fake::{Fake, SOUND};

    #[test]
    fn variant_device__multilink_variants__have_one_and_others_do_not() {
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
        assert_eq!(
            "bonding".parse::<Variant>().unwrap_err(),
            "no variant `bonding`; known variants: single, rr, rr-tuned, mptcp, ri2n, kumi, \
             kumi-plain, kumi-kernel, kumi-one-link, kumi-busy-poll, cubic, cubic-idle0, \
             cubic-rto5, bbr, kumi-tcp, kumi-tcp-rto, kumi-tcp-pce, kumi-tcp-no-phases, \
             kumi-tcp-no-stall, kumi-tcp-no-band, kumi-link-tcp, kumi-coll, kumi-coll-tcp, \
             kumi-auto, kumi-coll-wind, kumi-coll-wind-kernel, wind, wind-spin, wind-plain, \
             wind-trusted, wind-kernel, udp, udp-spin, tcp-spin, mpi-one-sided, mpi-flush, \
             oshmem, ucx, dsm, dsm-updated, dsm-messages, shmem, shmem-kernel, fabric-kumi, \
             fabric-tcp, mpi-fabric-kumi, mpi-fabric-tcp"
        );
    }

    #[test]
    fn start__hosts_that_do_not_suit_the_variant__are_refused_with_the_reason() {
        let failing =
            |command: &str| format!("case \"$*\" in *{command}*) exit 2 ;; esac; {SOUND}");
        for (variant, hosts, script, message) in [
            (
                Variant::Single,
                1,
                SOUND.to_owned(),
                "1 hosts (h1): expected two or more, in the topology or in --hosts",
            ),
            (
                Variant::Single,
                2,
                "echo '[]'".to_owned(),
                "h2: eth1 has no IPv4 address; give it one",
            ),
            (
                Variant::Mptcp,
                2,
                failing("net.mptcp"),
                "the kernel has no MPTCP, which the variant `mptcp` needs",
            ),
            (
                Variant::KumiTcp,
                2,
                failing("tcp\\ up"),
                "cannot load the programs of `kumi-tcp`; if `kumi tcp` is in use, run \
                 `kumi tcp down` first",
            ),
        ] {
            let fake = Fake::new(hosts, &script);
            let error = Running::start(&fake, variant).err().unwrap();
            assert_eq!(error.to_string(), message);
        }
    }
}
