#![no_main]

#[allow(dead_code)] // each target uses one entry
#[path = "../src/entries.rs"]
mod entries;

libfuzzer_sys::fuzz_target!(|data: &[u8]| entries::pause(data));
