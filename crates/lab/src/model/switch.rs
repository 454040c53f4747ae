//! A learning switch: its table of stations, and the buffer that its ports share.

use std::collections::HashMap;

/// Most stations that a switch remembers, as on cheap switches of the papers' time. Frames to
/// further stations are flooded, as on those switches.
pub const STATIONS_MAX: usize = 8192;

/// A learning switch.
#[derive(Debug)]
pub struct Switch {
    /// Lines that leave the switch, one per port.
    pub ports: Vec<usize>,
    stations: HashMap<[u8; 6], usize>,
    shared_bytes_max: Option<u64>,
    shared_bytes: u64,
}

/// Returns whether the group bit of an Ethernet address is set: broadcast or multicast.
fn is_group(address: [u8; 6]) -> bool {
    address[0] & 1 == 1
}

impl Switch {
    /// Creates a switch without ports.
    pub fn new(shared_bytes_max: Option<u64>) -> Self {
        Self {
            ports: Vec::new(),
            stations: HashMap::new(),
            shared_bytes_max,
            shared_bytes: 0,
        }
    }

    /// Learns that `source` is behind `port`, and returns the port towards `destination`. A port is
    /// the index of the line that leaves through it. `None` means that the frame is flooded.
    pub fn learn_and_look_up(
        &mut self,
        source: [u8; 6],
        port: usize,
        destination: [u8; 6],
    ) -> Option<usize> {
        let known = self.stations.len();
        if !is_group(source) {
            match self.stations.get_mut(&source) {
                Some(known_port) => *known_port = port,
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

    /// Forgets the stations behind `port`, because its carrier changed.
    pub fn forget(&mut self, port: usize) {
        self.stations
            .retain(|_, station_port| *station_port != port);
    }

    /// Takes `bytes` of the shared buffer. Returns false if fewer are free.
    pub fn take_buffer(&mut self, bytes: u64) -> bool {
        let fits = self
            .shared_bytes_max
            .is_none_or(|max| self.shared_bytes + bytes <= max);
        if fits {
            self.shared_bytes += bytes;
        }
        fits
    }

    /// Releases `bytes` of the shared buffer.
    pub fn give_buffer(&mut self, bytes: u64) {
        self.shared_bytes -= bytes;
    }
}
