//! Why a transfer took longer than its path.

/// One cause. Where several hold at once, the first in this order is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// A retransmission timeout had to pass.
    Timeout,
    /// A tail loss probe had to be sent.
    TailLossProbe,
    /// This host's own queue refused a packet, and the window was cut for it.
    SendStall,
    /// The far end held its acknowledgement back.
    DelayedAck,
    /// After idle time the window began small again.
    IdleCollapse,
    /// The far end's window was full: its program reads too slowly, or its buffer is small.
    ReceiverWindow,
    /// The send buffer was full of what is under way.
    SenderBuffer,
    /// The connection was new.
    SlowStart,
    /// A loss in the network was repaired, or the window was small after one.
    Congestion,
    /// The program gave too little to send.
    Application,
    /// Nothing came, and nothing tells why: the path itself.
    Path,
}

impl Cause {
    /// Every cause.
    pub const ALL: [Self; 11] = [
        Self::Timeout,
        Self::TailLossProbe,
        Self::SendStall,
        Self::DelayedAck,
        Self::IdleCollapse,
        Self::ReceiverWindow,
        Self::SenderBuffer,
        Self::SlowStart,
        Self::Congestion,
        Self::Application,
        Self::Path,
    ];

    /// The name in reports.
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
            Self::Congestion => "congestion",
            Self::Application => "application",
            Self::Path => "path",
        }
    }

    /// The same for programs.
    pub fn key(self) -> String {
        self.name().replace('\'', "").replace(' ', "_")
    }

    /// What mends it.
    pub fn mend(self) -> &'static str {
        match self {
            Self::Timeout => {
                "kumi tcp (a floor of two ticks), or sysctl net.ipv4.tcp_rto_min_us=5000; deeper switch ports"
            }
            Self::TailLossProbe => {
                "kumi tcp: fewer losses at the end of a message; deeper switch ports"
            }
            Self::SendStall => {
                "kumi tcp (stalls forgiven), or a longer queue: ip link set DEV txqueuelen 1000"
            }
            Self::DelayedAck => {
                "kumi tcp at the receiver, or TCP_NODELAY and fewer small writes in a row"
            }
            Self::IdleCollapse => {
                "kumi tcp (paced restart), or sysctl net.ipv4.tcp_slow_start_after_idle=0, which bursts"
            }
            Self::ReceiverWindow => {
                "a faster reader, or sysctl net.ipv4.tcp_rmem with a larger maximum"
            }
            Self::SenderBuffer => {
                "sysctl net.ipv4.tcp_wmem with a larger maximum; no SO_SNDBUF in the program"
            }
            Self::SlowStart => {
                "connections that are kept, or kumi tcp (a known host starts at half its rate)"
            }
            Self::Congestion => {
                "less at once into one port; kumi tcp within a cluster keeps queues short"
            }
            Self::Application => {
                "nothing in TCP: the program was computing, or waiting for another"
            }
            Self::Path => "look at the links: kumi link show, ethtool -S, the switch's counters",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
