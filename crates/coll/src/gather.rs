//! Gather, as in the contention-free gather paper (Yoshitomi and Taura, section 4.4).
//!
//! The hosts are taken in the order of a walk that crosses no link twice in one direction. Each
//! host X gets a receiver Xp, which is one of two kinds:
//!
//! - the end of a chain: X's data follows that of Xp as a pipeline;
//! - another placed host: it grants the transfer when all earlier data has arrived.
//!
//! The receiver is the candidate through which the last byte reaches the root soonest, by equation
//! (4).
//!
//! ```text
//!   with a grant            T(X,Xp) = T(Xb,Xp) + 2 λ + M/B
//!                           T(X,R)  = T(Xp,R) + T(X,Xp)
//!   at the end of a chain   T(X,Xp) = λ + M/B
//!                           T(X,R)  = T(Xp,R) + max( T(X,Xp), Mp/Bp )
//!
//!   T(X,Y)  time at which the block of X has arrived at Y, in seconds
//!   R       root
//!   Xb      host whose block arrives last at Xp before that of X
//!   λ       latency between X and Xp, in seconds
//!   M, B    bytes of a block, and bottleneck rate between X and Xp in bytes per second
//!   Mp/Bp   the same quotient for Xp and its receiver
//! ```

use crate::exchange::check_root;
use crate::plan::{After, Blocks, Operation, Plan, PlanError, Transfer, places};
use kumi_topo::{Network, Paths};

/// State of a placed host.
#[derive(Debug, Clone, Copy, Default)]
struct PlacedHost {
    /// Its receiver; `None` for the root.
    to: Option<usize>,
    /// M/B on its own path, in seconds.
    sending_s: f64,
    /// Time at which its own block has arrived at its receiver: T(X,Xp).
    at_receiver_s: f64,
    /// Time at which its own block has arrived at the root: T(X,R).
    at_root_s: f64,
    /// Time at which the last data from other hosts has arrived: T(Xb,X). It is `None` if no host
    /// sends to this one, which is then the end of a chain.
    fed_s: Option<f64>,
    /// The latest transfer to it.
    last_transfer: Option<usize>,
}

/// Plans a gather of `block_bytes` per host to `root`.
///
/// # Errors
/// The root is out of range.
pub fn gather(network: &Network, root: usize, block_bytes: u64) -> Result<Plan, PlanError> {
    let hosts = network.hosts.len();
    check_root(hosts, root)?;
    let paths = Paths::new(network);
    let order = paths.tour(network, root);
    let mut placed = vec![PlacedHost::default(); hosts];
    let mut transfers: Vec<Transfer> = Vec::with_capacity(hosts - 1);
    for (place, host) in order.iter().copied().enumerate().skip(1) {
        let (to, arrival) = best_receiver(&paths, block_bytes, host, order[place - 1], &placed);
        placed[host] = arrival;
        let after = placed[to].last_transfer.replace(transfers.len());
        let after = after.map(After::complete).into_iter().collect();
        transfers.push(Transfer {
            from: host,
            to,
            blocks: Blocks::one(place),
            combines: false,
            after,
        });
        feed(&mut placed, host);
    }
    let place_of = places(&order);
    // A host comes after its receiver in the order. Going backwards, its blocks are complete when
    // it is reached.
    for index in (0..transfers.len()).rev() {
        if let Some(relay) = place_of[transfers[index].to].checked_sub(1) {
            transfers[relay].blocks = transfers[relay].blocks.union(&transfers[index].blocks);
        }
    }
    let ends = placed.iter().map(|host| host.at_root_s);
    Ok(Plan {
        operation: Operation::Gather { root },
        port_bytes: 0,
        handed: Vec::new(),
        predicted_s: ends.fold(0.0, f64::max),
        block_bytes: vec![block_bytes; hosts],
        transfers: order_transfers(&order, &placed, transfers),
        order,
    })
}

