//! A learning switch: which port a station is behind, and the buffer its ports share.

use std::collections::HashMap;

/// Stations a switch remembers: what cheap switches of the papers' time had. Further ones are
/// flooded to, as there.
pub const STATIONS_MAX: usize = 8192;

/// A switch.
#[derive(Debug)]
pub struct Switch {
    /// The lines that leave it, one a port.
    pub ports: Vec<usize>,
    stations: HashMap<[u8; 6], usize>,
    shared_bytes_max: Option<u64>,
    shared_bytes: u64,
}

/// The group bit of an Ethernet address: broadcast and multicast.
fn is_group(address: [u8; 6]) -> bool {
    address[0] & 1 == 1
}

impl Switch {
    /// A switch without ports.
    pub fn new(shared_bytes_max: Option<u64>) -> Self {
        Self {
            ports: Vec::new(),
            stations: HashMap::new(),
            shared_bytes_max,
            shared_bytes: 0,
        }
    }

    /// Learns that `source` is behind `port` (the line that leaves through it), and says through
    /// which port `destination` is reached; `None` floods.
    pub fn learn_and_look_up(
        &mut self,
        source: [u8; 6],
        port: usize,
        destination: [u8; 6],
    ) -> Option<usize> {
        let known = self.stations.len();
        if !is_group(source) {
            match self.stations.get_mut(&source) {
                Some(behind) => *behind = port,
                None if known < STATIONS_MAX => {
                    self.stations.insert(source, port);
                }
                None => {}
            }
        }
        if is_group(destination) {
            None
        } else {
            self.stations.get(&destination).copied()
        }
    }

    /// Forgets who is behind `port`: its carrier went down.
    pub fn forget(&mut self, port: usize) {
        self.stations.retain(|_, behind| *behind != port);
    }

    /// Takes `bytes` of the shared buffer; false if there are not so many.
    pub fn take_buffer(&mut self, bytes: u64) -> bool {
        let fits = self
            .shared_bytes_max
            .is_none_or(|max| self.shared_bytes + bytes <= max);
        if fits {
            self.shared_bytes += bytes;
        }
        fits
    }

    /// Gives `bytes` of the shared buffer back.
    pub fn give_buffer(&mut self, bytes: u64) {
        self.shared_bytes -= bytes;
    }
}
