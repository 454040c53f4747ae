//! Upgrades under traffic: installs new programs in place of the old ones, with the same maps.

use crate::error::TcpError;
use crate::install::{Installed, MAPS, installed, is_iterator, is_pinned_program, load};
use crate::ladder::Registration;
use crate::layout::Settings;
use crate::pins::{cgroups, pin, pin_error};
use crate::refusal::refusal;
use kumi_sys::bpf::{open_pin, pin as pin_object, update_link};
use libbpf_rs::query::LinkTypeInfo;
use libbpf_rs::{Link, MapCore, Object};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

/// Replaces the installed programs by this build's, with `settings`. Connections keep the old
/// programs and their memory until they close. New connections use the new programs. Processes of
/// `kumi run` stay in the table.
///
/// # Errors
/// [`TcpError::Absent`]; [`TcpError::NotReplaceable`] or the kernel's refusal. In that case the old
/// programs remain in place.
pub fn replace(settings: &Settings) -> Result<Installed, TcpError> {
    let (_, tier) = installed()?;
    if tier.has_control() && !pin("link").exists() {
        return Err(TcpError::NotReplaceable {
            reason: "replacing the congestion control needs Linux 6.4 or later".to_owned(),
        });
    }
    let registration = Registration::of_this_kernel()?;
    let mut object = load(settings, tier, registration, &MAPS)?;
    // The control goes last: before it, every replacement can be undone.
    let mut replacements = Vec::new();
    let outcome = replace_links(&object, &mut replacements).and_then(|()| {
        if tier.has_control() {
            replace_control(&mut object, registration)?;
        }
        Ok(())
    });
    if let Err(error) = outcome {
        restore(&replacements);
        return Err(error);
    }
    for program in object.progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        if is_iterator(&name) {
            put_into(&pin(&name), program.as_fd())?;
        } else if is_pinned_program(&name) {
            replace_pin(&pin(&name), program.as_fd())?;
        }
    }
    for map in object.maps() {
        if map.name().to_string_lossy().ends_with(".rodata") {
            replace_pin(&pin("settings"), map.as_fd())?;
        }
    }
    Ok(Installed {
        tier,
        refusal: None,
    })
}

/// Puts the new programs behind the links to cgroups, and lists these links with the names of their
/// programs. The links to a cgroup that no longer exists are unpinned.
fn replace_links(
    object: &Object,
    replacements: &mut Vec<(PathBuf, String)>,
) -> Result<(), TcpError> {
    for program in object.progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        for link in cgroup_links(&name) {
            if is_dead(&link) {
                let _ = std::fs::remove_file(&link);
                continue;
            }
            put_into(&link, program.as_fd())?;
            replacements.push((link, name.clone()));
        }
    }
    Ok(())
}

/// Puts the pinned programs, which still are the old ones, behind these links again.
fn restore(replacements: &[(PathBuf, String)]) {
    for (link, name) in replacements {
        if let Ok(old) = open_pin(&pin(name)) {
            let _ = put_into(link, old.as_fd());
        }
    }
}

/// Returns whether the cgroup of a pinned link is gone. The kernel then reports no number for it.
fn is_dead(link: &Path) -> bool {
    let info = Link::open(link).and_then(|link| link.info());
    info.is_ok_and(|info| matches!(info.info, LinkTypeInfo::Cgroup(group) if group.cgroup_id == 0))
}

/// Puts the new congestion control behind the link. libbpf fills in the map's value before it
/// creates a link of its own. The kernel refuses that link, because the name is taken. Only the
/// value is needed.
fn replace_control(object: &mut Object, registration: Registration) -> Result<(), TcpError> {
    for mut map in object.maps_mut() {
        if map.name() == registration.control() {
            drop(map.attach_struct_ops());
            put_into(&pin("link"), map.as_fd())?;
        }
    }
    Ok(())
}

/// Returns the pinned links of a program to cgroups.
fn cgroup_links(program: &str) -> Vec<PathBuf> {
    let folders = std::fs::read_dir(cgroups()).into_iter().flatten().flatten();
    folders
        .map(|folder| folder.path().join(program))
        .filter(|link| link.exists())
        .collect()
}

fn put_into(link: &Path, new: BorrowedFd<'_>) -> Result<(), TcpError> {
    let operation = format!("updating the link {}", link.display());
    let link = open_pin(link).map_err(pin_error(&operation))?;
    update_link(link.as_fd(), new).map_err(|error| {
        refusal(libbpf_rs::Error::from(error)) // its warnings may tell more than the number
    })
}

/// Pins `object` at `path` in place of the present pin. The path exists at all times.
fn replace_pin(path: &Path, object: BorrowedFd<'_>) -> Result<(), TcpError> {
    let operation = format!("replacing {}", path.display());
    let mut new_path = path.as_os_str().to_owned();
    new_path.push("_new"); // the file system keeps names with a dot for itself
    let new_path = PathBuf::from(new_path);
    let _ = std::fs::remove_file(&new_path);
    pin_object(object, &new_path).map_err(pin_error(&operation))?;
    std::fs::rename(&new_path, path).map_err(pin_error(&operation))
}
