//! A rank that is far ahead of the others.

use super::*;
use std::sync::atomic::{AtomicU64, Ordering};

/// The leaf of a gather waits for no other rank. The root stores the leaf's requests until it makes
/// the same ones.
#[test]
fn rank__running_ahead_of_the_others__waits_after_about_1000_collectives() {
    const CALLS: u64 = 70_000;
    let gather = |group: &Group| {
        let destination = vec![vec![], vec![]];
        let (call, _result) = call(
            RequestedOperation::Gather,
            1,
            vec![0, 0],
            vec![],
            destination,
            None,
        );
        group.start(call).unwrap().wait(None).unwrap().map(drop)
    };
    for transport in [Transport::Tcp, Transport::Wind, Transport::WindPuts] {
        let completed = AtomicU64::new(0);
        run_ranks_over(transport, 2, &[], |group| {
            if group.rank() == 1 {
                // Wait until rank 0 makes no more progress.
                let mut previous = 0;
                for _ in 0..100 {
                    std::thread::sleep(Duration::from_millis(200));
                    let now = completed.load(Ordering::Relaxed);
                    if now == previous && now > 0 {
                        break;
                    }
                    previous = now;
                }
                assert!(
                    (500..1100).contains(&previous),
                    "{previous} collectives ahead"
                );
            }
            for _ in 0..CALLS {
                gather(&group).unwrap();
                if group.rank() == 0 {
                    completed.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }
}
