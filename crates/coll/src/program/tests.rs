use super::*;
use crate::plan::Operation;
use crate::{check, uniform};
use kumi_topo::{Delay, Rate};

/// Guards against edges that grow with the square of the length: 40 GB for a vector of 1 GiB when
/// each chunk needed every chunk of its block that had been sent.
#[test]
fn program__vector_64_times_longer__steps_and_edges_grow_linearly() {
    let rate = Rate::from_bps(1_000_000_000).unwrap();
    let network = Network::star(&["a", "b"], rate, Delay::from_ns(25_000));
    let operations = [
        Operation::AllReduce,
        Operation::ReduceScatter,
        Operation::AllGather,
        Operation::Broadcast { root: 0 },
        Operation::Reduce { root: 0 },
    ];
    for operation in operations {
        let size = |bytes: u64| {
            let plan = uniform(&network, operation, bytes).unwrap();
            check(&network, &plan).unwrap();
            let program = Program::on(&network, &plan, 1, 4);
            (program.steps.len(), program.needed_by.0.len())
        };
        let (short, long) = (size(4 << 20), size(256 << 20));
        assert_eq!(long.0, 64 * short.0, "{operation:?}");
        assert!(
            long.1 <= 64 * short.1.max(1),
            "{operation:?}: {short:?} {long:?}"
        );
        assert!(long.1 <= 2 * long.0, "{operation:?}: {long:?}");
    }
}
