//! Sources of plans and topologies, and the destination of results.
//!
//! In a checkout, all are in its `bench/` folder. Elsewhere, the plans and topologies are those
//! that are embedded in the command, and results go to the user's state folder (XDG base directory
//! specification).

use super::GENERATED;
use super::plan::Plan;
use anyhow::Context;
use kumi_command::BadInput;
use kumi_lab::{Topology, carried};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Plans that are embedded in the command.
mod embedded {
    include!(concat!(env!("OUT_DIR"), "/embedded.rs"));
}

/// Folder of a checkout, relative to its root.
const CHECKOUT_FOLDER: &str = "bench";

/// Source of plans and topologies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Folder {
    /// Folder with `plans/`, `topologies/` and `results/`.
    Disk(PathBuf),
    /// Plans and topologies that are embedded in the command.
    Embedded,
}

impl Folder {
    /// Returns `user_folder`, if the user named one. Without it, returns the `bench/` folder of the
    /// checkout at `root`. Outside a checkout, returns [`Folder::Embedded`].
    pub fn choose(user_folder: Option<&Path>, root: &Path) -> Self {
        let checkout_folder = root.join(CHECKOUT_FOLDER);
        match user_folder {
            Some(folder) => Self::Disk(folder.to_owned()),
            None if ["plans", "topologies"]
                .iter()
                .all(|part| checkout_folder.join(part).is_dir()) =>
            {
                Self::Disk(checkout_folder)
            }
            None => Self::Embedded,
        }
    }

    /// Returns the names of all plans, in alphabetical order.
    pub fn plan_names(&self) -> anyhow::Result<Vec<String>> {
        let Self::Disk(folder) = self else {
            let names = embedded::PLANS.iter().map(|(name, _)| (*name).to_owned());
            let mut names: Vec<String> = names.collect();
            names.sort(); // with its extension, a name may sort differently
            return Ok(names);
        };
        let plans = folder.join("plans");
        toml_names(&plans).with_context(|| {
            let folder = plans.display();
            format!("cannot read plans in {folder}; without --folder, kumi uses built-in plans")
        })
    }

    /// Returns the names of all topologies, in alphabetical order.
    fn topology_names(&self) -> Vec<String> {
        match self {
            Self::Disk(folder) => toml_names(&folder.join("topologies")).unwrap_or_default(),
            Self::Embedded => carried::names().map(String::from).collect(),
        }
    }

    /// Reads the plan `name`. A name with a slash or the extension `.toml` is the path of a file.
    pub fn plan(&self, name: &str) -> anyhow::Result<Plan> {
        let unknown = |error: &str| {
            let known = match self.plan_names() {
                Ok(names) => format!("known plans: {}", names.join(", ")),
                Err(error) => error.to_string(),
            };
            BadInput(format!("no plan `{name}`{error}; {known}"))
        };
        let path = match self {
            _ if is_path(name) => PathBuf::from(name),
            Self::Disk(folder) => folder.join("plans").join(format!("{name}.toml")),
            Self::Embedded => {
                let text = embedded_plan(name).ok_or_else(|| unknown(""))?;
                return Ok(Plan::parse(name, text)?);
            }
        };
        let text = std::fs::read_to_string(&path)
            .map_err(|error| unknown(&format!(": {}: {error}", path.display())))?;
        Ok(Plan::parse(&path.display().to_string(), &text)?)
    }

    /// Reads the topology `name` of a plan. The name may also be the path of a file.
    pub fn topology(&self, name: &str) -> anyhow::Result<Topology> {
        let unknown = |place: &str| {
            let known = self.topology_names().join(", ");
            BadInput(format!(
                "no topology `{name}` {place}; known topologies: {known}, {GENERATED}"
            ))
        };
        match self {
            _ if is_path(name) => read_topology(Path::new(name)),
            Self::Disk(folder) => {
                let folder = folder.join("topologies");
                let file = folder.join(format!("{name}.toml"));
                if !file.exists() {
                    return Err(unknown(&format!("in {}", folder.display())).into());
                }
                read_topology(&file)
            }
            Self::Embedded => {
                let topology = carried::topology(name).ok_or_else(|| unknown("in kumi"))?;
                Ok(topology.map_err(|error| BadInput(error.to_string()))?)
            }
        }
    }

    /// Creates the folder for results and checks that it is writable. Called before a run, so that
    /// the run cannot end without a place for its results.
    pub fn results(&self, user_folder: Option<&Path>) -> anyhow::Result<PathBuf> {
        let folder = match (user_folder, self) {
            (Some(folder), _) => folder.to_owned(),
            (None, Self::Disk(folder)) => folder.join("results"),
            (None, Self::Embedded) => {
                state_folder(std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME"))
                    .join("kumi/results")
            }
        };
        let result = std::fs::create_dir_all(&folder)
            .map_err(anyhow::Error::new)
            .and_then(|()| is_writable(&folder));
        result.with_context(|| {
            let folder = folder.display();
            format!("results cannot be written to {folder}; name another folder with --results")
        })?;
        Ok(folder)
    }
}

/// Reads the topology file at `path`.
pub fn read_topology(path: &Path) -> anyhow::Result<Topology> {
    Ok(Topology::read(path).map_err(|error| BadInput(error.to_string()))?)
}

/// Returns the embedded plan `name`.
fn embedded_plan(name: &str) -> Option<&'static str> {
    let plan = embedded::PLANS
        .iter()
        .find(|(plan_name, _)| *plan_name == name);
    plan.map(|(_, text)| *text)
}

