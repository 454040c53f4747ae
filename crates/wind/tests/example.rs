//! Runs the example of the crate.

#[path = "../examples/counter.rs"]
mod counter;

#[test]
fn example__two_nodes__count_in_memory() {
    counter::main().unwrap();
}
