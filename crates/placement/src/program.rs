//! The program and its maps.

use crate::error::{PlacementError, map, refused};
use crate::intf::{Name, PAGE_BYTES, Region, Session};
use kumi_wind::kernel::WINDOW_BYTES;
use libbpf_rs::libbpf_sys::{BPF_F_INNER_MAP, BPF_F_MMAPABLE, bpf_map_create_opts, size_t};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, Object, ObjectBuilder, ProgramInput};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use zerocopy::IntoBytes;

/// The compiled program; empty if the build had no clang.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/wind.bpf.o"));

/// Length of `struct __sk_buff`, and the offsets of `gso_segs` and `gso_size` in it.
const SK_BUFF_BYTES: usize = 192;
const GSO_SEGMENTS_AT: usize = 164;
const GSO_BYTES_AT: usize = 176;

/// The loaded program. It stays in the kernel while this value lives or a device has it.
pub struct Program {
    object: Object,
    descriptor: OwnedFd,
    sessions: MapHandle,
    regions: MapHandle,
    memories: MapHandle,
    owners: MapHandle,
}

impl Program {
    /// Loads the program.
    ///
    /// # Errors
    /// The kernel refuses it, or the build has none.
    pub fn load() -> Result<Self, PlacementError> {
        if OBJECT.is_empty() {
            return Err(PlacementError::NotCompiled);
        }
        // The error has the kernel's reason in a number; the verifier's log is for developers.
        libbpf_rs::set_print(None);
        let open = ObjectBuilder::default()
            .open_memory(OBJECT)
            .map_err(refused)?;
        let object = open.load().map_err(refused)?;
        let find = |name: &str| {
            let mut maps = object.maps();
            let found = maps.find(|map| map.name() == name);
            let found = found.ok_or(PlacementError::NotCompiled)?;
            MapHandle::try_from(&found).map_err(refused)
        };
        let (sessions, regions) = (find("sessions")?, find("regions")?);
        let (memories, owners) = (find("memories")?, find("owners")?);
        let descriptor = {
            let mut programs = object.progs();
            let program = programs.next().ok_or(PlacementError::NotCompiled)?;
            let copy = program.as_fd().try_clone_to_owned();
            copy.map_err(|error| refused(error.into()))?
        };
        Ok(Self {
            object,
            descriptor,
            sessions,
            regions,
            memories,
            owners,
        })
    }

    /// Returns the descriptor of the program, which devices take.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Runs the program with a frame, as if it had arrived. Returns its verdict, and the frame
    /// afterwards.
    ///
    /// # Errors
    /// The kernel refuses the frame.
    pub fn test_run(&mut self, frame: &[u8]) -> Result<(u32, Vec<u8>), PlacementError> {
        self.run(frame, None)
    }

    /// Runs the program with a super-packet of `count` segments of `bytes` bytes.
    ///
    /// # Errors
    /// The kernel refuses the frame.
    pub fn test_run_segmented(
        &mut self,
        frame: &[u8],
        bytes: u32,
        count: u32,
    ) -> Result<(u32, Vec<u8>), PlacementError> {
        let mut context = [0; SK_BUFF_BYTES];
        context[GSO_SEGMENTS_AT..][..4].copy_from_slice(&count.to_ne_bytes());
        context[GSO_BYTES_AT..][..4].copy_from_slice(&bytes.to_ne_bytes());
        self.run(frame, Some(&mut context))
    }

    fn run(
        &mut self,
        frame: &[u8],
        context: Option<&mut [u8]>,
    ) -> Result<(u32, Vec<u8>), PlacementError> {
        let mut programs = self.object.progs_mut();
        let program = programs.next().ok_or(PlacementError::NotCompiled)?;
        let mut out = vec![0; frame.len().max(4096)];
        let input = ProgramInput {
            context_in: context,
            data_in: Some(frame),
            data_out: Some(&mut out),
            ..ProgramInput::default()
        };
        let output = program
            .test_run(input)
            .map_err(map("cannot run the program"))?;
        let verdict = output.return_value;
        let bytes = output.data.map(|data| data.to_vec());
        Ok((verdict, bytes.unwrap_or_default()))
    }

