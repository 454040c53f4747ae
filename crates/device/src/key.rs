//! The cluster key file: 64 hexadecimal digits, readable by its owner only.

use anyhow::Context;
use kumi_command::BadInput;
use kumi_command::errln;
use kumi_multilink::secure::{CLUSTER_KEY_BYTES, ClusterKey};
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
            _ => anyhow::Error::from(error).context(format!("{}", path.display())),
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
    Ok(ClusterKey::from_bytes(parse(text.trim()).map_err(|reason| {
        BadInput(format!(
            "invalid cluster key {file}: {reason}; expected {} hexadecimal digits, as written by `kumi link keygen`",
            CLUSTER_KEY_BYTES * 2
        ))
    })?))
}

fn parse(text: &str) -> Result<[u8; CLUSTER_KEY_BYTES], String> {
    if let Some(wrong) = text.chars().find(|c| !c.is_ascii_hexdigit()) {
        return Err(format!("`{wrong}` is not a hexadecimal digit"));
    }
    if text.len() != CLUSTER_KEY_BYTES * 2 {
        return Err(format!("it has {} digits", text.len()));
    }
    let mut bytes = [0; CLUSTER_KEY_BYTES];
    for (byte, offset) in bytes.iter_mut().zip((0..).step_by(2)) {
        *byte =
            u8::from_str_radix(&text[offset..offset + 2], 16).map_err(|error| error.to_string())?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key__wrong_length_or_digit__is_named() {
        assert_eq!(parse("ab"), Err("it has 2 digits".into()));
        assert_eq!(parse("xy"), Err("`x` is not a hexadecimal digit".into()));
        assert_eq!(parse(&"0f".repeat(32)), Ok([15; 32]));
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
        assert!(generate(&path).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), original);
        assert!(load(&path).is_ok());
        std::fs::remove_file(&path).unwrap();
    }
}
