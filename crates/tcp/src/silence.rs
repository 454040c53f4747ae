//! Measures silence: the longest time in which a connection with data to deliver delivered nothing.
//!
//! `bpf/silence` observes both ends of every connection between network namespaces of this machine.
//! The time of a message does not show silence. A round that is slow as a whole can hide one silent
//! connection, and the median round can contain a silence too.

use crate::error::TcpError;
use crate::install::load_object;
use crate::refusal::refusal;
use libbpf_rs::{Link, MapCore, MapFlags, Object};
use std::collections::BTreeMap;

/// The compiled programs; empty if the build had no clang.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/silence.bpf.o"));

/// Length of a slot, in nanoseconds: `SLOT_NS` of `bpf/silence/silence.bpf.c`.
const SLOT_NS: u64 = 10_000_000;

/// Number of slots in the ring: `SLOTS` of the same file.
const SLOTS: u32 = 65_536;

/// Observes connections until it is dropped.
pub struct Silence {
    object: Object,
    _links: Vec<Link>,
}

impl Silence {
    /// Observes the IPv4 connections between the network namespaces with these inodes.
    ///
    /// # Errors
    /// [`TcpError`]; nothing stays attached.
    pub fn watch(namespaces: &[u32]) -> Result<Self, TcpError> {
        let object = load_object(OBJECT, &[], &[], &|_| true)?;
        for inode in namespaces {
            let (key, value) = (inode.to_ne_bytes(), 1_u32.to_ne_bytes());
            let map = map(&object, "namespaces");
            map.update(&key, &value, MapFlags::ANY).map_err(refusal)?;
        }
        let links = object
            .progs_mut()
            .map(|program| program.attach().map_err(refusal))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            object,
            _links: links,
        })
    }

    /// Reads the observations of the last eleven minutes (`SLOTS` × `SLOT_NS`).
    ///
    /// # Errors
    /// The kernel's error.
    pub fn profile(&self) -> Result<Profile, TcpError> {
        let map = map(&self.object, "longest");
        let mut longest_ns = BTreeMap::new();
        for slot in 0..SLOTS {
            let value = map.lookup(&slot.to_ne_bytes(), MapFlags::ANY);
            let value = value.map_err(refusal)?.unwrap_or_default();
            let silence_ns = <[u8; 8]>::try_from(value).map_or(0, u64::from_ne_bytes);
            if silence_ns > 0 {
                longest_ns.insert(slot, silence_ns);
            }
        }
        Ok(Profile { longest_ns })
    }
}

fn map<'a>(object: &'a Object, name: &str) -> impl MapCore + 'a {
    let map = object.maps().find(|map| map.name() == name);
    map.expect("the object has this map")
}

/// The longest silence of any connection, over time.
#[derive(Debug, Clone, Default)]
pub struct Profile {
    /// For each slot, the longest silence that ended in it, in nanoseconds. Slots without one are
    /// left out.
    longest_ns: BTreeMap<u32, u64>,
}

impl Profile {
    /// Returns the longest silence within a period, in nanoseconds. Times are those of
    /// `CLOCK_MONOTONIC`, in nanoseconds. A silence that began before the period does not count.
    pub fn longest_ns(&self, start_ns: u64, end_ns: u64) -> u64 {
        (start_ns / SLOT_NS..=end_ns / SLOT_NS)
            .filter_map(|slot| {
                let silence_ns = *self.longest_ns.get(&((slot % u64::from(SLOTS)) as u32))?;
                // It ended within one slot's length.
                let slot_end_ns = (slot + 1) * SLOT_NS;
                (slot_end_ns.saturating_sub(silence_ns) >= start_ns).then_some(silence_ns)
            })
            .max()
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_silence__silences_outside_the_period__do_not_count() {
        let slots = [(100, 3_000_000), (120, 40_000_000), (200, 900_000_000)];
        let profile = Profile {
            longest_ns: BTreeMap::from(slots),
        };
        assert_eq!(profile.longest_ns(1_000_000_000, 1_150_000_000), 3_000_000);
        assert_eq!(profile.longest_ns(1_000_000_000, 1_300_000_000), 40_000_000);
        // The long one began before the period.
        assert_eq!(profile.longest_ns(1_900_000_000, 2_100_000_000), 0);
    }

    #[test]
    fn longest_silence__after_the_slots_wrap__is_still_found() {
        let profile = Profile {
            longest_ns: BTreeMap::from([(3, 5_000_000)]),
        };
        let lap_ns = u64::from(SLOTS) * SLOT_NS;
        assert_eq!(profile.longest_ns(lap_ns, lap_ns + 10 * SLOT_NS), 5_000_000);
    }
}
