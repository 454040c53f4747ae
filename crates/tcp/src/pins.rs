//! Where the programs live when no process of kumi's does: `/sys/fs/bpf/kumi/tcp`.

use crate::error::TcpError;
use nix::mount::{MsFlags, mount};
use nix::sys::statfs::{FsType, statfs};
use std::path::{Path, PathBuf};

/// Where the pins are.
pub const PIN_FOLDER: &str = "/sys/fs/bpf/kumi/tcp";
/// Mount point of the file system they are in.
const BPFFS: &str = "/sys/fs/bpf";
/// `BPF_FS_MAGIC` of linux/bpf.h's magic numbers.
const BPFFS_MAGIC: FsType = FsType(0xcafe_4a11);

/// The pin of a program, map or link.
pub fn pin(name: &str) -> PathBuf {
    Path::new(PIN_FOLDER).join(name)
}

/// The folder of the links into cgroups.
pub fn cgroups() -> PathBuf {
    pin("cgroups")
}

/// Whether the programs are installed.
pub fn is_installed() -> bool {
    pin("settings").exists()
}

/// The error of an operation on a pin.
pub fn pinning<E: std::fmt::Display>(doing: &str) -> impl Fn(E) -> TcpError + use<E> {
    let doing = doing.to_owned();
    move |error| TcpError::Pin {
        doing: doing.clone(),
        reason: error.to_string(),
    }
}

/// Makes the folders, mounting the file system for pins where nothing has.
pub fn make_folders() -> Result<(), TcpError> {
    if !statfs(BPFFS).is_ok_and(|stat| stat.filesystem_type() == BPFFS_MAGIC) {
        let none = None::<&str>;
        mount(Some("bpf"), BPFFS, Some("bpf"), MsFlags::empty(), none)
            .map_err(pinning(&format!("mounting {BPFFS}")))?;
    }
    // What an install that was killed left behind would be in the way.
    let _ = std::fs::remove_dir_all(PIN_FOLDER);
    std::fs::create_dir_all(cgroups()).map_err(pinning(&format!("making {PIN_FOLDER}")))
}

/// Removes every pin: what only pins kept is gone from the kernel.
pub fn remove() -> Result<(), TcpError> {
    std::fs::remove_dir_all(PIN_FOLDER).map_err(pinning(&format!("removing {PIN_FOLDER}")))
}
