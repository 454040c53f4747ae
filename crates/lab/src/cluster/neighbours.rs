//! Room for the hosts' neighbours.
//!
//! Namespaces share the kernel's table of link-layer addresses. It holds 1024 unless it is told otherwise, which from 32 hosts
//! on, each talking to all others, are too few: the rest cannot be reached (`neighbor table overflow!` in the kernel's log).

use std::fs;

/// Garbage is collected from the first on, at once from the second; the third is never passed (`arp(7)`).
const THRESHOLDS: [(&str, usize); 3] = [("gc_thresh1", 1), ("gc_thresh2", 2), ("gc_thresh3", 4)];

const FAMILIES: [&str; 2] = ["ipv4", "ipv6"];

/// Makes room for so many hosts that all know each other. A larger table is left as it is, and the room stays: another lab may
/// be using it. Without the right to, nothing happens.
pub fn make_room(hosts: usize) {
    let entries = hosts * hosts;
    for family in FAMILIES {
        for (name, times) in THRESHOLDS.into_iter().rev() {
            let path = format!("/proc/sys/net/{family}/neigh/default/{name}");
            let standing = fs::read_to_string(&path).ok();
            let standing = standing.and_then(|text| text.trim().parse::<usize>().ok());
            if standing.is_some_and(|standing| standing < entries * times) {
                let _ = fs::write(&path, (entries * times).to_string());
            }
        }
    }
}
