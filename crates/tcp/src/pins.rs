//! Pins of the programs, which keep them alive without a process: `/sys/fs/bpf/kumi/tcp`.

use crate::error::TcpError;
use nix::mount::{MsFlags, mount};
use nix::sys::statfs::{FsType, statfs};
use std::path::{Path, PathBuf};

/// Folder of the pins.
pub const PIN_FOLDER: &str = "/sys/fs/bpf/kumi/tcp";
/// Mount point of bpffs.
const BPFFS: &str = "/sys/fs/bpf";
/// `BPF_FS_MAGIC` of linux/magic.h.
const BPFFS_MAGIC: FsType = FsType(0xcafe_4a11);

/// Returns the pin of a program, map or link.
pub fn pin(name: &str) -> PathBuf {
    Path::new(PIN_FOLDER).join(name)
}

/// Returns the folder of the links to cgroups.
pub fn cgroups() -> PathBuf {
    pin("cgroups")
}

/// Returns whether the programs are installed.
pub fn is_installed() -> bool {
    pin("settings").exists()
}

/// Returns a function that makes the error of an operation on a pin.
pub fn pin_error<E: std::fmt::Display>(operation: &str) -> impl Fn(E) -> TcpError + use<E> {
    let operation = operation.to_owned();
    move |error| TcpError::Pin {
        operation: operation.clone(),
        reason: error.to_string(),
    }
}

/// Creates the folders, and mounts bpffs if it is not mounted.
pub fn make_folders() -> Result<(), TcpError> {
    if !statfs(BPFFS).is_ok_and(|stat| stat.filesystem_type() == BPFFS_MAGIC) {
        let data = None::<&str>;
        mount(Some("bpf"), BPFFS, Some("bpf"), MsFlags::empty(), data)
            .map_err(pin_error(&format!("mounting {BPFFS}")))?;
    }
    // Remove the pins of an installation that was killed.
    let _ = std::fs::remove_dir_all(PIN_FOLDER);
    std::fs::create_dir_all(cgroups()).map_err(pin_error(&format!("creating {PIN_FOLDER}")))
}

/// Removes every pin. The kernel frees objects that only a pin held.
pub fn remove() -> Result<(), TcpError> {
    std::fs::remove_dir_all(PIN_FOLDER).map_err(pin_error(&format!("removing {PIN_FOLDER}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pin__operation_that_failed__is_named_with_what_to_check() {
        let error = std::fs::create_dir("/no/such/folder").unwrap_err();
        assert_eq!(
            pin_error("creating a folder")(error).to_string(),
            "creating a folder: No such file or directory (os error 2); \
             check that a writable bpf file system is mounted at /sys/fs/bpf"
        );
    }
}
