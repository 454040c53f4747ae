//! Regions and sessions of each program. They end with the program's connection.

use crate::error::PlacementError;
use crate::intf::{Name, OWNERS_MAX, REGIONS_MAX, Region, Session};
use crate::program::Program;
use kumi_wind::kernel::Open;
use libbpf_rs::MapHandle;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

/// Most sessions of a program.
pub const SESSIONS_MAX: u32 = 1024;

/// A program.
struct Owner {
    windows: MapHandle,
    sessions: HashMap<Name, u32>,
    /// Windows that no session uses.
    free_windows: BTreeSet<u32>,
    regions: BTreeMap<u32, u64>,
}

/// All programs.
pub struct Owners {
    program: Program,
    owners: BTreeMap<u32, Owner>,
    free_regions: BTreeSet<u32>,
    /// Bytes of all regions, and their limit.
    region_bytes: u64,
    region_bytes_max: u64,
}

impl Owners {
    /// Begins without programs. All regions together may have `region_bytes_max` bytes.
    pub fn new(program: Program, region_bytes_max: u64) -> Self {
        Self {
            program,
            owners: BTreeMap::new(),
            free_regions: (0..REGIONS_MAX).collect(),
            region_bytes: 0,
            region_bytes_max,
        }
    }

    /// Returns the program in the kernel.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Returns the numbers of programs, sessions and regions.
    pub fn counts(&self) -> (usize, usize, usize) {
        let sessions = self.owners.values().map(|owner| owner.sessions.len());
        let regions = self.owners.values().map(|owner| owner.regions.len());
        (self.owners.len(), sessions.sum(), regions.sum())
    }

    /// Adds a program. Returns its number, and the array of its windows.
    pub fn add(&mut self) -> Result<(u32, &MapHandle), PlacementError> {
        let free = (0..OWNERS_MAX).find(|number| !self.owners.contains_key(number));
        let number = free.ok_or_else(|| {
            PlacementError::Request(format!("{OWNERS_MAX} programs use the kernel already"))
        })?;
        let owner = Owner {
            windows: self.program.create_windows(number, SESSIONS_MAX)?,
            sessions: HashMap::new(),
            free_windows: (0..SESSIONS_MAX).collect(),
            regions: BTreeMap::new(),
        };
        let owner = self.owners.entry(number).or_insert(owner);
        Ok((number, &owner.windows))
    }

    /// Removes a program with everything that it has registered.
    pub fn remove(&mut self, number: u32) {
        let Some(owner) = self.owners.remove(&number) else {
            return;
        };
        for name in owner.sessions.keys() {
            self.program.close_session(name);
        }
        // Requests in execution have their session already. They end before the regions do, or
        // they would be refused: the peer would take a program that ended for one that refuses.
        self.program.remove_windows(number);
        for (region, bytes) in owner.regions {
            self.forget_region(region, bytes);
        }
    }

    fn forget_region(&mut self, region: u32, bytes: u64) {
        // An error leaves a region of which no session has the owner.
        let _ = self.program.remove_region(region);
        self.region_bytes -= bytes;
        self.free_regions.insert(region);
    }

    fn owner(&mut self, number: u32) -> Result<&mut Owner, PlacementError> {
        let owner = self.owners.get_mut(&number);
        owner.ok_or_else(|| PlacementError::Request("join comes first".to_owned()))
    }

    /// Creates a region. Returns its number and its memory.
    pub fn register(
        &mut self,
        number: u32,
        bytes: u64,
        key: [u8; 16],
    ) -> Result<(u32, MapHandle), PlacementError> {
        self.owner(number)?;
        let left = self.region_bytes_max - self.region_bytes;
        if bytes == 0 || bytes > left {
            return Err(PlacementError::Request(format!(
                "a region of {bytes} bytes: expected 1 to {left} (`kumi wind up --memory` sets the limit)"
            )));
        }
        let free = self.free_regions.first().copied();
        let region = free.ok_or_else(|| {
            PlacementError::Request(format!("the kernel has {REGIONS_MAX} regions already"))
        })?;
        let value = Region {
            key,
            bytes,
            owner: number,
            reserved: 0,
        };
        let memory = self.program.create_region(region, &value)?;
        self.free_regions.remove(&region);
        self.region_bytes += bytes;
        self.owner(number)?.regions.insert(region, bytes);
        Ok((region, memory))
    }

    /// Removes a region.
    pub fn deregister(&mut self, number: u32, region: u32) -> Result<(), PlacementError> {
        let Some(bytes) = self.owner(number)?.regions.remove(&region) else {
            return Err(PlacementError::Request(format!("no region {region}")));
        };
        self.forget_region(region, bytes);
        Ok(())
    }

    /// Opens a session. Returns the number of its window.
    pub fn open(&mut self, number: u32, open: &Open) -> Result<u32, PlacementError> {
        let name = Name {
            index: open.index,
            port: open.port,
            reserved: 0,
        };
        let owner = self.owners.get_mut(&number);
        let owner = owner.ok_or_else(|| PlacementError::Request("join comes first".to_owned()))?;
        let window = owner.free_windows.first().copied().ok_or_else(|| {
            PlacementError::Request(format!("the program has {SESSIONS_MAX} sessions already"))
        })?;
        let (request_key, response_key) = open.tags.unwrap_or_default();
        let session = Session {
            peer: match open.peer.ip() {
                IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                IpAddr::V6(address) => address.octets(),
            },
            request_key,
            response_key,
            peer_index: open.peer_index,
            owner: number,
            window,
            peer_port: open.peer.port(),
            has_tags: u16::from(open.tags.is_some()),
        };
        self.program.open_session(&name, &session, &owner.windows)?;
        owner.free_windows.remove(&window);
        owner.sessions.insert(name, window);
        Ok(window)
    }

    /// Closes a session.
    pub fn close(&mut self, number: u32, port: u16, index: u32) -> Result<(), PlacementError> {
        let name = Name {
            index,
            port,
            reserved: 0,
        };
        let owner = self.owner(number)?;
        let Some(window) = owner.sessions.remove(&name) else {
            return Err(PlacementError::Request(format!(
                "no session {index} at UDP port {port}"
            )));
        };
        owner.free_windows.insert(window);
        self.program.close_session(&name);
        Ok(())
    }
}
