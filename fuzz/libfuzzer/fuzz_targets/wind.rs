//! cargo-fuzz's driver of the target `wind`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kumi_fuzz::targets::wind(bytes));
