//! Installs the programs, reads their state, and removes them.

use crate::connections;
use crate::error::TcpError;
use crate::ladder::{Registration, Tier, has_moved_callback};
use crate::layout::{Settings, Totals};
use crate::pins::{is_installed, make_folders, pin, pin_error, remove as remove_pins};
use crate::refusal::{self, refusal};
use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, ObjectBuilder, OpenObject};

/// The compiled programs; empty if the build had no clang.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/kumi.bpf.o"));

/// Prefix of the congestion control's programs. The other programs work without it.
const CONTROL_PREFIX: &str = "kumi_";
/// Prefix of those that are called for acknowledgements. A kernel accepts one of them.
const ACKNOWLEDGED_PREFIX: &str = "kumi_cong_";
/// Pinned programs that are attached to the cgroups of processes.
const CGROUP_PROGRAMS: [&str; 4] = [
    "own_ranks_socket",
    "own_units_socket",
    "choose",
    "put_acks_first",
];
/// Iterators. They are pinned as links, and opened for reading.
const ITERATORS: [&str; 2] = ["show", "give_back"];
/// Maps that are pinned under their names.
pub(crate) const MAPS: [&str; 7] = [
    "totals",
    "ranks",
    "owners",
    "phase_pages",
    "generations",
    "memories",
    "routes",
];

pub(crate) fn is_pinned_program(name: &str) -> bool {
    CGROUP_PROGRAMS.contains(&name)
}

pub(crate) fn is_iterator(name: &str) -> bool {
    ITERATORS.contains(&name)
}

/// Result of an installation.
#[derive(Debug)]
pub struct Installed {
    /// Capability tier in use.
    pub tier: Tier,
    /// Reason for which the kernel refused the next higher tier, in one line; `None` on the
    /// highest.
    pub refusal: Option<String>,
}

/// Loads the programs with `settings` on the highest capability tier that the kernel accepts,
/// registers the congestion control `kumi`, and pins everything. The installation outlives this
/// process.
///
/// # Errors
/// [`TcpError`]; nothing remains installed.
pub fn install(settings: &Settings) -> Result<Installed, TcpError> {
    if is_installed() {
        return Err(TcpError::Installed);
    }
    let registration = Registration::of_this_kernel()?;
    let mut refusal = None;
    for tier in Tier::ALL {
        match load(settings, tier, registration, &[]) {
            Ok(mut object) => {
                make_folders()?;
                if let Err(error) = put_in_place(&mut object, tier, registration) {
                    let _ = remove_pins();
                    return Err(error);
                }
                return Ok(Installed { tier, refusal });
            }
            Err(TcpError::Refused { reason }) => {
                refusal.get_or_insert(reason);
            }
            Err(error) => return Err(error),
        }
    }
    Err(TcpError::Refused {
        reason: refusal.unwrap_or_default(),
    })
}

/// Returns the highest capability tier that this kernel accepts. The programs are loaded and
/// released again.
///
/// # Errors
/// [`TcpError`] if the kernel refuses even the lowest tier.
pub fn probe() -> Result<Tier, TcpError> {
    let registration = Registration::of_this_kernel()?;
    let mut refusal = TcpError::NotCompiled;
    for tier in Tier::ALL {
        match load(&Settings::default(), tier, registration, &[]) {
            Ok(_) => return Ok(tier),
            Err(error @ TcpError::Refused { .. }) => refusal = error,
            Err(error) => return Err(error),
        }
    }
    Err(refusal)
}

/// Loads the programs. The maps `shared` are taken from the installed programs.
pub(crate) fn load(
    settings: &Settings,
    tier: Tier,
    registration: Registration,
    shared: &[&str],
) -> Result<Object, TcpError> {
    if tier.has_control() && has_moved_callback()? {
        return Err(TcpError::Refused {
            reason: "kumi does not implement Linux 7.1's callback for first packets".to_owned(),
        });
    }
    let mut open = open_object(OBJECT, &settings.to_bytes(tier))?;
    choose_parts(&mut open, tier, registration)?;
    reuse(&mut open, shared)?;
    open.load().map_err(refusal)
}

