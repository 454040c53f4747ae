//! Shared memory over Wind, for the processes of a job.
//!
//! ```text
//!   socket, addresses ── join ──► Dsm ── alloc ──► SharedRegion
//!                                  ├─ Member     coherence of pages
//!                                  ├─ WindFabric the other nodes
//!                                  └─ faults     accesses to closed pages
//! ```

mod fabric;
mod faults;
pub mod show;
mod transfers;
mod typed;
mod ways;

pub use crate::coherence::Recovery;
use crate::coherence::{Copies, Counts, DsmError, Fabric, Member, PAGE_BYTES, Region};
use crate::protocol::{Call, Placement, Updates};
use fabric::WindFabric;
use kumi_sys::shared_memory::SharedMemory;
use kumi_sys::tracked_memory::{Tier, TrackedMemory};
use kumi_sys::udp::LinkSocket;
use kumi_wind::protocol::Seal;
use kumi_wind::{Config as WindConfig, Node, Secret, random_epoch};
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
pub use transfers::Transfers;
pub use typed::{Element, Epoch, Locked, Slice};

/// Addresses at which regions are tried to be mapped: this one or that behind the last region, and
/// further ones by steps. They are far from the heap, from libraries and stacks, on x86-64 and on
/// AArch64 with 47 or more bits.
const FIRST_ADDRESS: usize = 0x2000_0000_0000;
const ADDRESS_STEP: usize = 0x0010_0000_0000;
const ADDRESSES: usize = 64;

/// Regions begin at multiples of this, with as much between them: a huge page.
const ADDRESS_ALIGNMENT: usize = 2 << 20;

/// Most bytes of a region: a step between addresses.
const REGION_BYTES_MAX: usize = ADDRESS_STEP;

/// Settings of a node.
#[derive(Debug, Clone)]
pub struct Config {
    /// Secret of the job, the same on all nodes.
    pub secret: Secret,
    /// Protection of what travels, the same on all nodes.
    pub seal: Seal,
    /// Time without an answer after which a node is lost.
    pub loss_timeout: Duration,
    /// Way in which accesses are found; the best that the kernel has if `None`.
    pub tier: Option<Tier>,
    /// Way in which pages and diffs travel, the same on all nodes.
    pub transfers: Transfers,
}

impl Config {
    /// Returns settings with encryption.
    pub fn new(secret: Secret) -> Self {
        Self {
            secret,
            seal: Seal::Encrypt,
            loss_timeout: Duration::from_secs(2),
            tier: None,
            transfers: Transfers::Direct,
        }
    }
}

fn wind_failed(error: kumi_wind::WindError) -> DsmError {
    DsmError::Argument(error.to_string())
}

/// Memory of a region.
struct Mapped {
    memory: TrackedMemory,
    copies: Copies,
    /// The bytes into which others put, for Wind.
    arrivals: SharedMemory,
    /// The same of replicas.
    replica: Option<SharedMemory>,
}

impl Mapped {
    fn new(job: &Job, pages: usize, at: usize, updates: Updates) -> io::Result<Self> {
        let bytes = pages * PAGE_BYTES;
        let memory = TrackedMemory::new(pages, Some(at), job.tier)?;
        let is_staged = job.member.has_replicas() || updates == Updates::AtBarriers;
        let staged = is_staged
            .then(|| SharedMemory::new_twice(bytes))
            .transpose()?;
        let (staged, again) = staged.unzip();
        let committed = job.member.has_replicas().then(|| SharedMemory::new(bytes));
        let (arrivals, replica) = match (updates, again) {
            (Updates::AtBarriers, Some(again)) => (again, None),
            (_, again) => (memory.map_again()?, again),
        };
        Ok(Self {
            copies: Copies {
                twins: SharedMemory::new(bytes)?,
                staged,
                committed: committed.transpose()?,
            },
            memory,
            arrivals,
            replica,
        })
    }
}

/// This node's part of the job.
struct Job {
    me: usize,
    nodes: usize,
    tier: Option<Tier>,
    member: Member<WindFabric, TrackedMemory>,
    /// Held during a call that all nodes make. Threads of a program take turns.
    calls: Mutex<()>,
    /// First address that is tried for the next region, the same on all nodes.
    next_address: Mutex<usize>,
}

