//! What `kumi run` tells the preloaded library about collectives: which are planned, by whom, on what network.

use crate::BadInput;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Collectives that are replaced, by the names that `KUMI_COLL` takes: those of `bindings/mpi/collectives.c`.
const NAMES: [&str; 14] = [
    "alltoall",
    "alltoallv",
    "gather",
    "gatherv",
    "scatter",
    "scatterv",
    "allgather",
    "allgatherv",
    "bcast",
    "allreduce",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_block",
    "barrier",
];

/// What `auto` stands for: all but alltoall, in which the MPI library's own is up to a fifth quicker where ports are deep
/// (docs/perf-log.md).
fn automatic() -> String {
    let but_alltoall = NAMES.into_iter().filter(|name| *name != "alltoall");
    but_alltoall.collect::<Vec<_>>().join(",")
}

/// Sets what `command` is to know. Whether anything is planned.
pub fn add(
    command: &mut Command,
    list: Option<&str>,
    topology: Option<&Path>,
) -> anyhow::Result<bool> {
    let standing = Path::new(crate::topo::FILE);
    let topology = topology.or_else(|| standing.exists().then_some(standing));
    let list = match list {
        Some(list) => list,
        None if topology.is_some() => "auto",
        None => "off",
    };
    check(list)?;
    let automatic = automatic();
    let list = if list == "auto" { &automatic } else { list };
    command.env("KUMI_COLL", list);
    if list == "off" || list.is_empty() {
        return Ok(false);
    }
    if let Some(topology) = topology {
        // Wrong, it is said once by each rank's host now, and not in the midst of a job.
        crate::topo::read(topology)?;
        let topology = std::path::absolute(topology)?;
        command.env("KUMI_TOPOLOGY", topology);
    }
    match library() {
        Some(library) => {
            command.env("KUMI_COLL_LIBRARY", library);
            Ok(true)
        }
        None => {
            eprintln!(
                "kumi: warning: libkumi.so is neither beside this command nor in ../lib; collectives are the MPI \
                 library's"
            );
            command.env("KUMI_COLL", "off");
            Ok(false)
        }
    }
}

fn check(list: &str) -> Result<(), BadInput> {
    if matches!(list, "all" | "auto" | "off" | "") {
        return Ok(());
    }
    match list.split(',').find(|name| !NAMES.contains(name)) {
        None => Ok(()),
        Some(strange) => {
            let near = kumi_topo::nearest(strange, NAMES);
            let hint = near.map_or(String::new(), |near| format!("; did you mean `{near}`?"));
            Err(BadInput(format!(
                "KUMI_COLL: no collective `{strange}`{hint} (known: all, auto, off, {})",
                NAMES.join(", ")
            )))
        }
    }
}

/// Where the planning library is: beside this command as it was built, in the prefix's `lib`, or in the Python package that
/// a wheel brings with the command.
fn library() -> Option<PathBuf> {
    let command = std::env::current_exe().ok()?;
    let folder = command.parent()?;
    let places =
        ["libkumi.so", "../lib/libkumi.so", "../kumi/libkumi.so"].map(|place| folder.join(place));
    places.into_iter().find(|place| place.exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names__are_those_that_the_preloaded_library_replaces() {
        let replaced = include_str!("../../../../bindings/mpi/collectives.c");
        let rows = replaced
            .lines()
            .filter(|line| line.starts_with("    {\"MPI_"));
        let named = rows.filter_map(|row| row.split('"').nth(3));
        assert_eq!(named.collect::<Vec<_>>(), NAMES);
    }

    #[test]
    fn list__with_a_slip__names_the_nearest() {
        assert!(check("all").is_ok());
        assert!(check("gather,alltoall").is_ok());
        assert!(
            check(&automatic()).is_ok() && !automatic().split(',').any(|name| name == "alltoall")
        );
        let slip = check("gather,altoall").unwrap_err().to_string();
        assert!(slip.starts_with("KUMI_COLL: no collective `altoall`; did you mean `alltoall`?"));
    }
}
