//! libFuzzer's entry to the target `luks1_header`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| inlock_fuzz::luks1_header(data));
