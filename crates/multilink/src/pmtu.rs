//! Path MTU discovery of one path by probes (PLPMTUD, RFC 8899; ADR 026).
//!
//! ```text
//!              probe of `size` delivered              all sizes up to the limit known
//!  Searching ───────────────────────────▶ Confirmed ──────────────────────────────▶ at rest, 60 s
//!      ▲                                     │  ▲ larger probe delivered: `size` grows
//!      └─────────────────────────────────────┘  │ larger probe lost 3 times: `lost_size` falls
//!        large datagrams lost, small ones not,  └─
//!        and 3 probes of `size` too: `size` falls
//! ```
//!
//! A probe is a ping padded to the size in question, followed by a short ping. The probe counts as
//! lost only if the short ping arrived, because a dead path shows nothing about its MTU. Sizes are
//! lengths of datagrams: MTU less IP and UDP headers.

/// Size that every path carries, in bytes: IPv6's least MTU of 1280, less the headers.
const BASE_BYTES: usize = 1232;
/// Size that an ordinary Ethernet carries, in bytes. It is tried first when a larger size is lost.
const ETHERNET_BYTES: usize = 1452;
/// Probes of one size that must be lost (RFC 8899 `MAX_PROBES`).
const PROBES_MAX: u32 = 3;
/// Large datagrams that must be lost in a row, with small ones delivered between them, before
/// probes look for the cause.
const SUSPECT_LOSSES: u32 = 3;
/// Distance from a lost size at which the search ends, in bytes: a fiftieth of a frame.
const STEP_BYTES: usize = 32;
/// Time between probes, in ns: while the path is out of use (as its pings), under suspicion, and in
/// a search for a larger size. The search must not look like load.
const ADMIT_NS: u64 = 50_000_000;
const SUSPECT_NS: u64 = 20_000_000;
const SEARCH_NS: u64 = 100_000_000;
/// Time after which a lost size is tried again, in ns. A tenth of RFC 8899's `PMTU_RAISE_TIMER`,
/// because an administrator may wait for the result of a new switch configuration.
const RAISE_NS: u64 = 60_000_000_000;

/// State of one path.
#[derive(Debug, Clone)]
pub struct PathMtu {
    /// Largest size that the links at both ends take.
    limit: usize,
    size: usize,
    is_confirmed: bool,
    /// Least size that is known to be lost; above `limit` if there is no such size.
    lost_size: usize,
    probes_lost: u32,
    large_lost: u32,
    /// Size of the newest lost datagram, and whether it was a probe, until the fate of a later one
    /// is known.
    last_loss: Option<(usize, bool)>,
    probed_at_ns: u64,
    found_at_ns: u64,
}

impl Default for PathMtu {
    fn default() -> Self {
        Self {
            limit: BASE_BYTES,
            size: BASE_BYTES,
            is_confirmed: false,
            lost_size: BASE_BYTES + 1,
            probes_lost: 0,
            large_lost: 0,
            last_loss: None,
            probed_at_ns: 0,
            found_at_ns: 0,
        }
    }
}

impl PathMtu {
    /// Returns the longest datagram to send, in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns whether a datagram of that size was delivered, or every path carries it.
    pub fn is_confirmed(&self) -> bool {
        self.is_confirmed || self.size <= BASE_BYTES
    }

    /// Sets the size that the links at both ends take, in bytes.
    pub fn set_limit(&mut self, limit: usize) {
        if limit == self.limit {
            return;
        }
        let is_open = self.lost_size > self.limit;
        let is_fresh = is_open && !self.is_confirmed && self.size == self.limit;
        self.limit = limit;
        if is_open || self.lost_size > limit {
            self.lost_size = limit + 1;
        }
        if is_fresh || self.size > limit {
            self.size = limit;
        }
        self.probes_lost = 0;
    }

    /// Withdraws the confirmation, because the path failed or has a new destination. Its size must
    /// be confirmed before the path is used.
    pub fn doubt(&mut self, is_new_destination: bool) {
        self.is_confirmed = false;
        (self.probes_lost, self.large_lost, self.last_loss) = (0, 0, None);
        if is_new_destination {
            (self.size, self.lost_size) = (self.limit, self.limit + 1);
            self.probed_at_ns = 0;
        }
    }

    /// Handles the delivery of a datagram of `bytes`. Returns whether the size changed.
    pub fn note_delivered(&mut self, now_ns: u64, bytes: usize) -> bool {
        if bytes <= BASE_BYTES.min(self.size - 1) {
            // A short datagram arrived, so the path was alive when the previous one was lost.
            let Some((lost_bytes, is_probe)) = self.last_loss.take() else {
                return false;
            };
            return self.note_lost_alone(now_ns, lost_bytes, is_probe);
        }
        self.last_loss = None;
        if bytes < self.size {
            return false;
        }
        self.large_lost = 0;
        self.probes_lost = 0;
        self.is_confirmed = true;
        let is_larger = bytes > self.size;
        self.size = bytes.min(self.limit);
        if is_larger {
            self.settle_search(now_ns);
        }
        is_larger
    }

    /// Handles the loss of a datagram of `bytes`.
    pub fn note_lost(&mut self, bytes: usize, is_probe: bool) {
        if bytes > BASE_BYTES {
            self.last_loss = Some((bytes, is_probe));
        }
    }

    fn note_lost_alone(&mut self, now_ns: u64, bytes: usize, is_probe: bool) -> bool {
        if !is_probe {
            self.large_lost = self.large_lost.saturating_add(1);
            return false;
        }
        if bytes < self.size {
            return false;
        }
        self.probes_lost += 1;
        if self.probes_lost < PROBES_MAX {
            return false;
        }
        self.probes_lost = 0;
        self.lost_size = self.lost_size.min(bytes);
        if bytes > self.size {
            self.settle_search(now_ns);
            return false;
        }
        let next = match self.size > ETHERNET_BYTES {
            true => ETHERNET_BYTES,
            false => BASE_BYTES,
        };
        let is_smaller = next < self.size;
        self.size = next.min(self.size);
        self.is_confirmed = false;
        is_smaller
    }

