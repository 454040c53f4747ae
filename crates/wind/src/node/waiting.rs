//! Waiting: who receives, and how.
//!
//! ```text
//!   program waits ──► leads: polls the socket, and sleeps on it after a moment
//!                 └─► follows: another program leads, and wakes this one
//!   no program waits ──► after LINGER, the node's thread receives
//! ```
//!
//! A program that waits receives itself, so an arrival wakes one thread and not two. Between two
//! waits of a busy program the thread stays away, because its wake-up would cost more than the
//! program's work. Neither does it take the lock of a program that submits or takes one message
//! after the other: such a program receives between them.

use super::handing::hand_over;
use super::state::{Sleeper, State};
use super::{ACTIONS_PER_RECEIVE, Node, Shared, WindError, lock};
use crate::protocol::Waiting;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Time for which a waiting program polls the socket before it sleeps. A round trip on a local
/// network takes less; waking up takes 5 to 8 µs more (`docs/perf-log.md`, 2026-11-25).
pub(super) const SPIN: Duration = Duration::from_micros(50);

/// Time after a program's last wait from which the thread receives. A program that makes requests
/// one after the other waits again within microseconds; a peer waits this long at most, or up to
/// [`LONG_WAIT`] if the thread found the program waiting time and again.
const LINGER: Duration = Duration::from_micros(200);

/// The same after the last [`Node::poll`]: a library below MPI polls again and again, and looks
/// elsewhere between two polls.
pub(super) const POLLED: Duration = Duration::from_millis(1);

/// Wait of a program after which the thread no longer looks at it.
const LONG_WAIT: Duration = Duration::from_millis(1);

/// Bit of the second file of a sleep.
const CALLED: u32 = 2;

/// Threads that wait, and their agreement on who receives.
pub struct Waiters {
    policy: Waiting,
    start: Instant,
    /// Programs that wait.
    waiting: AtomicUsize,
    /// Programs that wait for the leader.
    followers: AtomicUsize,
    /// A program leads.
    has_leader: AtomicBool,
    /// Time of the last begin or end of a wait, in ns from `start`.
    waited_at_ns: AtomicU64,
    /// Time of the last [`Node::poll`], in ns from `start`; 0 before the first one.
    polled_at_ns: AtomicU64,
    /// The thread sleeps on the socket.
    is_receiving: AtomicBool,
    /// The thread sleeps until it is called.
    is_parked: AtomicBool,
    /// The leader sleeps on the socket.
    is_asleep: AtomicBool,
}

impl Waiters {
    pub fn new(policy: Waiting) -> Self {
        Self {
            policy,
            start: Instant::now(),
            waiting: AtomicUsize::new(0),
            followers: AtomicUsize::new(0),
            has_leader: AtomicBool::new(false),
            waited_at_ns: AtomicU64::new(0),
            polled_at_ns: AtomicU64::new(0),
            is_receiving: AtomicBool::new(false),
            is_parked: AtomicBool::new(false),
            is_asleep: AtomicBool::new(false),
        }
    }

    /// Returns the time since the node's start, in ns.
    pub fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Returns whether the program that leads sleeps on the socket.
    pub fn is_leader_asleep(&self) -> bool {
        self.is_asleep.load(Ordering::SeqCst)
    }

    fn stamp(&self) {
        self.waited_at_ns.store(self.now_ns(), Ordering::Relaxed);
    }

    /// Returns the time since the last begin or end of a wait.
    fn since_wait(&self) -> Duration {
        let waited_at_ns = self.waited_at_ns.load(Ordering::Relaxed);
        match waited_at_ns {
            0 => Duration::MAX,
            at_ns => Duration::from_nanos(self.now_ns().saturating_sub(at_ns)),
        }
    }

    /// Returns the time for which the thread still leaves the socket to programs that come back.
    fn absence(&self) -> Option<Duration> {
        let polled_at_ns = self.polled_at_ns.load(Ordering::SeqCst);
        let since_poll = Duration::from_nanos(self.now_ns().saturating_sub(polled_at_ns));
        let after_poll = match polled_at_ns {
            0 => None,
            _ => POLLED.checked_sub(since_poll),
        };
        let after_wait = LINGER.checked_sub(self.since_wait());
        after_poll.max(after_wait).filter(|left| !left.is_zero())
    }

    /// Returns the time for which a program polls before it sleeps.
    fn spin(&self) -> Duration {
        match self.policy {
            Waiting::Spin => Duration::MAX,
            Waiting::Block => Duration::ZERO,
            Waiting::Adaptive => SPIN,
        }
    }
}

/// A program that waits, or is about to.
pub struct Presence<'a>(&'a Shared);

impl<'a> Presence<'a> {
    pub(super) fn new(shared: &'a Shared) -> Self {
        shared.waiters.waiting.fetch_add(1, Ordering::SeqCst);
        shared.waiters.stamp();
        Self(shared)
    }
}

