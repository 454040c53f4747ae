//! Events of observed connections, from the kernel's own tracepoints (`bpf/trace`). Nothing is
//! changed.

mod event;
mod phases;

pub use event::{Counters, Event, Kind, Limit, Retransmit, State};

use crate::cgroup;
use crate::error::TcpError;
use crate::install::load_object;
use crate::intf::SharedTraceSettings;
use crate::pins::pin_error;
use crate::refusal::refusal;
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object, RingBuffer, RingBufferBuilder};
use phases::Names;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;
use zerocopy::IntoBytes;

/// The compiled programs; empty if the build had no clang.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/trace.bpf.o"));

/// The program that is attached to a cgroup. The others are attached to tracepoints.
const CGROUP_PROGRAM: &str = "watch_socket";
/// Program of a tracepoint that kernels before 6.16 lack. Without it, transfers begin with their
/// first response.
const OPTIONAL_PROGRAM: &str = "on_write";

/// Connections to observe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Watch {
    /// Those that a process and its children have, and make from now on.
    Process(u32),
    /// Those of every process in a version 2 cgroup, by its folder.
    Cgroup(PathBuf),
}

/// Segments that produce events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// All segments.
    Every,
    /// Segments that arrive at an end that has sent data. These explain a slow sender.
    Senders,
}

/// Maps of the installed programs that give a socket's process and phase.
const SHARED_MAPS: [&str; 3] = ["owners", "generations", PAGES];
const PAGES: &str = "phase_pages";

/// A running trace. Dropping it ends it.
pub struct Trace {
    queue: Rc<RefCell<VecDeque<Event>>>,
    ring: RingBuffer<'static>,
    names: Names,
    _links: Vec<Link>,
    _object: Object,
}

impl Trace {
    /// Loads the programs and attaches them.
    ///
    /// # Errors
    /// [`TcpError`]; nothing stays attached.
    pub fn start(watch: &Watch, detail: Detail) -> Result<Self, TcpError> {
        let group: u64 = match watch {
            Watch::Cgroup(folder) => cgroup::inode(folder)?,
            Watch::Process(_) => 0,
        };
        let settings = SharedTraceSettings {
            cgroup: group,
            only_senders: u32::from(detail == Detail::Senders),
            reserved: 0,
        };
        let load = |is_wanted: &dyn Fn(&str) -> bool| {
            load_object(OBJECT, settings.as_bytes(), &SHARED_MAPS, is_wanted)
        };
        let object = match load(&|_| true) {
            Err(TcpError::Refused { .. }) => load(&|name| name != OPTIONAL_PROGRAM)?,
            outcome => outcome?,
        };
        let mut links = Vec::new();
        if let Watch::Process(pid) = watch {
            watch_process(&object, *pid)?;
        }
        for program in object.progs_mut() {
            let name = program.name().to_string_lossy().into_owned();
            if name == CGROUP_PROGRAM {
                if let Watch::Process(pid) = watch {
                    let folder = cgroup::folder(*pid)?;
                    let to_error = pin_error(&format!("attaching to {}", folder.display()));
                    let folder = File::open(&folder).map_err(to_error)?;
                    let link = program.attach_cgroup(folder.as_raw_fd());
                    links.push(link.map_err(refusal)?);
                }
            } else if name != OPTIONAL_PROGRAM {
                links.push(program.attach().map_err(refusal)?);
            } else if let Ok(link) = program.attach() {
                links.push(link);
            }
        }
        let queue = Rc::new(RefCell::new(VecDeque::new()));
        let sink = Rc::clone(&queue);
        let mut builder = RingBufferBuilder::new();
        let map = object.maps().find(|map| map.name() == "events");
        let map = map.expect("the object has this map");
        builder
            .add(&map, move |bytes| {
                sink.borrow_mut().extend(Event::from_bytes(bytes));
                0
            })
            .map_err(refusal)?;
        let ring = builder.build().map_err(refusal)?;
        let pages = object.maps().find(|map| map.name() == PAGES);
        let pages = pages.expect("the object has this map");
        Ok(Self {
            queue,
            ring,
            names: Names::new(MapHandle::try_from(&pages).map_err(refusal)?),
            _links: links,
            _object: object,
        })
    }

    /// Waits for `time` and passes on the events that occurred, in order.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn poll(&mut self, time: Duration, mut handle: impl FnMut(Event)) -> Result<(), TcpError> {
        std::thread::sleep(time);
        self.ring.consume().map_err(refusal)?;
        while let Some(mut event) = self.queue.borrow_mut().pop_front() {
            event.phase_name = self.names.name(event.cookie, event.rank, event.phase);
            if event.kind == Kind::Close {
                self.names.forget(event.cookie);
            }
            handle(event);
        }
        Ok(())
    }
}

/// Observes process `pid`: the sockets of its process tree, present and future.
fn watch_process(object: &Object, pid: u32) -> Result<(), TcpError> {
    let map = |name: &str| {
        let map = object.maps().find(|map| map.name() == name);
        map.expect("the object has this map")
    };
    let value = 1_u32.to_ne_bytes();
    map("processes")
        .update(&pid.to_ne_bytes(), &value, MapFlags::ANY)
        .map_err(refusal)?;
    // Sockets that a marked listener accepts inherit the mark. Marking a socket that is not TCP has
    // no effect.
    let marks = map("marks");
    for pid in kumi_sys::process::family(pid) {
        for socket in kumi_sys::process::sockets(pid) {
            let _ = marks.update(&socket.as_raw_fd().to_ne_bytes(), &value, MapFlags::ANY);
        }
    }
    Ok(())
}
