#![no_main]

use feroce_tests::conform_fuzz::mutate;
use feroce_tests::replay_fuzz::feed;
use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};

fuzz_target!(|data: &[u8]| feed(data));

// As of the target `check`.
fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let mutated = if seed & 1 == 0 { mutate(data, size, max_size, seed) } else { None };
    mutated.unwrap_or_else(|| fuzzer_mutate(data, size, max_size))
});
