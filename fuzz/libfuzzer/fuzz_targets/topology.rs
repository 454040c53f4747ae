//! cargo-fuzz's driver of the target `topology`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kumi_fuzz::targets::topology(bytes));
