//! libFuzzer's entry to the target `luks2_json`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| inlock_fuzz::luks2_json(data));
