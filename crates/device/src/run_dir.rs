//! Paths of a device's control socket, log and identity, in `/run/kumi/net-INODE`.
//!
//! Each network namespace has its own folder, so that every host of a lab can have a `kumi0`.

use anyhow::Context;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Paths of the files of one device.
#[derive(Debug, Clone)]
pub struct RunDir {
    folder: PathBuf,
    device: String,
}

impl RunDir {
    /// Returns the paths for `device` in the caller's network namespace. The files need not exist.
    pub fn of(device: &str) -> anyhow::Result<Self> {
        Ok(Self {
            folder: folder()?,
            device: device.to_owned(),
        })
    }

    /// Returns the same as [`Self::of`], and creates the folder if it does not exist.
    pub fn make(device: &str) -> anyhow::Result<Self> {
        let dir = Self::of(device)?;
        dir.create()?;
        Ok(dir)
    }

    /// Returns the paths for `device` in `folder`.
    #[cfg(test)]
    pub(crate) fn in_folder(folder: PathBuf, device: &str) -> Self {
        let device = device.to_owned();
        Self { folder, device }
    }

    fn create(&self) -> anyhow::Result<()> {
        std::fs::create_dir_all(&self.folder)
            .with_context(|| format!("cannot create {}; run as root", self.folder.display()))
    }

    /// Returns the path of the control socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.join(format!("{}.sock", self.device))
    }

    /// Returns the path of the daemon's log.
    pub fn log(&self) -> PathBuf {
        self.folder.join(format!("{}.log", self.device))
    }

    /// Returns the path of the earlier part of the log, which was moved when the log reached its
    /// size limit.
    pub fn old_log(&self) -> PathBuf {
        self.folder.join(format!("{}.log.1", self.device))
    }

    /// Returns the path of the file with the device's identity towards peers.
    pub fn node(&self) -> PathBuf {
        self.folder.join(format!("{}.node", self.device))
    }

    /// Removes the files of a device that no longer exists, and the folder if no other device uses
    /// it.
    pub fn clear(&self) {
        for path in [self.node(), self.log(), self.old_log(), self.socket()] {
            let _ = std::fs::remove_file(path);
        }
        let _ = std::fs::remove_dir(&self.folder);
    }

    /// Removes the files of a daemon that ended before it had a device.
    pub fn clear_unless_used(&self) {
        if !self.socket().exists() && !self.node().exists() {
            self.clear();
        }
    }
}

fn folder() -> anyhow::Result<PathBuf> {
    let inode = std::fs::metadata("/proc/self/ns/net")
        .context("/proc/self/ns/net")?
        .ino();
    Ok(PathBuf::from(format!("/run/kumi/net-{inode}")))
}

/// Returns the names of the devices in the caller's network namespace that have a control socket.
pub fn devices() -> anyhow::Result<Vec<String>> {
    devices_in(&folder()?)
}

fn devices_in(folder: &Path) -> anyhow::Result<Vec<String>> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => {
            return Err(error)
                .with_context(|| format!("cannot read {}; run as root", folder.display()));
        }
    };
    let mut names: Vec<String> = entries
        .flatten()
        .filter_map(|entry| {
            Some(
                entry
                    .file_name()
                    .to_str()?
                    .strip_suffix(".sock")?
                    .to_owned(),
            )
        })
        .collect();
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder__cannot_be_created_or_read__is_named_with_the_remedy() {
        let dir = RunDir::in_folder("/dev/null/net-1".into(), "kumi0");
        let error = dir.create().unwrap_err();
        assert_eq!(
            format!("{error:#}"),
            "cannot create /dev/null/net-1; run as root: Not a directory (os error 20)"
        );
        let error = devices_in(Path::new("/dev/null/net-1")).unwrap_err();
        assert_eq!(
            format!("{error:#}"),
            "cannot read /dev/null/net-1; run as root: Not a directory (os error 20)"
        );
        let absent = std::env::temp_dir().join("kumi-no-such-folder");
        assert!(devices_in(&absent).unwrap().is_empty());
    }
}
