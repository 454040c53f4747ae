//! Reductions of elements.

use half::{bf16, f16};

/// Type of an element. The numbers are those of the C interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Element {
    /// Uninterpreted byte. It cannot be combined.
    Byte = 0,
    /// Signed 8-bit integer.
    I8 = 1,
    /// Unsigned 8-bit integer.
    U8 = 2,
    /// Signed 16-bit integer.
    I16 = 3,
    /// Unsigned 16-bit integer.
    U16 = 4,
    /// Signed 32-bit integer.
    I32 = 5,
    /// Unsigned 32-bit integer.
    U32 = 6,
    /// Signed 64-bit integer.
    I64 = 7,
    /// Unsigned 64-bit integer.
    U64 = 8,
    /// IEEE 754 half precision, combined in single precision.
    F16 = 9,
    /// Upper half of a single-precision number (bfloat16), combined in single precision.
    Bf16 = 10,
    /// IEEE 754 single precision.
    F32 = 11,
    /// IEEE 754 double precision.
    F64 = 12,
    /// Byte that is true if it is not zero. The result is 0 or 1. The sum is a logical or, the
    /// product a logical and.
    Bool = 13,
}

const ELEMENTS: [(Element, &str, u64); 14] = [
    (Element::Byte, "bytes", 1),
    (Element::I8, "int8", 1),
    (Element::U8, "uint8", 1),
    (Element::I16, "int16", 2),
    (Element::U16, "uint16", 2),
    (Element::I32, "int32", 4),
    (Element::U32, "uint32", 4),
    (Element::I64, "int64", 8),
    (Element::U64, "uint64", 8),
    (Element::F16, "float16", 2),
    (Element::Bf16, "bfloat16", 2),
    (Element::F32, "float32", 4),
    (Element::F64, "float64", 8),
    (Element::Bool, "bool", 1),
];

impl Element {
    /// Number of element types.
    pub const COUNT: usize = ELEMENTS.len();

    /// Returns the element type that has this number in the C interface.
    pub fn from_number(number: i32) -> Option<Self> {
        let entry = ELEMENTS.iter().find(|entry| entry.0 as i32 == number);
        entry.map(|(element, _, _)| *element)
    }

    /// Returns NumPy's name of the type.
    pub fn name(self) -> &'static str {
        ELEMENTS[self as usize].1
    }

    /// Returns the size of an element, in bytes.
    pub fn bytes(self) -> u64 {
        ELEMENTS[self as usize].2
    }
}

/// Operation that combines two elements. The numbers are those of the C interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Reduction {
    /// Sum. Integers wrap.
    Sum = 0,
    /// Product. Integers wrap.
    Product = 1,
    /// Minimum. If one operand is NaN, the result is the other.
    Min = 2,
    /// Maximum. If one operand is NaN, the result is the other.
    Max = 3,
    /// Bitwise and of integers, logical and of booleans.
    And = 4,
    /// Bitwise or of integers, logical or of booleans.
    Or = 5,
    /// Bitwise exclusive or of integers, logical exclusive or of booleans.
    Xor = 6,
}

const REDUCTIONS: [(Reduction, &str); 7] = [
    (Reduction::Sum, "sum"),
    (Reduction::Product, "product"),
    (Reduction::Min, "min"),
    (Reduction::Max, "max"),
    (Reduction::And, "and"),
    (Reduction::Or, "or"),
    (Reduction::Xor, "xor"),
];

impl Reduction {
    /// Number of reductions.
    pub const COUNT: usize = REDUCTIONS.len();

    /// Returns the reduction that has this number in the C interface.
    pub fn from_number(number: i32) -> Option<Self> {
        let entry = REDUCTIONS.iter().find(|entry| entry.0 as i32 == number);
        entry.map(|(reduction, _)| *reduction)
    }

    /// Returns the name of the reduction.
    pub fn name(self) -> &'static str {
        REDUCTIONS[self as usize].1
    }
}

/// Function that combines the received elements `received` into those in `local`.
pub type Combine = fn(local: &mut [u8], received: &[u8]);

/// Replaces each element in `local` by its combination with the element of `received` at the same
/// position.
fn combine_each<const N: usize>(
    local: &mut [u8],
    received: &[u8],
    op: impl Fn([u8; N], [u8; N]) -> [u8; N],
) {
    for (local, received) in local.chunks_exact_mut(N).zip(received.chunks_exact(N)) {
        let (mut a, mut b) = ([0; N], [0; N]);
        a.copy_from_slice(local);
        b.copy_from_slice(received);
        local.copy_from_slice(&op(a, b));
    }
}

macro_rules! combine_integers {
    ($integer:ty, $reduction:expr) => {{
        type T = $integer;
        const BYTES: usize = size_of::<T>();
        macro_rules! function {
            ($op:expr) => {
                |local: &mut [u8], received: &[u8]| {
                    combine_each::<BYTES>(local, received, |a, b| {
                        let op: fn(T, T) -> T = $op;
                        op(T::from_ne_bytes(a), T::from_ne_bytes(b)).to_ne_bytes()
                    })
                }
            };
        }
        Some(match $reduction {
            Reduction::Sum => function!(|a, b| a.wrapping_add(b)) as Combine,
            Reduction::Product => function!(|a, b| a.wrapping_mul(b)),
            Reduction::Min => function!(|a, b| a.min(b)),
            Reduction::Max => function!(|a, b| a.max(b)),
            Reduction::And => function!(|a, b| a & b),
            Reduction::Or => function!(|a, b| a | b),
            Reduction::Xor => function!(|a, b| a ^ b),
        })
    }};
}

