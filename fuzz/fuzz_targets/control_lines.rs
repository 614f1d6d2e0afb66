//! libFuzzer's entry to the target `control_lines`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| inlock_fuzz::control_lines(data));
