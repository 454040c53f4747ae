//! What can be wrong with a link, and how a running link is changed.

use super::{Delay, Probability, Rate};
use serde::{Deserialize, Serialize};

/// Gilbert–Elliott burst loss: a link that is good or bad, changing state frame by frame.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BurstLoss {
    /// Probability, a frame, that a good link turns bad.
    pub enter: Probability,
    /// Probability, a frame, that a bad link turns good; its inverse is the mean burst length.
    pub leave: Probability,
    /// Probability that a frame is lost while the link is bad.
    pub loss: Probability,
}

/// The faults of one direction of a link; the default is a sound link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Faults {
    /// Independent loss of a frame.
    pub loss: Probability,
    /// Loss in bursts, on top of `loss`.
    pub burst_loss: Option<BurstLoss>,
    /// One bit of the frame is flipped after its FCS was checked: the receiver gets it.
    pub corrupt: Probability,
    /// The frame arrives twice.
    pub duplicate: Probability,
    /// The frame is held back by `reorder_delay`, so that later ones overtake it.
    pub reorder: Probability,
    /// How long a re-ordered frame is held back.
    pub reorder_delay: Delay,
    /// Extra delay, uniform from 0 to this, that does not change the order of frames.
    pub jitter: Delay,
}

impl Faults {
    /// Whether the link does nothing wrong.
    pub fn is_none(&self) -> bool {
        *self
            == Self {
                reorder_delay: self.reorder_delay,
                ..Self::default()
            }
    }

    /// Whether a kernel fabric can do it with a stateless program on the frame's way: everything
    /// but what needs a frame to wait.
    pub fn needs_no_delay(&self) -> bool {
        self.reorder == Probability::ZERO && self.jitter == Delay::ZERO
    }
}

/// A direction of a link, seen from the end that was named (`h1:eth1`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// From the named end into the network.
    Tx,
    /// From the network to the named end.
    Rx,
    /// Both.
    #[default]
    Both,
}

impl Direction {
    /// Whether it includes transmission from the named end.
    pub fn has_tx(self) -> bool {
        self != Self::Rx
    }

    /// Whether it includes reception at the named end.
    pub fn has_rx(self) -> bool {
        self != Self::Tx
    }
}

/// A change to a link while it runs. What is `None` stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LinkChange {
    /// The direction that `delay` and the faults apply to; `rate` and `carrier` are the link's.
    pub direction: Direction,
    /// New rate of the wire, at the NIC and at the switch port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// New propagation delay, one way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay: Option<Delay>,
    /// New faults, all at once: the default clears them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub faults: Option<Faults>,
    /// Silence in `direction`: frames vanish, the carrier stays. `Some(false)` heals.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blackhole: Option<bool>,
    /// The carrier: `Some(false)` pulls the cable, `Some(true)` plugs it in again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub carrier: Option<bool>,
}

impl LinkChange {
    /// Pulls the cable (`false`) or plugs it in again (`true`).
    pub fn carrier(up: bool) -> Self {
        Self {
            carrier: Some(up),
            ..Self::default()
        }
    }

    /// Makes `direction` swallow every frame in silence.
    pub fn blackhole(direction: Direction) -> Self {
        Self {
            direction,
            blackhole: Some(true),
            ..Self::default()
        }
    }

    /// Ends blackholes and faults in both directions and brings the carrier back.
    pub fn heal() -> Self {
        Self {
            blackhole: Some(false),
            faults: Some(Faults::default()),
            carrier: Some(true),
            ..Self::default()
        }
    }

    /// Loses frames independently with probability `loss`, in both directions.
    pub fn loss(loss: Probability) -> Self {
        Self {
            faults: Some(Faults {
                loss,
                ..Faults::default()
            }),
            ..Self::default()
        }
    }

    /// A new rate.
    pub fn rate(rate: Rate) -> Self {
        Self {
            rate: Some(rate),
            ..Self::default()
        }
    }

    /// A new propagation delay, both ways.
    pub fn delay(delay: Delay) -> Self {
        Self {
            delay: Some(delay),
            ..Self::default()
        }
    }
}
