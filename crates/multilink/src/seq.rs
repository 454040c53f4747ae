//! Sequence arithmetic: a datagram carries the low 32 bits of a 64-bit number.

/// Returns the 64-bit number nearest to `reference` whose low 32 bits are `low`. It is never
/// negative.
pub fn extend(low: u32, reference: u64) -> u64 {
    let offset = low.wrapping_sub(reference as u32) as i32;
    reference
        .checked_add_signed(i64::from(offset))
        .unwrap_or(u64::from(low))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn extend__any_number_within_half_the_range__is_recovered(
            reference in 0u64..1 << 48, offset in -(1i64 << 31) + 1..1i64 << 31
        ) {
            if let Some(number) = reference.checked_add_signed(offset) {
                prop_assert_eq!(extend(number as u32, reference), number);
            }
        }
    }
}