/// Returns the names of the TOML files in `folder` without their extension, in alphabetical order.
fn toml_names(folder: &Path) -> std::io::Result<Vec<String>> {
    let mut names: Vec<String> = std::fs::read_dir(folder)?
        .filter_map(|entry| {
            let name = entry.ok()?.file_name().into_string().ok()?;
            Some(name.strip_suffix(".toml")?.to_string())
        })
        .collect();
    names.sort();
    Ok(names)
}

fn is_path(name: &str) -> bool {
    name.contains('/') || name.ends_with(".toml")
}

/// Returns the user's folder for state that programs keep between runs; `/var/lib` for a user
/// without a home. A path that is not absolute is ignored.
fn state_folder(xdg: Option<OsString>, home: Option<OsString>) -> PathBuf {
    let absolute = |path: &PathBuf| path.is_absolute();
    let home = home.map(PathBuf::from).filter(absolute);
    xdg.map(PathBuf::from)
        .filter(absolute)
        .or_else(|| home.map(|home| home.join(".local/state")))
        .unwrap_or_else(|| "/var/lib".into())
}

fn is_writable(folder: &Path) -> anyhow::Result<()> {
    Ok(nix::unistd::access(folder, nix::unistd::AccessFlags::W_OK)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder__without_a_checkout__has_the_plans_of_the_checkout() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let checkout = Folder::choose(None, &root);
        assert_eq!(checkout, Folder::Disk(root.join("bench")));
        let built_in = Folder::choose(None, Path::new("/"));
        assert_eq!(built_in, Folder::Embedded);
        let names = built_in.plan_names().expect("are carried");
        assert_eq!(names, checkout.plan_names().expect("are there"));
        for name in &names {
            let plan = built_in.plan(name).expect("is sound");
            for topology in plan.topologies(false) {
                if crate::generated(topology).is_none() {
                    built_in.topology(topology).expect("is sound");
                }
            }
        }
    }

    /// Returns a folder with the plan `one` and the topology `two`.
    fn folder(name: &str) -> PathBuf {
        let folder = format!("kumi-bench-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        for file in ["plans/one.toml", "topologies/two.toml"] {
            let file = folder.join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, "").unwrap();
        }
        folder
    }

    #[test]
    fn plan__unknown_name__is_refused_with_the_known_names() {
        let root = folder("plan");
        let disk = Folder::Disk(root.clone());
        let known = Folder::Embedded.plan_names().unwrap().join(", ");
        let absent = "No such file or directory (os error 2)";
        for (source, name, message) in [
            (
                &Folder::Embedded,
                "link-steam",
                format!("no plan `link-steam`; known plans: {known}"),
            ),
            (
                &Folder::Embedded,
                "./own.toml",
                format!("no plan `./own.toml`: ./own.toml: {absent}; known plans: {known}"),
            ),
            (
                &disk,
                "three",
                format!(
                    "no plan `three`: {}/plans/three.toml: {absent}; known plans: one",
                    root.display()
                ),
            ),
            (
                &Folder::Disk("/nowhere".into()),
                "one",
                format!(
                    "no plan `one`: /nowhere/plans/one.toml: {absent}; cannot read plans in \
                     /nowhere/plans; without --folder, kumi uses built-in plans"
                ),
            ),
        ] {
            let error = source.plan(name).unwrap_err();
            assert_eq!(error.to_string(), message);
            assert!(error.is::<BadInput>());
        }
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn topology__unknown_name_or_file__is_refused_with_the_known_names() {
        let root = folder("topology");
        let disk = Folder::Disk(root.clone());
        let known = carried::names().collect::<Vec<_>>().join(", ");
        for (source, name, message) in [
            (
                &Folder::Embedded,
                "two-link",
                format!("no topology `two-link` in kumi; known topologies: {known}, {GENERATED}"),
            ),
            (
                &disk,
                "three",
                format!(
                    "no topology `three` in {}/topologies; known topologies: two, {GENERATED}",
                    root.display()
                ),
            ),
            (
                &Folder::Embedded,
                "/nowhere/own.toml",
                "/nowhere/own.toml: cannot be read: No such file or directory (os error 2)".into(),
            ),
        ] {
            let error = source.topology(name).unwrap_err();
            assert_eq!(error.to_string(), message);
            assert!(error.is::<BadInput>());
        }
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn folders__that_cannot_be_used__are_named_with_the_option() {
        let root = folder("results");
        let absent = Folder::Disk(root.join("absent"));
        assert_eq!(
            absent.plan_names().unwrap_err().to_string(),
            format!(
                "cannot read plans in {}/absent/plans; without --folder, kumi uses built-in plans",
                root.display()
            )
        );
        let below_a_file = root.join("plans/one.toml/results");
        assert_eq!(
            absent.results(Some(&below_a_file)).unwrap_err().to_string(),
            format!(
                "results cannot be written to {}; name another folder with --results",
                below_a_file.display()
            )
        );
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn state_folder__relative_or_absent_variables__are_ignored() {
        let folder = |xdg: Option<&str>, home: Option<&str>| {
            state_folder(xdg.map(Into::into), home.map(Into::into))
        };
        assert_eq!(folder(Some("/s"), Some("/h")), Path::new("/s"));
        assert_eq!(folder(Some("s"), Some("/h")), Path::new("/h/.local/state"));
        assert_eq!(folder(None, None), Path::new("/var/lib"));
    }
}
