use super::*;
use crate::gather;
use crate::plan::Blocks;
use kumi_topo::{Delay, End, Host, Link, Rate, Switch};
use proptest::prelude::*;

/// A tree: each switch hangs from an earlier one, each host from any; by numbers that a test draws.
fn tree(switches: &[usize], hosts: &[(usize, u64, u64)]) -> Network {
    let mut links = Vec::new();
    let mut join = |end: End, to: usize, mbps: u64, latency_us: u64| {
        links.push(Link {
            ends: [end, End::Switch(to)],
            rates: [mbps, mbps / 2 + 1].map(|mbps| Rate::from_bps(mbps * 1_000_000).unwrap()),
            latency: Delay::from_ns(latency_us * 1000),
        });
    };
    for (switch, above) in switches.iter().enumerate().skip(1) {
        let latency_us = if above % 3 == 0 { 5000 } else { 10 };
        join(End::Switch(switch), above % switch, 1000, latency_us);
    }
    for (host, (switch, mbps, latency_us)) in hosts.iter().enumerate() {
        join(End::Host(host), switch % switches.len(), *mbps, *latency_us);
    }
    Network {
        name: "tree".to_owned(),
        hosts: (0..hosts.len())
            .map(|host| Host {
                name: format!("n{host}"),
                both_ways: None,
            })
            .collect(),
        switches: (0..switches.len())
            .map(|switch| Switch {
                name: format!("s{switch}"),
            })
            .collect(),
        links,
    }
}

/// Five hosts on one switch, and the plan of a gather to the first.
fn planned() -> (Network, Plan) {
    let network = tree(&[0], &[(0, 1000, 10); 5]);
    let plan = gather(&network, 0, 1 << 20).unwrap();
    (network, plan)
}

#[test]
fn check__plan_without_one_transfer__is_undone() {
    let (network, mut plan) = planned();
    // The end of the chain never sends.
    plan.transfers.pop();
    for transfer in &mut plan.transfers {
        let kept = transfer.blocks.places().filter(|place| *place != 4);
        transfer.blocks = kept.fold(Blocks::default(), |sum, place| {
            sum.union(&Blocks::one(place))
        });
    }
    let undone = check(&network, &plan).unwrap_err();
    assert!(
        matches!(undone, CheckError::Undone { blocks: 1, .. }),
        "{undone}"
    );
}

#[test]
fn check__block_that_the_sender_never_has__is_named() {
    let (network, mut plan) = planned();
    let last = plan.transfers.len() - 1;
    plan.transfers[last].blocks = plan.transfers[last].blocks.union(&Blocks::one(1));
    let absent = check(&network, &plan).unwrap_err().to_string();
    assert!(absent.contains("which its sender never has"), "{absent}");
}

#[test]
fn check__everybody_at_once__meets_on_the_roots_link() {
    let (network, mut plan) = planned();
    for (at, transfer) in plan.transfers.iter_mut().enumerate() {
        transfer.to = 0;
        transfer.blocks = Blocks::one(at + 1);
    }
    let meets = check(&network, &plan).unwrap_err().to_string();
    assert_eq!(
        meets,
        "transfers 0 and 1 may meet on the link from s0 to n0"
    );
    // One after another they do not.
    for (at, transfer) in plan.transfers.iter_mut().enumerate() {
        transfer.after = at.checked_sub(1);
    }
    check(&network, &plan).unwrap();
}

#[test]
fn check__transfers_that_wait_for_each_other__are_a_circle() {
    let (network, mut plan) = planned();
    for (at, transfer) in plan.transfers.iter_mut().enumerate() {
        transfer.to = 0;
        transfer.blocks = Blocks::one(at + 1);
        transfer.after = Some((at + 1) % 4);
    }
    let circle = check(&network, &plan).unwrap_err();
    assert!(matches!(circle, CheckError::Circle { .. }), "{circle}");
}

#[test]
fn check__nonsense__is_refused_without_a_panic() {
    let (network, sound) = planned();
    let spoil = |change: &dyn Fn(&mut Plan)| {
        let mut plan = sound.clone();
        change(&mut plan);
        check(&network, &plan).unwrap_err()
    };
    let far = spoil(&|plan| plan.transfers[0].from = 99);
    assert_eq!(
        far.to_string(),
        "transfer 0 names host 99, of which there are 5"
    );
    let block = spoil(&|plan| plan.transfers[0].blocks = Blocks::one(99));
    assert!(matches!(block, CheckError::Index { what: "block", .. }));
    let grant = spoil(&|plan| plan.transfers[0].after = Some(3));
    assert!(matches!(grant, CheckError::Grant { after: 3, .. }));
    assert_eq!(spoil(&|plan| plan.order[0] = 1), CheckError::Order);
    assert_eq!(spoil(&|plan| plan.order.truncate(2)), CheckError::Order);
}

proptest! {
    #[test]
    fn gather__on_any_tree__passes_the_check(
        switches in prop::collection::vec(0_usize..64, 1..9),
        hosts in prop::collection::vec((0_usize..64, 1_u64..2000, 0_u64..3000), 1..40),
        root in 0_usize..40,
        block_bytes in 1_u64..4_000_000,
    ) {
        let network = tree(&switches, &hosts);
        let root = root % hosts.len();
        let plan = gather(&network, root, block_bytes).unwrap();
        prop_assert_eq!(plan.transfers.len(), hosts.len() - 1);
        prop_assert_eq!(check(&network, &plan), Ok(()));
    }
}