/// Opens compiled programs and writes `constants` to the start of their read-only data.
fn open_object(compiled: &[u8], constants: &[u8]) -> Result<OpenObject, TcpError> {
    if compiled.is_empty() {
        return Err(TcpError::NotCompiled);
    }
    refusal::watch();
    let mut open = ObjectBuilder::default()
        .open_memory(compiled)
        .map_err(refusal)?;
    for mut map in open.maps_mut() {
        if !map.name().to_string_lossy().ends_with(".rodata") {
            continue;
        }
        if let Some(value) = map.initial_value_mut() {
            value[..constants.len()].copy_from_slice(constants);
        }
    }
    Ok(open)
}

/// Loads those compiled programs that `is_wanted` accepts by name. The maps `shared` are taken from
/// the installed programs, if there are any.
pub(crate) fn load_object(
    compiled: &[u8],
    constants: &[u8],
    shared: &[&str],
    is_wanted: &dyn Fn(&str) -> bool,
) -> Result<Object, TcpError> {
    let mut open = open_object(compiled, constants)?;
    reuse(&mut open, shared)?;
    for mut program in open.progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        program.set_autoload(is_wanted(&name));
    }
    open.load().map_err(refusal)
}

/// Takes the maps of these names from the installed programs, if there are any.
fn reuse(open: &mut OpenObject, shared: &[&str]) -> Result<(), TcpError> {
    for mut map in open.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if !shared.contains(&name.as_str()) || !pin(&name).exists() {
            continue;
        }
        // libbpf accepts any size. Programs with another layout would misread the maps.
        let old_map = MapHandle::from_pinned_path(pin(&name)).map_err(refusal)?;
        if old_map.value_size() != map.value_size() {
            return Err(TcpError::NotReplaceable {
                reason: format!(
                    "their map {name} has values of {} bytes; this build needs {} bytes",
                    old_map.value_size(),
                    map.value_size()
                ),
            });
        }
        map.reuse_pinned_map(pin(&name)).map_err(refusal)?;
    }
    Ok(())
}

/// Disables the programs that the capability tier does not have, and those for other kernels.
fn choose_parts(
    open: &mut OpenObject,
    tier: Tier,
    registration: Registration,
) -> Result<(), TcpError> {
    for mut map in open.maps_mut() {
        if let Some(way) = Registration::of_map(&map.name().to_string_lossy()) {
            map.set_autocreate(tier.has_control() && way == registration)
                .map_err(refusal)?;
        }
    }
    for mut program in open.progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        if !name.starts_with(CONTROL_PREFIX) {
            continue;
        }
        let is_used = !name.starts_with(ACKNOWLEDGED_PREFIX)
            || name == registration.acknowledged()
            || (name == "kumi_cong_avoid" && registration == Registration::Map);
        program.set_autoload(tier.has_control() && is_used);
    }
    Ok(())
}

fn put_in_place(
    object: &mut Object,
    tier: Tier,
    registration: Registration,
) -> Result<(), TcpError> {
    for mut map in object.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        let to_error = pin_error(&format!("pinning {name}"));
        if MAPS.contains(&name.as_str()) {
            map.pin(pin(&name)).map_err(to_error)?;
        } else if name.ends_with(".rodata") {
            map.pin(pin("settings")).map_err(to_error)?;
        } else if let Some(way) = Registration::of_map(&name) {
            if !tier.has_control() || way != registration {
                continue;
            }
            let mut link = map.attach_struct_ops().map_err(refusal)?;
            if way == Registration::Map {
                link.disconnect();
                map.pin(pin("control")).map_err(to_error)?;
            } else {
                link.pin(pin("link")).map_err(to_error)?;
            }
        }
    }
    for mut program in object.progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        let to_error = pin_error(&format!("pinning {name}"));
        if CGROUP_PROGRAMS.contains(&name.as_str()) {
            program.pin(pin(&name)).map_err(to_error)?;
        } else if ITERATORS.contains(&name.as_str()) {
            let mut link = program.attach().map_err(refusal)?;
            link.pin(pin(&name)).map_err(to_error)?;
        }
    }
    Ok(())
}

