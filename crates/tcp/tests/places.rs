//! Places of processes in the table of the installed programs.

use kumi_tcp::{Rank, Settings, adopted, install, remove};

/// Removes the programs when the test ends, even by a panic.
struct Programs;

impl Drop for Programs {
    fn drop(&mut self) {
        let _ = remove();
    }
}

#[test]
#[ignore = "needs root, bpf"]
fn place__process_joins_twice__is_shared_and_left_once() {
    let _ = remove();
    install(&Settings::default()).unwrap();
    let _programs = Programs;
    let (pid, uid) = (std::process::id(), 0);
    let first = Rank::join(pid, uid).unwrap();
    let second = Rank::join(pid, uid).unwrap();
    assert_eq!(first.place, second.place);
    assert_eq!(adopted().unwrap().len(), 1);

    first.place.leave().unwrap();
    assert!(adopted().unwrap().is_empty());
    let third = Rank::join(pid, uid).unwrap();
    assert_ne!(third.place, first.place, "a place has a generation");
    // The first place belongs to no process now. Leaving it again must not affect the second one.
    second.place.leave().unwrap();
    assert_eq!(adopted().unwrap().len(), 1);
    third.place.leave().unwrap();
}
