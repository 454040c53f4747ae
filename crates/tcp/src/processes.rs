//! The table of processes whose sockets use kumi, and the page in which each process names its
//! phase.

use crate::cgroup;
use crate::error::TcpError;
use crate::intf::Process;
use crate::pins::{is_installed, pin};
use crate::refusal::refusal;
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use zerocopy::{FromBytes, IntoBytes};

/// Most processes at one time: `RANKS_MAX` of `bpf/tcp/pages.h`. Place 0 means no process.
const RANKS_MAX: u32 = 1024;
/// Generations of a place. Place and generation share one word.
const GENERATIONS: u32 = u32::MAX / RANKS_MAX;
/// Size of the page, in bytes: `struct kumi_phase_page`.
const PAGE_BYTES: u32 = 4096;
/// Version of the page's layout.
const PAGE_ABI: u32 = 1;
/// Name of phase 0, and the offset of names in the page.
const FIRST_PHASE: &[u8] = b"point-to-point";
pub(crate) const NAMES_OFFSET: usize = 64;

/// Most places of one user other than root. Half of the table leaves room for other users' jobs.
const USER_PLACES_MAX: usize = RANKS_MAX as usize / 2;

impl Process {
    fn number(self) -> u32 {
        self.rank % RANKS_MAX
    }
}

/// Reads a value of the table; `None` for another size.
fn parse_process(value: &[u8]) -> Option<Process> {
    Process::read_from_bytes(value).ok()
}

/// A process's place in the table. Its sockets use kumi until it leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pid: u32,
    process: Process,
}

impl Place {
    /// Returns the number of the process.
    pub(crate) fn pid(self) -> u32 {
        self.pid
    }

    /// Removes a process that has ended. Descendants that still run follow no page any more.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn leave(self) -> Result<(), TcpError> {
        let ranks = map("ranks")?;
        let present = ranks.lookup(&self.pid.to_ne_bytes(), MapFlags::ANY);
        let present = present.map_err(refusal)?;
        if present.as_deref().and_then(parse_process) != Some(self.process) {
            return Ok(()); // it left before, and its number may be another process's
        }
        let number = self.process.number().to_ne_bytes();
        // The entry may be missing already.
        let _ = ranks.delete(&self.pid.to_ne_bytes());
        let next = (generation(self.process.number())? + 1) % GENERATIONS;
        let generations = map("generations")?;
        let outcome = generations.update(&number, &next.to_ne_bytes(), MapFlags::ANY);
        outcome.map_err(refusal)?;
        let _ = map("phase_pages")?.delete(&number);
        let cgroup = self.process.cgroup;
        if !places(&ranks)?
            .iter()
            .any(|place| place.process.cgroup == cgroup)
        {
            cgroup::detach(cgroup);
        }
        Ok(())
    }
}

/// A process in the table, with its page.
#[derive(Debug)]
pub struct Rank {
    /// Place in the table.
    pub place: Place,
    page: MapHandle,
}

impl Rank {
    /// Adds process `pid` of user `uid`. Its sockets, and those of its children, use kumi from now
    /// on. A process that has a place gets the same one again, as when `kumi run` runs under `kumi
    /// run`. Joining takes several steps, so the caller serialises them.
    ///
    /// # Errors
    /// [`TcpError`]; the process is left unchanged.
    pub fn join(pid: u32, uid: u32) -> Result<Self, TcpError> {
        if !is_installed() {
            return Err(TcpError::Absent);
        }
        let ranks = map("ranks")?;
        let started = start_time(pid).ok_or(TcpError::NoProcess { pid })?;
        let place = places(&ranks)?.into_iter().find(|place| place.pid == pid);
        if let Some(place) = place {
            if (place.process.started, place.process.uid) == (started, uid) {
                return Self::rejoin(place);
            }
            // The number belonged to a process that has ended.
            place.leave()?;
        }
        let number = free_number(&places(&ranks)?, uid)?;
        let page = new_page()?;
        let descriptor = descriptor_bytes(page.as_fd());
        map("phase_pages")?
            .update(&number.to_ne_bytes(), &descriptor, MapFlags::ANY)
            .map_err(refusal)?;
        let process = Process {
            rank: generation(number)? * RANKS_MAX + number,
            uid,
            started,
            cgroup: cgroup::attach(pid)?,
        };
        ranks
            .update(&pid.to_ne_bytes(), process.as_bytes(), MapFlags::ANY)
            .map_err(refusal)?;
        let place = Place { pid, process };
        Ok(Self { place, page })
    }

    /// Returns the rank of a process that joined before, with its present page.
    fn rejoin(place: Place) -> Result<Self, TcpError> {
        let number = place.process.number().to_ne_bytes();
        let page = map("phase_pages")?.lookup(&number, MapFlags::ANY);
        let page = page.map_err(refusal)?.map(|bytes| parse_u32(&bytes));
        let page = page.ok_or(TcpError::NoProcess { pid: place.pid })?;
        let page = MapHandle::from_map_id(page).map_err(refusal)?;
        Ok(Self { place, page })
    }

    /// Returns the page, for the process to map.
    pub fn page(&self) -> BorrowedFd<'_> {
        self.page.as_fd()
    }
}