impl Drop for Job {
    fn drop(&mut self) {
        // Another node may wait for the last message, of a barrier that has ended here.
        self.member.fabric().drain();
    }
}

impl Job {
    fn on_message(&self, received: kumi_wind::Received) {
        let fabric = self.member.fabric();
        // A sign of life is empty. A process that has the secret and is not a node is ignored.
        let data = &received.message.data;
        let Some(from) = fabric.number(received.peer).filter(|_| !data.is_empty()) else {
            return;
        };
        let handled = match data.starts_with(&transfers::MARK) {
            true => fabric.handle_transfer(from, data),
            false => self.member.handle(from, data),
        };
        match handled {
            // What could not be sent to a lost node is not the sender's fault.
            Ok(()) | Err(DsmError::Lost { .. }) => {}
            Err(error) => fabric.lose(from, &error.to_string()),
        }
        fabric.note_handled();
    }
}

/// Memory shared by the processes of a job: this process's part. One thread makes the calls; others
/// may use the memory between them, and do not write it during a lock, an unlock or a barrier.
#[derive(Clone)]
pub struct Dsm {
    job: Arc<Job>,
}

impl Dsm {
    /// Joins the job as node `me`. Waits for all nodes, which have opened their sockets.
    /// `addresses` has those of each node, by number. The first one of a node is the one at which
    /// this node reaches it.
    ///
    /// # Errors
    /// A node does not answer, or knows of another number of nodes.
    pub fn join(
        socket: LinkSocket,
        me: usize,
        addresses: &[Vec<SocketAddr>],
        config: &Config,
    ) -> Result<Self, DsmError> {
        let nodes = addresses.len();
        if me >= nodes || nodes >= usize::from(u16::MAX) {
            return Err(DsmError::Argument(format!(
                "node {me} of {nodes}: expected a number below the number of nodes, which is at most 65534"
            )));
        }
        let epoch = random_epoch().map_err(|source| DsmError::System {
            what: "cannot read random numbers",
            source,
        })?;
        let wind = WindConfig {
            seal: config.seal,
            lost_after_ns: config.loss_timeout.as_nanos() as u64,
            message_bytes_max: u32::MAX,
            ..WindConfig::new(config.secret, epoch)
        };
        let node = Node::on(socket, wind).map_err(wind_failed)?;
        let fabric = WindFabric::new(node, me, config, addresses).map_err(wind_failed)?;
        let job = Arc::new(Job {
            me,
            nodes,
            tier: config.tier,
            member: Member::new(fabric, me, nodes),
            calls: Mutex::new(()),
            next_address: Mutex::new(FIRST_ADDRESS),
        });
        let weak = Arc::downgrade(&job);
        let handler = move |received: kumi_wind::Received| {
            let Some(job) = weak.upgrade() else { return };
            job.on_message(received);
        };
        let node = job.member.fabric().node();
        node.hand_messages_to(Box::new(handler));
        let weak = Arc::downgrade(&job);
        let describe = move || {
            let job = weak.upgrade();
            job.map_or(serde_json::Value::Null, |job| show::state(&job))
        };
        node.show_also(show::MEMBER, describe);
        job.member.exchange(Call {
            text: format!("join with {nodes} nodes"),
            data: Vec::new(),
        })?;
        Ok(Self { job })
    }

    /// Keeps a replica of each page on another node, so that the job can go on when a node is lost.
    /// All nodes call it, before the first allocation.
    ///
    /// # Errors
    /// A region is there already, the nodes made different calls, or one is lost.
    pub fn keep_replicas(&self) -> Result<(), DsmError> {
        let job = &self.job;
        let _turn = job.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let regions = job.member.regions().len();
        if regions > 0 {
            return Err(DsmError::Argument(format!(
                "replicas of {regions} regions: expected the call before the first allocation"
            )));
        }
        job.member.exchange(Call {
            text: "keep_replicas".to_owned(),
            data: Vec::new(),
        })?;
        job.member.keep_replicas();
        Ok(())
    }

