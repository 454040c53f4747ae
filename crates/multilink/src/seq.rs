//! Sequence arithmetic: a datagram carries the low 32 bits of a 64-bit number.

/// Returns the 64-bit number nearest to `near` whose low 32 bits are `low`. It is never negative.
pub fn extend(low: u32, near: u64) -> u64 {
    let offset = low.wrapping_sub(near as u32) as i32;
    near.checked_add_signed(i64::from(offset))
        .unwrap_or(u64::from(low))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn extend__any_number_within_half_the_range__is_recovered(
            near in 0u64..1 << 48, offset in -(1i64 << 31) + 1..1i64 << 31
        ) {
            if let Some(number) = near.checked_add_signed(offset) {
                prop_assert_eq!(extend(number as u32, near), number);
            }
        }
    }
}