/// Returns the processes in the table, each with a descriptor that signals its end. Processes that
/// have ended are removed. A daemon calls this to take over from one that was killed.
///
/// # Errors
/// [`TcpError::Absent`], or the kernel's refusal.
pub fn adopted() -> Result<Vec<(Place, OwnedFd)>, TcpError> {
    let mut alive = Vec::new();
    for place in places(&map("ranks")?)? {
        match kumi_sys::process::pidfd(place.pid) {
            // Checked after the descriptor is open, so the number cannot pass to another process in
            // between.
            Ok(descriptor) if start_time(place.pid) == Some(place.process.started) => {
                alive.push((place, descriptor));
            }
            _ => place.leave()?,
        }
    }
    Ok(alive)
}

fn map(name: &str) -> Result<MapHandle, TcpError> {
    MapHandle::from_pinned_path(pin(name)).map_err(refusal)
}

/// Returns the start time of process `pid`, in hundredths of a second since boot.
fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    parse_start_time(&stat)
}

/// Returns the 22nd field. The second field is a name in parentheses, which may contain any
/// character.
fn parse_start_time(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(19)?.parse().ok()
}

fn parse_u32(bytes: &[u8]) -> u32 {
    bytes.try_into().map_or(0, u32::from_ne_bytes)
}

fn places(ranks: &MapHandle) -> Result<Vec<Place>, TcpError> {
    let mut places = Vec::new();
    for key in ranks.keys() {
        let value = ranks.lookup(&key, MapFlags::ANY).map_err(refusal)?;
        if let Some(process) = value.as_deref().and_then(parse_process) {
            let pid = parse_u32(&key);
            places.push(Place { pid, process });
        }
    }
    Ok(places)
}

fn free_number(places: &[Place], uid: u32) -> Result<u32, TcpError> {
    let user_places = places.iter().filter(|place| place.process.uid == uid);
    if uid != 0 && user_places.count() >= USER_PLACES_MAX {
        return Err(TcpError::TooManyOfUser {
            uid,
            max: USER_PLACES_MAX,
        });
    }
    (1..RANKS_MAX)
        .find(|number| !places.iter().any(|place| place.process.number() == *number))
        .ok_or(TcpError::TooManyRanks { max: RANKS_MAX - 1 })
}

/// Returns the number of times the place was given back.
fn generation(number: u32) -> Result<u32, TcpError> {
    let generation = map("generations")?
        .lookup(&number.to_ne_bytes(), MapFlags::ANY)
        .map_err(refusal)?;
    Ok(generation.map_or(0, |bytes| parse_u32(&bytes)))
}

/// Encodes a descriptor as a value of a map of maps.
fn descriptor_bytes(descriptor: BorrowedFd<'_>) -> [u8; 4] {
    use std::os::fd::AsRawFd;
    descriptor.as_raw_fd().to_ne_bytes()
}

/// Creates a page for one process. The process can map this page and no other.
fn new_page() -> Result<MapHandle, TcpError> {
    let options = libbpf_rs::libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>()
            as libbpf_rs::libbpf_sys::size_t,
        map_flags: libbpf_rs::libbpf_sys::BPF_F_MMAPABLE,
        ..Default::default()
    };
    let page = MapHandle::create(
        MapType::Array,
        Some("kumi_phase"),
        4,
        PAGE_BYTES,
        1,
        &options,
    )
    .map_err(refusal)?;
    let mut bytes = vec![0; PAGE_BYTES as usize];
    bytes[..4].copy_from_slice(&PAGE_ABI.to_ne_bytes());
    bytes[8..12].copy_from_slice(&1_u32.to_ne_bytes()); // named
    bytes[NAMES_OFFSET..NAMES_OFFSET + FIRST_PHASE.len()].copy_from_slice(FIRST_PHASE);
    page.update(&0_u32.to_ne_bytes(), &bytes, MapFlags::ANY)
        .map_err(refusal)?;
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(number: u32, uid: u32) -> Place {
        let process = Process {
            rank: 7 * RANKS_MAX + number,
            uid,
            started: 1,
            cgroup: 2,
        };
        Place { pid: 9, process }
    }

    #[test]
    fn places__many_from_one_user__leave_half_for_others() {
        let mut places: Vec<Place> = (1..=512).map(|number| place(number, 1000)).collect();
        assert_eq!(free_number(&places[1..], 1000).unwrap(), 1);
        assert_eq!(
            free_number(&places, 1000).unwrap_err().to_string(),
            "user 1000 already has 512 processes of `kumi run` on this host, the limit for one user"
        );
        assert_eq!(free_number(&places, 1001).unwrap(), 513);
        places.extend((513..1024).map(|number| place(number, 1001)));
        assert_eq!(
            free_number(&places, 0).unwrap_err().to_string(),
            "this host already has 1023 processes of `kumi run`, the limit for one host"
        );
    }

    #[test]
    fn started_in__program_name_with_parentheses__is_parsed_correctly() {
        let fields: Vec<String> = (3..30).map(|field| field.to_string()).collect();
        let stat = format!("12 (a) b (c) {}", fields.join(" "));
        assert_eq!(parse_start_time(&stat), Some(22));
        assert_eq!(parse_start_time("12 (a) R 1"), None);
    }
}