    /// Returns the number of this node.
    pub fn node(&self) -> usize {
        self.job.me
    }

    /// Returns the number of nodes.
    pub fn nodes(&self) -> usize {
        self.job.nodes
    }

    /// Returns the nodes that are left, in order: all, until a recovery.
    pub fn left(&self) -> Vec<usize> {
        self.job.member.left()
    }

    /// Returns the first epoch of typed accesses. One thread uses it for all calls that
    /// synchronise.
    pub fn epoch(&self) -> Epoch {
        Epoch::new(self.clone())
    }

    /// Allocates `bytes` bytes of zeros, at the same address on all nodes. All nodes make the same
    /// call.
    ///
    /// # Errors
    /// The nodes made different calls, no common address is free, or there is no memory.
    pub fn alloc(&self, bytes: usize, placement: Placement) -> Result<SharedRegion, DsmError> {
        self.alloc_with(bytes, placement, Updates::OnAccess)
    }

    /// As [`Self::alloc`], with a way in which changes reach other nodes.
    ///
    /// # Errors
    /// As [`Self::alloc`].
    pub fn alloc_with(
        &self,
        bytes: usize,
        placement: Placement,
        updates: Updates,
    ) -> Result<SharedRegion, DsmError> {
        if bytes == 0 || bytes > REGION_BYTES_MAX {
            return Err(DsmError::Argument(format!(
                "a region of {bytes} bytes: expected 1 to {REGION_BYTES_MAX}"
            )));
        }
        let job = &self.job;
        let _turn = job.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let pages = bytes.div_ceil(PAGE_BYTES);
        let (kind, parameter) = placement.to_wire();
        let when = match updates {
            Updates::OnAccess => "",
            Updates::AtBarriers => ", updated at barriers",
        };
        let text = format!("alloc of {bytes} bytes at homes {kind}/{parameter}{when}");
        let Mapped {
            memory,
            copies,
            arrivals,
            replica,
        } = self.map(pages, updates, &text)?;
        let region = job.member.add_region(memory, copies, placement, updates);
        job.member
            .fabric()
            .register(region.number(), arrivals, replica)?;
        let shared = Arc::new(Shared {
            job: Arc::clone(job),
            region,
        });
        faults::watch(Arc::downgrade(&shared)).map_err(DsmError::memory)?;
        // Nobody reads a page before its home has registered it.
        job.member.exchange(Call {
            text: "alloc, registered".to_owned(),
            data: Vec::new(),
        })?;
        Ok(SharedRegion { shared, bytes })
    }

    /// Maps memory at an address that is free on all nodes, with all that a region needs: a node
    /// that has too little says so before the others go on.
    fn map(&self, pages: usize, updates: Updates, text: &str) -> Result<Mapped, DsmError> {
        let job = &self.job;
        let mut next = job
            .next_address
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for attempt in 0..ADDRESSES {
            let address = *next + attempt * ADDRESS_STEP;
            let mapped = Mapped::new(job, pages, address, updates);
            let answer = match &mapped {
                Ok(_) => String::new(),
                Err(error) if error.raw_os_error() == Some(EEXIST) => "in use".to_owned(),
                Err(error) => format!("{error}, for {pages} pages of {PAGE_BYTES} bytes"),
            };
            let answers = job.member.exchange(Call {
                text: format!("{text}, attempt {attempt}"),
                data: answer.into_bytes(),
            })?;
            let refused = answers
                .iter()
                .position(|answer| !answer.is_empty() && answer != b"in use");
            if let Some(node) = refused {
                let reason = String::from_utf8_lossy(&answers[node]);
                return Err(DsmError::Argument(format!(
                    "node {node} cannot map the region: {reason}"
                )));
            }
            match mapped {
                Ok(mapped) if answers.iter().all(Vec::is_empty) => {
                    let end = address + pages * PAGE_BYTES;
                    *next = end.next_multiple_of(ADDRESS_ALIGNMENT) + ADDRESS_ALIGNMENT;
                    return Ok(mapped);
                }
                _ => {}
            }
        }
        Err(DsmError::Argument(format!(
            "no address of {ADDRESSES} is free on all nodes, from {:#x} on",
            *next
        )))
    }

