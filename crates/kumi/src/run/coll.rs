//! Passes the settings of collectives from `kumi run` to the preloaded library: the collectives to
//! plan, the planning library and the network.

use kumi_command::BadInput;
use kumi_command::library::planning_library;
use std::path::Path;
use std::process::Command;

/// Names of the replaced collectives, as `KUMI_COLL` takes them: those of
/// `bindings/mpi/collectives.c`.
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

/// Environment variable with the reason why this host's ranks plan nothing. If other hosts' ranks
/// do plan, rank 0 prints the reason.
const REASON: &str = "KUMI_COLL_WHY";

/// Options of the command line.
#[derive(Debug, Clone, Copy)]
pub struct Choice<'a> {
    /// Value of `KUMI_COLL`: `auto`, `all`, `off` or a list of names.
    pub list: Option<&'a str>,
    /// Network file. Without one, the default file is used if it exists.
    pub topology: Option<&'a Path>,
    /// True if reductions are left to the MPI library.
    pub is_reproducible: bool,
}

/// Sets the environment of `command`. `KUMI_COLL` is always set, because the preloaded library
/// compares it between the ranks of a job.
pub fn add(command: &mut Command, choice: Choice<'_>) -> anyhow::Result<()> {
    let default_file = Path::new(crate::topo::FILE);
    let default_file = default_file.exists().then_some(default_file);
    let topology = choice.topology.or(default_file);
    let list = match choice.list {
        Some(list) => list,
        None if topology.is_some() => "auto",
        None => "off",
    };
    check(list)?;
    command.env("KUMI_COLL", list);
    if choice.is_reproducible {
        command.env("KUMI_REPRODUCIBLE", "1");
    }
    if list == "off" || list.is_empty() {
        let reason = match choice.list {
            Some(_) => "--coll off".to_owned(),
            None => format!("no network file {}", crate::topo::FILE),
        };
        command.env(REASON, reason);
        // The file still shows the links' rates, for the pace of an all-to-all.
        if topology.is_some() {
            if let Err(reason) = set_files(command, topology) {
                command.env_remove("KUMI_TOPOLOGY");
                super::warn(&format!("{reason}; all-to-alls have no fair share"));
            }
        }
        return Ok(());
    }
    if let Err(reason) = set_files(command, topology) {
        // The program starts anyway. The other hosts' ranks start too, and may have what this host
        // lacks.
        super::warn(&format!(
            "{reason}; collectives are left to the MPI library"
        ));
        command.env("KUMI_COLL", "off").env(REASON, reason);
    }
    Ok(())
}

/// Sets the network file and the planning library. Returns an error that names the one that this
/// host lacks.
fn set_files(command: &mut Command, topology: Option<&Path>) -> Result<(), String> {
    if let Some(topology) = topology {
        let message = |reason: &dyn std::fmt::Display| format!("{}: {reason}", topology.display());
        if !topology.exists() {
            return Err(message(&"no such network file"));
        }
        // The error names the file.
        crate::topo::network_file(topology).map_err(|error| format!("{error:#}"))?;
        let absolute = std::path::absolute(topology).map_err(|error| message(&error))?;
        command.env("KUMI_TOPOLOGY", absolute);
    }
    command.env("KUMI_COLL_LIBRARY", planning_library()?);
    Ok(())
}

fn check(list: &str) -> Result<(), BadInput> {
    if matches!(list, "all" | "auto" | "off" | "") {
        return Ok(());
    }
    match list.split(',').find(|name| !NAMES.contains(name)) {
        None => Ok(()),
        Some(unknown) => {
            let best = kumi_topo::nearest(unknown, NAMES);
            let hint = best.map_or(String::new(), |best| format!("; did you mean `{best}`?"));
            Err(BadInput(format!(
                "KUMI_COLL: no collective `{unknown}`{hint} (known: all, auto, off, {})",
                NAMES.join(", ")
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collective_names__all__are_those_the_interposer_replaces() {
        let source = include_str!("../../../../bindings/mpi/collectives.c");
        let rows = source
            .lines()
            .filter(|line| line.starts_with("    {\"MPI_"));
        let names = rows.filter_map(|row| row.split('"').nth(3));
        assert_eq!(names.collect::<Vec<_>>(), NAMES);
    }

    /// The program must start, because other hosts' ranks wait in `MPI_Init` for the ranks of this
    /// host.
    #[test]
    fn network_file__missing_or_invalid__leaves_collectives_to_the_mpi_library() {
        let folder = std::env::temp_dir();
        let invalid_file = folder.join(format!("kumi-wrong-network-{}.toml", std::process::id()));
        std::fs::write(&invalid_file, "name =").unwrap();
        for (file, reason) in [
            (folder.join("kumi-no-network.toml"), "no such network file"),
            (invalid_file.clone(), ":1: name"),
        ] {
            let mut command = Command::new("true");
            let choice = Choice {
                list: None,
                topology: Some(&file),
                is_reproducible: false,
            };
            add(&mut command, choice).unwrap();
            let value = |name: &str| {
                let entry = command.get_envs().find(|(key, _)| *key == name);
                entry.unwrap().1.unwrap().to_str().unwrap().to_owned()
            };
            assert_eq!(value("KUMI_COLL"), "off");
            let message = value(REASON);
            assert!(message.starts_with(file.to_str().unwrap()), "{message}");
            assert!(message.contains(reason), "{message}");
        }
        std::fs::remove_file(invalid_file).unwrap();
    }

    #[test]
    fn collective_list__misspelt_name__suggests_the_nearest() {
        assert!(check("all").is_ok());
        assert!(check("gather,alltoall").is_ok());
        assert!(check("auto").is_ok());
        let error = check("gather,altoall").unwrap_err().to_string();
        assert!(error.starts_with("KUMI_COLL: no collective `altoall`; did you mean `alltoall`?"));
    }
}
