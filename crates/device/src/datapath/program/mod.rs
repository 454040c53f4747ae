//! The programs of `bpf/multilink` and their maps.

use super::error::DatapathError;
use super::intf::{Answer, Count, Device, Key, LAYOUT, Link, Path, Peer, Sender};
use kumi_multilink::wire::{LINKS_MAX, Mac};
use libbpf_rs::query::{ProgInfoIter, ProgInfoQueryOptions};
use libbpf_rs::{
    MapCore, MapFlags, MapHandle, Object, ObjectBuilder, OpenObject, TC_EGRESS, TC_INGRESS,
    TcAttachPoint, TcHook,
};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use zerocopy::{FromBytes, IntoBytes};

/// The compiled programs; empty if the build had no clang.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/multilink.bpf.o"));

/// Priority of the filters, and the upper half of their handles: `kl`. The lower half is that of
/// the device's interface number, so that devices can share a link and a restarted daemon finds its
/// filters.
const PRIORITY: u32 = 0x6b6c;

/// Maps that outlive the daemon: a successor continues with them.
const LASTING: [&str; 10] = [
    "peers", "senders", "links", "loads", "frames", "paths", "counts", "answers", "streams",
    "long_at",
];

/// Maps of the programs of a daemon that was killed.
pub struct Inherited {
    maps: Vec<MapHandle>,
}

impl Inherited {
    /// Returns the maps of the programs at the egress of the device with interface number `index`,
    /// and at the ingress of its links.
    pub fn find(index: u32, links: &[u32]) -> Option<Self> {
        libbpf_rs::set_print(None);
        let nothing = File::open("/dev/null").ok()?;
        let id = |(point, interface)| hook(nothing.as_fd(), point, index, interface).query().ok();
        let egress = id((TC_EGRESS, index))?;
        let ingress = links.iter().find_map(|link| id((TC_INGRESS, *link)))?;
        let options = ProgInfoQueryOptions::default().include_map_ids(true);
        let programs = ProgInfoIter::with_query_opts(options);
        let programs = programs.filter(|program| [egress, ingress].contains(&program.id));
        let maps = programs.flat_map(|program| program.map_ids);
        let maps = maps.map(MapHandle::from_map_id).collect::<Result<_, _>>();
        Some(Self { maps: maps.ok()? })
    }

    fn map(&self, name: &str) -> Option<&MapHandle> {
        self.maps.iter().find(|map| map.name() == name)
    }

    /// Iterates over the entries of a map.
    fn entries(&self, name: &str) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
        self.map(name).into_iter().flat_map(|map| {
            let value = |key: Vec<u8>| {
                let value = map.lookup(&key, MapFlags::ANY).ok().flatten()?;
                Some((key, value))
            };
            map.keys().filter_map(value)
        })
    }

    /// Returns the peers, by the address of their device.
    pub fn peers(&self) -> Vec<(Mac, Peer)> {
        let peers = self.entries("peers");
        peers.filter_map(|entry| read(&entry)).collect()
    }

    /// Returns the senders, by alias.
    pub fn senders(&self) -> Vec<(Mac, Sender)> {
        let senders = self.entries("senders");
        senders.filter_map(|entry| read(&entry)).collect()
    }

    /// Returns a link.
    pub fn link(&self, link: u8) -> Option<Link> {
        let mut links = self.entries("links");
        let key = u32::from(link).to_ne_bytes();
        let (_, value) = links.find(|(number, _)| *number == key)?;
        Link::read_from_bytes(&value).ok()
    }

    /// Returns whether the maps have the layout of this build.
    fn is_same_version(&self) -> bool {
        let mut devices = self.entries("device");
        let device = devices
            .next()
            .and_then(|(_, value)| Device::read_from_bytes(&value).ok());
        device.is_some_and(|device| device.layout == LAYOUT)
    }

    /// Returns the interface of a link, 0 for none.
    pub fn interface(&self, link: u8) -> u32 {
        self.link(link).map_or(0, |link| link.index)
    }
}

/// Reads an entry of a map whose key is an address.
fn read<T: FromBytes>((key, value): &(Vec<u8>, Vec<u8>)) -> Option<(Mac, T)> {
    let mac = key.first_chunk::<6>()?;
    Some((*mac, T::read_from_bytes(value).ok()?))
}

/// Returns the number at an index of an array, 0 if it cannot be read.
fn number_in(map: &MapHandle, index: u32) -> u64 {
    let value = map.lookup(&index.to_ne_bytes(), MapFlags::ANY);
    let bytes = value.ok().flatten();
    let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(0, u64::from_ne_bytes)
}

