//! libFuzzer's entry to the target `nbd_server`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| inlock_fuzz::nbd_server(data));
