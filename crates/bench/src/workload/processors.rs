//! Processors of the two ends of a measurement.

use crate::hosts::Hosts;

/// Processors of the two ends in a lab, whose hosts share one machine.
const PROCESSORS: [&str; 2] = ["0", "1"];

/// Returns `argv` bound to the processor of an end, in a lab.
pub fn bound<'a>(hosts: &dyn Hosts, end: usize, argv: &[&'a str]) -> Vec<&'a str> {
    let mut bound = Vec::new();
    if hosts.kind() == "lab" {
        bound.extend(["taskset", "-c", PROCESSORS[end]]);
    }
    bound.extend(argv);
    bound
}
