//! Present state of a link: the topology's, with every later change applied.

use crate::topology::{Delay, Direction, Faults, Link, LinkChange};

/// State of one direction of a link.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct DirectionState {
    /// Propagation delay.
    pub delay: Delay,
    /// Faults of the wire.
    pub faults: Faults,
    /// True if the direction drops every frame silently.
    pub blackhole: bool,
}

impl DirectionState {
    /// Returns whether the kernel fabric can carry the direction, given the fault program.
    pub fn fits_kernel(&self) -> bool {
        self.delay == Delay::ZERO && self.faults.needs_no_delay()
    }

    /// Returns whether the direction has neither faults nor a blackhole.
    pub fn is_sound(&self) -> bool {
        !self.blackhole && self.faults.is_none()
    }
}

/// State of a link, without its rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkState {
    /// State of each direction. `directions[side]` applies to the frames that the end at `side`
    /// sends.
    pub directions: [DirectionState; 2],
    /// True if the cable is plugged in.
    pub carrier: bool,
}

impl LinkState {
    /// Returns the state that the topology describes.
    pub fn new(link: &Link) -> Self {
        let direction = DirectionState {
            delay: link.delay,
            faults: link.faults,
            blackhole: false,
        };
        Self {
            directions: [direction; 2],
            carrier: true,
        }
    }

    /// Returns the state with `change` applied, as seen from the end at `side`.
    pub fn with_change(mut self, side: usize, change: &LinkChange) -> Self {
        let applies = [
            (side, change.direction.has_tx()),
            (1 - side, change.direction.has_rx()),
        ];
        for (index, _) in applies.into_iter().filter(|(_, applies)| *applies) {
            let direction = &mut self.directions[index];
            direction.delay = change.delay.unwrap_or(direction.delay);
            direction.faults = change.faults.unwrap_or(direction.faults);
            direction.blackhole = change.blackhole.unwrap_or(direction.blackhole);
        }
        self.carrier = change.carrier.unwrap_or(self.carrier);
        self
    }

    /// Returns the changes that bring a new model to this state, as seen from side 0.
    pub fn as_changes(&self) -> [LinkChange; 2] {
        [(Direction::Tx, 0), (Direction::Rx, 1)].map(|(direction, side)| LinkChange {
            direction,
            rate: None,
            delay: Some(self.directions[side].delay),
            faults: Some(self.directions[side].faults),
            blackhole: Some(self.directions[side].blackhole),
            carrier: Some(self.carrier),
        })
    }
}