macro_rules! combine_floats {
    ($float:ty, $wide:ty, $widen:expr, $narrow:expr, $reduction:expr) => {{
        type T = $float;
        type Wide = $wide;
        const BYTES: usize = size_of::<T>();
        macro_rules! function {
            ($op:expr) => {
                |local: &mut [u8], received: &[u8]| {
                    combine_each::<BYTES>(local, received, |a, b| {
                        let op: fn(Wide, Wide) -> Wide = $op;
                        let (widen, narrow): (fn(T) -> Wide, fn(Wide) -> T) = ($widen, $narrow);
                        narrow(op(widen(T::from_ne_bytes(a)), widen(T::from_ne_bytes(b))))
                            .to_ne_bytes()
                    })
                }
            };
        }
        match $reduction {
            Reduction::Sum => Some(function!(|a, b| a + b) as Combine),
            Reduction::Product => Some(function!(|a, b| a * b)),
            Reduction::Min => Some(function!(|a, b| a.min(b))),
            Reduction::Max => Some(function!(|a, b| a.max(b))),
            Reduction::And | Reduction::Or | Reduction::Xor => None,
        }
    }};
}

/// Returns the function that combines elements, or `None` if the reduction does not apply to them.
pub fn combine(element: Element, reduction: Reduction) -> Option<Combine> {
    match element {
        Element::Byte => None,
        Element::I8 => combine_integers!(i8, reduction),
        Element::U8 => combine_integers!(u8, reduction),
        Element::I16 => combine_integers!(i16, reduction),
        Element::U16 => combine_integers!(u16, reduction),
        Element::I32 => combine_integers!(i32, reduction),
        Element::U32 => combine_integers!(u32, reduction),
        Element::I64 => combine_integers!(i64, reduction),
        Element::U64 => combine_integers!(u64, reduction),
        Element::F16 => combine_floats!(f16, f32, f16::to_f32, f16::from_f32, reduction),
        Element::Bf16 => combine_floats!(bf16, f32, bf16::to_f32, bf16::from_f32, reduction),
        Element::F32 => combine_floats!(f32, f32, |a| a, |a| a, reduction),
        Element::F64 => combine_floats!(f64, f64, |a| a, |a| a, reduction),
        Element::Bool => Some(combine_bools(reduction)),
    }
}

fn combine_bools(reduction: Reduction) -> Combine {
    macro_rules! function {
        ($op:expr) => {
            |local: &mut [u8], received: &[u8]| {
                combine_each::<1>(local, received, |[a], [b]| {
                    let op: fn(bool, bool) -> bool = $op;
                    [u8::from(op(a != 0, b != 0))]
                })
            }
        };
    }
    match reduction {
        Reduction::Sum | Reduction::Max | Reduction::Or => function!(|a, b| a || b),
        Reduction::Product | Reduction::Min | Reduction::And => function!(|a, b| a && b),
        Reduction::Xor => function!(|a, b| a != b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn combined<const N: usize>(
        element: Element,
        reduction: Reduction,
        a: [u8; N],
        b: [u8; N],
    ) -> [u8; N] {
        let mut local = a;
        combine(element, reduction).unwrap()(&mut local, &b);
        local
    }

    #[test]
    fn combine__each_element_type__follows_its_own_arithmetic() {
        let sum = |a: f32, b: f32| {
            combined(
                Element::F32,
                Reduction::Sum,
                a.to_ne_bytes(),
                b.to_ne_bytes(),
            )
        };
        assert_eq!(sum(1.5, 2.0), 3.5_f32.to_ne_bytes());
        let halves = [f16::from_f32(1.5), f16::from_f32(-4.0)].map(f16::to_ne_bytes);
        let product = combined(Element::F16, Reduction::Product, halves[0], halves[1]);
        assert_eq!(f16::from_ne_bytes(product), f16::from_f32(-6.0));
        let max = combined(Element::I8, Reduction::Max, [255, 3], [1, 2]);
        assert_eq!(max, [1, 3]);
        assert_eq!(combined(Element::U8, Reduction::Max, [255], [1]), [255]);
        assert_eq!(combined(Element::U8, Reduction::Sum, [255], [2]), [1]);
        assert_eq!(
            combined(Element::U16, Reduction::Xor, [1, 2], [3, 2]),
            [2, 0]
        );
        // A sum of bytes would wrap: 1 + 255 and 128 + 128 are 0 modulo 256.
        for (reduction, both, one, none) in [
            (Reduction::Sum, 1, 1, 0),
            (Reduction::Max, 1, 1, 0),
            (Reduction::Or, 1, 1, 0),
            (Reduction::Product, 1, 0, 0),
            (Reduction::Min, 1, 0, 0),
            (Reduction::And, 1, 0, 0),
            (Reduction::Xor, 0, 1, 0),
        ] {
            let result = combined(
                Element::Bool,
                reduction,
                [1, 128, 255, 0, 0],
                [255, 128, 0, 2, 0],
            );
            assert_eq!(result, [both, both, one, one, none], "{reduction:?}");
        }
        assert!(combine(Element::F64, Reduction::And).is_none());
        assert!(combine(Element::Byte, Reduction::Sum).is_none());
    }

    #[test]
    fn numbers__of_elements_and_reductions__are_table_indices() {
        for (index, (element, _, _)) in ELEMENTS.iter().enumerate() {
            assert_eq!(*element as usize, index);
            assert_eq!(Element::from_number(index as i32), Some(*element));
        }
        for (index, (reduction, _)) in REDUCTIONS.iter().enumerate() {
            assert_eq!(*reduction as usize, index);
        }
        assert_eq!(
            (Element::from_number(14), Reduction::from_number(-1)),
            (None, None)
        );
    }
}
