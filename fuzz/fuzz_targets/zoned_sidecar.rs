//! libFuzzer's entry to the target `zoned_sidecar`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| inlock_fuzz::zoned_sidecar(data));
