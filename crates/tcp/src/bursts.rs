//! Short bursts on short paths: a sysctl of the network namespaces in which processes use kumi.
//!
//! Since 5.18, Linux passes up to 64 KB of a connection to the NIC at once if its round trip is
//! shorter than 512 us. Such bursts of several senders overflow a shallow port. With
//! `tcp_tso_rtt_log = 0`, a burst is what the connection sends in a millisecond, as on long paths
//! (`tcp_tso_autosize`). No option of a socket does this (ADR 045).

use kumi_command::errln;
use nix::sched::{CloneFlags, setns};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

/// The sysctl, of Linux 5.18 and later: round trips up to 2^value microseconds are short.
const FILE: &str = "/proc/sys/net/ipv4/tcp_tso_rtt_log";
/// The value for which no round trip is short.
const OFF: &str = "0";
/// The kernel's default.
const DEFAULT: &str = "9";

/// The network namespaces whose sysctl is changed. Dropping it restores them.
#[derive(Debug, Default)]
pub(crate) struct Bursts {
    namespaces: Vec<Namespace>,
}

#[derive(Debug)]
struct Namespace {
    file: File,
    inode: u64,
    /// Value to restore.
    before: String,
}

impl Bursts {
    /// Shortens the bursts in the network namespace of process `pid`. Does nothing on a kernel
    /// without the sysctl. `is_adopted`: a daemon that was killed may have left its value, so a
    /// 0 is not taken for the administrator's.
    ///
    /// # Errors
    /// The process has ended, or the sysctl may not be written.
    pub fn shorten(&mut self, pid: u32, is_adopted: bool) -> io::Result<()> {
        let file = File::open(format!("/proc/{pid}/ns/net"))?;
        let inode = file.metadata()?.ino();
        if self.namespaces.iter().any(|space| space.inode == inode) {
            return Ok(());
        }
        let before = within(&file, || {
            let before = match std::fs::read_to_string(FILE) {
                Ok(before) => before.trim().to_owned(),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(error),
            };
            if before != OFF {
                std::fs::write(FILE, OFF)?;
                return Ok(Some(before));
            }
            Ok(is_adopted.then(|| DEFAULT.to_owned()))
        })?;
        if let Some(before) = before {
            self.namespaces.push(Namespace {
                file,
                inode,
                before,
            });
        }
        Ok(())
    }

    /// Restores the namespaces in which none of the processes `pids` is. Holding one would keep it
    /// alive.
    pub fn keep_only(&mut self, pids: impl Iterator<Item = u32>) {
        let metadata = pids.flat_map(|pid| std::fs::metadata(format!("/proc/{pid}/ns/net")));
        let used: Vec<u64> = metadata.map(|metadata| metadata.ino()).collect();
        self.namespaces.retain(|space| {
            let is_used = used.contains(&space.inode);
            if !is_used {
                space.restore();
            }
            is_used
        });
    }
}

impl Namespace {
    /// Restores the sysctl, unless somebody has changed it since.
    fn restore(&self) {
        let outcome = within(&self.file, || {
            if std::fs::read_to_string(FILE)?.trim() == OFF {
                std::fs::write(FILE, &self.before)?;
            }
            Ok(())
        });
        if let Err(error) = outcome {
            errln!("kumi: cannot restore net.ipv4.tcp_tso_rtt_log: {error}");
        }
    }
}

impl Drop for Bursts {
    fn drop(&mut self) {
        for space in &self.namespaces {
            space.restore();
        }
    }
}

/// Runs `work` in a thread of the network namespace.
fn within<T: Send>(namespace: &File, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            setns(namespace.as_fd(), CloneFlags::CLONE_NEWNET)?;
            work()
        });
        thread
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
    })
}
