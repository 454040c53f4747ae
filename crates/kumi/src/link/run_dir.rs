//! Where a device's control socket, log and identity live: `/run/kumi/net-INODE`, one folder for
//! each network namespace, so that the hosts of a lab may all have a `kumi0`.

use anyhow::Context;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// The files of one device.
#[derive(Debug, Clone)]
pub struct RunDir {
    folder: PathBuf,
    device: String,
}

impl RunDir {
    /// The files of `device` in the caller's network namespace, whether they are there or not.
    pub fn of(device: &str) -> anyhow::Result<Self> {
        Ok(Self {
            folder: folder()?,
            device: device.to_owned(),
        })
    }

    /// As [`Self::of`]; the folder is made if need be.
    pub fn make(device: &str) -> anyhow::Result<Self> {
        let dir = Self::of(device)?;
        std::fs::create_dir_all(&dir.folder)
            .with_context(|| format!("cannot make {}; run as root", dir.folder.display()))?;
        Ok(dir)
    }

    /// The control socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.join(format!("{}.sock", self.device))
    }

    /// What the daemon says.
    pub fn log(&self) -> PathBuf {
        self.folder.join(format!("{}.log", self.device))
    }

    /// What it said before the log was full.
    pub fn log_before(&self) -> PathBuf {
        self.folder.join(format!("{}.log.1", self.device))
    }

    /// The device's identity towards peers.
    pub fn node(&self) -> PathBuf {
        self.folder.join(format!("{}.node", self.device))
    }

    /// Removes what a device that is gone left behind; the folder too, if no other device uses it.
    pub fn clear(&self) {
        for path in [self.node(), self.log(), self.log_before(), self.socket()] {
            let _ = std::fs::remove_file(path);
        }
        let _ = std::fs::remove_dir(&self.folder);
    }

    /// Removes what a daemon left behind that did not come as far as to have a device.
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

/// The devices of the caller's network namespace that have a control socket.
pub fn devices() -> anyhow::Result<Vec<String>> {
    let folder = folder()?;
    let entries = match std::fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => {
            return Err(error).with_context(|| format!("{}; run as root", folder.display()));
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
