//! cargo-fuzz's driver of the target `ri2n`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kumi_fuzz::targets::ri2n(bytes));
