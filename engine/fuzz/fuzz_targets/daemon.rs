#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| feroce_engine::daemon::fuzz::feed(data));
