//! The device's own carrier: it has one while a peer is reached, as a NIC has one while its cable leads
//! anywhere. Routing daemons, bonds and monitors look at nothing else.

/// How long no peer may be reached before the carrier goes: a restart of a peer's daemon or of this
/// one takes less, and the kernel forgets the neighbours of a device that lost its carrier.
const ALONE_NS_MAX: u64 = 1_500_000_000;
/// How often peers are looked at.
const LOOK_EVERY_NS: u64 = 20_000_000;

/// Decides when the device has its carrier.
#[derive(Debug)]
pub struct Carrier {
    is_on: bool,
    reached_at_ns: u64,
    look_at_ns: u64,
}

impl Default for Carrier {
    /// A device that was just opened: the kernel has given it its carrier.
    fn default() -> Self {
        Self {
            is_on: true,
            reached_at_ns: 0,
            look_at_ns: 0,
        }
    }
}

impl Carrier {
    /// Whether the device has its carrier.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// What the carrier is to become, if that is news. `is_peer_up` is asked now and then.
    pub fn follow(&mut self, now_ns: u64, is_peer_up: impl FnOnce() -> bool) -> Option<bool> {
        if now_ns < self.look_at_ns {
            return None;
        }
        self.look_at_ns = now_ns + LOOK_EVERY_NS;
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
    fn carrier__peers__are_followed_with_patience_one_way_only() {
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
