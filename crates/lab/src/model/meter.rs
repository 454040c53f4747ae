//! Traffic meter: bytes per millisecond, as the papers' GNET-1 and GtrcNET-1 measured them.

/// Width of a bin, in nanoseconds: 1 ms, as in the papers.
pub const BIN_NS: u64 = 1_000_000;

/// Traffic of one direction of a link in one bin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bin {
    /// Direction, as an index into the model's lines.
    pub line: usize,
    /// Start of the bin, in nanoseconds; a multiple of [`BIN_NS`].
    pub start_ns: u64,
    /// Bytes of the frames whose transmission ended in the bin, without framing.
    pub bytes: u64,
    /// Number of frames whose transmission ended in the bin.
    pub frames: u64,
}

/// Traffic meter of all lines. Bins without traffic are not recorded.
#[derive(Debug, Default)]
pub struct Meter {
    current: Vec<Bin>,
    done: Vec<Bin>,
}

impl Meter {
    /// Creates a meter of `lines` directions.
    pub fn new(lines: usize) -> Self {
        let current = (0..lines)
            .map(|line| Bin {
                line,
                start_ns: 0,
                bytes: 0,
                frames: 0,
            })
            .collect();
        Self {
            current,
            done: Vec::new(),
        }
    }

    /// Counts a frame of `bytes` bytes whose transmission ended at `now_ns`.
    pub fn count(&mut self, line: usize, now_ns: u64, bytes: u64) {
        let start_ns = now_ns - now_ns % BIN_NS;
        let bin = &mut self.current[line];
        if bin.start_ns != start_ns {
            if bin.frames > 0 {
                self.done.push(*bin);
            }
            *bin = Bin {
                line,
                start_ns,
                bytes: 0,
                frames: 0,
            };
        }
        bin.bytes += bytes;
        bin.frames += 1;
    }

    /// Returns the bins that ended by `now_ns` and were not returned before, in order of time.
    pub fn take(&mut self, now_ns: u64) -> Vec<Bin> {
        for bin in &mut self.current {
            if bin.frames > 0 && bin.start_ns + BIN_NS <= now_ns {
                self.done.push(*bin);
                (bin.bytes, bin.frames) = (0, 0);
            }
        }
        let (mut bins, ahead) = std::mem::take(&mut self.done)
            .into_iter()
            .partition(|bin: &Bin| bin.start_ns + BIN_NS <= now_ns);
        self.done = ahead;
        bins.sort_by_key(|bin| (bin.start_ns, bin.line));
        // After a cut, a line may return to a bin that it had left.
        bins.dedup_by(|next, kept| {
            let is_same = (next.start_ns, next.line) == (kept.start_ns, kept.line);
            if is_same {
                kept.bytes += next.bytes;
                kept.frames += next.frames;
            }
            is_same
        });
        bins
    }
}
