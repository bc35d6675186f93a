#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| feroce_tests::cm_fuzz::feed(data));