    fn settle_search(&mut self, now_ns: u64) {
        if self.next_size().is_none() {
            self.found_at_ns = now_ns;
        }
    }

    /// Returns the larger size to try.
    fn next_size(&self) -> Option<usize> {
        if self.lost_size > self.limit {
            return (self.size < self.limit).then_some(self.limit);
        }
        let is_gap_wide = self.lost_size > self.size + STEP_BYTES;
        is_gap_wide.then(|| self.size.midpoint(self.lost_size))
    }

    /// Returns the time at which a probe is due, and its size. `is_used`: the path carries data.
    pub fn probe(&self, is_used: bool) -> Option<(u64, usize)> {
        let is_suspicious = self.large_lost >= SUSPECT_LOSSES;
        if self.size <= BASE_BYTES && !is_used {
            return None; // every ping confirms this size
        }
        if !is_used {
            return Some((self.probed_at_ns + ADMIT_NS, self.size));
        }
        if self.size > BASE_BYTES && (is_suspicious || !self.is_confirmed) {
            return Some((self.probed_at_ns + SUSPECT_NS, self.size));
        }
        if let Some(size) = self.next_size() {
            return Some((self.probed_at_ns + SEARCH_NS, size));
        }
        (self.size < self.limit).then_some((self.found_at_ns + RAISE_NS, self.limit))
    }

    /// Records that a probe was sent.
    pub fn note_probe(&mut self, now_ns: u64) {
        self.probed_at_ns = now_ns;
        if self.next_size().is_none() && now_ns >= self.found_at_ns + RAISE_NS {
            self.lost_size = self.limit + 1; // try larger sizes again
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const S: u64 = 1000 * MS;

    fn jumbo() -> PathMtu {
        let mut mtu = PathMtu::default();
        mtu.set_limit(8952);
        mtu
    }

    /// Sends the probes that are due until `until_ns`, on a path that carries `mtu` bytes.
    fn run(path: &mut PathMtu, from_ns: u64, until_ns: u64, mtu: usize) {
        let mut now_ns = from_ns;
        while now_ns < until_ns {
            let due = path.probe(path.is_confirmed());
            if let Some((_, bytes)) = due.filter(|(at_ns, _)| *at_ns <= now_ns) {
                path.note_probe(now_ns);
                if bytes <= mtu {
                    path.note_delivered(now_ns, bytes);
                } else {
                    path.note_lost(bytes, true);
                }
                path.note_delivered(now_ns, 24);
            }
            now_ns += MS;
        }
    }

    #[test]
    fn pmtu__sound_path__is_confirmed_by_the_first_probe() {
        let mut path = jumbo();
        assert_eq!(path.probe(false), Some((ADMIT_NS, 8952)));
        assert!(!path.note_delivered(0, 8952));
        assert_eq!((path.size(), path.is_confirmed()), (8952, true));
        assert_eq!(path.probe(true), None, "nothing is left to find");
    }

    #[test]
    fn pmtu__switch_limited_to_1500__is_found_quickly_and_reprobed_rarely() {
        let mut path = jumbo();
        run(&mut path, 50 * MS, 300 * MS, 1452);
        assert_eq!((path.size(), path.is_confirmed()), (1452, true));
        run(&mut path, 300 * MS, 20 * S, 1452);
        assert!((1452..1452 + STEP_BYTES).contains(&path.size()));
        assert!(path.probe(true).is_some_and(|(at_ns, _)| at_ns > 50 * S));
        run(&mut path, 20 * S, 120 * S, 8952);
        assert_eq!(path.size(), 8952, "the switch passes more now");
    }

    #[test]
    fn pmtu__any_path_size__is_approached_without_exceeding_it() {
        for mtu in (BASE_BYTES..8952).step_by(123) {
            let mut path = jumbo();
            run(&mut path, 50 * MS, 20 * S, mtu);
            assert!(
                path.size() <= mtu && path.size() + STEP_BYTES >= mtu,
                "{mtu}: {path:?}"
            );
        }
    }

    #[test]
    fn pmtu__path_mtu_drops_under_load__is_lowered_within_100_ms() {
        let mut path = jumbo();
        path.note_delivered(0, 8952);
        for _ in 0..SUSPECT_LOSSES {
            path.note_lost(8952, false);
            path.note_delivered(S, 24);
        }
        run(&mut path, S, S + 100 * MS, 1452);
        assert_eq!((path.size(), path.is_confirmed()), (1452, true));
    }

    #[test]
    fn pmtu__congestion_or_dead_path__does_not_change_the_size() {
        let mut path = jumbo();
        path.note_delivered(0, 8952);
        for round in 0..100 {
            path.note_lost(8952, round % 2 == 0);
            path.note_lost(8952, false);
            path.note_lost(24, false);
            path.note_delivered(S, 8952);
        }
        for _ in 0..100 {
            path.note_lost(8952, true); // no ping arrives
        }
        path.note_delivered(S, 24);
        assert_eq!(path.size(), 8952);
    }

    #[test]
    fn pmtu__limit_lowered_and_raised__is_followed() {
        let mut path = jumbo();
        path.note_delivered(0, 8952);
        path.set_limit(1452);
        assert_eq!((path.size(), path.is_confirmed()), (1452, true));
        path.set_limit(8952);
        run(&mut path, S, S + 200 * MS, 8952);
        assert_eq!(path.size(), 8952);
    }
}
