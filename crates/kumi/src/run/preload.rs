//! The library that `kumi run` loads into the program. It marks the phases of MPI programs, and
//! sets socket options where no daemon does. This binary contains it and writes it to a file when
//! it is first needed.

use anyhow::{Context, ensure};
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The compiled library. It is empty if the build had no C compiler.
static LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libkumi_preload.so"));

/// Adds the library to the front of the libraries that `command` preloads.
///
/// # Errors
/// The library is not in this build, or no folder is available for it.
pub fn add(command: &mut Command) -> anyhow::Result<()> {
    ensure!(!LIBRARY.is_empty(), "this build has no preload library");
    let mut list = OsString::from(path()?);
    if let Some(value) = std::env::var_os("LD_PRELOAD").filter(|value| !value.is_empty()) {
        list.push(":");
        list.push(value);
    }
    command.env("LD_PRELOAD", list);
    Ok(())
}

/// Returns the path of the library, in the first folder that only this user can write.
fn path() -> anyhow::Result<PathBuf> {
    let user = nix::unistd::geteuid();
    let user_folder = std::env::temp_dir().join(format!("kumi-{user}"));
    if user.is_root() {
        return install(Path::new("/run/kumi/lib")).or_else(|_| install(&user_folder));
    }
    // Slurm and sudo pass XDG_RUNTIME_DIR on to hosts and users that have no such folder.
    let session = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    match session.filter(|folder| folder.is_dir()) {
        Some(folder) => install(&folder.join("kumi")).or_else(|_| install(&user_folder)),
        None => install(&user_folder),
    }
}

/// Returns the path of the library in `folder`, where no other user may write. Writes the file if
/// it is missing.
fn install(folder: &Path) -> anyhow::Result<PathBuf> {
    let user = nix::unistd::geteuid();
    let mut builder = fs::DirBuilder::new();
    builder
        .recursive(true)
        .mode(0o755)
        .create(folder)
        .with_context(|| format!("cannot create {}; set TMPDIR", folder.display()))?;
    let stat = fs::symlink_metadata(folder)?;
    ensure!(
        stat.is_dir() && stat.uid() == user.as_raw() && stat.mode() & 0o022 == 0,
        "{} is not a folder that only user {user} can write: remove it, or set TMPDIR",
        folder.display()
    );
    // The name contains the version and a fingerprint, so an upgrade does not overwrite a library
    // in use.
    let name = format!(
        "libkumi_preload-{}-{:016x}.so",
        env!("CARGO_PKG_VERSION"),
        fingerprint()
    );
    let path = folder.join(name);
    if fs::read(&path).is_ok_and(|content| content == LIBRARY) {
        return Ok(path);
    }
    let temporary = folder.join(format!(".{}.tmp", std::process::id()));
    let _ = fs::remove_file(&temporary);
    let mut options = fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(&temporary)?;
    file.write_all(LIBRARY)?;
    drop(file);
    fs::rename(&temporary, &path)?; // atomic: several ranks may write it at once
    Ok(path)
}

/// Returns a fingerprint of the library, for the file name. The whole content is compared before
/// use, so a collision does no harm.
fn fingerprint() -> u64 {
    use std::hash::{DefaultHasher, Hasher};
    let mut hasher = DefaultHasher::new();
    hasher.write(LIBRARY);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn install__unusable_folder__is_named_with_the_remedy() {
        let error = install(Path::new("/dev/null/kumi")).unwrap_err();
        assert_eq!(
            format!("{error:#}"),
            "cannot create /dev/null/kumi; set TMPDIR: Not a directory (os error 20)"
        );
        let folder = std::env::temp_dir().join(format!("kumi-open-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        let error = install(&folder).unwrap_err();
        fs::remove_dir(&folder).unwrap();
        let user = nix::unistd::geteuid();
        assert_eq!(
            error.to_string(),
            format!(
                "{} is not a folder that only user {user} can write: remove it, or set TMPDIR",
                folder.display()
            )
        );
    }
}
