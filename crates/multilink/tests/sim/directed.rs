//! Scenarios with figures of their own.

use crate::frames::Shape;
use crate::station::Pace;
use crate::world::{LinkPlan, S, World};

#[test]
fn load__two_sound_links__all_arrives_at_the_sum_of_both() {
    let mut world = World::pair(vec![LinkPlan::of(200), LinkPlan::of(200)]);
    let begin_ns = world.now_ns();
    world.start_sized(0, 1, Shape::Tcp, Pace::Backlogged, None, 60_000..=60_000);
    world.run_for(S);
    let bytes = world.account.borrow().delivered_bytes();
    world.stop();
    world.assert_all_arrived(begin_ns);
    world.assert_order();
    // 1420 B of payload in 1538 B on the wire, times what a control message takes.
    let ceiling = 2.0 * 200e6 / 8.0 * 1420.0 / 1538.0;
    assert!(
        bytes as f64 > 0.97 * ceiling,
        "{bytes} B of {ceiling} in a second"
    );
}
