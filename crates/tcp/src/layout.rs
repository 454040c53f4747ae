//! What the programs and this side share: `bpf/tcp/intf.h`, field by field.

use std::time::Duration;

/// `struct kumi_tcp_settings`: each mechanism's switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// What a connection remembers is believed for so long.
    pub memory_max: Duration,
    /// A restart after idle time is paced (Matsuda et al., §3.2).
    pub paces_restart: bool,
    /// A local queue's refusal does not cut the window (Takano et al., §3.3).
    pub forgives_stall: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            memory_max: Duration::from_secs(600),
            paces_restart: true,
            forgives_stall: true,
        }
    }
}

impl Settings {
    /// Bytes of the structure.
    pub const BYTES: usize = 16;

    /// As the programs read it.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let memory_max_ns = u64::try_from(self.memory_max.as_nanos()).unwrap_or(u64::MAX);
        bytes[..8].copy_from_slice(&memory_max_ns.to_ne_bytes());
        bytes[8..12].copy_from_slice(&u32::from(self.paces_restart).to_ne_bytes());
        bytes[12..].copy_from_slice(&u32::from(self.forgives_stall).to_ne_bytes());
        bytes
    }
}

/// `struct kumi_tcp_totals`, all processors together, since the programs were installed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Connections that chose the congestion control.
    pub connections: u64,
    /// Restarts paced.
    pub paced: u64,
    /// Local refusals that were not taken for congestion.
    pub stalls: u64,
    /// Windows cut for losses in the network.
    pub losses: u64,
}

impl Totals {
    /// Bytes of the structure.
    pub const BYTES: usize = 32;

    /// Adds what one processor counted; `None` if it has not the structure's size.
    pub fn add(&mut self, bytes: &[u8]) -> Option<()> {
        if bytes.len() != Self::BYTES {
            return None;
        }
        let field = |at: usize| {
            let mut field = [0; 8];
            field.copy_from_slice(&bytes[8 * at..8 * at + 8]);
            u64::from_ne_bytes(field)
        };
        self.connections += field(0);
        self.paced += field(1);
        self.stalls += field(2);
        self.losses += field(3);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings__bytes__are_the_headers_layout() {
        let settings = Settings {
            memory_max: Duration::from_nanos(0x0102_0304),
            paces_restart: true,
            forgives_stall: false,
        };
        let mut expected = [0; 16];
        expected[..8].copy_from_slice(&0x0102_0304_u64.to_ne_bytes());
        expected[8..12].copy_from_slice(&1_u32.to_ne_bytes());
        assert_eq!(settings.to_bytes(), expected);
    }

    #[test]
    fn totals__two_processors__are_added() {
        let mut totals = Totals::default();
        let one: Vec<u8> = [1_u64, 2, 3, 4]
            .iter()
            .flat_map(|n| n.to_ne_bytes())
            .collect();
        assert_eq!(totals.add(&one), Some(()));
        assert_eq!(totals.add(&one), Some(()));
        assert_eq!(totals.losses, 8);
        assert_eq!(totals.add(&one[1..]), None);
    }
}
