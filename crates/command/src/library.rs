//! Finds the planning library, libkumi.so.

use std::path::{Path, PathBuf};

/// Returns the path of the planning library. It is beside this command in a build folder, in the
/// prefix's `lib`, or in the Python package of the wheel that contains the command.
pub fn planning_library() -> Result<PathBuf, String> {
    let command = std::env::current_exe().map_err(|error| error.to_string())?;
    let folder = command.parent().unwrap_or(Path::new("/"));
    let places =
        ["libkumi.so", "../lib/libkumi.so", "../kumi/libkumi.so"].map(|place| folder.join(place));
    let library = places.iter().find(|place| place.exists());
    library.cloned().ok_or_else(|| {
        format!(
            "libkumi.so not found in {0}, {0}/../lib or {0}/../kumi",
            folder.display()
        )
    })
}
