//! The processes whose sockets are kumi's, and the page in which each says its phase.

use crate::cgroup;
use crate::error::TcpError;
use crate::install::refused;
use crate::pins::{is_installed, pin};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Processes at one time: `RANKS_MAX` of `bpf/tcp/pages.h`. Place 0 stands for nobody.
const RANKS_MAX: u32 = 1024;
/// Bytes of the page: `struct kumi_phase_page`.
const PAGE_BYTES: u32 = 4096;
/// Version of the page's layout.
const PAGE_ABI: u32 = 1;
/// Name of phase 0, and where names begin in the page.
const FIRST_PHASE: &[u8] = b"point-to-point";
pub(crate) const NAMES_AT: usize = 64;

/// A process's place in the table: its sockets are kumi's until it leaves.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    pid: u32,
    number: u32,
}

impl Place {
    /// Lets the process go: it has ended.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn leave(self) -> Result<(), TcpError> {
        let ranks = MapHandle::from_pinned_path(pin("ranks")).map_err(refused)?;
        let pages = MapHandle::from_pinned_path(pin("phase_pages")).map_err(refused)?;
        // What is not there need not be removed.
        let _ = ranks.delete(&self.pid.to_ne_bytes());
        let _ = pages.delete(&self.number.to_ne_bytes());
        Ok(())
    }
}

/// A process that was taken in.
#[derive(Debug)]
pub struct Rank {
    /// Its place in the table.
    pub place: Place,
    page: MapHandle,
}

impl Rank {
    /// Takes process `pid` in: its sockets, and those of its children, are kumi's from now on.
    ///
    /// # Errors
    /// [`TcpError`]; the process is left as it was.
    pub fn join(pid: u32) -> Result<Self, TcpError> {
        if !is_installed() {
            return Err(TcpError::Absent);
        }
        let ranks = MapHandle::from_pinned_path(pin("ranks")).map_err(refused)?;
        let number = free_number(&ranks)?;
        let page = new_page()?;
        let pages = MapHandle::from_pinned_path(pin("phase_pages")).map_err(refused)?;
        let descriptor = descriptor_bytes(page.as_fd());
        pages
            .update(&number.to_ne_bytes(), &descriptor, MapFlags::ANY)
            .map_err(refused)?;
        forget_losses(number)?;
        cgroup::attach(pid)?;
        ranks
            .update(&pid.to_ne_bytes(), &number.to_ne_bytes(), MapFlags::ANY)
            .map_err(refused)?;
        let place = Place { pid, number };
        Ok(Self { place, page })
    }

    /// The page, to be handed to the process.
    pub fn page(&self) -> BorrowedFd<'_> {
        self.page.as_fd()
    }
}

/// The processes in the table, each with a descriptor that tells its end; who has ended is forgotten.
/// For a daemon that takes over from one that was killed.
///
/// # Errors
/// [`TcpError::Absent`], or the kernel's refusal.
pub fn adopted() -> Result<Vec<(Place, OwnedFd)>, TcpError> {
    let ranks = MapHandle::from_pinned_path(pin("ranks")).map_err(refused)?;
    let mut alive = Vec::new();
    for place in places(&ranks)? {
        match kumi_sys::process::pidfd(place.pid) {
            Ok(descriptor) => alive.push((place, descriptor)),
            Err(_) => place.leave()?,
        }
    }
    Ok(alive)
}

fn word(bytes: &[u8]) -> u32 {
    bytes.try_into().map_or(0, u32::from_ne_bytes)
}

fn places(ranks: &MapHandle) -> Result<Vec<Place>, TcpError> {
    let mut places = Vec::new();
    for key in ranks.keys() {
        if let Some(value) = ranks.lookup(&key, MapFlags::ANY).map_err(refused)? {
            let (pid, number) = (word(&key), word(&value));
            places.push(Place { pid, number });
        }
    }
    Ok(places)
}

fn free_number(ranks: &MapHandle) -> Result<u32, TcpError> {
    let taken: Vec<u32> = places(ranks)?.iter().map(|place| place.number).collect();
    (1..RANKS_MAX)
        .find(|number| !taken.contains(number))
        .ok_or(TcpError::TooManyRanks { max: RANKS_MAX - 1 })
}

/// What the process that had the place before lost is nothing to the next.
fn forget_losses(number: u32) -> Result<(), TcpError> {
    let crowds = MapHandle::from_pinned_path(pin("crowds")).map_err(refused)?;
    let nothing = vec![0; crowds.value_size() as usize];
    crowds
        .update(&number.to_ne_bytes(), &nothing, MapFlags::ANY)
        .map_err(refused)
}

/// A descriptor as the kernel takes it in a map of maps.
fn descriptor_bytes(descriptor: BorrowedFd<'_>) -> [u8; 4] {
    use std::os::fd::AsRawFd;
    descriptor.as_raw_fd().to_ne_bytes()
}

/// A page of its own for one process, which may map it: it can reach nobody else's.
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
    .map_err(refused)?;
    let mut bytes = vec![0; PAGE_BYTES as usize];
    bytes[..4].copy_from_slice(&PAGE_ABI.to_ne_bytes());
    bytes[8..12].copy_from_slice(&1_u32.to_ne_bytes()); // named
    bytes[NAMES_AT..NAMES_AT + FIRST_PHASE.len()].copy_from_slice(FIRST_PHASE);
    page.update(&0_u32.to_ne_bytes(), &bytes, MapFlags::ANY)
        .map_err(refused)?;
    Ok(page)
}
