//! Tests that the checker refuses plans with one wait removed or weakened.

use super::tests::even_tree;
use super::*;
use crate::plan::Transfer;
use crate::{Vector, all_gather, all_reduce, all_to_all, gather_by_turns};
use kumi_topo::{DirectedLink, Paths};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

/// Plans in which links are full for a long time, on random trees of equal links.
fn plans() -> Vec<(Network, Plan)> {
    let mut runner = TestRunner::deterministic();
    let trees = (
        prop::collection::vec(0_usize..64, 1..5),
        prop::collection::vec(0_usize..64, 4..10),
        1_u64 << 18..1 << 21,
    );
    let mut plans = Vec::new();
    for _ in 0..12 {
        let (switches, hosts, bytes) = trees.new_tree(&mut runner).unwrap().current();
        let network = even_tree(&switches, 1000, &hosts, 1000);
        let count = hosts.len();
        for plan in [
            all_to_all(&network, vec![bytes; count * count]),
            gather_by_turns(&network, 0, &vec![bytes; count]),
            all_gather(&network, &vec![bytes; count]),
            Ok(all_reduce(&network, Vector::new(bytes * count as u64, 1))),
        ] {
            plans.push((network.clone(), plan.unwrap()));
        }
    }
    plans
}

/// Returns whether two transfers share a link on which each leaves no capacity.
fn share_a_full_link(paths: &Paths, first: &Transfer, second: &Transfer) -> bool {
    let links = paths.links(first.from, first.to);
    let others = paths.links(second.from, second.to);
    let is_full = |link: &DirectedLink| {
        let rates = [first, second].map(|transfer| paths.bytes_per_s(transfer.from, transfer.to));
        others.contains(link) && rates[0] + rates[1] > paths.link_bytes_per_s(*link) / 0.95
    };
    links.iter().any(is_full)
}

/// Returns waits between transfers that share a full link: the plan, the transfer, and the wait's
/// place.
fn waits(plans: &[(Network, Plan)]) -> Vec<(usize, usize, usize)> {
    let mut waits = Vec::new();
    for (index, (network, plan)) in plans.iter().enumerate() {
        let paths = Paths::new(network);
        for (second, transfer) in plan.transfers.iter().enumerate() {
            for (place, wait) in transfer.after.iter().enumerate() {
                if share_a_full_link(&paths, transfer, &plan.transfers[wait.transfer]) {
                    waits.push((index, second, place));
                }
            }
        }
    }
    waits
}

/// Returns up to 600 waits, evenly spread.
fn sample(waits: Vec<(usize, usize, usize)>) -> Vec<(usize, usize, usize)> {
    let step = waits.len().div_ceil(600).max(1);
    waits.into_iter().step_by(step).collect()
}

fn is_collision(network: &Network, plan: &Plan) -> bool {
    matches!(
        check(network, plan),
        Err(CheckError::Collision { .. } | CheckError::BothWays { .. })
    )
}

/// 557 of 560 removals are refused. In the others, further waits of the same transfer imply the
/// order, such as a wait that includes all earlier transfers.
#[test]
fn check__one_wait_removed_on_a_full_link__refuses_nine_of_ten_plans() {
    let plans = plans();
    let waits = sample(waits(&plans));
    let mut refused = 0;
    for (index, second, place) in &waits {
        let (network, mut plan) = plans[*index].clone();
        plan.transfers[*second].after.remove(*place);
        refused += usize::from(is_collision(&network, &plan));
    }
    assert!(waits.len() > 300, "{}", waits.len());
    assert!(
        refused * 10 >= waits.len() * 9,
        "{refused} of {}",
        waits.len()
    );
}

#[test]
fn check__wait_that_allows_112_kib_in_flight__is_refused() {
    let plans = plans();
    let mut raised = 0;
    for (index, second, place) in sample(waits(&plans)) {
        let (network, mut plan) = plans[index].clone();
        let wait = &mut plan.transfers[second].after[place];
        if let Progress::Received { missing_bytes, .. } = &mut wait.until {
            *missing_bytes = 112 << 10;
            let mut reduced = plan.clone();
            reduced.transfers[second].after.remove(place);
            // A wait that is not needed may have any value.
            if is_collision(&network, &reduced) {
                raised += 1;
                assert!(
                    is_collision(&network, &plan),
                    "{second} {place} of {plan:?}"
                );
            }
        }
    }
    assert!(raised > 100, "{raised}");
}

#[test]
fn check__shared_port_without_the_wait_between_senders__is_refused() {
    let network = even_tree(&[0], 1000, &[0; 6], 1000);
    let sound = gather_by_turns(&network, 0, &[1 << 20; 6]).unwrap();
    check(&network, &sound).unwrap();
    let mut spoiled = 0;
    for second in 0..sound.transfers.len() {
        let mut plan = sound.clone();
        let is_of_others =
            |wait: &After| sound.transfers[wait.transfer].from != sound.transfers[second].from;
        plan.transfers[second]
            .after
            .retain(|wait| !is_of_others(wait));
        if plan != sound {
            spoiled += 1;
            let error = check(&network, &plan).unwrap_err();
            assert!(matches!(error, CheckError::Collision { .. }), "{error}");
        }
    }
    assert_eq!(spoiled, sound.transfers.len() - 1);
}
