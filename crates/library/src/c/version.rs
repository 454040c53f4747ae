//! Version of the interface, and structs that begin with their size (ADR 032).

use std::ffi::c_char;

/// Returns `KUMI_ABI` of the headers that this library was built with.
#[unsafe(no_mangle)]
pub extern "C" fn kumi_abi() -> u32 {
    ABI
}

/// Returns the release and a digest of the planner's sources, as a string that is never freed.
#[unsafe(no_mangle)]
pub extern "C" fn kumi_version() -> *const c_char {
    concat!(env!("KUMI_VERSION"), "\0").as_ptr().cast()
}

const ABI: u32 = number(env!("KUMI_ABI"));

const fn number(text: &str) -> u32 {
    let (mut number, mut index) = (0, 0);
    while index < text.len() {
        number = number * 10 + (text.as_bytes()[index] - b'0') as u32;
        index += 1;
    }
    number
}

/// Reason that a caller's struct is refused: its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// The size member was not set, or it is less than in any release.
    #[error(
        "{name}.size is {size}: expected at least {min}; set it to sizeof(struct {name}) before any other member"
    )]
    TooSmall {
        /// Name of the struct in C.
        name: &'static str,
        /// Value of the size member, in bytes.
        size: usize,
        /// Size of the struct in its first release, in bytes.
        min: usize,
    },
    /// The caller's header is newer, and a member is set that this library does not know.
    #[error(
        "{name}.size is {size}, but this library (libkumi {}) knows only {known} bytes, and a later member is set; use a newer libkumi.so",
        env!("KUMI_VERSION")
    )]
    Unknown {
        /// Name of the struct in C.
        name: &'static str,
        /// Value of the size member, in bytes.
        size: usize,
        /// Size of the struct in this library, in bytes.
        known: usize,
    },
}

/// Struct whose first member is its size in bytes, as in the caller's header.
///
/// # Safety
/// The first member is a `usize`, and a struct of zeros is valid.
pub unsafe trait SizedStruct: Copy {
    /// Name of the struct in C.
    const NAME: &'static str;
    /// Size of the struct in its first release, in bytes.
    const SIZE_MIN: usize;

    /// Reads a struct of any release. Members that the caller's struct lacks are zero.
    ///
    /// # Safety
    /// `pointer` points to a struct as long as its first member states.
    unsafe fn read(pointer: *const Self) -> Result<Self, SizeError> {
        let (name, known) = (Self::NAME, size_of::<Self>());
        // SAFETY: the caller guarantees that the first member exists.
        let size = unsafe { pointer.cast::<usize>().read() };
        if size < Self::SIZE_MIN {
            let min = Self::SIZE_MIN;
            return Err(SizeError::TooSmall { name, size, min });
        }
        let mut value = std::mem::MaybeUninit::<Self>::zeroed();
        // SAFETY: the caller guarantees that the struct has `size` bytes. The trait guarantees that
        // zeros are valid.
        unsafe {
            let tail = std::slice::from_raw_parts(
                pointer.cast::<u8>().add(size.min(known)),
                size - size.min(known),
            );
            if tail.iter().any(|byte| *byte != 0) {
                return Err(SizeError::Unknown { name, size, known });
            }
            std::ptr::copy_nonoverlapping(
                pointer.cast::<u8>(),
                value.as_mut_ptr().cast(),
                size.min(known),
            );
            Ok(value.assume_init())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C)]
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    struct TestStruct {
        size: usize,
        old: u64,
        new: u64,
    }

    // SAFETY: its first member is its size, and all members may be zero.
    unsafe impl SizedStruct for TestStruct {
        const NAME: &'static str = "kumi_now";
        const SIZE_MIN: usize = 16;
    }

    fn read(values: &[u64]) -> Result<TestStruct, SizeError> {
        assert!(values[0] as usize <= size_of_val(values));
        // SAFETY: `values` are as long as the first of them states.
        unsafe { TestStruct::read(values.as_ptr().cast()) }
    }

    #[test]
    fn struct__of_another_release__is_read_or_refused_by_name() {
        let (size, old) = (16, 7);
        assert_eq!(read(&[16, 7, 9]), Ok(TestStruct { size, old, new: 0 }));
        assert_eq!(read(&[24, 7, 9]).unwrap().new, 9);
        assert_eq!(read(&[32, 7, 9, 0]).unwrap().new, 9);
        let newer = read(&[32, 7, 9, 1]).unwrap_err().to_string();
        assert!(
            newer.starts_with("kumi_now.size is 32, but this library"),
            "{newer}"
        );
        let unset = read(&[0]).unwrap_err().to_string();
        assert_eq!(
            unset,
            "kumi_now.size is 0: expected at least 16; set it to sizeof(struct kumi_now) before any other member"
        );
    }

    #[test]
    fn version__string__is_the_release_and_a_digest() {
        // SAFETY: it is a string.
        let text = unsafe { std::ffi::CStr::from_ptr(kumi_version()) }
            .to_str()
            .unwrap();
        let (release, plans) = text.split_once('+').unwrap();
        assert_eq!(release, env!("CARGO_PKG_VERSION"));
        assert!(plans.len() == 8 && u32::from_str_radix(plans, 16).is_ok());
        let header = include_str!("../../../../bindings/c/kumi_version.h");
        assert!(header.contains(&format!("\n#define KUMI_ABI {}\n", kumi_abi())));
    }
}
