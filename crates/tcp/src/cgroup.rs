//! Attaches the programs to the cgroup of a process. No process is moved, because Slurm and systemd
//! own the cgroups.

use crate::error::TcpError;
use crate::pins::{cgroups, pin, pin_error};
use kumi_sys::bpf::{CgroupHook, attach_to_cgroup, open_pin, pin as pin_object};
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
pub fn folder(pid: u32) -> Result<PathBuf, TcpError> {
    let no_cgroup = |reason: &str| TcpError::NoCgroup {
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
        .ok_or_else(|| no_cgroup("no cgroup2 file system is mounted"))?;
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup"))
        .map_err(|error| no_cgroup(&error.to_string()))?;
    let path = groups
        .lines()
        .find_map(|line| line.strip_prefix("0::"))
        .ok_or_else(|| no_cgroup("its /proc/PID/cgroup has no line for version 2"))?;
    Ok(Path::new(mount).join(path.trim_start_matches('/')))
}

/// Returns the inode of the version 2 cgroup with this folder.
///
/// # Errors
/// [`TcpError::NotCgroup`].
pub(crate) fn inode(folder: &Path) -> Result<u64, TcpError> {
    let controllers = std::fs::metadata(folder.join("cgroup.controllers"));
    match controllers.and_then(|_| std::fs::metadata(folder)) {
        Ok(metadata) => Ok(metadata.ino()),
        Err(_) => Err(TcpError::NotCgroup {
            folder: folder.display().to_string(),
        }),
    }
}

/// Attaches the programs to the cgroup of process `pid`, unless they are attached there or to a
/// cgroup above. Returns the inode of the cgroup that has them.
///
/// # Errors
/// [`TcpError::NoCgroup`], or the kernel's refusal.
pub fn attach(pid: u32) -> Result<u64, TcpError> {
    let folder = folder(pid)?;
    let present = folder
        .ancestors()
        .filter_map(|folder| Some(std::fs::metadata(folder).ok()?.ino()))
        .find(|inode| links_folder(*inode).exists());
    if let Some(inode) = present {
        return Ok(inode);
    }
    let operation = format!("attaching the programs to {}", folder.display());
    let cgroup = File::open(&folder).map_err(pin_error(&operation))?;
    let inode = cgroup.metadata().map_err(pin_error(&operation))?.ino();
    let links = links_folder(inode);
    std::fs::create_dir_all(&links).map_err(pin_error(&operation))?;
    let outcome = PROGRAMS.iter().try_for_each(|(name, hook)| {
        let program = open_pin(&pin(name))?;
        let link = attach_to_cgroup(program.as_fd(), cgroup.as_fd(), *hook)?;
        pin_object(link.as_fd(), &links.join(name))
    });
    outcome.map_err(|error| {
        detach(inode);
        pin_error(&operation)(error)
    })?;
    Ok(inode)
}

/// Detaches the programs from the cgroup with this inode, which contains no process of `kumi run`
/// any more. The links are unpinned, so that neither a removed cgroup nor one in use keeps any of
/// them.
pub fn detach(inode: u64) {
    let _ = std::fs::remove_dir_all(links_folder(inode));
}

/// Returns the folder in which the links to the cgroup with this inode are pinned.
fn links_folder(inode: u64) -> PathBuf {
    cgroups().join(inode.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup__of_no_process__is_refused_with_what_is_needed() {
        let message = folder(u32::MAX).unwrap_err().to_string();
        assert!(
            message.starts_with("process 4294967295 is not in a version 2 cgroup (")
                && message.ends_with(
                    "); boot with systemd.unified_cgroup_hierarchy=1, \
                     or mount cgroup2 next to the version 1 hierarchy"
                ),
            "{message}"
        );
    }

    #[test]
    fn cgroup__folder_of_another_kind__is_refused_with_what_is_accepted() {
        for path in ["/no/such/folder", "/proc", "/dev/null"] {
            let message = inode(Path::new(path)).unwrap_err().to_string();
            assert_eq!(
                message,
                format!(
                    "{path} is not a version 2 cgroup, whose folder has a file cgroup.controllers; \
                     expected a folder such as /sys/fs/cgroup/system.slice"
                )
            );
        }
    }
}
