//! Where a lab's files live, and the lock that says it is alive.
//!
//! ```text
//! /run/kumi/lab/NAME/lock         held by the owner for as long as the lab lives
//!                   /roster.json  hosts, holders, addresses
//!                   /control      the supervisor's socket
//!                   /HOST/        hosts, hostname: mounted over the host's /etc/…
//! ```
//!
//! The lock, not the directory, is what makes a name taken: the kernel drops it when its owner
//! dies, so the next `up` finds and clears whatever a crash left.

use super::error::ClusterError;
use nix::fcntl::{Flock, FlockArg};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// The directory of one lab, locked. Dropping it removes it.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    _lock: Flock<File>,
}

/// The directory that holds every lab's: `/run/kumi/lab` for root, otherwise one of the user's.
///
/// # Errors
/// None of them can be made.
pub fn root() -> Result<PathBuf, ClusterError> {
    let system = PathBuf::from("/run/kumi/lab");
    if fs::create_dir_all(&system).is_ok()
        && nix::unistd::access(&system, nix::unistd::AccessFlags::W_OK).is_ok()
    {
        return Ok(system);
    }
    let base = std::env::var_os("XDG_RUNTIME_DIR")
        .map(PathBuf::from)
        .filter(|dir| dir.is_dir())
        .unwrap_or_else(|| std::env::temp_dir().join(format!("kumi-{}", nix::unistd::getuid())));
    let path = base.join("kumi/lab");
    fs::create_dir_all(&path).map_err(|source| ClusterError::NoRunDir {
        path: path.clone(),
        reason: source,
    })?;
    Ok(path)
}

/// Whether the lab in `dir` has a living owner.
fn is_alive(dir: &Path) -> bool {
    File::open(dir.join("lock"))
        .is_ok_and(|file| Flock::lock(file, FlockArg::LockExclusiveNonblock).is_err())
}

/// The names of the labs that are up.
///
/// # Errors
/// The directory of labs cannot be read.
pub fn living() -> Result<Vec<String>, ClusterError> {
    let root = root()?;
    let entries =
        fs::read_dir(&root).map_err(ClusterError::io(format!("reading {}", root.display())))?;
    let mut names: Vec<String> = entries
        .flatten()
        .filter(|entry| is_alive(&entry.path()))
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    Ok(names)
}

impl RunDir {
    /// Takes the name `name`.
    ///
    /// # Errors
    /// A living lab has it.
    pub fn claim(name: &str) -> Result<Self, ClusterError> {
        let path = root()?.join(name);
        let doing = || format!("claiming {}", path.display());
        fs::create_dir_all(&path).map_err(ClusterError::io(doing()))?;
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path.join("lock"))
            .map_err(ClusterError::io(doing()))?;
        let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|_| {
            ClusterError::NameTaken {
                name: name.to_owned(),
            }
        })?;
        // What a crashed owner left is stale now.
        for entry in fs::read_dir(&path)
            .map_err(ClusterError::io(doing()))?
            .flatten()
        {
            if entry.file_name() == "lock" {
                continue;
            }
            let stale = entry.path();
            let removed = if stale.is_dir() {
                fs::remove_dir_all(&stale)
            } else {
                fs::remove_file(&stale)
            };
            removed.map_err(ClusterError::io(format!(
                "removing stale {}",
                stale.display()
            )))?;
        }
        Ok(Self { path, _lock: lock })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes `text` to `name` below it.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn write(&self, name: &str, text: &str) -> Result<PathBuf, ClusterError> {
        let path = self.path.join(name);
        let doing = format!("writing {}", path.display());
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(ClusterError::io(doing.clone()))?;
        }
        fs::write(&path, text).map_err(ClusterError::io(doing))?;
        Ok(path)
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        // The lock is still held, so nobody else can be using it. A failure leaves files that the
        // next `up` clears.
        let _ = fs::remove_dir_all(&self.path);
    }
}
