//! Pauses of a host whose processor others use.

/// Time that others take from the processor of a host, in slices at random times.
#[derive(Debug, Clone, Copy)]
pub struct Stolen {
    share: f64,
    slice_ns: u64,
    begin_ns: u64,
    end_ns: u64,
}

impl Stolen {
    /// Returns time of which this share is taken, in slices of this mean length.
    pub fn new(share: f64, slice_ns: u64) -> Self {
        Self {
            share,
            slice_ns,
            begin_ns: 0,
            end_ns: 0,
        }
    }

    /// Returns the end of the slice that covers a time, if one does.
    pub fn until(&mut self, now_ns: u64, random: &mut fastrand::Rng) -> Option<u64> {
        while self.end_ns <= now_ns {
            let length_ns = 2.0 * self.slice_ns as f64 * random.f64();
            let between_ns = self.slice_ns as f64 * (1.0 - self.share) / self.share;
            self.begin_ns = self.end_ns + (2.0 * between_ns * random.f64()) as u64;
            self.end_ns = self.begin_ns + length_ns as u64 + 1;
        }
        (now_ns >= self.begin_ns).then_some(self.end_ns)
    }
}
