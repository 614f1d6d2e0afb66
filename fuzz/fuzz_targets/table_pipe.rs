//! libFuzzer's entry to the target `table_pipe`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| inlock_fuzz::table_pipe(data));
