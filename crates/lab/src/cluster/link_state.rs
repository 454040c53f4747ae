//! What a link is like now: the topology, and every change since.

use crate::topology::{Delay, Direction, Faults, Link, LinkChange};

/// One direction of a link.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Way {
    /// Propagation delay.
    pub delay: Delay,
    /// Faults of the wire.
    pub faults: Faults,
    /// Whether it swallows everything.
    pub blackhole: bool,
}

impl Way {
    /// Whether the kernel fabric can do it, given the fault program.
    pub fn fits_kernel(&self) -> bool {
        self.delay == Delay::ZERO && self.faults.needs_no_delay()
    }

    /// Whether nothing but the wire itself is there.
    pub fn is_sound(&self) -> bool {
        !self.blackhole && self.faults.is_none()
    }
}

/// A link's state beyond its rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkState {
    /// `ways[side]` is what the end at `side` sends.
    pub ways: [Way; 2],
    /// Whether the cable is plugged in.
    pub carrier: bool,
}

impl LinkState {
    /// As the topology has it.
    pub fn new(link: &Link) -> Self {
        let way = Way {
            delay: link.delay,
            faults: link.faults,
            blackhole: false,
        };
        Self {
            ways: [way; 2],
            carrier: true,
        }
    }

    /// With `change` applied, seen from the end at `side`.
    pub fn changed(mut self, side: usize, change: &LinkChange) -> Self {
        let applies = [
            (side, change.direction.has_tx()),
            (1 - side, change.direction.has_rx()),
        ];
        for (index, _) in applies.into_iter().filter(|(_, applies)| *applies) {
            let way = &mut self.ways[index];
            way.delay = change.delay.unwrap_or(way.delay);
            way.faults = change.faults.unwrap_or(way.faults);
            way.blackhole = change.blackhole.unwrap_or(way.blackhole);
        }
        self.carrier = change.carrier.unwrap_or(self.carrier);
        self
    }

    /// The changes that lead a model from rest to this state, seen from side 0.
    pub fn as_changes(&self) -> [LinkChange; 2] {
        [(Direction::Tx, 0), (Direction::Rx, 1)].map(|(direction, side)| LinkChange {
            direction,
            rate: None,
            delay: Some(self.ways[side].delay),
            faults: Some(self.ways[side].faults),
            blackhole: Some(self.ways[side].blackhole),
            carrier: Some(self.carrier),
        })
    }
}