/// Returns the settings that the programs were installed with, and their capability tier.
///
/// # Errors
/// [`TcpError::Absent`], or the kernel's refusal.
pub fn installed() -> Result<(Settings, Tier), TcpError> {
    if !is_installed() {
        return Err(TcpError::Absent);
    }
    let map = MapHandle::from_pinned_path(pin("settings")).map_err(refusal)?;
    let bytes = map
        .lookup(&0_u32.to_ne_bytes(), MapFlags::ANY)
        .map_err(refusal)?
        .unwrap_or_default();
    Settings::from_bytes(&bytes).ok_or(TcpError::Absent)
}

/// Returns the programs' counters since the installation.
///
/// # Errors
/// [`TcpError::Absent`], or the kernel's refusal.
pub fn totals() -> Result<Totals, TcpError> {
    if !is_installed() {
        return Err(TcpError::Absent);
    }
    let map = MapHandle::from_pinned_path(pin("totals")).map_err(refusal)?;
    let mut totals = Totals::default();
    let first = 0_u32.to_ne_bytes();
    for processor in map
        .lookup_percpu(&first, MapFlags::ANY)
        .map_err(refusal)?
        .unwrap_or_default()
    {
        totals.add(&processor);
    }
    Ok(totals)
}

/// Removes the programs. Live connections continue with the kernel's default congestion control.
///
/// # Errors
/// [`TcpError::Absent`], or the kernel's refusal.
pub fn remove() -> Result<(), TcpError> {
    if !is_installed() {
        return Err(TcpError::Absent);
    }
    // Stop new connections first, then release the existing ones.
    let _ = std::fs::remove_dir_all(crate::pins::cgroups());
    if pin("control").exists() {
        let map = MapHandle::from_pinned_path(pin("control")).map_err(refusal)?;
        map.delete(&0_u32.to_ne_bytes()).map_err(refusal)?;
    }
    let _ = std::fs::remove_file(pin("link"));
    connections::give_back()?;
    remove_pins()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::Rank;

    #[test]
    fn programs__not_compiled__name_the_packages_of_the_build() {
        let error = open_object(&[], &[]).err().unwrap();
        assert_eq!(
            error.to_string(),
            "this build of kumi has no congestion control: \
             install clang and libbpf-dev and build it again"
        );
    }

    #[test]
    fn programs__not_installed__name_the_command_that_installs_them() {
        // A daemon of this machine may have installed them.
        if is_installed() {
            return;
        }
        for error in [
            installed().err(),
            totals().err(),
            Rank::join(std::process::id(), 0).err(),
        ] {
            assert_eq!(
                error.unwrap().to_string(),
                "the TCP programs are not installed; `kumi tcp up` installs them"
            );
        }
    }

    #[test]
    #[ignore = "needs root, bpf"]
    fn load__programs_without_a_gpl_licence__are_refused_with_the_kernels_reason() {
        const LICENCE: &[u8] = b"Dual BSD/GPL\0";
        let offset = OBJECT
            .windows(LICENCE.len())
            .position(|bytes| bytes == LICENCE)
            .expect("the object says its licence");
        let mut compiled = OBJECT.to_vec();
        compiled[offset..offset + LICENCE.len()].copy_from_slice(b"Proprietary\0\0");
        let constants = Settings::default().to_bytes(Tier::Full);
        let mut open =
            open_object(&compiled, &constants).expect("opens: the kernel is who refuses");
        choose_parts(&mut open, Tier::Full, Registration::Link).expect("has the parts");
        let error = open.load().map_err(refusal).expect_err("is not GPL");
        assert!(error.to_string().contains("GPL"), "{error}");
    }
}
