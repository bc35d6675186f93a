//! The fuzz entry for a connected QP on seeded bytes: what stable toolchains can do without a fuzzer.

use rand_xoshiro::Xoshiro256StarStar;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// Inputs in an ordinary run.
const INPUTS: u64 = 2000;

#[test]
fn no_bytes_break_a_connected_qp() {
    let seeds = match std::env::var("FEROCE_SEED") {
        Ok(seed) => {
            let seed: u64 = seed.parse().expect("FEROCE_SEED is a number");
            seed..seed + 1
        }
        Err(_) => 0..INPUTS,
    };
    for seed in seeds {
        let mut random = Xoshiro256StarStar::seed_from_u64(seed);
        let len = usize::try_from(random.next_u64() % 2048).unwrap();
        let mut bytes = vec![0; len];
        random.fill_bytes(&mut bytes);
        let fed = std::panic::catch_unwind(|| feroce_tests::fuzz::feed(&bytes));
        assert!(
            fed.is_ok(),
            "replay: FEROCE_SEED={seed} cargo test -p feroce-tests --test fuzz_smoke"
        );
    }
}
