//! Puts the congestion control in place, looks at it, and takes it away.

use crate::error::TcpError;
use crate::layout::{Settings, Totals};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, MapMut, Object, ObjectBuilder, PrintLevel};
use nix::mount::{MsFlags, mount};
use nix::sys::statfs::{FsType, statfs};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// The compiled programs; empty where they were not compiled.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/kumi.bpf.o"));

/// Where the pins are.
pub const PIN_FOLDER: &str = "/sys/fs/bpf/kumi/tcp";
/// Mount point of the file system they are in.
const BPFFS: &str = "/sys/fs/bpf";
/// `BPF_FS_MAGIC` of linux/magic.h.
const BPFFS_MAGIC: FsType = FsType(0xcafe_4a11);

/// What libbpf said last that was a warning: its errors are numbers, the reason is here.
static SAID: Mutex<String> = Mutex::new(String::new());

fn link_pin() -> PathBuf {
    Path::new(PIN_FOLDER).join("link")
}

fn totals_pin() -> PathBuf {
    Path::new(PIN_FOLDER).join("totals")
}

fn note_warning(level: PrintLevel, text: String) {
    if level == PrintLevel::Warn {
        let mut said = SAID
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        said.push_str(&text);
    }
}

/// The kernel's or libbpf's reason in one line: the last that was said before it gave up.
fn reason(error: &libbpf_rs::Error) -> String {
    let said = SAID
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let lines = said.lines().map(str::trim).filter(|line| !line.is_empty());
    let mut telling = lines.filter(|line| !line.starts_with("libbpf: failed to load object"));
    match telling.next_back() {
        Some(line) => format!("{line} ({error})"),
        None => error.to_string(),
    }
}

fn refused(error: libbpf_rs::Error) -> TcpError {
    if error.kind() == libbpf_rs::ErrorKind::PermissionDenied {
        return TcpError::NotPermitted;
    }
    TcpError::Refused {
        reason: reason(&error),
    }
}

fn pinning<E: std::fmt::Display>(doing: &str) -> impl Fn(E) -> TcpError {
    let doing = doing.to_owned();
    move |error| TcpError::Pin {
        doing: doing.clone(),
        reason: error.to_string(),
    }
}

/// Mounts the file system for pins where nothing has.
fn mount_bpffs() -> Result<(), TcpError> {
    let is_there = statfs(BPFFS).is_ok_and(|stat| stat.filesystem_type() == BPFFS_MAGIC);
    if is_there {
        return Ok(());
    }
    mount(
        Some("bpf"),
        BPFFS,
        Some("bpf"),
        MsFlags::empty(),
        None::<&str>,
    )
    .map_err(pinning(&format!("mounting {BPFFS}")))
}

/// The map `name`, which the object has.
fn map<'object>(object: &'object mut Object, name: &str) -> MapMut<'object> {
    let mut maps = object.maps_mut();
    maps.find(|map| map.name() == name)
        .expect("the object has this map")
}

/// Loads the programs with `settings`, registers the congestion control `kumi`, and pins it, so that it
/// stays when this process ends.
///
/// # Errors
/// [`TcpError`]; nothing is left in place then.
pub fn install(settings: Settings) -> Result<(), TcpError> {
    if OBJECT.is_empty() {
        return Err(TcpError::NotCompiled);
    }
    if link_pin().exists() {
        return Err(TcpError::Installed);
    }
    libbpf_rs::set_print(Some((PrintLevel::Warn, note_warning)));
    let mut open = ObjectBuilder::default()
        .open_memory(OBJECT)
        .map_err(refused)?;
    for mut map in open.maps_mut() {
        if !map.name().to_string_lossy().ends_with(".rodata") {
            continue;
        }
        if let Some(value) = map.initial_value_mut() {
            value[..Settings::BYTES].copy_from_slice(&settings.to_bytes());
        }
    }
    let mut object = open.load().map_err(refused)?;
    mount_bpffs()?;
    // What an install that was killed left behind would be in the way.
    let _ = std::fs::remove_dir_all(PIN_FOLDER);
    std::fs::create_dir_all(PIN_FOLDER).map_err(pinning(&format!("making {PIN_FOLDER}")))?;
    let undo = |error: TcpError| {
        let _ = std::fs::remove_dir_all(PIN_FOLDER);
        error
    };
    let mut totals = map(&mut object, "totals");
    totals
        .pin(totals_pin())
        .map_err(pinning("pinning the totals"))
        .map_err(undo)?;
    let mut operations = map(&mut object, "kumi");
    let mut link = operations
        .attach_struct_ops()
        .map_err(refused)
        .map_err(undo)?;
    link.pin(link_pin())
        .map_err(pinning("pinning the link"))
        .map_err(undo)
}

/// What the congestion control counted since it was installed.
///
/// # Errors
/// [`TcpError::Absent`], or the kernel's refusal.
pub fn totals() -> Result<Totals, TcpError> {
    if !link_pin().exists() {
        return Err(TcpError::Absent);
    }
    let map = MapHandle::from_pinned_path(totals_pin()).map_err(refused)?;
    let mut totals = Totals::default();
    let first = 0_u32.to_ne_bytes();
    for processor in map
        .lookup_percpu(&first, MapFlags::ANY)
        .map_err(refused)?
        .unwrap_or_default()
    {
        totals.add(&processor);
    }
    Ok(totals)
}

/// Takes the congestion control away. Connections that chose it keep it until they end.
///
/// # Errors
/// [`TcpError::Absent`], or the kernel's refusal.
pub fn remove() -> Result<(), TcpError> {
    if !link_pin().exists() {
        return Err(TcpError::Absent);
    }
    let mut link = Link::open(link_pin()).map_err(refused)?;
    link.unpin().map_err(pinning("unpinning the link"))?;
    drop(link);
    std::fs::remove_dir_all(PIN_FOLDER).map_err(pinning(&format!("removing {PIN_FOLDER}")))
}
