//! Faults at line rate on the kernel fabric: `bpf/lab/fault.bpf.c`, with its settings filled in.
//!
//! The settings are constants of the program, so they are written into its object file, at the
//! place its magic number marks, and the file is loaded with `tc`. Replacing the filter changes
//! them without losing a frame.

use crate::topology::{Faults, Probability};

/// The compiled program; empty where there was no clang to compile it.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/fault.bpf.o"));

/// `FAULT_MAGIC` of the program, as it lies in the file.
const MAGIC: [u8; 8] = 0x6261_6c69_6d75_6b21_u64.to_le_bytes();

/// A probability, scaled as the program has it.
fn scaled(p: Probability) -> u32 {
    (p.get() * f64::from(u32::MAX)) as u32
}

/// The object file for `faults` (and silence, if `blackhole`) on an ingress or egress hook; `None`
/// where the program was not compiled.
pub fn object(faults: &Faults, blackhole: bool, is_ingress: bool) -> Option<Vec<u8>> {
    let mut places = OBJECT
        .windows(MAGIC.len())
        .enumerate()
        .filter(|(_, bytes)| *bytes == MAGIC);
    let (at, _) = places.next()?;
    let burst = faults.burst_loss;
    let of_burst = |p: fn(&crate::topology::BurstLoss) -> Probability| {
        burst.as_ref().map_or(0, |burst| scaled(p(burst)))
    };
    let settings = [
        scaled(faults.loss),
        of_burst(|burst| burst.enter),
        of_burst(|burst| burst.leave),
        of_burst(|burst| burst.loss),
        scaled(faults.corrupt),
        scaled(faults.duplicate),
        u32::from(blackhole),
        u32::from(is_ingress),
    ];
    let mut object = OBJECT.to_vec();
    for (index, value) in settings.into_iter().enumerate() {
        let start = at + MAGIC.len() + 4 * index;
        object
            .get_mut(start..start + 4)?
            .copy_from_slice(&value.to_le_bytes());
    }
    Some(object)
}
