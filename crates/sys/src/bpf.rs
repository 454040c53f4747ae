//! bpf(2) commands that libbpf offers only for programs of an object that it loaded itself. Here
//! they take a program that another process loaded and pinned.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

// Commands of linux/bpf.h.
const BPF_OBJ_PIN: libc::c_long = 6;
const BPF_OBJ_GET: libc::c_long = 7;
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_LINK_UPDATE: libc::c_long = 29;

/// Attach point of a program in a cgroup: `enum bpf_attach_type` of linux/bpf.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum CgroupHook {
    /// `BPF_CGROUP_INET_EGRESS`: a packet leaves.
    Egress = 1,
    /// `BPF_CGROUP_INET_SOCK_CREATE`: a process creates a socket.
    SockCreate = 2,
    /// `BPF_CGROUP_SOCK_OPS`: a connection is established.
    SockOps = 3,
}

/// Head of `union bpf_attr` for `BPF_OBJ_PIN` and `BPF_OBJ_GET`.
#[repr(C)]
struct ObjectAttr {
    pathname: u64,
    bpf_fd: u32,
    file_flags: u32,
}

/// Head of `union bpf_attr` for `BPF_LINK_CREATE`.
#[repr(C)]
struct LinkAttr {
    prog_fd: u32,
    target_fd: u32,
    attach_type: u32,
    flags: u32,
}

/// Head of `union bpf_attr` for `BPF_LINK_UPDATE`.
#[repr(C)]
struct UpdateAttr {
    link_fd: u32,
    new_fd: u32,
    flags: u32,
}

fn bpf<A>(command: libc::c_long, attr: &A) -> io::Result<libc::c_long> {
    // SAFETY: `attr` is a repr(C) head of `union bpf_attr` for this command, readable for the size
    // passed. The kernel only reads it, and takes missing fields as zero.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_ref(attr),
            size_of::<A>(),
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

fn own(descriptor: libc::c_long) -> OwnedFd {
    // SAFETY: the kernel has just created this descriptor for this process, and no other code knows
    // it. A descriptor fits a C int.
    unsafe { OwnedFd::from_raw_fd(descriptor as libc::c_int) }
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// Opens the object that is pinned at `path`.
///
/// # Errors
/// The kernel's error: no pin at that path, or no permission.
pub fn open_pin(path: &Path) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    let attr = ObjectAttr {
        pathname: path.as_ptr() as u64,
        bpf_fd: 0,
        file_flags: 0,
    };
    bpf(BPF_OBJ_GET, &attr).map(own)
}

/// Pins `object` at `path`, on a bpf file system.
///
/// # Errors
/// The kernel's error.
pub fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    let attr = ObjectAttr {
        pathname: path.as_ptr() as u64,
        bpf_fd: object.as_raw_fd() as u32,
        file_flags: 0,
    };
    bpf(BPF_OBJ_PIN, &attr).map(drop)
}

/// Replaces the object of `link` by `new`: a program, or a map for a struct_ops link (Linux 6.4).
///
/// # Errors
/// The kernel's error: `new` has another kind or another name.
pub fn update_link(link: BorrowedFd<'_>, new: BorrowedFd<'_>) -> io::Result<()> {
    let attr = UpdateAttr {
        link_fd: link.as_raw_fd() as u32,
        new_fd: new.as_raw_fd() as u32,
        flags: 0,
    };
    bpf(BPF_LINK_UPDATE, &attr).map(drop)
}

/// Attaches `program` to a cgroup, beside the programs of others. It stays attached while the link
/// is open or pinned (Linux 5.7).
///
/// # Errors
/// The kernel's error: no permission, or a program of another kind.
pub fn attach_to_cgroup(
    program: BorrowedFd<'_>,
    cgroup: BorrowedFd<'_>,
    hook: CgroupHook,
) -> io::Result<OwnedFd> {
    let attr = LinkAttr {
        prog_fd: program.as_raw_fd() as u32,
        target_fd: cgroup.as_raw_fd() as u32,
        attach_type: hook as u32,
        flags: 0,
    };
    bpf(BPF_LINK_CREATE, &attr).map(own)
}
