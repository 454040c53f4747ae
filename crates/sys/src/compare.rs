//! Comparison of two versions of memory, by the widest instructions that the processor has.

/// Bytes of a block: a bit of a mask for each.
pub const BLOCK_BYTES: usize = 64;

/// Stores a mask for each block of 64 bytes: bit `i` is set if byte `i` differs. A shorter last
/// block has zeros behind its end.
///
/// # Panics
/// Panics if the lengths differ, or if there is not a mask for each block.
pub fn differing_bytes(old: &[u8], new: &[u8], masks: &mut [u64]) {
    assert_eq!(old.len(), new.len(), "versions of the same memory");
    assert_eq!(
        masks.len(),
        old.len().div_ceil(BLOCK_BYTES),
        "a mask for each block"
    );
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has the instructions.
            return unsafe { wide::by_avx2(old, new, masks) };
        }
    }
    by_words(old, new, masks);
}

/// Compares blocks by words of 64 bits.
fn by_words(old: &[u8], new: &[u8], masks: &mut [u64]) {
    let blocks = old.chunks(BLOCK_BYTES).zip(new.chunks(BLOCK_BYTES));
    for (mask, (old, new)) in masks.iter_mut().zip(blocks) {
        *mask = mask_of(old, new);
    }
}

/// Returns the mask of a block of at most 64 bytes.
fn mask_of(old: &[u8], new: &[u8]) -> u64 {
    if old == new {
        return 0;
    }
    let bits = old.iter().zip(new).enumerate();
    bits.map(|(at, (old, new))| u64::from(old != new) << at)
        .sum()
}

#[cfg(target_arch = "x86_64")]
mod wide {
    use super::{BLOCK_BYTES, mask_of};
    use std::arch::x86_64::{__m256i, _mm256_cmpeq_epi8, _mm256_loadu_si256, _mm256_movemask_epi8};

    /// # Safety
    /// The processor has AVX2.
    #[target_feature(enable = "avx2")]
    pub unsafe fn by_avx2(old: &[u8], new: &[u8], masks: &mut [u64]) {
        let blocks = old.chunks(BLOCK_BYTES).zip(new.chunks(BLOCK_BYTES));
        for (mask, (old, new)) in masks.iter_mut().zip(blocks) {
            if old.len() < BLOCK_BYTES {
                *mask = mask_of(old, new);
                continue;
            }
            let half = |offset: usize| {
                // SAFETY: both blocks have 64 bytes, and need no alignment.
                unsafe {
                    let old = _mm256_loadu_si256(old.as_ptr().add(offset).cast::<__m256i>());
                    let new = _mm256_loadu_si256(new.as_ptr().add(offset).cast::<__m256i>());
                    !(_mm256_movemask_epi8(_mm256_cmpeq_epi8(old, new)) as u32)
                }
            };
            *mask = u64::from(half(0)) | u64::from(half(32)) << 32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A function that stores masks.
    type Compare = fn(&[u8], &[u8], &mut [u64]);

    #[test]
    fn masks__of_any_instructions__have_a_bit_for_each_byte_that_differs() {
        let mut ways: Vec<Compare> = vec![differing_bytes, by_words];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") {
                // SAFETY: the processor has the instructions.
                ways.push(|old, new, masks| unsafe { wide::by_avx2(old, new, masks) });
            }
        }
        let mut state = 1_u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 24
        };
        for length in (0..300_usize).chain([4096]) {
            let old: Vec<u8> = (0..length).map(|_| random() as u8).collect();
            let change = |byte: &u8| if random() < 40 { byte ^ 0x80 } else { *byte };
            let new: Vec<u8> = old.iter().map(change).collect();
            for way in &ways {
                let mut masks = vec![0; length.div_ceil(BLOCK_BYTES)];
                way(&old, &new, &mut masks);
                for at in 0..masks.len() * BLOCK_BYTES {
                    let expected = at < length && old[at] != new[at];
                    assert_eq!(
                        masks[at / 64] >> (at % 64) & 1 == 1,
                        expected,
                        "{at} of {length}"
                    );
                }
            }
        }
    }
}