    /// Returns the totals of this node.
    pub fn counts(&self) -> Counts {
        self.job.member.counts()
    }

    /// Waits until all nodes have called it. Writes of all nodes from before are seen after it.
    ///
    /// # Errors
    /// The nodes made different calls, or one is lost.
    pub fn barrier(&self) -> Result<(), DsmError> {
        let _turn = self
            .job
            .calls
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        self.job.member.barrier()
    }

    /// Goes on without lost nodes, when a call has failed because of one. All nodes that are left
    /// call it. The memory goes back to the last barrier, whose number is returned, and all locks
    /// are free. Regions that were allocated since then are gone.
    ///
    /// # Errors
    /// There are no replicas, or no node is lost; pages were lost together with their replicas; or
    /// the nodes that are lost may go on themselves, as they are more.
    pub fn recover(&self) -> Result<Recovery, DsmError> {
        let job = &self.job;
        let _turn = job.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = job
            .next_address
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let (recovery, address) = job.member.recover(*next as u64)?;
        *next = address as usize;
        Ok(recovery)
    }

    /// Takes a lock; any number is one. Writes of its holders before are seen then.
    ///
    /// # Errors
    /// This node holds it, or a node is lost.
    pub fn lock(&self, lock: u32) -> Result<(), DsmError> {
        self.job.member.lock(lock)
    }

    /// Releases a lock.
    ///
    /// # Errors
    /// This node does not hold it, or a node is lost.
    pub fn unlock(&self, lock: u32) -> Result<(), DsmError> {
        self.job.member.unlock(lock)
    }
}

/// Number of the kernel's error for an address that is in use.
const EEXIST: i32 = nix::errno::Errno::EEXIST as i32;

/// A region with the job that it belongs to.
struct Shared {
    job: Arc<Job>,
    region: Arc<Region<TrackedMemory>>,
}

/// A region of shared memory, mapped in this process.
#[derive(Clone)]
pub struct SharedRegion {
    shared: Arc<Shared>,
    bytes: usize,
}

impl SharedRegion {
    /// Returns the bytes. An access makes its page valid.
    pub fn memory(&self) -> &SharedMemory {
        self.shared.region.view().view()
    }

    /// Returns the length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the address, which is the same on all nodes.
    pub fn address(&self) -> usize {
        self.shared.region.view().address()
    }

    /// Makes the pages of some bytes valid, with fewer messages than accesses would need. System
    /// calls can use them until the next lock or barrier: into a page that is not valid, they
    /// return `EFAULT`.
    ///
    /// # Errors
    /// The bytes are out of range, or a node is lost.
    pub fn prefetch(&self, bytes: Range<usize>) -> Result<(), DsmError> {
        let pages = self.pages(bytes)?;
        let Shared { job, region } = &*self.shared;
        job.member.prefetch(region, pages)
    }

    /// Keeps the pages of some bytes valid for system calls: they are got again behind each lock
    /// and barrier that closes them.
    ///
    /// # Errors
    /// As [`Self::prefetch`].
    pub fn pin(&self, bytes: Range<usize>) -> Result<(), DsmError> {
        let pages = self.pages(bytes)?;
        let Shared { job, region } = &*self.shared;
        job.member.pin(region, pages, true)
    }

    /// Ends [`Self::pin`] for the pages of some bytes.
    ///
    /// # Errors
    /// The bytes are out of range.
    pub fn unpin(&self, bytes: Range<usize>) -> Result<(), DsmError> {
        let pages = self.pages(bytes)?;
        let Shared { job, region } = &*self.shared;
        job.member.pin(region, pages, false)
    }

    fn pages(&self, bytes: Range<usize>) -> Result<Range<usize>, DsmError> {
        if bytes.start > bytes.end || bytes.end > self.bytes {
            return Err(DsmError::Argument(format!(
                "bytes {bytes:?} of a region of {}",
                self.bytes
            )));
        }
        Ok(bytes.start / PAGE_BYTES..bytes.end.div_ceil(PAGE_BYTES))
    }

    /// Returns how the kernel finds accesses.
    pub fn tier(&self) -> Tier {
        self.shared.region.view().tier()
    }
}
