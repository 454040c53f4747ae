//! The process that keeps a host's namespaces alive, and ends the processes in them.
//!
//! A holder is a shell that waits for the end of its standard input, which its owner holds open.
//! The kernel closes the pipe however the owner ends: `down`, Ctrl-C, a crash or SIGKILL. The
//! holder then ends every process in its network namespace, and itself. With the last process the
//! namespace disappears, and with it every device.
//!
//! A parent-death signal would not suffice. It is sent when the *thread* that forked ends, and it
//! would not end the host's other processes.

use super::error::ClusterError;
use kumi_sys::netns::{Namespaces, new_session_on_exec};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest time that a holder may take to end its host's processes before it is killed itself.
const END_MAX: Duration = Duration::from_secs(3);

/// Script of a holder. `$1` is the host's name. `$2` is the directory with its `hosts` and
/// `hostname`, or empty for the fabric.
///
/// A fresh sysfs shows the host's own `/sys/class/net`. The outer bpffs and cgroup trees are
/// mounted into it again. Inside a user namespace the kernel may refuse the fresh sysfs, because it
/// checks that the mount reveals nothing. The outer sysfs then stays, and settings that need the
/// fresh one are refused later.
const SCRIPT: &str = r#"
set -u
hostname "$1" || exit 1
keep=$(mktemp -d) && mkdir "$keep/bpf" "$keep/cgroup"
for t in bpf cgroup; do mount --rbind "/sys/fs/$t" "$keep/$t" 2>/dev/null || :; done
if mount -t sysfs sysfs /sys 2>/dev/null; then
  for t in bpf cgroup; do mount --rbind "$keep/$t" "/sys/fs/$t" 2>/dev/null || :; done
fi
umount -R "$keep/bpf" 2>/dev/null; umount -R "$keep/cgroup" 2>/dev/null
rmdir "$keep/bpf" "$keep/cgroup" "$keep" 2>/dev/null
if [ -n "$2" ]; then
  for f in hosts hostname; do [ -e "/etc/$f" ] && { mount --bind "$2/$f" "/etc/$f" || exit 1; }; done
fi
ip link set lo up || exit 1
# Bridged frames would otherwise visit the firewall hooks: a switch has none, and they cost a tenth.
for f in /proc/sys/net/bridge/bridge-nf-call-*; do [ -e "$f" ] && echo 0 >"$f"; done 2>/dev/null
# The files of this network's kumi devices; those that are there are of a network that had its number.
here=$(readlink /proc/self/ns/net)
files=/run/kumi/net-${here#net:?}
files=${files%?}
rm -rf "$files" 2>/dev/null
echo ready
exec >/dev/null 2>&1
read -r _
for p in /proc/[0-9]*; do
  [ "$(readlink "$p/ns/net")" = "$here" ] && [ "${p#/proc/}" != $$ ] && kill -9 "${p#/proc/}"
done
rm -rf "$files"
:
"#;

/// Namespaces of a host, kept alive by a process.
#[derive(Debug)]
pub struct Holder {
    name: String,
    child: Child,
    namespaces: Namespaces,
}

impl Holder {
    /// Starts a holder for `name`. `etc` is the directory with its `hosts` and `hostname`.
    ///
    /// # Errors
    /// If the kernel refuses namespaces or mounts.
    pub fn start(name: &str, etc: Option<&Path>) -> Result<Self, ClusterError> {
        let mut command = Command::new("unshare");
        command
            .args(["--net", "--uts", "--mount", "--propagation", "private"])
            .args(["sh", "-c", SCRIPT, "kumi-lab-holder", name])
            .arg(etc.map_or("".as_ref(), Path::as_os_str))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        new_session_on_exec(&mut command);
        let mut child = command.spawn().map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => ClusterError::NoProgram {
                program: "unshare".to_owned(),
                package: "util-linux",
            },
            _ => ClusterError::Io {
                operation: format!("starting host {name}"),
                reason: source,
            },
        })?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            // A broken pipe leaves the line empty, which counts as a refusal below.
            let _ = BufReader::new(stdout).read_line(&mut line);
        }
        if line.trim().is_empty() {
            let mut reason = String::new();
            if let Some(mut stderr) = child.stderr.take() {
                let _ = stderr.read_to_string(&mut reason);
            }
            let _ = child.wait();
            return Err(ClusterError::NoPrivilege {
                reason: reason.trim().replace('\n', "; "),
            });
        }
        let namespaces = Namespaces::of(child.id())
            .map_err(ClusterError::io(format!("entering host {name}")))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            namespaces,
        })
    }

    /// Returns the host's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the id of the holder's process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the host's namespaces.
    pub fn namespaces(&self) -> &Namespaces {
        &self.namespaces
    }

    /// Returns a command that runs `program` inside the namespaces.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        self.namespaces.enter_on_exec(&mut command);
        command
    }

    /// Makes the holder end, without waiting for it.
    pub fn begin_end(&mut self) {
        drop(self.child.stdin.take());
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.begin_end();
        let deadline = Instant::now() + END_MAX;
        while let Ok(None) = self.child.try_wait() {
            if Instant::now() > deadline {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}
