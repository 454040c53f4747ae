//! Longest datagram of a path, found by probes (RFC 8899).
//!
//! ```text
//!   base ── 64 KiB have arrived ──► probe of the next length ── answered ──► that length
//!     ▲                                 └─ lost three times ──► no probes for ten minutes
//!     └── a timeout with longer datagrams ────────────────────► no probes for ten minutes
//! ```
//!
//! A session that sends little never probes. Probes have numbers of their own, because the loss of
//! one is no sign of congestion.

/// Lengths that are tried, in bytes: an IPv4 datagram in a frame of 1500, and what frames of 4092,
/// 8900 and 9000 bytes carry of IPv6, and the last one of IPv4.
const LENGTHS: [u16; 5] = [1472, 4044, 8852, 8952, 8972];

/// Bytes that arrive before the first probe, and after a lost one: the path is in use for more than
/// a few messages.
const USED_BYTES: u32 = 64 << 10;

/// Probes of one length that are lost before it counts as too long (RFC 8899, `MAX_PROBES`).
const ATTEMPTS_MAX: u8 = 3;

/// Time after which longer datagrams are tried again (RFC 8899, `PMTU_RAISE_TIMER`), in ns.
const RAISE_NS: u64 = 600_000_000_000;

/// Round trips, and time beyond them, after which a probe without a reply is lost, in ns.
const LOST_ROUND_TRIPS: u64 = 4;
const LOST_NS: u64 = 10_000_000;

/// The longest datagram of a path. Small, because each idle session has one.
#[derive(Debug)]
pub struct PathMtu {
    base: u16,
    bytes: u16,
    bytes_max: u16,
    /// Length of the probe without a reply, or 0.
    probe_bytes: u16,
    attempts: u8,
    used_bytes: u32,
    /// Number of the next probe.
    next: u32,
    probe_at_ns: u64,
    not_before_ns: u64,
}

impl PathMtu {
    /// Begins with datagrams of `base` bytes. Both sides receive `bytes_max` bytes.
    pub fn new(base: u16, bytes_max: u16) -> Self {
        let base = base.min(bytes_max);
        Self {
            base,
            bytes: base,
            bytes_max,
            probe_bytes: 0,
            attempts: 0,
            used_bytes: 0,
            next: 0,
            probe_at_ns: 0,
            not_before_ns: 0,
        }
    }

    /// Returns the length that a datagram may have.
    pub fn bytes(&self) -> u16 {
        self.bytes
    }

    /// Returns the length that every path must carry.
    pub fn base_bytes(&self) -> u16 {
        self.base
    }

    /// Records that bytes have arrived.
    pub fn on_arrived(&mut self, bytes: u64) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.used_bytes = self.used_bytes.saturating_add(bytes);
    }

    /// Begins a probe, if one is due. Returns its number and length.
    pub fn take_probe(&mut self, rtt_ns: u64, now_ns: u64) -> Option<(u64, u16)> {
        let lost_ns = LOST_ROUND_TRIPS * rtt_ns + LOST_NS;
        if self.probe_bytes > 0 && now_ns >= self.probe_at_ns + lost_ns {
            self.note_lost(now_ns);
        }
        let is_due = self.used_bytes >= USED_BYTES && now_ns >= self.not_before_ns;
        if self.probe_bytes > 0 || !is_due {
            return None;
        }
        let mut longer = LENGTHS.into_iter().filter(|bytes| *bytes > self.bytes);
        let bytes = longer.next().filter(|bytes| *bytes <= self.bytes_max)?;
        let number = self.next;
        // No number is used twice.
        self.next = self.next.checked_add(1)?;
        (self.probe_bytes, self.probe_at_ns) = (bytes, now_ns);
        Some((number.into(), bytes))
    }

    /// Takes the reply to a probe. Returns whether datagrams may be longer now.
    pub fn on_reply(&mut self, number: u64) -> bool {
        let is_awaited = self.probe_bytes > 0 && number.checked_add(1) == Some(self.next.into());
        if is_awaited {
            self.bytes = self.probe_bytes;
            (self.probe_bytes, self.attempts) = (0, 0);
        }
        is_awaited
    }

    fn note_lost(&mut self, now_ns: u64) {
        (self.probe_bytes, self.used_bytes) = (0, 0);
        self.attempts += 1;
        if self.attempts == ATTEMPTS_MAX {
            self.attempts = 0;
            self.not_before_ns = now_ns.saturating_add(RAISE_NS);
        }
    }

    /// Records a timeout: the path may not carry longer datagrams any more. Returns whether their
    /// length has changed.
    pub fn on_timeout(&mut self, now_ns: u64) -> bool {
        if self.bytes == self.base {
            return false;
        }
        self.bytes = self.base;
        (self.probe_bytes, self.used_bytes) = (0, 0);
        self.not_before_ns = now_ns.saturating_add(RAISE_NS);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT_NS: u64 = 100_000;

    /// Sends over a path that carries `carried` bytes. Returns the lengths of the probes.
    fn search(mtu: &mut PathMtu, carried: u16) -> Vec<u16> {
        let mut probes = Vec::new();
        for at in 0..100 {
            let now_ns = at * 2 * LOST_NS;
            mtu.on_arrived(USED_BYTES.into());
            let Some((number, bytes)) = mtu.take_probe(RTT_NS, now_ns) else {
                continue;
            };
            assert_eq!(mtu.take_probe(RTT_NS, now_ns), None, "one at a time");
            probes.push(bytes);
            assert!(!mtu.on_reply(number + 1), "of no probe");
            if bytes <= carried {
                assert!(mtu.on_reply(number));
            }
        }
        probes
    }

    #[test]
    fn path_mtu__each_path__finds_its_length_with_few_probes() {
        for (carried, found, probes) in [
            (1452, 1452, 3),
            (1472, 1472, 1 + 3),
            (8952, 8952, 4 + 3),
            (9000, 8972, 5),
            (60_000, 8972, 5),
        ] {
            let mut mtu = PathMtu::new(1452, u16::MAX);
            let sent = search(&mut mtu, carried);
            assert_eq!((mtu.bytes(), sent.len()), (found, probes), "{sent:?}");
        }
    }

    #[test]
    fn path_mtu__peer_that_receives_less__is_sent_no_more() {
        let mut mtu = PathMtu::new(1452, 1480);
        assert_eq!(search(&mut mtu, 9000), [1472]);
        let mut mtu = PathMtu::new(1452, 1232);
        assert!(search(&mut mtu, 9000).is_empty());
        assert_eq!(mtu.bytes(), 1232);
    }

    #[test]
    fn path_mtu__little_traffic__is_not_probed() {
        let mut mtu = PathMtu::new(1452, 9000);
        mtu.on_arrived(u64::from(USED_BYTES) - 1);
        assert_eq!(mtu.take_probe(RTT_NS, 0), None);
    }

    #[test]
    fn path_mtu__timeout__begins_at_the_base_and_searches_again_after_ten_minutes() {
        let mut mtu = PathMtu::new(1452, 9000);
        search(&mut mtu, 9000);
        assert!(mtu.on_timeout(7));
        assert_eq!(mtu.bytes(), 1452);
        assert!(!mtu.on_timeout(8));
        mtu.on_arrived(USED_BYTES.into());
        assert_eq!(mtu.take_probe(RTT_NS, RAISE_NS), None);
        let probe = mtu.take_probe(RTT_NS, RAISE_NS + 7);
        assert_eq!(probe.map(|probe| probe.1), Some(1472));
    }
}
