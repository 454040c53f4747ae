//! Size of the kernel's neighbour table.
//!
//! All namespaces share the kernel's table of link-layer addresses, which holds 1024 entries by
//! default. This is too small from 32 hosts on, if each of them talks to all others. Hosts without
//! an entry cannot be reached, and the kernel logs `neighbor table overflow!` (`docs/perf-log.md`,
//! 2026-11-23).

use std::fs;

/// Thresholds of the table, each with its multiple of the expected entries (`arp(7)`). Garbage is
/// collected above the first. The second is a soft limit, and the third is never exceeded.
const THRESHOLDS: [(&str, usize); 3] = [("gc_thresh1", 1), ("gc_thresh2", 2), ("gc_thresh3", 4)];

const FAMILIES: [&str; 2] = ["ipv4", "ipv6"];

/// Enlarges the table for `hosts` hosts that all know each other. A larger table is left as it is.
/// The size stays afterwards, because another lab may be using it. Without the privilege, nothing
/// changes.
pub fn make_room(hosts: usize) {
    let entries = hosts * hosts;
    for family in FAMILIES {
        for (name, times) in THRESHOLDS.into_iter().rev() {
            let path = format!("/proc/sys/net/{family}/neigh/default/{name}");
            let current = fs::read_to_string(&path).ok();
            let current = current.and_then(|text| text.trim().parse::<usize>().ok());
            if current.is_some_and(|current| current < entries * times) {
                let _ = fs::write(&path, (entries * times).to_string());
            }
        }
    }
}
