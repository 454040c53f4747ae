//! What no plan can be quicker than.

use crate::plan::Operation;
use kumi_topo::{Network, Paths};

/// The shortest time an operation can take with blocks of so many bytes, in seconds: of every link, what has
/// to pass it at what it carries. Latencies come on top.
pub fn bound_s(network: &Network, operation: Operation, block_bytes: u64) -> f64 {
    let paths = Paths::new(network);
    let Operation::Gather { root } = operation;
    let mut blocks = vec![0_u64; paths.directed_links()];
    for host in 0..paths.hosts() {
        for link in paths.links(host, root) {
            blocks[link.0 as usize] += 1;
        }
    }
    let times = blocks.iter().enumerate().map(|(link, blocks)| {
        let link = kumi_topo::DirectedLink(link as u32);
        (blocks * block_bytes) as f64 / paths.link_bytes_per_s(link)
    });
    times.fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bound__of_a_gather__is_the_busiest_links() {
        let text = r#"
            name = "two"
            host = [{ name = "a" }, { name = "b" }, { name = "c" }]
            switch = [{ name = "s" }, { name = "t" }]
            link = [
                { between = ["a", "s"], rate = "1Gbit" },
                { between = ["s", "t"], rates = ["1Gbit", "100Mbit"] },
                { between = ["t", "b"], rate = "1Gbit" },
                { between = ["t", "c"], rate = "1Gbit" },
            ]
        "#;
        let network = Network::parse("two", text).unwrap();
        let bound = |root| bound_s(&network, Operation::Gather { root }, 1_250_000);
        // Two blocks from t to s at 100 Mb/s; from s to t one at 1 Gb/s, and two into b.
        assert!((bound(0) - 0.2).abs() < 1e-9);
        assert!((bound(1) - 0.02).abs() < 1e-9);
    }
}