impl Drop for Presence<'_> {
    fn drop(&mut self) {
        let waiters = &self.0.waiters;
        waiters.stamp();
        waiters.waiting.fetch_sub(1, Ordering::SeqCst);
        // The thread may sleep on the socket until a later timeout than the program has left.
        let is_late = waiters.is_receiving.load(Ordering::SeqCst)
            && lock(self.0).has_earlier_timeout(Sleeper::Thread);
        if is_late || waiters.is_parked.load(Ordering::SeqCst) {
            let _ = self.0.bell.write(1);
        }
    }
}

/// The leading program.
struct Lead<'a>(&'a Shared);

impl<'a> Lead<'a> {
    fn take(shared: &'a Shared) -> Option<Self> {
        let is_free = !shared.waiters.has_leader.swap(true, Ordering::Acquire);
        // Not `then_some`: a value that is made and not used would give up the lead of another one.
        is_free.then(|| Self(shared))
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        self.0.waiters.has_leader.store(false, Ordering::Release);
        if self.0.waiters.followers.load(Ordering::SeqCst) > 0 {
            // With the lock, so that none is between its attempt to lead and its sleep.
            let _state = lock(self.0);
            self.0.changed.notify_all();
        }
    }
}

impl Node {
    /// States that this thread waits soon. Until the value is dropped, the node's thread leaves the
    /// socket to it, and is not woken for the timeouts of what it submits.
    pub fn expect_wait(&self) -> Presence<'_> {
        Presence::new(&self.shared)
    }

    /// Receives for a program to which the node's thread leaves the socket: it has a [`Presence`],
    /// or submits or takes much.
    pub(super) fn receive_as_present(&self, state: &mut State) {
        let shared = &*self.shared;
        let has_changed = state.receive(&shared.socket);
        if has_changed && shared.waiters.followers.load(Ordering::SeqCst) > 0 {
            shared.changed.notify_all();
        }
    }

    /// Waits until `poll` returns a value or an error.
    pub(super) fn wait<T>(
        &self,
        limit: Option<Duration>,
        mut poll: impl FnMut(&mut State) -> Result<Option<T>, WindError>,
    ) -> Result<T, WindError> {
        if let Some(value) = poll(&mut self.state())? {
            return Ok(value);
        }
        let began = Instant::now();
        let _presence = Presence::new(&self.shared);
        let followers = &self.shared.waiters.followers;
        loop {
            let mut state = self.state();
            state.in_a_row = 0;
            if let Some(value) = poll(&mut state)? {
                return Ok(value);
            }
            if limit.is_some_and(|limit| began.elapsed() >= limit) {
                return Err(WindError::Late(limit.unwrap_or_default()));
            }
            followers.fetch_add(1, Ordering::SeqCst);
            if let Some(_lead) = Lead::take(&self.shared) {
                followers.fetch_sub(1, Ordering::SeqCst);
                drop(state);
                return self.lead(began, limit, poll);
            }
            let left = limit.map(|limit| limit.saturating_sub(began.elapsed()));
            let sleep = left.unwrap_or(Duration::from_secs(1));
            let waited = self.shared.changed.wait_timeout(state, sleep);
            drop(waited.unwrap_or_else(PoisonError::into_inner).0);
            followers.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Receives until `poll` returns a value or an error.
    fn lead<T>(
        &self,
        began: Instant,
        limit: Option<Duration>,
        mut poll: impl FnMut(&mut State) -> Result<Option<T>, WindError>,
    ) -> Result<T, WindError> {
        let shared = &*self.shared;
        let spin = shared.waiters.spin();
        loop {
            let mut state = self.state();
            let mut has_changed = state.receive(&shared.socket);
            if shared.handler.get().is_some() && state.has_message() {
                drop(state);
                has_changed |= hand_over(shared);
                state = self.state();
            }
            if has_changed && shared.waiters.followers.load(Ordering::SeqCst) > 0 {
                shared.changed.notify_all();
            }
            if let Some(value) = poll(&mut state)? {
                let is_answered_soon = state.is_answered_soon(shared.waiters.now_ns());
                let is_awaited = state.has_unsent || state.endpoint.is_awaited();
                if is_awaited || !is_answered_soon {
                    state.transmit(&shared.socket);
                }
                return Ok(value);
            }
            state.taken_ns = None;
            state.transmit(&shared.socket);
            let elapsed = began.elapsed();
            if limit.is_some_and(|limit| elapsed >= limit) {
                return Err(WindError::Late(limit.unwrap_or_default()));
            }
            if elapsed < spin {
                drop(state);
                // The peer may run on this processor.
                std::thread::yield_now();
                continue;
            }
            let left = limit.map(|limit| limit.saturating_sub(elapsed));
            let next = state.time_to_timeout(Sleeper::Leader);
            let timeout = [next, left].into_iter().flatten().min();
            shared.waiters.is_asleep.store(true, Ordering::SeqCst);
            drop(state);
            let readable = sleep(&[shared.socket.as_fd(), shared.call.as_fd()], timeout);
            shared.waiters.is_asleep.store(false, Ordering::SeqCst);
            // A call that comes now ends the next sleep at once.
            if readable & CALLED != 0 {
                let _ = shared.call.read();
            }
        }
    }
}

/// Wakes the program that sleeps on the socket: what it waits for may hold.
pub fn wake_leader(shared: &Shared) {
    if shared.waiters.is_asleep.load(Ordering::SeqCst) {
        let _ = shared.call.write(1);
    }
}

/// Wakes whoever sleeps until a timeout that is too late now. A program that waits and does not
/// sleep looks itself; if it ends its wait instead, its [`Presence`] wakes the thread.
pub fn ring(shared: &Shared, state: &State) {
    if shared.waiters.is_asleep.load(Ordering::SeqCst) {
        if state.has_earlier_timeout(Sleeper::Leader) {
            let _ = shared.call.write(1);
        }
    } else if shared.waiters.waiting.load(Ordering::SeqCst) == 0
        && state.has_earlier_timeout(Sleeper::Thread)
    {
        let _ = shared.bell.write(1);
    }
}

/// Records that a program polls. Takes the socket from the thread if it sleeps there.
pub fn note_poll(shared: &Shared) {
    let now_ns = shared.waiters.now_ns();
    shared.waiters.polled_at_ns.store(now_ns, Ordering::SeqCst);
    if shared.waiters.is_receiving.load(Ordering::SeqCst) {
        let _ = shared.bell.write(1);
    }
}

/// Receives, sends and waits until the node ends: the node's thread.
pub fn run(shared: &Shared) {
    let waiters = &shared.waiters;
    let mut seen_actions = 0;
    // A program that is found waiting each time is looked at less often: with more processes than
    // processors, the looks cost as much as their messages.
    let mut linger = LINGER;
    while !shared.is_ended.load(Ordering::Relaxed) {
        let since_wait = waiters.since_wait();
        let has_waiting = waiters.waiting.load(Ordering::SeqCst) > 0;
        if has_waiting && since_wait > LONG_WAIT {
            waiters.is_parked.store(true, Ordering::SeqCst);
            if waiters.waiting.load(Ordering::SeqCst) > 0 {
                sleep_and_show(shared, false, None);
            }
            waiters.is_parked.store(false, Ordering::SeqCst);
            let _ = shared.bell.read();
            continue;
        }
        let mut state = lock(shared);
        // Such a program receives itself (`Node::send_submitted`).
        let is_active = state.actions - seen_actions >= ACTIONS_PER_RECEIVE;
        seen_actions = state.actions;
        let pause = if has_waiting {
            linger = (2 * linger).min(LONG_WAIT);
            Some(linger)
        } else {
            linger = LINGER;
            if is_active {
                Some(LINGER)
            } else {
                waiters.absence()
            }
        };
        if let Some(pause) = pause {
            state.expect_turn();
            drop(state);
            sleep_and_show(shared, false, Some(pause));
            let _ = shared.bell.read();
            continue;
        }
        let mut has_changed = state.receive(&shared.socket);
        if shared.handler.get().is_some() && state.has_message() {
            drop(state);
            has_changed |= hand_over(shared);
            state = lock(shared);
        }
        state.transmit(&shared.socket);
        if has_changed && waiters.followers.load(Ordering::SeqCst) > 0 {
            shared.changed.notify_all();
        }
        let timeout = state.time_to_timeout(Sleeper::Thread);
        // With the lock: a program that has an earlier timeout from now on rings.
        waiters.is_receiving.store(true, Ordering::SeqCst);
        drop(state);
        if waiters.absence().is_none() {
            sleep_and_show(shared, true, timeout);
        }
        waiters.is_receiving.store(false, Ordering::SeqCst);
        let _ = shared.bell.read();
    }
}

/// Sleeps as the node's thread, and answers those that ask for the node's state.
fn sleep_and_show(shared: &Shared, receives: bool, timeout: Option<Duration>) {
    let mut files = vec![shared.bell.as_fd()];
    files.extend(shared.listener.as_ref().map(AsFd::as_fd));
    if receives {
        files.push(shared.socket.as_fd());
    }
    if sleep(&files, timeout) & CALLED != 0 && shared.listener.is_some() {
        super::show::serve(shared);
    }
}

/// Sleeps until one of the files is readable. Returns a bit for each that is.
fn sleep(files: &[BorrowedFd<'_>], timeout: Option<Duration>) -> u32 {
    let mut files: Vec<PollFd<'_>> = files
        .iter()
        .map(|file| PollFd::new(*file, PollFlags::POLLIN))
        .collect();
    // An error is an interruption, after which the caller looks again.
    let _ = ppoll(&mut files, timeout.map(TimeSpec::from), None);
    let ready = files.iter().map(|file| u32::from(file.any() == Some(true)));
    ready.rev().fold(0, |bits, bit| bits << 1 | bit)
}
