//! libFuzzer's entry to the target `netlink_answer`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| inlock_fuzz::netlink_answer(data));