/// Orders the transfers so that each comes after its predecessor and after those that feed its
/// sender. The transfer of the host at a place is one before that place in `transfers`.
fn order_transfers(
    order: &[usize],
    placed: &[PlacedHost],
    transfers: Vec<Transfer>,
) -> Vec<Transfer> {
    // The latest transfer to a host awaits the earlier ones.
    let mut sorted_index: Vec<Option<usize>> = vec![None; transfers.len()];
    let mut sorted = Vec::with_capacity(transfers.len());
    let mut needed: Vec<usize> = Vec::new();
    for last in 0..transfers.len() {
        needed.push(last);
        while let Some(index) = needed.last().copied() {
            let transfer = &transfers[index];
            let last_feed = placed[transfer.from].last_transfer;
            let mut needs = last_feed
                .into_iter()
                .chain(transfer.after.iter().map(|wait| wait.transfer));
            if sorted_index[index].is_some() {
                needed.pop();
            } else if let Some(missing) = needs.find(|needed| sorted_index[*needed].is_none()) {
                needed.push(missing);
            } else {
                needed.pop();
                sorted_index[index] = Some(sorted.len());
                let after = transfer
                    .after
                    .iter()
                    .filter_map(|wait| sorted_index[wait.transfer].map(After::complete))
                    .collect();
                sorted.push(Transfer {
                    after,
                    ..transfer.clone()
                });
            }
        }
    }
    assert_eq!(sorted.len() + 1, order.len());
    sorted
}

/// Returns the best receiver of a host, with the resulting times. Candidates are the host before it
/// in the walk, and the hosts through which that one's block goes. The paper considers every placed
/// host. But two chains with different ends could then both be in flight on a common link. A host
/// with a duplex limit is no relay.
fn best_receiver(
    paths: &Paths,
    bytes: u64,
    host: usize,
    previous: usize,
    placed: &[PlacedHost],
) -> (usize, PlacedHost) {
    let own_s = paths.min_time_s(host, bytes);
    let granted_s = own_s + paths.min_time_s(host, 0);
    let is_relay = |to: usize| placed[to].to.is_none() || !paths.is_limited(to);
    let mut first = previous;
    while let (false, Some(next)) = (is_relay(first), placed[first].to) {
        first = next;
    }
    let mut best = (first, arrival(paths, bytes, host, first, placed[first]));
    let mut relay = placed[first];
    while let Some(to) = relay.to {
        relay = placed[to];
        if !is_relay(to) {
            continue;
        }
        // Skip candidates that cannot beat the best, whatever is in between. This excludes most of
        // a long chain.
        let at_least_s = relay.at_root_s + relay.fed_s.map_or(own_s, |fed_s| fed_s + granted_s);
        if at_least_s >= best.1.at_root_s {
            continue;
        }
        let arrival = arrival(paths, bytes, host, to, relay);
        if arrival.at_root_s < best.1.at_root_s {
            best = (to, arrival);
        }
    }
    best
}

/// Computes equation (4), as in the module's comment.
fn arrival(paths: &Paths, bytes: u64, host: usize, to: usize, receiver: PlacedHost) -> PlacedHost {
    let sending_s = bytes as f64 / paths.bytes_per_s(host, to);
    let latency_s = paths.latency_s(host, to);
    let (at_receiver_s, step_s) = match receiver.fed_s {
        // A host inside the tree grants the transfer after the last one to it.
        Some(fed_s) => {
            let at_receiver_s = fed_s + 2.0 * latency_s + sending_s;
            (at_receiver_s, at_receiver_s)
        }
        // At the end of a chain, the block follows that of the chain's end.
        None => {
            let at_receiver_s = latency_s + sending_s;
            (at_receiver_s, at_receiver_s.max(receiver.sending_s))
        }
    };
    PlacedHost {
        to: Some(to),
        sending_s,
        at_receiver_s,
        at_root_s: receiver.at_root_s + step_s,
        ..PlacedHost::default()
    }
}

