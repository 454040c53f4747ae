//! Starts this command again as its own daemon, for `kumi link up` and `kumi tcp up` without
//! `--foreground`.

use anyhow::Context;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

/// A daemon that the caller waits for.
pub struct Starting {
    child: Child,
    log: PathBuf,
}

/// Starts the same command line with `--foreground`. The daemon has its own process group, so the
/// terminal's Ctrl-C does not reach it. Its output goes to `log`.
pub fn start(log: &Path) -> anyhow::Result<Starting> {
    // The daemon would otherwise hold a lock that the caller holds (flock(1)) for as long as it
    // runs.
    kumi_sys::process::keep_descriptors_from_children();
    create(log).with_context(|| format!("cannot create {}; run as root", log.display()))?;
    // Appending continues at the new end if the log is truncated later.
    let file = File::options().append(true).open(log)?;
    let child = Command::new(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .arg("--foreground")
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .process_group(0)
        .spawn()?;
    Ok(Starting {
        child,
        log: log.to_owned(),
    })
}

/// Creates an empty file, and its folder if that is missing. One retry is enough: a daemon that
/// ends at this time may remove the folder, but only once.
fn create(log: &Path) -> std::io::Result<()> {
    let outcome = File::create(log);
    if outcome
        .as_ref()
        .is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
    {
        std::fs::create_dir_all(log.parent().unwrap_or(Path::new("/")))?;
        return File::create(log).map(drop);
    }
    outcome.map(drop)
}

impl Starting {
    /// Has the daemon undo its work, as on Ctrl-C, and waits for its end.
    pub fn undo(&mut self) -> std::io::Result<()> {
        let pid = nix::unistd::Pid::from_raw(self.child.id() as i32);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT)?;
        self.child.wait().map(drop)
    }

    /// Returns the daemon's exit status and its output, if it has ended.
    pub fn ended(&mut self) -> anyhow::Result<Option<(ExitStatus, String)>> {
        let Some(status) = self.child.try_wait()? else {
            return Ok(None);
        };
        let output = self.said();
        let output = output.trim();
        let output = output.strip_prefix("kumi: ").unwrap_or(output);
        Ok(Some((status, output.to_owned())))
    }

    /// Returns the daemon's output so far.
    pub fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log__cannot_be_created__is_named_with_the_remedy() {
        let error = start(Path::new("/dev/null/kumi0.log")).err().unwrap();
        assert_eq!(
            format!("{error:#}"),
            "cannot create /dev/null/kumi0.log; run as root: Not a directory (os error 20)"
        );
    }
}
