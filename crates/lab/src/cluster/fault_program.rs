//! Faults at line rate on the kernel fabric: `bpf/lab/fault.bpf.c`, with its settings filled in.
//!
//! The settings are constants of the program. They are written into its object file behind the
//! program's magic number, and `tc` loads the file. Replacing the filter changes the settings
//! without losing a frame.

use crate::topology::{Faults, Probability};

/// Compiled program. It is empty if there was no clang to compile it.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/fault.bpf.o"));

/// `FAULT_MAGIC` of the program, in the byte order of the file.
const MAGIC: [u8; 8] = 0x6261_6c69_6d75_6b21_u64.to_le_bytes();

/// Scales a probability to the program's range, in which 2^32 − 1 stands for 1.
fn scaled(p: Probability) -> u32 {
    (p.get() * f64::from(u32::MAX)) as u32
}

/// Returns the object file for `faults` on an ingress or egress hook. With `blackhole` it drops
/// every frame. Returns `None` if the program was not compiled.
pub fn object(faults: &Faults, blackhole: bool, is_ingress: bool) -> Option<Vec<u8>> {
    let mut positions = OBJECT
        .windows(MAGIC.len())
        .enumerate()
        .filter(|(_, bytes)| *bytes == MAGIC);
    let (offset, _) = positions.next()?;
    let burst = faults.burst_loss;
    let burst_setting = |p: fn(&crate::topology::BurstLoss) -> Probability| {
        burst.as_ref().map_or(0, |burst| scaled(p(burst)))
    };
    let settings = [
        scaled(faults.loss),
        burst_setting(|burst| burst.enter),
        burst_setting(|burst| burst.leave),
        burst_setting(|burst| burst.loss),
        scaled(faults.corrupt),
        scaled(faults.duplicate),
        u32::from(blackhole),
        u32::from(is_ingress),
    ];
    let mut object = OBJECT.to_vec();
    for (index, value) in settings.into_iter().enumerate() {
        let start = offset + MAGIC.len() + 4 * index;
        object
            .get_mut(start..start + 4)?
            .copy_from_slice(&value.to_le_bytes());
    }
    Some(object)
}
