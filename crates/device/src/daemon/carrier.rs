//! The device's own carrier (ADR 027).
//!
//! The device has its carrier while a peer is reached, as a NIC has carrier while its cable leads
//! to another device. Routing daemons, bonds and monitors look at nothing else.

/// Time without a reachable peer after which the carrier is removed, in ns.
///
/// A restart of this daemon or of a peer's takes less. A restart must not cost the carrier, because
/// the kernel then forgets the device's neighbours.
const ALONE_NS_MAX: u64 = 1_500_000_000;
/// Interval between checks of the peers, in ns.
const CHECK_EVERY_NS: u64 = 20_000_000;

/// Decides whether the device has its carrier.
#[derive(Debug)]
pub struct Carrier {
    is_on: bool,
    reached_at_ns: u64,
    next_check_ns: u64,
}

impl Default for Carrier {
    /// Returns the state of a device that was just opened: the kernel has given it its carrier.
    fn default() -> Self {
        Self {
            is_on: true,
            reached_at_ns: 0,
            next_check_ns: 0,
        }
    }
}

impl Carrier {
    /// Returns whether the device has its carrier.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// Returns the new state of the carrier if it changes. Calls `is_peer_up` at most once per
    /// `CHECK_EVERY_NS`.
    pub fn follow(&mut self, now_ns: u64, is_peer_up: impl FnOnce() -> bool) -> Option<bool> {
        if now_ns < self.next_check_ns {
            return None;
        }
        self.next_check_ns = now_ns + CHECK_EVERY_NS;
        let is_peer_up = is_peer_up();
        if is_peer_up {
            self.reached_at_ns = now_ns;
        }
        let is_on = is_peer_up || self.is_on && now_ns < self.reached_at_ns + ALONE_NS_MAX;
        (std::mem::replace(&mut self.is_on, is_on) != is_on).then_some(is_on)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn carrier__peers_come_and_go__rises_at_once_and_falls_after_a_delay() {
        const MS: u64 = 1_000_000;
        let mut carrier = Carrier::default();
        assert_eq!(
            carrier.follow(1000 * MS, || false),
            None,
            "peers are awaited"
        );
        assert_eq!(
            carrier.follow(1001 * MS, || panic!("asked too often")),
            None
        );
        assert_eq!(carrier.follow(1500 * MS, || false), Some(false));
        assert_eq!(carrier.follow(1600 * MS, || true), Some(true));
        assert_eq!(carrier.follow(2600 * MS, || false), None, "a restart");
        assert_eq!(carrier.follow(2700 * MS, || true), None);
        assert_eq!(carrier.follow(4200 * MS, || false), Some(false));
        assert_eq!(carrier.follow(9000 * MS, || false), None);
    }
}
