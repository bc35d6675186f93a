//! The fuzz entries without a fuzzer: a connected QP on seeded bytes, and the check on the inputs that are kept.

use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use feroce_tests::conform::fuzz::{Head, feed, mutate};
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
        let fed = catch_unwind(|| feroce_tests::fuzz::feed(&bytes));
        assert!(
            fed.is_ok(),
            "replay: FEROCE_SEED={seed} cargo test -p feroce-tests --test fuzz_smoke"
        );
    }
}

/// The inputs for the check in a folder of the fuzzer's crate.
fn inputs(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/fuzz").join(folder);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut files: Vec<_> = entries.map(|entry| entry.expect("a file").path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{folder:?} is empty");
    files
}

/// Those that a fuzzer has found to reach something of their own, and those that ever broke it.
#[test]
fn no_kept_input_breaks_the_check() {
    for file in [inputs("seeds/check"), inputs("regressions/check")].concat() {
        let bytes = fs::read(&file).expect("an input");
        assert!(catch_unwind(|| feed(&bytes)).is_ok(), "cargo fuzz run check {}", file.display());
    }
}

/// What the fuzzer makes of captures packet by packet is whole captures, within the room that there is.
#[test]
fn captures_are_changed_packet_by_packet() {
    const MOST: usize = 8192;
    let mut data = vec![0; MOST];
    let mut changed = 0;
    for (seed, file) in (0..).zip(inputs("seeds/check")) {
        let bytes = fs::read(&file).expect("an input");
        let size = bytes.len().min(MOST);
        data[..size].copy_from_slice(&bytes[..size]);
        let Some(len) = mutate(&mut data, size, MOST, seed) else { continue };
        let (size, len) = (size.min(len), len);
        assert_eq!(data[..Head::LEN + 24], bytes[..Head::LEN + 24], "the heads stay");
        changed += u32::from(len != bytes.len() || data[..size] != bytes[..size]);
    }
    assert!(changed > 10, "{changed}");
}
