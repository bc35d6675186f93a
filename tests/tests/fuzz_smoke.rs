//! The fuzz entries without a fuzzer: a connected QP on seeded bytes, and the check on the inputs that are kept.

use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use feroce_tests::conform::fuzz::{Head, SEALED, feed, mutate};
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

/// What the fuzzer makes of captures packet by packet, without its choice of what is worth to go on with: whole captures, within the
/// room that there is, which the check survives.
#[test]
fn no_change_to_a_capture_breaks_the_check() {
    const MOST: usize = 8192;
    let round: u32 = std::env::var("FEROCE_SEED")
        .map_or(0, |seed| seed.parse().expect("FEROCE_SEED is a number"));
    let mut changed = 0;
    for (place, file) in (0..).zip(inputs("seeds/check")) {
        let mut data = fs::read(&file).expect("an input");
        data.truncate(MOST);
        let (before, size) = (data.clone(), data.len());
        data.resize(MOST, 0);
        let seed = round.wrapping_mul(0x1_0001).wrapping_add(place);
        let Some(len) = mutate(&mut data, size, MOST, seed) else { continue };
        data.truncate(len);
        assert_eq!(data[..Head::LEN + 24], before[..Head::LEN + 24], "the heads stay");
        changed += u32::from(data != before);
        data[0] |= SEALED;
        let fed = catch_unwind(|| feed(&data));
        assert!(
            fed.is_ok(),
            "replay: FEROCE_SEED={round} cargo test -p feroce-tests --test fuzz_smoke no_change; seed {seed} of {}",
            file.display()
        );
    }
    assert!(changed > 10, "{changed}");
}
