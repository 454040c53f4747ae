//! Directory of a lab's files, and the lock that shows that the lab is alive.
//!
//! ```text
//! /run/kumi/lab/NAME/lock         held by the owner while the lab lives
//!                   /roster.json  hosts, holders, addresses
//!                   /control      the supervisor's socket
//!                   /etc/HOST/    hosts, hostname: mounted over the host's /etc/…
//! ```
//!
//! A name is taken while the lock is held, not while the directory exists. The kernel releases the
//! lock when its owner dies, so the next `up` removes the files that a crash left.
//!
//! The lock belongs to an open file description, so it can be queried without being taken. A
//! process that only queries must not make a dead lab seem alive to another such process.

use super::error::ClusterError;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc::{self, flock};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Locked directory of a lab. Dropping it removes the directory.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    _lock: File,
}

/// Returns the directory that contains every lab's directory. It is `/run/kumi/lab` for root,
/// otherwise one of the user's.
///
/// # Errors
/// If none of them can be created.
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
    create_root(base.join("kumi/lab"))
}

/// Creates the user's directory for labs.
fn create_root(path: PathBuf) -> Result<PathBuf, ClusterError> {
    match fs::create_dir_all(&path) {
        Ok(()) => Ok(path),
        Err(reason) => Err(ClusterError::NoRunDir { path, reason }),
    }
}

