//! How fast a link drains, measured rather than configured.
//!
//! The only honest measurement is of a link that always had something to send. Queues are first-in
//! first-out, so that is known exactly: if some of what was given to the kernel before one look has
//! still not left at the next, the link never rested in between, and what did leave left at the
//! link's own rate. A burst into an idle link measures nothing (a 28 KB burst read 57 Mb/s on a
//! 688 Mb/s link elsewhere).

/// Shortest busy stretch that makes a sample.
const SAMPLE_NS: u64 = 4_000_000;
/// Shortest busy stretch that makes the first sample: a rough rate now beats a claim.
const FIRST_SAMPLE_NS: u64 = 1_000_000;
/// Fewest bytes that make a sample: sixteen full frames, so that one frame more or less is 6 %.
const SAMPLE_BYTES: u64 = 24_000;

/// The rate of one link, in bits per second of wire bytes as the sender counts them.
#[derive(Debug, Clone)]
pub struct Capacity {
    rate_bps: f64,
    measured: bool,
    /// When the busy stretch began and how much had left then.
    busy_since: Option<(u64, u64)>,
    /// What had been given to the kernel at the last look.
    sent_before: u64,
}

impl Capacity {
    /// Starts from what the NIC claims.
    pub fn claimed(rate_bps: u64) -> Self {
        Self {
            rate_bps: rate_bps as f64,
            measured: false,
            busy_since: None,
            sent_before: 0,
        }
    }

    /// The estimate.
    pub fn rate_bps(&self) -> f64 {
        self.rate_bps
    }

    /// Whether the estimate has been measured at all.
    pub fn is_measured(&self) -> bool {
        self.measured
    }

    /// Bytes a nanosecond.
    pub fn bytes_per_ns(&self) -> f64 {
        self.rate_bps / 8e9
    }

    /// Takes the administrator's word for the rate; measurement goes on from there.
    pub fn set(&mut self, rate_bps: u64) {
        self.rate_bps = rate_bps as f64;
        self.measured = true;
        self.busy_since = None;
    }

    /// A look at the link: `sent_bytes` were given to the kernel since the start, of which
    /// `unsent_bytes` have not left.
    pub fn observe(&mut self, now_ns: u64, sent_bytes: u64, unsent_bytes: u64) {
        let left = sent_bytes.saturating_sub(unsent_bytes);
        let rested = left >= std::mem::replace(&mut self.sent_before, sent_bytes);
        if unsent_bytes == 0 || rested {
            self.busy_since = (unsent_bytes > 0).then_some((now_ns, left));
            return;
        }
        let Some((since_ns, left_before)) = self.busy_since else {
            self.busy_since = Some((now_ns, left));
            return;
        };
        let (elapsed_ns, bytes) = (
            now_ns.saturating_sub(since_ns),
            left.saturating_sub(left_before),
        );
        let least_ns = if self.measured {
            SAMPLE_NS
        } else {
            FIRST_SAMPLE_NS
        };
        if elapsed_ns < least_ns || bytes < SAMPLE_BYTES {
            return;
        }
        let sample = bytes as f64 * 8e9 / elapsed_ns as f64;
        self.rate_bps = if self.measured {
            self.rate_bps + (sample - self.rate_bps) / 4.0
        } else {
            sample
        };
        self.measured = true;
        self.busy_since = Some((now_ns, left));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity__small_sends_that_each_look_finds_unsent__measure_nothing() {
        let mut capacity = Capacity::claimed(1_000_000_000);
        for look in 1..1000 {
            capacity.observe(look * 1_000_000, look * 2000, 100);
        }
        assert!(!capacity.is_measured());
    }

    /// A link of `rate_bps` that is given `chunk` bytes every millisecond.
    fn feed(capacity: &mut Capacity, rate_bps: f64, chunk: f64, millis: u64) {
        let (mut sent, mut unsent) = (0f64, 0f64);
        for ms in 0..millis {
            unsent = (unsent - rate_bps / 8e3).max(0.0);
            capacity.observe(ms * 1_000_000, sent as u64, unsent as u64);
            sent += chunk;
            unsent += chunk;
        }
    }

    #[test]
    fn capacity__link_kept_busy__is_measured() {
        let mut capacity = Capacity::claimed(10_000_000_000);
        feed(&mut capacity, 1e9, 150_000.0, 100);
        assert!(capacity.is_measured());
        assert!(
            (capacity.rate_bps() / 1e9 - 1.0).abs() < 0.02,
            "{}",
            capacity.rate_bps()
        );
    }

    #[test]
    fn capacity__bursts_into_an_idle_link__measure_nothing() {
        let mut capacity = Capacity::claimed(1_000_000_000);
        feed(&mut capacity, 1e9, 28_000.0, 100);
        assert!(!capacity.is_measured());
        assert_eq!(capacity.rate_bps(), 1e9);
    }
}
