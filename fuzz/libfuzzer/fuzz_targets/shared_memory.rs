//! cargo-fuzz's driver of the target `shared-memory`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kumi_fuzz::targets::shared_memory(bytes));
