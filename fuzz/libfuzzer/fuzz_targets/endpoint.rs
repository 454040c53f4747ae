//! cargo-fuzz's driver of the target `endpoint`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kumi_fuzz::targets::endpoint(bytes));
