//! The fuzz targets without a fuzzer: a connected QP receives seeded random bytes, and `check`,
//! `replay` and communication management get the stored inputs.

use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use feroce_pfc_tools::capture::Capture;
use feroce_tests::conform_fuzz::{Head, MAX_UNPACKED, SEALED, feed, mutate};
use feroce_tests::counting_alloc::{CountingAlloc, heap_peak_of};
use rand_xoshiro::Xoshiro256StarStar;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

#[global_allocator]
static ALLOCATOR: CountingAlloc = CountingAlloc;

/// Limit of the heap in bytes that the check may use for one input, however much that unpacks to.
/// At most 16 MiB are kept of flows; the rest is for the windows of zstd. The bombs unpack to more.
const HEAP_LIMIT: i64 = 24 << 20;

/// Inputs per run without `FEROCE_SEED`.
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

/// The inputs in a folder of the fuzz crate.
fn inputs(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/fuzz").join(folder);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut files: Vec<_> = entries.map(|entry| entry.expect("a file").path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{folder:?} is empty");
    files
}

/// The stored inputs are seeds, each of which reaches code that no other input reaches, and inputs
/// that once broke the check.
#[test]
fn no_stored_input_breaks_the_check() {
    let mut largest = (0, PathBuf::new());
    for file in [inputs("seeds/check"), inputs("regressions/check")].concat() {
        let bytes = fs::read(&file).expect("an input");
        let (fed, peak) = heap_peak_of(|| catch_unwind(|| feed(&bytes)));
        assert!(fed.is_ok(), "cargo fuzz run check {}", file.display());
        largest = largest.max((peak, file));
    }
    assert!(largest.0 < HEAP_LIMIT, "{}: {} bytes of heap", largest.1.display(), largest.0);
}

/// Limit of the heap for the replay of one input: packets may announce messages of 4 GiB.
const REPLAY_HEAP_LIMIT: i64 = 64 << 20;

#[test]
fn no_stored_input_breaks_the_replay() {
    for file in inputs("regressions/replay") {
        let bytes = fs::read(&file).expect("an input");
        let (fed, peak) = heap_peak_of(|| catch_unwind(|| feroce_tests::replay_fuzz::feed(&bytes)));
        assert!(fed.is_ok(), "cargo fuzz run replay {}", file.display());
        assert!(peak < REPLAY_HEAP_LIMIT, "{}: {peak} bytes of heap", file.display());
    }
}

#[test]
fn no_stored_input_breaks_communication_management() {
    for file in inputs("seeds/cm") {
        let bytes = fs::read(&file).expect("an input");
        let fed = catch_unwind(|| feroce_tests::cm_fuzz::feed(&bytes));
        assert!(fed.is_ok(), "cargo fuzz run cm {}", file.display());
    }
}

/// A pcap header followed by `blocks` times 128 KiB of zeros, compressed with zstd. Each block is
/// 8192 records of length 0 and takes four bytes of zstd.
fn bomb(blocks: usize) -> Vec<u8> {
    const RLE: u32 = 1;
    let block = |is_last: bool, kind: u32, size: u32| {
        let [low, middle, high, _] = (u32::from(is_last) | kind << 1 | size << 3).to_le_bytes();
        [low, middle, high]
    };
    let mut bytes = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 0x58]; // A window of 2 MiB.
    let head = [0xa1b2_3c4d_u32, 0x0004_0002, 0, 0, 1 << 16, 1].map(u32::to_le_bytes).concat();
    bytes.extend(block(false, 0, 24));
    bytes.extend(head);
    for number in 1..=blocks {
        bytes.extend(block(number == blocks, RLE, 1 << 17));
        bytes.push(0);
    }
    bytes
}

/// A small input that unpacks to a large one is read up to the given limit, with as little heap as
/// any other input.
#[test]
fn a_decompression_bomb_is_read_up_to_the_limit() {
    let packed = bomb(16);
    let frames = |most| {
        let source = Box::new(std::io::Cursor::new(packed.clone()));
        let mut capture = Capture::of_source_within(Path::new("bomb"), source, most).expect("pcap");
        let ended = capture.read(|_| ());
        (capture.frames(), ended.is_ok())
    };
    assert_eq!(frames(u64::MAX), (16 * 8192, true));
    assert_eq!(frames(24 + 16 * 100), (100, true));
    assert_eq!(frames(24 + 16 * 100 + 8), (100, false), "cut off in the middle of a record");
    // 1 GiB, compressed to 32 KiB.
    let input = [&Head::default().to_bytes()[..], &bomb(8192)].concat();
    assert!(MAX_UNPACKED > HEAP_LIMIT.unsigned_abs(), "the check may read more than it may hold");
    let (_, peak) = heap_peak_of(|| feed(&input));
    assert!(peak < HEAP_LIMIT, "{peak} bytes of heap");
}

/// The mutator of the fuzz target changes captures packet by packet. Each result must be a whole
/// capture within the size limit, and must not break the check.
#[test]
fn no_mutated_capture_breaks_the_check() {
    const MAX_UNPACKED: usize = 8192;
    let round: u32 = std::env::var("FEROCE_SEED")
        .map_or(0, |seed| seed.parse().expect("FEROCE_SEED is a number"));
    let mut changed = 0;
    for (place, file) in (0..).zip(inputs("seeds/check")) {
        let mut data = fs::read(&file).expect("an input");
        data.truncate(MAX_UNPACKED);
        let (before, size) = (data.clone(), data.len());
        data.resize(MAX_UNPACKED, 0);
        let seed = round.wrapping_mul(0x1_0001).wrapping_add(place);
        let Some(len) = mutate(&mut data, size, MAX_UNPACKED, seed) else { continue };
        data.truncate(len);
        assert_eq!(
            data[..Head::LEN + 24],
            before[..Head::LEN + 24],
            "the headers of the input and of the pcap are unchanged"
        );
        changed += u32::from(data != before);
        data[0] |= SEALED;
        let fed = catch_unwind(|| feed(&data));
        assert!(
            fed.is_ok(),
            "replay: FEROCE_SEED={round} cargo test -p feroce-tests --test fuzz_smoke no_mutated; \
             seed {seed} of {}",
            file.display()
        );
    }
    assert!(changed > 10, "{changed}");
}