/// Lets a host's block pass every host between it and the root. Data that is granted there comes
/// after it. It is as far behind the block of the host through which it arrives as it is at the
/// root.
fn feed(placed: &mut [PlacedHost], host: usize) {
    let at_root_s = placed[host].at_root_s;
    let mut relay = placed[host];
    while let Some(to) = relay.to {
        let arrival_s = relay.at_receiver_s + at_root_s - relay.at_root_s;
        let receiver = &mut placed[to];
        receiver.fed_s = Some(receiver.fed_s.unwrap_or(0.0).max(arrival_s));
        relay = *receiver;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check;
    use kumi_topo::Rate;

    /// `hosts` on one switch at 1 Gb/s, with this latency to the switch.
    fn star(hosts: usize, latency: &str) -> Network {
        let mut text = "name = \"star\"\nswitch = [{ name = \"s\" }]\n".to_owned();
        for host in 0..hosts {
            text.push_str(&format!("[[host]]\nname = \"n{host}\"\n"));
        }
        for host in 0..hosts {
            text.push_str(&format!(
                "[[link]]\nbetween = [\"n{host}\", \"s\"]\nrate = \"1Gbit\"\nlatency = \"{latency}\"\n"
            ));
        }
        Network::parse("star", &text).unwrap()
    }

    #[test]
    fn gather__large_blocks_on_one_switch__form_one_chain() {
        let network = star(5, "10us");
        let plan = gather(&network, 0, 1 << 20).unwrap();
        assert!(
            plan.transfers
                .iter()
                .all(|transfer| transfer.after.is_empty())
        );
        let lengths: Vec<usize> = plan
            .transfers
            .iter()
            .map(|transfer| transfer.blocks.len())
            .collect();
        assert_eq!(lengths, [1, 2, 3, 4]);
        // Equation (2), four times: the root receives without a pause except one latency per host.
        let block_s = (1 << 20) as f64 / 125e6;
        assert!((plan.predicted_s - 4.0 * (block_s + 20e-6)).abs() < 1e-9);
    }

    #[test]
    fn gather__relay_with_a_slow_link__is_bypassed_with_a_grant() {
        // c alone reaches the root at 1 Gb/s, and b only at 10 Mb/s.
        let text = r#"
            name = "slow"
            host = [{ name = "a" }, { name = "b" }, { name = "c" }]
            switch = [{ name = "s" }]
            link = [
                { between = ["a", "s"], rate = "1Gbit", latency = "10us" },
                { between = ["b", "s"], rates = ["1Gbit", "10Mbit"], latency = "10us" },
                { between = ["c", "s"], rate = "1Gbit", latency = "10us" },
            ]
        "#;
        let network = Network::parse("slow", text).unwrap();
        let plan = gather(&network, 0, 1 << 20).unwrap();
        assert_eq!((plan.transfers[1].from, plan.transfers[1].to), (2, 0));
        assert_eq!(plan.transfers[1].after, [After::complete(0)]);
        // Equation (3).
        let block_s = (1 << 20) as f64 / 125e6;
        assert!((plan.predicted_s - (2.0 * block_s + 20e-6 + 40e-6)).abs() < 1e-9);
        check(&network, &plan).unwrap();
    }

    #[test]
    fn gather__host_limited_both_ways__is_not_used_as_a_relay() {
        let mut network = star(5, "10us");
        let relay = gather(&network, 0, 1 << 20).unwrap().transfers[2].to;
        network.hosts[relay].both_ways = Rate::from_bps(1_200_000_000);
        let plan = gather(&network, 0, 1 << 20).unwrap();
        assert!(plan.transfers.iter().all(|transfer| transfer.to != relay));
        check(&network, &plan).unwrap();
    }

    #[test]
    fn gather__root_out_of_range__is_refused() {
        let message = gather(&star(2, "0"), 2, 1).unwrap_err().to_string();
        assert_eq!(message, "root 2 out of range (0–1)");
    }
}
