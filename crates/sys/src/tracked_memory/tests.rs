use super::*;
use crate::faults;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Memory of the test that runs, for the handler.
static MEMORY: Mutex<Option<Arc<TrackedMemory>>> = Mutex::new(None);
static FAULTS: AtomicUsize = AtomicUsize::new(0);
static TURN: Mutex<()> = Mutex::new(());

/// Opens the page, whose content is its number in each byte.
fn fill(address: usize) -> bool {
    let memory = MEMORY.lock().unwrap().clone();
    let Some(memory) = memory else { return false };
    let Some(page) = memory.page_of(address) else {
        return false;
    };
    if memory.on_fault(page) == Need::Content {
        FAULTS.fetch_add(1, Ordering::Relaxed);
        if memory.own().word(page * PAGE_BYTES).load(Ordering::Relaxed) == 0 {
            memory
                .own()
                .write(page * PAGE_BYTES, &[page as u8; PAGE_BYTES]);
        }
        memory.open(page..page + 1).unwrap();
    }
    true
}

fn begin(tier: Tier, pages: usize) -> (Arc<TrackedMemory>, MutexGuard<'static, ()>) {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    faults::handle(fill).unwrap();
    let memory = Arc::new(TrackedMemory::new(pages, None, Some(tier)).unwrap());
    *MEMORY.lock().unwrap() = Some(Arc::clone(&memory));
    FAULTS.store(0, Ordering::Relaxed);
    (memory, turn)
}

fn read(memory: &TrackedMemory, page: usize) -> u8 {
    let at = (memory.address() + page * PAGE_BYTES + 17) as *const u8;
    // SAFETY: the byte is in the view, and the handler opens its page.
    unsafe { at.read_volatile() }
}

fn write(memory: &TrackedMemory, page: usize, byte: u8) {
    let at = (memory.address() + page * PAGE_BYTES + 17) as *mut u8;
    // SAFETY: as above.
    unsafe { at.write_volatile(byte) };
}

fn written_pages(memory: &TrackedMemory) -> Vec<usize> {
    written(memory).into_iter().flatten().collect()
}

fn written(memory: &TrackedMemory) -> Vec<Range<usize>> {
    let mut runs = Vec::new();
    memory.take_written(0..memory.pages(), &mut runs).unwrap();
    runs
}

fn check(tier: Tier) {
    let (memory, _turn) = begin(tier, 64);
    assert_eq!(memory.tier(), tier);
    for page in [3, 4, 5, 9, 63] {
        assert_eq!(read(&memory, page), page as u8);
    }
    assert_eq!(FAULTS.load(Ordering::Relaxed), 5);
    assert_eq!(written_pages(&memory), []);
    write(&memory, 4, 1);
    write(&memory, 5, 2);
    write(&memory, 10, 3);
    assert_eq!(FAULTS.load(Ordering::Relaxed), 6);
    assert_eq!(written(&memory), [4..6, 10..11]);
    assert_eq!(written_pages(&memory), []);
    write(&memory, 5, 4);
    assert_eq!(written_pages(&memory), [5]);
    // Bytes written by the library are there at once, and are no writes of the program.
    memory.own().write(5 * PAGE_BYTES + 17, &[77]);
    assert_eq!(read(&memory, 5), 77);
    assert_eq!(written_pages(&memory), []);
    // Closed pages keep their bytes, and fault again.
    memory.close(0..11).unwrap();
    assert_eq!(read(&memory, 10), 3);
    assert_eq!(FAULTS.load(Ordering::Relaxed), 7);
    write(&memory, 4, 9);
    assert_eq!(FAULTS.load(Ordering::Relaxed), 8);
    assert_eq!(written_pages(&memory), [4]);
    // Pages of which some are open.
    memory.open(2..12).unwrap();
    assert_eq!(read(&memory, 9), 9);
    assert_eq!(FAULTS.load(Ordering::Relaxed), 8);
    *MEMORY.lock().unwrap() = None;
}

#[test]
fn memory__tracked_by_userfaultfd__reports_accesses_and_writes() {
    check(Tier::Userfault);
}

#[test]
fn memory__tracked_by_protection__reports_accesses_and_writes() {
    check(Tier::Protection);
}

/// A page may be reported before its write, by a scan that meets the fault half way. Then it is
/// reported again: who copies what is reported has every write in the end.
#[test]
fn memory__written_by_two_threads__loses_no_write() {
    for tier in [Tier::Userfault, Tier::Protection] {
        let (memory, _turn) = begin(tier, 512);
        let mut copies = [0; 512];
        let mut copy = || {
            for page in written(&memory).into_iter().flatten() {
                let mut byte = [0];
                memory.own().read(page * PAGE_BYTES + 17, &mut byte);
                copies[page] = byte[0];
            }
        };
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let memory = &memory;
                scope.spawn(move || {
                    for round in 1..=20 {
                        for page in (0..512).filter(|page| page % 2 == thread) {
                            write(memory, page, round);
                        }
                    }
                });
            }
            for _ in 0..200 {
                copy();
            }
        });
        copy();
        for (page, byte) in copies.iter().enumerate() {
            assert_eq!(*byte, 20, "page {page}, {tier}");
        }
        *MEMORY.lock().unwrap() = None;
    }
}

#[test]
fn memory__at_an_address__is_there_or_refused() {
    let first = TrackedMemory::new(4, None, None).unwrap();
    let error = TrackedMemory::new(4, Some(first.address()), None).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
    let address = first.address();
    drop(first);
    let second = TrackedMemory::new(4, Some(address), None).unwrap();
    assert_eq!(second.address(), address);
    assert_eq!(second.page_of(address + 4 * PAGE_BYTES - 1), Some(3));
    assert_eq!(second.page_of(address + 4 * PAGE_BYTES), None);
    assert!(TrackedMemory::new(0, None, None).is_err());
    assert!(TrackedMemory::new(usize::MAX / 8, None, None).is_err());
}
