#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| feroce_tests::conform::fuzz::feed(data));
