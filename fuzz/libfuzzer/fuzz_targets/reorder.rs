//! cargo-fuzz's driver of the target `reorder`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kumi_fuzz::targets::reorder(bytes));
