//! Pages whose accesses are found by the protection of their mapping.

use super::{Need, PAGE_BYTES, View};
use std::io;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// State of a page of the view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Closed,
    Unwritten,
    Written,
}

/// States of the pages. The lock is held while the kernel's protection changes, so that both agree.
#[derive(Debug)]
pub struct Protection {
    states: Mutex<Vec<State>>,
}

impl Protection {
    pub fn new(view: &View) -> io::Result<Self> {
        let pages = view.bytes / PAGE_BYTES;
        protect(view, 0..pages, libc::PROT_NONE)?;
        Ok(Self {
            states: Mutex::new(vec![State::Closed; pages]),
        })
    }

    fn states(&self) -> MutexGuard<'_, Vec<State>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn open(&self, view: &View, pages: Range<usize>) -> io::Result<()> {
        self.change(view, pages, libc::PROT_READ, |state| {
            (state == State::Closed).then_some(State::Unwritten)
        })
        .map(drop)
    }

    pub fn close(&self, view: &View, pages: Range<usize>) -> io::Result<()> {
        self.change(view, pages, libc::PROT_NONE, |state| {
            (state != State::Closed).then_some(State::Closed)
        })
        .map(drop)
    }

    pub fn take_written(
        &self,
        view: &View,
        pages: Range<usize>,
        runs: &mut Vec<Range<usize>>,
    ) -> io::Result<()> {
        let changed = self.change(view, pages, libc::PROT_READ, |state| {
            (state == State::Written).then_some(State::Unwritten)
        })?;
        runs.extend(changed);
        Ok(())
    }

    pub fn on_fault(&self, view: &View, page: usize) -> Need {
        let mut states = self.states();
        match states[page] {
            State::Closed => Need::Content,
            // A second thread may fault on a page that the first one has just marked.
            State::Written => Need::Nothing,
            State::Unwritten => {
                let write = libc::PROT_READ | libc::PROT_WRITE;
                if protect(view, page..page + 1, write).is_err() {
                    return Need::Mappings;
                }
                states[page] = State::Written;
                Need::Nothing
            }
        }
    }

    /// Gives pages a new state and protection, run by run. Returns the runs.
    fn change(
        &self,
        view: &View,
        pages: Range<usize>,
        access: libc::c_int,
        next: impl Fn(State) -> Option<State>,
    ) -> io::Result<Vec<Range<usize>>> {
        let mut states = self.states();
        let mut runs: Vec<Range<usize>> = Vec::new();
        for page in pages {
            if next(states[page]).is_some() {
                match runs.last_mut() {
                    Some(last) if last.end == page => last.end += 1,
                    _ => runs.push(page..page + 1),
                }
            }
        }
        for run in &runs {
            protect(view, run.clone(), access)?;
            for state in &mut states[run.clone()] {
                *state = next(*state).unwrap_or(*state);
            }
        }
        Ok(runs)
    }
}

fn protect(view: &View, pages: Range<usize>, access: libc::c_int) -> io::Result<()> {
    let at = view.addresses(&pages);
    let (start, bytes) = (at.start as *mut libc::c_void, (at.end - at.start) as usize);
    // SAFETY: the range is of this view, which no Rust reference points into.
    let outcome = unsafe { libc::mprotect(start, bytes, access) };
    if outcome == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