/// The loaded programs. They stay in the kernel while this value lives or an interface has one.
pub struct Program {
    /// Keeps the maps and programs.
    _object: Object,
    egress: OwnedFd,
    ingress: OwnedFd,
    peers: MapHandle,
    senders: MapHandle,
    links: MapHandle,
    frames: MapHandle,
    paths: MapHandle,
    counts: MapHandle,
    answers: MapHandle,
    loads: MapHandle,
    device: MapHandle,
    long_at: MapHandle,
}

fn map_error(what: &'static str) -> impl Fn(libbpf_rs::Error) -> DatapathError {
    move |error| DatapathError::Map { what, error }
}

impl Program {
    /// Loads the programs for a device, with the maps of a daemon that was killed if there are any.
    ///
    /// # Errors
    /// The kernel refuses them, the build has none, or the maps are those of another version.
    pub fn load(device: Device, inherited: Option<&Inherited>) -> Result<Self, DatapathError> {
        if OBJECT.is_empty() {
            return Err(DatapathError::NotCompiled);
        }
        // The error has the kernel's reason in a number; the verifier's log is for developers.
        libbpf_rs::set_print(None);
        let open = ObjectBuilder::default().open_memory(OBJECT);
        let mut open = open.map_err(DatapathError::Refused)?;
        if let Some(inherited) = inherited {
            reuse(&mut open, inherited)?;
        }
        let object = open.load().map_err(DatapathError::Refused)?;
        let map = |name: &str| {
            let mut maps = object.maps();
            let found = maps.find(|map| map.name() == name);
            let found = found.ok_or(DatapathError::NotCompiled)?;
            MapHandle::try_from(&found).map_err(DatapathError::Refused)
        };
        let program = |name: &str| {
            let mut programs = object.progs();
            let found = programs.find(|program| program.name() == name);
            let found = found.ok_or(DatapathError::NotCompiled)?;
            let copy = found.as_fd().try_clone_to_owned();
            copy.map_err(|error| DatapathError::Refused(error.into()))
        };
        let loaded = Self {
            egress: program("kumi_egress")?,
            ingress: program("link_ingress")?,
            peers: map("peers")?,
            senders: map("senders")?,
            links: map("links")?,
            frames: map("frames")?,
            paths: map("paths")?,
            counts: map("counts")?,
            answers: map("answers")?,
            loads: map("loads")?,
            device: map("device")?,
            long_at: map("long_at")?,
            _object: object,
        };
        loaded.set_device(&device)?;
        Ok(loaded)
    }