    /// Creates the windows of a program's sessions. Returns their array, which may be mapped.
    ///
    /// # Errors
    /// No memory.
    pub fn create_windows(&self, owner: u32, sessions: u32) -> Result<MapHandle, PlacementError> {
        let windows = create_array("kumi_windows", WINDOW_BYTES as u32, sessions)?;
        put_inner(&self.owners, owner, &windows).map_err(map("cannot create the windows"))?;
        Ok(windows)
    }

    /// Removes the windows of a program. No request of its sessions is in execution when this
    /// returns: the removal from the outer map waits, as in [`Program::remove_region`].
    pub fn remove_windows(&self, owner: u32) {
        let _ = self.owners.delete(&owner.to_ne_bytes());
    }

    /// Creates a region. Returns its memory, which may be mapped.
    ///
    /// # Errors
    /// No memory.
    pub fn create_region(&self, number: u32, region: &Region) -> Result<MapHandle, PlacementError> {
        let pages = region.bytes.div_ceil(PAGE_BYTES.into());
        let pages = u32::try_from(pages)
            .map_err(|_| PlacementError::Request(format!("a region of {} bytes", region.bytes)))?;
        let memory = create_array("kumi_region", PAGE_BYTES, pages)?;
        put_inner(&self.memories, number, &memory).map_err(map("cannot create the region"))?;
        self.set_region(number, region)?;
        Ok(memory)
    }

    fn set_region(&self, number: u32, region: &Region) -> Result<(), PlacementError> {
        self.regions
            .update(&number.to_ne_bytes(), region.as_bytes(), MapFlags::ANY)
            .map_err(map("cannot change the region"))
    }

    /// Removes a region. The kernel writes to it no more when this returns: the removal from the
    /// outer map waits for the programs that run (`maybe_wait_bpf_programs` of kernel/bpf).
    ///
    /// # Errors
    /// The kernel's error.
    pub fn remove_region(&self, number: u32) -> Result<(), PlacementError> {
        let none = Region {
            key: [0; 16],
            bytes: 0,
            owner: 0,
            reserved: 0,
        };
        self.set_region(number, &none)?;
        let removed = self.memories.delete(&number.to_ne_bytes());
        removed.map_err(map("cannot remove the region"))
    }

    /// Opens a session with an empty window.
    ///
    /// # Errors
    /// The name is in use.
    pub fn open_session(
        &self,
        name: &Name,
        session: &Session,
        windows: &MapHandle,
    ) -> Result<(), PlacementError> {
        let window = session.window.to_ne_bytes();
        windows
            .update(&window, &[0; WINDOW_BYTES], MapFlags::ANY)
            .map_err(map("cannot empty the window"))?;
        self.sessions
            .update(name.as_bytes(), session.as_bytes(), MapFlags::NO_EXIST)
            .map_err(map("cannot open the session"))
    }

    /// Closes a session.
    pub fn close_session(&self, name: &Name) {
        let _ = self.sessions.delete(name.as_bytes());
    }
}

fn create_array(name: &str, value_bytes: u32, count: u32) -> Result<MapHandle, PlacementError> {
    let options = bpf_map_create_opts {
        sz: size_of::<bpf_map_create_opts>() as size_t,
        map_flags: BPF_F_MMAPABLE | BPF_F_INNER_MAP,
        ..Default::default()
    };
    MapHandle::create(MapType::Array, Some(name), 4, value_bytes, count, &options)
        .map_err(map("cannot allocate the memory"))
}

fn put_inner(outer: &MapHandle, key: u32, inner: &MapHandle) -> Result<(), libbpf_rs::Error> {
    let descriptor = inner.as_fd().as_raw_fd().to_ne_bytes();
    outer.update(&key.to_ne_bytes(), &descriptor, MapFlags::ANY)
}

#[cfg(test)]
mod tests;
