//! Attaches the programs to the cgroup of a process. No process is moved, because Slurm and systemd
//! own the cgroups.

use crate::error::TcpError;
use crate::pins::{cgroups, pin, pinning};
use kumi_sys::bpf::{CgroupHook, attach_to_cgroup, pin as pin_object, pinned};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Programs that are attached to the cgroup of a process of `kumi run`, with their hooks.
const PROGRAMS: [(&str, CgroupHook); 3] = [
    ("own_ranks_socket", CgroupHook::SockCreate),
    ("choose", CgroupHook::SockOps),
    ("put_acks_first", CgroupHook::Egress),
];

/// Returns the folder of the version 2 cgroup that contains process `pid`.
///
/// # Errors
/// [`TcpError::NoCgroup`], with the missing part.
pub fn folder_of(pid: u32) -> Result<PathBuf, TcpError> {
    let missing = |reason: &str| TcpError::NoCgroup {
        pid,
        reason: reason.to_owned(),
    };
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mount = mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            Some((fields.next()?, fields.next()?))
        })
        .find_map(|(place, kind)| (kind == "cgroup2").then_some(place))
        .ok_or_else(|| missing("no cgroup2 file system is mounted"))?;
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup"))
        .map_err(|error| missing(&error.to_string()))?;
    let path = groups
        .lines()
        .find_map(|line| line.strip_prefix("0::"))
        .ok_or_else(|| missing("its /proc/PID/cgroup has no line for version 2"))?;
    Ok(Path::new(mount).join(path.trim_start_matches('/')))
}

/// Attaches the programs to the cgroup of process `pid`, unless they are attached there or to a
/// cgroup above. Returns the inode of the cgroup that has them.
///
/// # Errors
/// [`TcpError::NoCgroup`], or the kernel's refusal.
pub fn attach(pid: u32) -> Result<u64, TcpError> {
    let folder = folder_of(pid)?;
    let attached = folder
        .ancestors()
        .filter_map(|folder| Some(std::fs::metadata(folder).ok()?.ino()))
        .find(|inode| links_of(*inode).exists());
    if let Some(inode) = attached {
        return Ok(inode);
    }
    let doing = format!("attaching the programs to {}", folder.display());
    let cgroup = File::open(&folder).map_err(pinning(&doing))?;
    let inode = cgroup.metadata().map_err(pinning(&doing))?.ino();
    let links = links_of(inode);
    std::fs::create_dir_all(&links).map_err(pinning(&doing))?;
    let attached = PROGRAMS.iter().try_for_each(|(name, hook)| {
        let program = pinned(&pin(name))?;
        let link = attach_to_cgroup(program.as_fd(), cgroup.as_fd(), *hook)?;
        pin_object(link.as_fd(), &links.join(name))
    });
    attached.map_err(|error| {
        detach(inode);
        pinning(&doing)(error)
    })?;
    Ok(inode)
}

/// Detaches the programs from the cgroup with this inode, which contains no process of `kumi run`
/// any more. The links are unpinned, so that neither a removed cgroup nor one in use keeps any of
/// them.
pub fn detach(inode: u64) {
    let _ = std::fs::remove_dir_all(links_of(inode));
}

/// Returns the folder in which the links to the cgroup with this inode are pinned.
fn links_of(inode: u64) -> PathBuf {
    cgroups().join(inode.to_string())
}