    /// Attaches the program that sends frames to the device at the interface `index`, in place of
    /// that of an earlier daemon.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn attach_device(&self, name: &str, index: u32) -> Result<(), DatapathError> {
        let hook = hook(self.egress.as_fd(), TC_EGRESS, index, index);
        attach(hook, name)
    }

    /// Attaches the program that receives frames for `device` to a link.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn attach_link(&self, device: u32, name: &str, index: u32) -> Result<(), DatapathError> {
        let hook = hook(self.ingress.as_fd(), TC_INGRESS, device, index);
        attach(hook, name)
    }

    /// Sets or removes a peer.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn set_peer(&self, mac: Mac, peer: Option<&Peer>) -> Result<(), DatapathError> {
        let value = peer.map(IntoBytes::as_bytes);
        replace(&self.peers, mac, value).map_err(map_error("send frames to a peer"))
    }

    /// Sets or removes a sender.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn set_sender(&self, alias: Mac, sender: Option<&Sender>) -> Result<(), DatapathError> {
        let value = sender.map(IntoBytes::as_bytes);
        replace(&self.senders, alias, value).map_err(map_error("take frames from a peer"))
    }

    /// Describes a link.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn set_link(&self, number: u8, link: &Link) -> Result<(), DatapathError> {
        let key = u32::from(number).to_ne_bytes();
        let set = self.links.update(&key, link.as_bytes(), MapFlags::ANY);
        set.map_err(map_error("describe a link"))
    }

    /// Forgets what was sent on a link, which may be that of another NIC.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn clear_load(&self, number: u8) -> Result<(), DatapathError> {
        let (key, none) = (u32::from(number).to_ne_bytes(), 0_u64.to_ne_bytes());
        let set = self.loads.update(&key, &none, MapFlags::ANY);
        set.map_err(map_error("clear a link"))
    }

    /// Describes the device.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn set_device(&self, device: &Device) -> Result<(), DatapathError> {
        let key = 0_u32.to_ne_bytes();
        let set = self.device.update(&key, device.as_bytes(), MapFlags::ANY);
        set.map_err(map_error("describe the device"))
    }

    /// Returns a number that changes with each frame to or from a peer, by the peer's number.
    pub fn frames_of(&self, peer: u32) -> u64 {
        number_in(&self.frames, peer)
    }

    /// Returns the time at which a long stream sent last, in the programs' ns; 0 for none.
    pub fn long_at_ns(&self) -> u64 {
        number_in(&self.long_at, 0)
    }

    /// Returns the bytes sent to a peer on a link, and received.
    pub fn count_of(&self, peer: u32, link: u8) -> Count {
        let value = self.counts.lookup(&path_key(peer, link), MapFlags::ANY);
        let value = value.ok().flatten();
        let count = value.and_then(|bytes| Count::read_from_bytes(&bytes).ok());
        count.unwrap_or_default()
    }

    /// Returns the last answer of a peer on a link, unless a new one is just being written.
    pub fn answer_of(&self, peer: u32, link: u8) -> Option<Answer> {
        let value = self.answers.lookup(&path_key(peer, link), MapFlags::ANY);
        let answer = Answer::read_from_bytes(&value.ok().flatten()?).ok()?;
        answer.is_whole().then_some(answer)
    }

    /// Describes the path to a peer on a link.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn set_path(&self, peer: u32, link: u8, path: &Path) -> Result<(), DatapathError> {
        let key = path_key(peer, link);
        let set = self.paths.update(&key, path.as_bytes(), MapFlags::ANY);
        set.map_err(map_error("describe a path"))
    }

    /// Forgets what was counted for a number, which a new peer gets.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn clear(&self, peer: u32) -> Result<(), DatapathError> {
        for link in 0..LINKS_MAX as u8 {
            let (key, count) = (path_key(peer, link), Count::default());
            let set = self.counts.update(&key, count.as_bytes(), MapFlags::ANY);
            set.map_err(map_error("clear a count"))?;
            self.set_path(peer, link, &Path::default())?;
            let none = Answer::default();
            let set = self.answers.update(&key, none.as_bytes(), MapFlags::ANY);
            set.map_err(map_error("clear an answer"))?;
        }
        Ok(())
    }
}

/// Makes programs that are not loaded yet use the maps of their predecessors.
fn reuse(open: &mut OpenObject, inherited: &Inherited) -> Result<(), DatapathError> {
    if !inherited.is_same_version() {
        return Err(DatapathError::OtherVersion);
    }
    for mut map in open.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if !LASTING.contains(&name.as_str()) {
            continue;
        }
        let old = inherited.map(&name).ok_or(DatapathError::OtherVersion)?;
        map.reuse_fd(old.as_fd()).map_err(DatapathError::Refused)?;
    }
    Ok(())
}

/// Sets the entry of an address, or removes it. It may be gone already.
fn replace(map: &MapHandle, mac: Mac, value: Option<&[u8]>) -> libbpf_rs::Result<()> {
    let key = Key::from(mac);
    if let Some(value) = value {
        return map.update(key.as_bytes(), value, MapFlags::ANY);
    }
    let _ = map.delete(key.as_bytes());
    Ok(())
}

/// Returns the key of a path in `paths` and `counts`.
fn path_key(peer: u32, link: u8) -> [u8; 4] {
    (peer * LINKS_MAX as u32 + u32::from(link)).to_ne_bytes()
}

/// Removes what [`Program`] has attached for `device` to an interface, as far as it exists.
pub fn detach(device: u32, interface: u32) {
    libbpf_rs::set_print(None);
    // The kernel finds the filter by its handle; the descriptor is not used.
    let Ok(nothing) = File::open("/dev/null") else {
        return;
    };
    for point in [TC_EGRESS, TC_INGRESS] {
        let mut hook = hook(nothing.as_fd(), point, device, interface);
        hook.replace(false);
        let _ = hook.detach();
    }
}

fn hook(program: BorrowedFd<'_>, point: TcAttachPoint, device: u32, interface: u32) -> TcHook {
    let mut hook = TcHook::new(program);
    hook.ifindex(interface as i32)
        .attach_point(point)
        .handle(PRIORITY << 16 | device & 0xffff)
        .priority(PRIORITY)
        .replace(true);
    hook
}

fn attach(mut hook: TcHook, interface: &str) -> Result<(), DatapathError> {
    let failed = |error| DatapathError::Attach {
        interface: interface.to_owned(),
        error,
    };
    hook.create().map_err(failed)?;
    hook.attach().map_err(failed)?;
    Ok(())
}

#[cfg(test)]
mod tests;
