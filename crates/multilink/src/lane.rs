//! Lanes of a device. Each lane is a queue with an endpoint of its own (ADR 012).
//!
//! Of two devices with *n* and *m* lanes, those lanes talk whose numbers are equal modulo the
//! smaller count. Every lane therefore has a counterpart. A lane of the device with more lanes has
//! exactly one. A lane of the other device may have several, and sends only to the one of its own
//! number: a flow keeps its order and a broadcast arrives once. With equal counts lane *k* talks to
//! lane *k*.

/// Number of lanes that the wire format can number.
pub const LANES_MAX: u8 = 16;

/// One lane of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lane {
    /// Number of the lane, from 0.
    pub number: u8,
    /// Number of lanes of the device, from 1 to [`LANES_MAX`].
    pub count: u8,
}

impl Lane {
    /// The lane of a device that has only one.
    pub const ONLY: Self = Self {
        number: 0,
        count: 1,
    };

    /// Returns the wire's value: the high four bits are count − 1, the low four the number. It is 0
    /// for a device with one lane.
    pub fn to_wire(self) -> u8 {
        (self.count - 1) << 4 | self.number
    }

    /// Returns the lane with the wire's value.
    pub fn from_wire(value: u8) -> Option<Self> {
        let lane = Self {
            number: value & 15,
            count: (value >> 4) + 1,
        };
        (!lane.is_gone()).then_some(lane)
    }

    /// Returns whether this lane and a lane of another device talk.
    pub fn talks_to(self, theirs: Self) -> bool {
        let fewer = self.count.min(theirs.count);
        self.number % fewer == theirs.number % fewer
    }

    /// Returns whether this lane sends frames to `theirs`, among the lanes of that device that it
    /// talks to.
    pub fn sends_to(self, theirs: Self) -> bool {
        theirs.number == self.number % theirs.count
    }

    /// Returns whether the device has restarted with fewer lanes than this lane's number.
    pub fn is_gone(self) -> bool {
        self.number >= self.count
    }

    /// Returns the numbers of the lanes that may be this one's counterpart at a device with an
    /// unknown number of lanes. A message to all of them reaches the counterpart. Lanes with a
    /// higher number dial by themselves.
    pub fn counterparts(self) -> impl Iterator<Item = u8> {
        (0..=self.number)
            .rev()
            .filter(move |theirs| (1..=self.count).any(|count| self.number % count == *theirs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lanes(count: u8) -> impl Iterator<Item = Lane> {
        (0..count).map(move |number| Lane { number, count })
    }

    #[test]
    fn lane__only_lane__is_zero_on_the_wire() {
        assert_eq!(Lane::ONLY.to_wire(), 0);
        assert_eq!(Lane::from_wire(0), Some(Lane::ONLY));
        assert_eq!(Lane::from_wire(0x11), lanes(2).last());
        assert_eq!(Lane::from_wire(0x12), None, "lane 2 of 2");
    }

    #[test]
    fn lane__any_two_lane_counts__each_lane_sends_to_exactly_one_that_listens() {
        for (mine, theirs) in (1..=LANES_MAX).flat_map(|n| (1..=LANES_MAX).map(move |m| (n, m))) {
            for lane in lanes(mine) {
                let sent: Vec<Lane> = lanes(theirs).filter(|to| lane.sends_to(*to)).collect();
                assert_eq!(sent.len(), 1, "{lane:?} of {theirs}");
                assert!(lane.talks_to(sent[0]) && sent[0].talks_to(lane));
                let talks = lanes(theirs).filter(|to| lane.talks_to(*to)).count();
                assert!(talks == 1 || mine < theirs, "{lane:?} of {theirs}");
            }
        }
    }

    #[test]
    fn lane__hellos_from_the_side_with_more_lanes__reach_the_counterpart() {
        for (more, fewer) in (1..=LANES_MAX).flat_map(|n| (1..=n).map(move |m| (n, m))) {
            for lane in lanes(more) {
                let partner = lanes(fewer).find(|to| lane.talks_to(*to)).unwrap();
                assert!(lane.counterparts().any(|number| number == partner.number));
            }
        }
        assert_eq!(Lane::ONLY.counterparts().collect::<Vec<_>>(), [0]);
    }
}
