//! The longest silence of a connection: the time in which it had data to deliver and delivered nothing.
//!
//! `bpf/silence` watches both ends of every connection between network namespaces of this machine. The
//! time that a message takes says little about it: one silent connection of many may hide in a round
//! that is slow as a whole, and the median round may hold a silence too.

use crate::error::TcpError;
use crate::install::{load_object, refused};
use libbpf_rs::{Link, MapCore, MapFlags, Object};
use std::collections::BTreeMap;

/// The compiled programs; empty where they were not compiled.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/silence.bpf.o"));

/// Length of a slot in nanoseconds: `SLOT_NS` of `bpf/silence/silence.bpf.c`.
const SLOT_NS: u64 = 10_000_000;

/// Number of slots, which are used in turn: the same file's `SLOTS`.
const SLOTS: u32 = 65_536;

/// Watches connections until it is dropped.
pub struct Silence {
    object: Object,
    _links: Vec<Link>,
}

impl Silence {
    /// Watches the IPv4 connections between the network namespaces with these inodes.
    ///
    /// # Errors
    /// [`TcpError`]; nothing stays attached then.
    pub fn watch(namespaces: &[u32]) -> Result<Self, TcpError> {
        let object = load_object(OBJECT, &[], &[], &|_| true)?;
        for inode in namespaces {
            let (key, watched) = (inode.to_ne_bytes(), 1_u32.to_ne_bytes());
            let map = map(&object, "namespaces");
            map.update(&key, &watched, MapFlags::ANY).map_err(refused)?;
        }
        let links = object
            .progs_mut()
            .map(|program| program.attach().map_err(refused))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            object,
            _links: links,
        })
    }

    /// Reads what was seen in the last eleven minutes.
    ///
    /// # Errors
    /// The kernel's.
    pub fn profile(&self) -> Result<Profile, TcpError> {
        let map = map(&self.object, "longest");
        let mut longest_ns = BTreeMap::new();
        for slot in 0..SLOTS {
            let value = map.lookup(&slot.to_ne_bytes(), MapFlags::ANY);
            let value = value.map_err(refused)?.unwrap_or_default();
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

/// The longest silence of any connection over time.
#[derive(Debug, Clone, Default)]
pub struct Profile {
    /// The longest silence that ended in a slot, in nanoseconds; slots without one are left out.
    longest_ns: BTreeMap<u32, u64>,
}

impl Profile {
    /// Returns the longest silence within a period, in nanoseconds. Times count as
    /// `CLOCK_MONOTONIC` does, in nanoseconds. A silence that began before the period is left out.
    pub fn longest_ns(&self, from_ns: u64, to_ns: u64) -> u64 {
        (from_ns / SLOT_NS..=to_ns / SLOT_NS)
            .filter_map(|slot| {
                let silence_ns = *self.longest_ns.get(&((slot % u64::from(SLOTS)) as u32))?;
                // It ended at most a slot's length after the slot began.
                let end_ns = (slot + 1) * SLOT_NS;
                (end_ns.saturating_sub(silence_ns) >= from_ns).then_some(silence_ns)
            })
            .max()
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest__silences_of_other_periods__do_not_count() {
        let slots = [(100, 3_000_000), (120, 40_000_000), (200, 900_000_000)];
        let profile = Profile {
            longest_ns: BTreeMap::from(slots),
        };
        assert_eq!(profile.longest_ns(1_000_000_000, 1_150_000_000), 3_000_000);
        assert_eq!(profile.longest_ns(1_000_000_000, 1_300_000_000), 40_000_000);
        // The long one began before.
        assert_eq!(profile.longest_ns(1_900_000_000, 2_100_000_000), 0);
    }

    #[test]
    fn longest__after_the_slots_have_gone_round__is_found() {
        let profile = Profile {
            longest_ns: BTreeMap::from([(3, 5_000_000)]),
        };
        let lap_ns = u64::from(SLOTS) * SLOT_NS;
        assert_eq!(profile.longest_ns(lap_ns, lap_ns + 10 * SLOT_NS), 5_000_000);
    }
}
