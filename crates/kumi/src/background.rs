//! Starting this command again as its own daemon: `kumi link up` and `kumi tcp up` without `--foreground`.

use anyhow::Context;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

/// The daemon, while it is waited for.
pub struct Starting {
    child: Child,
    log: PathBuf,
}

/// Starts the same command line with `--foreground`, out of reach of the terminal's Ctrl-C, its words
/// going to `log`.
pub fn start(log: &Path) -> anyhow::Result<Starting> {
    // A lock that the caller holds, as flock(1) does, would be held as long as the daemon runs.
    kumi_sys::process::keep_descriptors_from_children();
    create(log).with_context(|| format!("{}; run as root", log.display()))?;
    // What is cut short later goes on at its new end.
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

/// Creates an empty file. A daemon that ends at this time may take the folder away; it cannot twice.
fn create(log: &Path) -> std::io::Result<()> {
    let made = File::create(log);
    if made
        .as_ref()
        .is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
    {
        std::fs::create_dir_all(log.parent().unwrap_or(Path::new("/")))?;
        return File::create(log).map(drop);
    }
    made.map(drop)
}

impl Starting {
    /// Has it undo what it did, as Ctrl-C does, and waits for that.
    pub fn undo(&mut self) -> std::io::Result<()> {
        let pid = nix::unistd::Pid::from_raw(self.child.id() as i32);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT)?;
        self.child.wait().map(drop)
    }

    /// How it ended, with its last words, if it has.
    pub fn ended(&mut self) -> anyhow::Result<Option<(ExitStatus, String)>> {
        let Some(status) = self.child.try_wait()? else {
            return Ok(None);
        };
        let said = self.said();
        let said = said.trim();
        let said = said.strip_prefix("kumi: ").unwrap_or(said);
        Ok(Some((status, said.to_owned())))
    }

    /// What it has said.
    pub fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}
