//! The causes for which a transfer takes longer than its path allows, and the advice for each.

/// A cause of lost time. If several apply at once, the first in this order is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// The sender waited for a retransmission timeout.
    Timeout,
    /// The sender waited for a tail loss probe.
    TailLossProbe,
    /// A queue of this host refused a packet, and TCP cut the window.
    SendStall,
    /// The receiver delayed its acknowledgement.
    DelayedAck,
    /// The window restarted small after idle time.
    IdleCollapse,
    /// The receiver's window was full: its program reads too slowly, or its buffer is small.
    ReceiverWindow,
    /// The send buffer was full of data in flight.
    SenderBuffer,
    /// The connection was in its first slow start.
    SlowStart,
    /// Slow start exceeded the path's capacity. The loss was under repair, or the window was still
    /// small after it.
    Overshoot,
    /// A loss in the network was under repair, or the window was still small after one.
    Congestion,
    /// The program supplied too little data.
    Application,
    /// No segment arrived, and no other cause explains it: the path itself.
    Path,
}

impl Cause {
    /// Every cause.
    pub const ALL: [Self; 12] = [
        Self::Timeout,
        Self::TailLossProbe,
        Self::SendStall,
        Self::DelayedAck,
        Self::IdleCollapse,
        Self::ReceiverWindow,
        Self::SenderBuffer,
        Self::SlowStart,
        Self::Overshoot,
        Self::Congestion,
        Self::Application,
        Self::Path,
    ];

    /// Returns the name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Timeout => "retransmission timeout",
            Self::TailLossProbe => "tail loss probe",
            Self::SendStall => "send stall",
            Self::DelayedAck => "delayed acknowledgement",
            Self::IdleCollapse => "idle collapse",
            Self::ReceiverWindow => "receiver window",
            Self::SenderBuffer => "sender's buffer",
            Self::SlowStart => "slow start",
            Self::Overshoot => "slow start overshoot",
            Self::Congestion => "congestion",
            Self::Application => "application",
            Self::Path => "path",
        }
    }

    /// Returns the name in JSON.
    pub fn key(self) -> String {
        self.name().replace('\'', "").replace(' ', "_")
    }

    /// Returns the advice for the cause at `place`, or says that nothing can be done.
    pub fn mend(self, place: Place) -> &'static str {
        match (self, place) {
            (Self::Timeout, Place::Cluster { .. }) => {
                "kumi tcp (an RTO floor of two ticks), or sysctl net.ipv4.tcp_rto_min_us=5000; deeper switch ports"
            }
            (Self::Timeout, Place::Wan { .. }) => {
                "kumi tcp (an RTO floor of two ticks), or sysctl net.ipv4.tcp_rto_min_us=5000; a deeper queue \
                 at the bottleneck"
            }
            (Self::TailLossProbe, Place::Cluster { .. }) => {
                "kumi tcp: fewer losses at the end of a message; deeper switch ports"
            }
            (Self::TailLossProbe, Place::Wan { .. }) => {
                "kumi tcp: fewer losses at the end of a message; a deeper queue at the bottleneck"
            }
            (Self::SendStall, _) => {
                "kumi tcp (stalls forgiven), or a longer queue: ip link set DEV txqueuelen 1000"
            }
            (Self::DelayedAck, _) => {
                "kumi tcp at the receiver, or TCP_NODELAY and fewer small writes in a row"
            }
            (Self::IdleCollapse, _) => {
                "kumi tcp (paced restart), or sysctl net.ipv4.tcp_slow_start_after_idle=0, which sends bursts"
            }
            (Self::ReceiverWindow, _) => {
                "a faster reader, or sysctl net.ipv4.tcp_rmem with a larger maximum"
            }
            (Self::SenderBuffer, _) => {
                "sysctl net.ipv4.tcp_wmem with a larger maximum; no SO_SNDBUF in the program"
            }
            (Self::SlowStart, _) => {
                "nothing to change for one transfer; for many, keep connections open, or kumi tcp (a known \
                 host starts at half its rate)"
            }
            (Self::Overshoot, _) => {
                "kumi tcp (slow start ends at the bottleneck rate that its first packets show), or a deeper \
                 queue at the bottleneck"
            }
            (Self::Congestion, Place::Cluster { is_shared: true }) => {
                "fewer transfers at once into one port; kumi tcp keeps queues short within a cluster"
            }
            (Self::Congestion, Place::Cluster { is_shared: false }) => {
                "nothing to change in this program: others send into the port, or a link loses packets \
                 (ethtool -S, the switch's counters)"
            }
            (Self::Congestion, Place::Wan { is_shared: true }) => {
                "fewer connections to one host at once, or kumi tcp: the connections compete for the path"
            }
            (Self::Congestion, Place::Wan { is_shared: false }) => {
                "nothing to change on this host: others use the path, or it loses packets (mtr)"
            }
            (Self::Application, _) => {
                "nothing to change in TCP: the program was computing, or waiting for another"
            }
            (Self::Path, Place::Cluster { .. }) => {
                "check the links: kumi link show, ethtool -S, the switch's counters"
            }
            (Self::Path, Place::Wan { .. }) => {
                "nothing to change on this host: no segment arrived for more than a round trip (mtr shows where)"
            }
        }
    }
}

/// Kind of path on which a cause delayed connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// A path with a round trip below `CLUSTER_RTT_NS`.
    Cluster {
        /// True if the program has other connections to the same host.
        is_shared: bool,
    },
    /// A longer path.
    Wan {
        /// True if the program has other connections to the same host.
        is_shared: bool,
    },
}

/// Round-trip time below which a path belongs to a cluster: `LOCAL_RTT_US` of `bpf/tcp/path.h`.
const CLUSTER_RTT_NS: u64 = 2_000_000;

impl Place {
    /// Returns the place of a connection with this round-trip time.
    pub fn new(rtt_min_ns: u64, is_shared: bool) -> Self {
        if rtt_min_ns < CLUSTER_RTT_NS {
            Self::Cluster { is_shared }
        } else {
            Self::Wan { is_shared }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice__for_a_wan__names_no_switch_port() {
        for cause in Cause::ALL {
            for is_shared in [false, true] {
                let text = cause.mend(Place::new(20_000_000, is_shared));
                assert!(!text.contains("port") && !text.contains("switch"), "{text}");
            }
        }
        let alone = Cause::Congestion.mend(Place::new(20_000_000, false));
        assert!(alone.starts_with("nothing to change"), "{alone}");
        let incast = Cause::Congestion.mend(Place::new(100_000, true));
        assert!(incast.contains("into one port"), "{incast}");
    }

    #[test]
    fn causes__names_and_keys__are_distinct() {
        let mut keys: Vec<String> = Cause::ALL.iter().map(|cause| cause.key()).collect();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), Cause::ALL.len());
        assert!(
            keys.iter()
                .all(|key| key.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
        );
    }
}