/// Returns an exclusive lock on a whole file.
fn exclusive_lock() -> flock {
    flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

/// Returns whether the lab in `dir` has a living owner.
fn is_alive(dir: &Path) -> bool {
    let mut lock = exclusive_lock();
    File::open(dir.join("lock"))
        .is_ok_and(|file| fcntl(&file, FcntlArg::F_OFD_GETLK(&mut lock)).is_ok())
        && lock.l_type != libc::F_UNLCK as libc::c_short
}

/// Returns the names of the labs that are up.
///
/// # Errors
/// If the directory of labs cannot be read.
pub fn running_labs() -> Result<Vec<String>, ClusterError> {
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
    /// Claims the name `name`, and removes the directories of labs whose owners were killed.
    ///
    /// # Errors
    /// If a living lab has the name.
    pub fn claim(name: &str) -> Result<Self, ClusterError> {
        let root = root()?;
        let run_dir = Self::claim_in(&root, name)?;
        for entry in fs::read_dir(&root).into_iter().flatten().flatten() {
            // A directory without a roster may belong to a lab that is being created.
            let is_dead = entry.path().join("roster.json").exists() && !is_alive(&entry.path());
            if let (true, Ok(name)) = (is_dead, entry.file_name().into_string()) {
                // If another process claims it first, that process removes it.
                drop(Self::claim_in(&root, &name));
            }
        }
        Ok(run_dir)
    }

    fn claim_in(root: &Path, name: &str) -> Result<Self, ClusterError> {
        let path = root.join(name);
        let operation = || format!("claiming {}", path.display());
        let lock = loop {
            fs::create_dir_all(&path).map_err(ClusterError::io(operation()))?;
            let file = File::options()
                .create(true)
                .truncate(false)
                .write(true)
                .open(path.join("lock"));
            let file = match file {
                // Another process has just removed the directory.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                file => file.map_err(ClusterError::io(operation()))?,
            };
            fcntl(&file, FcntlArg::F_OFD_SETLK(&exclusive_lock())).map_err(|_| {
                ClusterError::NameTaken {
                    name: name.to_owned(),
                }
            })?;
            let inode = file
                .metadata()
                .map_err(ClusterError::io(operation()))?
                .ino();
            if fs::metadata(path.join("lock")).is_ok_and(|metadata| metadata.ino() == inode) {
                break file;
            }
        };
        // The files that a crashed owner left are stale now.
        for entry in fs::read_dir(&path)
            .map_err(ClusterError::io(operation()))?
            .flatten()
        {
            if entry.file_name() == "lock" {
                continue;
            }
            let stale = entry.path();
            let outcome = if stale.is_dir() {
                fs::remove_dir_all(&stale)
            } else {
                fs::remove_file(&stale)
            };
            outcome.map_err(ClusterError::io(format!(
                "removing stale {}",
                stale.display()
            )))?;
        }
        Ok(Self { path, _lock: lock })
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes `text` to the file `name` in the directory.
    ///
    /// # Errors
    /// If the file system refuses.
    pub fn write(&self, name: &str, text: &str) -> Result<PathBuf, ClusterError> {
        let path = self.path.join(name);
        let operation = format!("writing {}", path.display());
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(ClusterError::io(operation.clone()))?;
        }
        fs::write(&path, text).map_err(ClusterError::io(operation))?;
        Ok(path)
    }

    /// Writes the files that replace those of `/etc` in the host called `host`, and returns their
    /// directory. `hosts` is the text of its `hosts`. A host may have the name of another file of
    /// the lab, such as `control`, so the directory is not beside these files.
    ///
    /// # Errors
    /// If the file system refuses.
    pub fn write_etc(&self, host: &str, hosts: &str) -> Result<PathBuf, ClusterError> {
        let dir = format!("etc/{host}");
        self.write(&format!("{dir}/hosts"), hosts)?;
        self.write(&format!("{dir}/hostname"), &format!("{host}\n"))?;
        Ok(self.path.join(dir))
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        // The lock is still held, so no other process can be using the directory. A failure leaves
        // files that the next `up` removes.
        let _ = fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labs(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("kumi-run-dir-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn is_alive__concurrent_checks_of_a_dead_lab__all_find_it_dead() {
        let root = labs("looked-at");
        let dead = RunDir::claim_in(&root, "dead").unwrap().path.clone();
        fs::create_dir_all(&dead).unwrap();
        fs::write(dead.join("lock"), "").unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..2000).for_each(|_| assert!(!is_alive(&dead))));
            }
        });
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn claim__name_of_a_running_lab__is_refused_until_it_is_down() {
        let root = labs("claimed");
        let owner = RunDir::claim_in(&root, "one").unwrap();
        assert!(is_alive(owner.path()));
        let error = RunDir::claim_in(&root, "one").unwrap_err();
        assert_eq!(
            error.to_string(),
            "a lab named `one` is already up; run `kumi lab down one` first, or give `--replace` \
             or another `--name`"
        );
        owner.write("h1/hosts", "").unwrap();
        drop(owner);
        assert!(!root.join("one").exists());
        drop(RunDir::claim_in(&root, "one").unwrap());
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn run_dir__below_a_file__is_refused_with_its_path_and_a_remedy() {
        let root = labs("refused");
        let file = root.join("file");
        fs::write(&file, "").unwrap();
        let path = file.display();
        assert_eq!(
            create_root(file.join("kumi/lab")).unwrap_err().to_string(),
            format!(
                "cannot create {path}/kumi/lab: Not a directory (os error 20); run it as root, or \
                 set XDG_RUNTIME_DIR to your own directory"
            )
        );
        assert_eq!(
            RunDir::claim_in(&file, "one").unwrap_err().to_string(),
            format!("claiming {path}/one: Not a directory (os error 20)")
        );
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn host_files__host_named_like_a_file_of_the_lab__do_not_take_its_place() {
        let root = labs("named");
        let owner = RunDir::claim_in(&root, "one").unwrap();
        for name in ["lock", "control", "roster.json"] {
            let dir = owner.write_etc(name, "10.1.0.1 h1\n").unwrap();
            let hostname = fs::read_to_string(dir.join("hostname")).unwrap();
            assert_eq!(hostname, format!("{name}\n"));
            assert!(!owner.path().join(name).is_dir(), "{name}");
        }
        drop(owner);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn claim__several_at_once__has_one_owner_at_a_time() {
        let root = labs("contended");
        let owners = std::sync::atomic::AtomicUsize::new(0);
        let claims = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let Ok(owner) = RunDir::claim_in(&root, "one") else {
                            continue;
                        };
                        let owner_count = owners.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                        assert_eq!(owner_count, 0);
                        claims.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                        owners.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                        drop(owner);
                    }
                });
            }
        });
        assert!(claims.into_inner() > 0);
        fs::remove_dir_all(root).unwrap();
    }
}
