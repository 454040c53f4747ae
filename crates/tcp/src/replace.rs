//! An upgrade under traffic: new programs in the place of the installed ones, with the same maps.

use crate::error::TcpError;
use crate::install::{Installed, MAPS, installed, is_iterator, is_pinned_program, load, refused};
use crate::ladder::has_struct_ops_link;
use crate::layout::Settings;
use crate::pins::{cgroups, pin, pinning};
use kumi_sys::bpf::{pin as pin_object, pinned, update_link};
use libbpf_rs::query::LinkTypeInfo;
use libbpf_rs::{Link, MapCore, Object};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

/// Replaces the installed programs by this build's, with `settings`. Connections that use them keep the
/// old ones, and what they remember, until they close; new ones have the new. Processes of `kumi run`
/// stay taken in.
///
/// # Errors
/// [`TcpError::Absent`]; [`TcpError::NotReplaceable`] or the kernel's refusal, and then the old programs
/// are where they were.
pub fn replace(settings: &Settings) -> Result<Installed, TcpError> {
    let (_, rung) = installed()?;
    if rung.has_control() && !pin("link").exists() {
        return Err(TcpError::NotReplaceable {
            reason: "a congestion control is replaced by its link, which Linux has since 6.4"
                .to_owned(),
        });
    }
    let mut object = load(settings, rung, has_struct_ops_link()?, &MAPS)?;
    // The control last: until then, what was replaced can be put back.
    let mut done = Vec::new();
    let replaced = replace_links(&object, &mut done).and_then(|()| {
        if rung.has_control() {
            replace_control(&mut object)?;
        }
        Ok(())
    });
    if let Err(error) = replaced {
        put_back(&done);
        return Err(error);
    }
    for program in object.progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        if is_iterator(&name) {
            put_into(&pin(&name), program.as_fd())?;
        } else if is_pinned_program(&name) {
            pin_over(&pin(&name), program.as_fd())?;
        }
    }
    for map in object.maps() {
        if map.name().to_string_lossy().ends_with(".rodata") {
            pin_over(&pin("settings"), map.as_fd())?;
        }
    }
    Ok(Installed {
        rung,
        refusal: None,
    })
}

/// Puts the new programs behind the links into cgroups, and lists these with the names of their programs. A
/// cgroup that is gone has nothing to replace: its links are unpinned.
fn replace_links(object: &Object, done: &mut Vec<(PathBuf, String)>) -> Result<(), TcpError> {
    for program in object.progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        for link in links_to(&name) {
            if is_dead(&link) {
                let _ = std::fs::remove_file(&link);
                continue;
            }
            put_into(&link, program.as_fd())?;
            done.push((link, name.clone()));
        }
    }
    Ok(())
}

/// Puts the pinned programs, which are the old ones still, behind these links again.
fn put_back(done: &[(PathBuf, String)]) {
    for (link, name) in done {
        if let Ok(old) = pinned(&pin(name)) {
            let _ = put_into(link, old.as_fd());
        }
    }
}

/// Whether the cgroup of a pinned link is gone: the kernel then forgets its number.
fn is_dead(link: &Path) -> bool {
    let info = Link::open(link).and_then(|link| link.info());
    info.is_ok_and(|info| matches!(info.info, LinkTypeInfo::Cgroup(group) if group.cgroup_id == 0))
}

/// Puts the new congestion control behind the link. libbpf fills in the map's value on its way to a link of
/// its own, which the kernel then refuses, as there is one of this name: the value is what is wanted.
fn replace_control(object: &mut Object) -> Result<(), TcpError> {
    for mut map in object.maps_mut() {
        if map.name() == "kumi" {
            drop(map.attach_struct_ops());
            put_into(&pin("link"), map.as_fd())?;
        }
    }
    Ok(())
}

/// The pinned links of a program into cgroups.
fn links_to(program: &str) -> Vec<PathBuf> {
    let folders = std::fs::read_dir(cgroups()).into_iter().flatten().flatten();
    folders
        .map(|folder| folder.path().join(program))
        .filter(|link| link.exists())
        .collect()
}

fn put_into(link: &Path, new: BorrowedFd<'_>) -> Result<(), TcpError> {
    let doing = format!("replacing what {} holds", link.display());
    let held = pinned(link).map_err(pinning(&doing))?;
    update_link(held.as_fd(), new).map_err(|error| {
        refused(libbpf_rs::Error::from(error)) // its warnings may tell more than the number
    })
}

/// Pins `object` in the place of what is pinned at `path`, which is there all the while.
fn pin_over(path: &Path, object: BorrowedFd<'_>) -> Result<(), TcpError> {
    let doing = format!("replacing {}", path.display());
    let mut beside = path.as_os_str().to_owned();
    beside.push("_new"); // the file system keeps names with a dot for itself
    let beside = PathBuf::from(beside);
    let _ = std::fs::remove_file(&beside);
    pin_object(object, &beside).map_err(pinning(&doing))?;
    std::fs::rename(&beside, path).map_err(pinning(&doing))
}
