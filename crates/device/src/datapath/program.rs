//! The programs of `bpf/multilink` and their maps.

use super::error::DatapathError;
use super::intf::{Answer, Count, Device, Key, Link, Path, Peer, Sender};
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
const LASTING: [&str; 9] = [
    "peers", "senders", "links", "loads", "frames", "paths", "counts", "answers", "streams",
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
        map("device")?
            .update(&0_u32.to_ne_bytes(), device.as_bytes(), MapFlags::ANY)
            .map_err(map_error("describe the device"))?;
        Ok(Self {
            egress: program("kumi_egress")?,
            ingress: program("link_ingress")?,
            peers: map("peers")?,
            senders: map("senders")?,
            links: map("links")?,
            frames: map("frames")?,
            paths: map("paths")?,
            counts: map("counts")?,
            answers: map("answers")?,
            _object: object,
        })
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

    /// Returns a number that changes with each frame to or from a peer, by the peer's number.
    pub fn frames_of(&self, peer: u32) -> u64 {
        let value = self.frames.lookup(&peer.to_ne_bytes(), MapFlags::ANY);
        let bytes = value.ok().flatten();
        let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u64::from_ne_bytes)
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
    for mut map in open.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if !LASTING.contains(&name.as_str()) {
            continue;
        }
        let old = inherited.map(&name);
        let is_same = |old: &&MapHandle| {
            let sizes = (old.key_size(), old.value_size(), old.max_entries());
            sizes == (map.key_size(), map.value_size(), map.max_entries())
        };
        let old = old.filter(is_same).ok_or(DatapathError::OtherVersion)?;
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
mod tests {
    use super::super::intf::{QUESTION_TYPE, Question, Way};
    use super::*;
    use kumi_multilink::wire::QuestionKey;
    use libbpf_rs::ProgramInput;

    /// Verdicts of `linux/pkt_cls.h`.
    const PASSED_ON: u32 = u32::MAX;
    const DROPPED: u32 = 2;
    const REDIRECTED: u32 = 7;

    const OWN_KEY: QuestionKey = [1; 16];
    const THEIR_KEY: QuestionKey = [2; 16];
    const ALIAS: Mac = [2, 0, 0, 0, 0, 9];
    /// Address of the loopback interface, at which the kernel runs the program.
    const OWN_ADDRESS: Mac = [0; 6];
    const WAY: Way = Way {
        to: [2, 0, 0, 0, 0, 7],
        from: [2, 0, 0, 0, 0, 8],
    };

    /// Returns programs that know one peer.
    fn program() -> Program {
        let mac = [2, 0, 0, 0, 0, 1];
        let device = Device {
            index: 1,
            mac: [2, 0, 0, 0, 0, 2],
            zero: 0,
        };
        let program = Program::load(device, None).expect("the kernel takes the programs");
        let link = Link {
            index: 1,
            key: OWN_KEY,
            ..Link::default()
        };
        program.set_link(0, &link).unwrap();
        let sender = Sender {
            link: 0,
            number: 0,
            mac,
            zero: 0,
            key: THEIR_KEY,
        };
        program.set_sender(ALIAS, Some(&sender)).unwrap();
        let peer = Peer {
            links: 1,
            number: 0,
            daemon_has_bulk: 0,
            zero: 0,
            ways: [WAY; LINKS_MAX],
        };
        program.set_peer(mac, Some(&peer)).unwrap();
        program
    }

    /// Returns what the program at a link does with a question or an answer, and the frame
    /// afterwards.
    fn receive(program: &mut Program, from: Mac, payload: &[u8]) -> (u32, Vec<u8>) {
        let ether_type = QUESTION_TYPE.to_be_bytes();
        let frame = [&OWN_ADDRESS, &from, &ether_type[..], payload].concat();
        run(program, "link_ingress", &frame)
    }

    /// Returns what a program does with a frame, and the frame afterwards.
    fn run(program: &mut Program, name: &str, frame: &[u8]) -> (u32, Vec<u8>) {
        let mut out = vec![0; frame.len()];
        let mut programs = program._object.progs_mut();
        let found = programs.find(|program| program.name() == name);
        let input = ProgramInput {
            data_in: Some(frame),
            data_out: Some(&mut out),
            ..ProgramInput::default()
        };
        let output = found.unwrap().test_run(input).expect("the kernel runs it");
        (output.return_value, out)
    }

    #[test]
    #[ignore = "needs root, BPF"]
    fn link_ingress__question_of_a_peer__is_answered_with_a_tag_by_its_key() {
        let mut program = program();
        let question = Question::new(3, 4, &THEIR_KEY);
        let (verdict, frame) = receive(&mut program, ALIAS, question.as_bytes());
        assert_eq!(verdict, REDIRECTED);
        assert_eq!(frame[..12], *WAY.as_bytes());
        // kind, times and bytes of the question, bytes received
        assert_eq!(
            (frame[14], &frame[22..38]),
            (2, &question.as_bytes()[8..24])
        );
        assert_eq!(frame[38..46], [0; 8]);
        let tag = super::super::intf::tag(&frame[14..54], &THEIR_KEY);
        assert_eq!(frame[54..], tag);
    }

    #[test]
    #[ignore = "needs root, BPF"]
    fn link_ingress__question_that_no_peer_made__is_dropped() {
        let mut program = program();
        let question = Question::new(3, 4, &THEIR_KEY);
        for bit in 0..question.as_bytes().len() * 8 {
            let mut forged = question.as_bytes().to_vec();
            forged[bit / 8] ^= 1 << (bit % 8);
            let (verdict, _) = receive(&mut program, ALIAS, &forged);
            assert_eq!(verdict, DROPPED, "bit {bit}");
        }
        for key in [OWN_KEY, QuestionKey::default()] {
            let forged = Question::new(3, 4, &key);
            let (verdict, _) = receive(&mut program, ALIAS, forged.as_bytes());
            assert_eq!(verdict, DROPPED);
        }
        let short = &question.as_bytes()[..40];
        assert_eq!(receive(&mut program, ALIAS, short).0, DROPPED);
        let unknown = [2, 0, 0, 0, 0, 10];
        let (verdict, frame) = receive(&mut program, unknown, question.as_bytes());
        assert_eq!(verdict, PASSED_ON, "it is a frame of the link");
        assert_eq!(frame[14..], *question.as_bytes());
    }

    #[test]
    #[ignore = "needs root, BPF"]
    fn link_ingress__answer__is_kept_if_its_tag_is_by_the_own_key() {
        let mut program = program();
        for (key, is_kept) in [
            (THEIR_KEY, false),
            (QuestionKey::default(), false),
            (OWN_KEY, true),
        ] {
            let mut answer = Question::new(3, 4, &key).as_bytes()[..40].to_vec();
            answer[0] = 2;
            answer.extend(super::super::intf::tag(&answer, &key));
            assert_eq!(receive(&mut program, ALIAS, &answer).0, DROPPED);
            let kept = program.answer_of(0, 0);
            assert_eq!(kept.is_some(), is_kept);
            assert_eq!(kept.map_or(3, |kept| kept.asked_at_ns), 3);
        }
        // Not even by a link that is not in use yet, whose key is 0.
        program.set_link(0, &Link::default()).unwrap();
        let mut answer = Question::new(5, 6, &QuestionKey::default()).as_bytes()[..40].to_vec();
        answer[0] = 2;
        answer.extend(super::super::intf::tag(&answer, &QuestionKey::default()));
        receive(&mut program, ALIAS, &answer);
        assert_eq!(
            program.answer_of(0, 0).map(|kept| kept.asked_at_ns),
            Some(3)
        );
    }

    #[test]
    #[ignore = "needs root, BPF"]
    fn kumi_egress__path_that_has_not_answered_for_5_ms__is_left() {
        let mut program = program();
        let (own, to) = ([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1]);
        let mut peer = Peer {
            links: 0b11,
            number: 0,
            daemon_has_bulk: 0,
            zero: 0,
            ways: [WAY; LINKS_MAX],
        };
        peer.ways[1].from = [2, 0, 0, 0, 0, 88];
        program.set_peer(to, Some(&peer)).unwrap();
        let byte_time = 8 << 10; // 1 Gb/s
        for number in 0..2 {
            let link = Link {
                index: 1,
                byte_time,
                ..Link::default()
            };
            program.set_link(number, &link).unwrap();
        }
        let frame = [&to[..], &own, &[8, 0], &[0; 60]].concat();
        // Returns the link of a frame when the first path answered `ages_ms` ago, and the second.
        let mut link_after = |ages_ms: [u64; 2]| {
            std::thread::sleep(std::time::Duration::from_millis(1)); // the frame before has left
            for (number, age_ms) in (0..).zip(ages_ms) {
                let path = Path {
                    byte_time,
                    latency_ns: 1000,
                    left_bytes: 0,
                    left_at_ns: super::super::kernel_ns() - age_ms * 1_000_000,
                };
                program.set_path(0, number, &path).unwrap();
            }
            let (verdict, frame) = run(&mut program, "kumi_egress", &frame);
            assert_eq!(verdict, REDIRECTED);
            u8::from(frame[6..12] == peer.ways[1].from)
        };
        assert_eq!(link_after([1, 1]), 0, "the first of equal ones");
        assert_eq!(link_after([5, 1]), 1);
        assert_eq!(link_after([3, 1]), 0, "its answer is on the way");
        assert_eq!(link_after([7, 8]), 0, "both are late: this host was");
        assert_eq!(link_after([200, 1]), 0, "no daemon asks");
    }
}
