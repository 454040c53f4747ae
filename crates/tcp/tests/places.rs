//! Places of processes in the table of the installed programs.

use kumi_tcp::{Rank, Settings, adopted, install, remove};

/// Removes the programs, whatever the test came to.
struct Programs;

impl Drop for Programs {
    fn drop(&mut self) {
        let _ = remove();
    }
}

#[test]
#[ignore = "needs root, bpf"]
fn place__of_a_process_that_joins_twice__is_one_and_left_once() {
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
    // The place of before is nobody's now: leaving it again takes nothing from the one that stands.
    second.place.leave().unwrap();
    assert_eq!(adopted().unwrap().len(), 1);
    third.place.leave().unwrap();
}
