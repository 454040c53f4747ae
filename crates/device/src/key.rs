//! The cluster key file: 64 hexadecimal digits, readable by its owner only.

use anyhow::Context;
use kumi_command::BadInput;
use kumi_command::errln;
use kumi_multilink::secure::{CLUSTER_KEY_BYTES, ClusterKey, parse_key_text};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Writes a new random key to `path`, which must not exist.
pub fn generate(path: &Path) -> anyhow::Result<()> {
    let mut bytes = [0; CLUSTER_KEY_BYTES];
    File::open("/dev/urandom")
        .and_then(|mut f| f.read_exact(&mut bytes))
        .context("/dev/urandom")?;
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    make_folder(path)?;
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => BadInput(format!(
                "{} exists; a key is never overwritten: remove it first or name another file",
                path.display()
            ))
            .into(),
            _ => {
                let message = format!("cannot create {}", path.display());
                anyhow::Error::from(error).context(message)
            }
        })?;
    writeln!(file, "{digits}")?;
    Ok(())
}

/// Creates the folder of `path`, for its owner only, if it does not exist.
fn make_folder(path: &Path) -> anyhow::Result<()> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let Some(folder) = folder.filter(|folder| !folder.exists()) else {
        return Ok(());
    };
    let outcome = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    outcome.with_context(|| format!("cannot create the folder {}", folder.display()))
}

/// Reads the key from `path`. Prints a warning if others than the owner have access to the file.
pub fn load(path: &Path) -> anyhow::Result<ClusterKey> {
    let file = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| {
        BadInput(format!(
            "cannot read cluster key {file}: {error}; create one with `kumi link keygen {file}` and copy it to every node"
        ))
    })?;
    let mode = std::fs::metadata(path)?.mode();
    if mode & 0o077 != 0 {
        errln!(
            "kumi: warning: {file} is accessible to others (mode {:o}); run `chmod 600 {file}`",
            mode & 0o777
        );
    }
    Ok(ClusterKey::from_bytes(parse_key_text(text.trim()).map_err(|reason| {
        BadInput(format!(
            "invalid cluster key {file}: {reason}; expected {} hexadecimal digits, as written by `kumi link keygen`",
            CLUSTER_KEY_BYTES * 2
        ))
    })?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key__absent_or_invalid_file__is_named_with_the_remedy() {
        assert_eq!(parse_key_text(&"0f".repeat(32)), Ok([15; 32]));
        let path = std::env::temp_dir().join(format!("kumi-bad-key-{}", std::process::id()));
        let file = path.display();
        let error = |path: &Path| format!("{:#}", load(path).err().unwrap());
        assert_eq!(
            error(&path),
            format!(
                "cannot read cluster key {file}: No such file or directory (os error 2); create \
                 one with `kumi link keygen {file}` and copy it to every node"
            )
        );
        for (text, reason) in [
            ("", "it has 0 digits"),
            ("ab\n", "it has 2 digits"),
            ("xy", "`x` is not a hexadecimal digit"),
        ] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(
                error(&path),
                format!(
                    "invalid cluster key {file}: {reason}; expected 64 hexadecimal digits, as \
                     written by `kumi link keygen`"
                )
            );
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn key__cannot_be_created__names_the_file_or_the_folder() {
        let long = std::env::temp_dir().join("k".repeat(300));
        for (path, message) in [
            (
                Path::new("/dev/null/kumi/cluster.key"),
                "cannot create the folder /dev/null/kumi: Not a directory (os error 20)".to_owned(),
            ),
            (
                long.as_path(),
                format!(
                    "cannot create {}: File name too long (os error 36)",
                    long.display()
                ),
            ),
        ] {
            assert_eq!(format!("{:#}", generate(path).unwrap_err()), message);
        }
    }

    #[test]
    fn key__missing_folder__is_created_for_its_owner_only() {
        let folder = std::env::temp_dir().join(format!("kumi-keys-{}", std::process::id()));
        let path = folder.join("kumi/cluster.key");
        generate(&path).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(path.parent().unwrap()), mode(&path)), (0o700, 0o600));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn key__existing_file__is_never_overwritten() {
        let path = std::env::temp_dir().join(format!("kumi-key-{}", std::process::id()));
        generate(&path).unwrap();
        let original = std::fs::read(&path).unwrap();
        let message = format!(
            "{} exists; a key is never overwritten: remove it first or name another file",
            path.display()
        );
        assert_eq!(generate(&path).unwrap_err().to_string(), message);
        assert_eq!(std::fs::read(&path).unwrap(), original);
        assert!(load(&path).is_ok());
        std::fs::remove_file(&path).unwrap();
    }
}
