//! Lists live connections with the iterators of `bpf/tcp/connections.h`: those of one network
//! namespace, or all.

use crate::error::TcpError;
use crate::layout::Connection;
use crate::pins::{is_installed, pin, pin_error};
use crate::refusal::refusal;
use kumi_sys::netns::Namespaces;
use libbpf_rs::{Iter, Link};
use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::fs::MetadataExt;

/// Reads an iterator to its end, in the caller's network namespace.
fn walk(name: &str) -> Result<Vec<u8>, TcpError> {
    let link = Link::open(pin(name)).map_err(refusal)?;
    let mut rows = Vec::new();
    Iter::new(&link)
        .map_err(refusal)?
        .read_to_end(&mut rows)
        .map_err(pin_error("listing the connections"))?;
    Ok(rows)
}

/// Returns the connections of the caller's network namespace that use the congestion control.
///
/// # Errors
/// [`TcpError::Absent`], or the kernel's refusal.
pub fn connections() -> Result<Vec<Connection>, TcpError> {
    if !is_installed() {
        return Err(TcpError::Absent);
    }
    let rows = walk("show")?;
    let rows = rows.chunks_exact(Connection::BYTES);
    Ok(rows.filter_map(Connection::from_bytes).collect())
}

/// Returns one process in each network namespace of this machine, by the namespace's inode.
fn namespaces() -> BTreeMap<u64, u32> {
    let mut pids = BTreeMap::new();
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return pids;
    };
    for entry in entries.flatten() {
        let pid = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        let inode = std::fs::metadata(entry.path().join("ns/net")).map(|stat| stat.ino());
        if let (Some(pid), Ok(inode)) = (pid, inode) {
            pids.entry(inode).or_insert(pid);
        }
    }
    pids
}

/// Gives every live connection of this machine back to the kernel's default congestion control.
pub(crate) fn give_back() -> Result<(), TcpError> {
    for pid in namespaces().into_values() {
        // A separate thread, because a thread cannot return to its namespace.
        let thread = std::thread::spawn(move || {
            match Namespaces::of(pid).and_then(|spaces| spaces.enter_net_on_thread()) {
                Ok(()) => walk("give_back").map(drop),
                Err(_) => Ok(()), // the process has ended, and perhaps its namespace
            }
        });
        thread.join().unwrap_or(Ok(()))?;
    }
    Ok(())
}
