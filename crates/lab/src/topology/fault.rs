//! Faults of a link, and changes to a running link.

use super::{Delay, Probability, Rate};
use serde::{Deserialize, Serialize};

/// Gilbert–Elliott burst loss: the link is good or bad, and may change its state with each frame.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BurstLoss {
    /// Probability, per frame, that a good link turns bad.
    pub enter: Probability,
    /// Probability, per frame, that a bad link turns good. Its inverse is the mean burst length in
    /// frames.
    pub leave: Probability,
    /// Probability that a frame is lost while the link is bad.
    pub loss: Probability,
}

/// Faults of one direction of a link. The default has no faults.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Faults {
    /// Probability of the independent loss of a frame.
    pub loss: Probability,
    /// Loss in bursts, in addition to `loss`.
    pub burst_loss: Option<BurstLoss>,
    /// Probability that one bit of a frame is flipped after the check of its FCS. The receiver gets
    /// the damaged frame.
    pub corrupt: Probability,
    /// Probability that a frame arrives twice.
    pub duplicate: Probability,
    /// Probability that a frame is held back by `reorder_delay`, so that later frames overtake it.
    pub reorder: Probability,
    /// Time for which a re-ordered frame is held back.
    pub reorder_delay: Delay,
    /// Upper bound of an extra delay, uniform from 0, that does not change the order of frames.
    pub jitter: Delay,
}

impl Faults {
    /// Returns whether the link has no faults.
    pub fn is_none(&self) -> bool {
        *self
            == Self {
                reorder_delay: self.reorder_delay,
                ..Self::default()
            }
    }

    /// Returns whether a BPF program in the kernel fabric can apply the faults. Such a program
    /// cannot delay a frame.
    pub fn needs_no_delay(&self) -> bool {
        self.reorder == Probability::ZERO && self.jitter == Delay::ZERO
    }
}

/// Direction of a link, as seen from the named end (`h1:eth1`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// From the named end into the network.
    Tx,
    /// From the network to the named end.
    Rx,
    /// Both directions.
    #[default]
    Both,
}

impl Direction {
    /// Returns whether the direction includes transmission from the named end.
    pub fn has_tx(self) -> bool {
        self != Self::Rx
    }

    /// Returns whether the direction includes reception at the named end.
    pub fn has_rx(self) -> bool {
        self != Self::Tx
    }
}

/// A change to a running link. A field that is `None` changes nothing.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LinkChange {
    /// Direction to which `delay`, `faults` and `blackhole` apply. `rate` and `carrier` apply to
    /// the whole link.
    pub direction: Direction,
    /// New rate of the wire, at the NIC and at the switch port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// New propagation delay of each direction that `direction` includes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay: Option<Delay>,
    /// New faults, which replace all present ones. The default clears them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub faults: Option<Faults>,
    /// True drops every frame in `direction` silently and leaves the carrier up. False ends this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blackhole: Option<bool>,
    /// New carrier state: `Some(false)` pulls the cable, `Some(true)` plugs it in again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub carrier: Option<bool>,
}

impl LinkChange {
    /// Returns a change that pulls the cable (`false`) or plugs it in again (`true`).
    pub fn carrier(up: bool) -> Self {
        Self {
            carrier: Some(up),
            ..Self::default()
        }
    }

    /// Returns a change that drops every frame in `direction` silently.
    pub fn blackhole(direction: Direction) -> Self {
        Self {
            direction,
            blackhole: Some(true),
            ..Self::default()
        }
    }

    /// Returns a change that ends blackholes and faults in both directions and restores the
    /// carrier.
    pub fn heal() -> Self {
        Self {
            blackhole: Some(false),
            faults: Some(Faults::default()),
            carrier: Some(true),
            ..Self::default()
        }
    }

    /// Returns a change that loses frames independently with probability `loss`, in both
    /// directions.
    pub fn loss(loss: Probability) -> Self {
        Self {
            faults: Some(Faults {
                loss,
                ..Faults::default()
            }),
            ..Self::default()
        }
    }

    /// Returns a change to the rate `rate`.
    pub fn rate(rate: Rate) -> Self {
        Self {
            rate: Some(rate),
            ..Self::default()
        }
    }

    /// Returns a change to the propagation delay `delay`, in both directions.
    pub fn delay(delay: Delay) -> Self {
        Self {
            delay: Some(delay),
            ..Self::default()
        }
    }
}
