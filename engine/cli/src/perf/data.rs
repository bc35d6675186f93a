//! The data of a test: layout of the buffers, content of the messages, and comparison.

use feroce_engine::device::Buffer;
use feroce_engine::memory::buffer::SharedBytes;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use super::error::CheckError;
use super::plan::Plan;

/// The slots of a QP take about this many bytes, so that they stay in the cache, as buffers of
/// applications do.
const QP_BYTES: u64 = 256 << 10;
/// With `--check`: a slot is free again only when its message has been compared.
const CHECKED_QP_BYTES: u64 = 1 << 20;
/// The slots of all QPs take at most this many bytes, unless one slot for each QP takes more.
const ALL_BYTES: u64 = 1 << 30;
/// Maximum number of slots of a QP.
const SLOTS: u64 = 64;
/// Alignment of slots: a cache line.
const CACHE_LINE: u64 = 64;

/// Layout of the messages of each QP: the same at both ends, and in source and target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Slots of a QP; message `k` uses slot `k % slots`.
    pub slots: u64,
    /// Distance between slots in bytes.
    pub stride: u64,
    qps: u64,
}

impl Layout {
    /// The layout for all message sizes of a plan.
    pub fn new(plan: &Plan) -> Self {
        let qps = u64::from(plan.qps);
        if plan.op.is_atomic() {
            // Each result has a slot of its own until it has been checked.
            return Self {
                slots: u64::from(plan.tx_depth).next_multiple_of(CACHE_LINE / 8),
                stride: 8,
                qps,
            };
        }
        let longest = plan.sizes().into_iter().max().unwrap_or(0);
        let stride = u64::from(longest.max(1)).next_multiple_of(CACHE_LINE);
        // A checked message is compared while the next one arrives in another slot.
        let (most, least) = if plan.check { (CHECKED_QP_BYTES, 2) } else { (QP_BYTES, 1) };
        let bytes = most.min(ALL_BYTES / qps.max(1));
        Self { slots: (bytes / stride).clamp(least, SLOTS), stride, qps }
    }

    /// Length of one buffer in bytes.
    pub fn bytes(&self) -> usize {
        usize::try_from(self.slots * self.stride * self.qps).expect("64-bit machines only")
    }

    /// Offset of a slot of a QP.
    pub fn offset(&self, qp: usize, slot: u64) -> u64 {
        (qp as u64 * self.slots + slot % self.slots) * self.stride
    }
}

/// Content of a slot: random bytes from the round's salt, the QP and the slot.
pub fn pattern(salt: u64, qp: usize, slot: u64, size: u32) -> Vec<u8> {
    let seed = salt.wrapping_add((qp as u64) << 32).wrapping_add(slot);
    let mut bytes = vec![0; size as usize];
    Xoshiro256PlusPlus::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

/// Fills every slot of a source buffer.
pub fn fill(source: &SharedBytes, layout: &Layout, salt: u64, size: u32) {
    for qp in 0..usize::try_from(layout.qps).expect("at most 100000") {
        for slot in 0..layout.slots {
            source.write(at(layout.offset(qp, slot)), &pattern(salt, qp, slot, size));
        }
    }
}

/// Makes every byte of the target wrong, so that a message counts as correct only if all of it has
/// arrived since.
pub fn scrub(target: &SharedBytes, layout: &Layout, size: u32, expected: &Expected) {
    let mut wrong = expected.content(size);
    wrong.iter_mut().for_each(|byte| *byte = !*byte);
    // A program that spins on the counter must not see it change.
    wrong.truncate(wrong.len() - usize::from(expected.counter.is_some()));
    target.write(at(layout.offset(expected.qp, expected.target_slot)), &wrong);
}

/// The expected content and place of a message in the target.
#[derive(Debug, Clone, Copy)]
pub struct Expected {
    pub qp: usize,
    pub message: u64,
    /// The sender's salt and slot.
    pub salt: u64,
    pub source_slot: u64,
    /// Slot of the message in the target.
    pub target_slot: u64,
    /// The last byte, where the sender counts in it.
    pub counter: Option<u8>,
}

impl Expected {
    /// The bytes that were sent.
    fn content(&self, size: u32) -> Vec<u8> {
        let mut sent = pattern(self.salt, self.qp, self.source_slot, size);
        if let (Some(last), Some(counter)) = (sent.last_mut(), self.counter) {
            *last = counter;
        }
        sent
    }
}

/// Compares a message in `target` with what was sent.
pub fn compare(
    target: &Buffer,
    layout: &Layout,
    size: u32,
    expected: &Expected,
) -> Result<(), CheckError> {
    let Expected { qp, message, .. } = *expected;
    let sent = expected.content(size);
    let mut got = vec![0; size as usize];
    target.read(at(layout.offset(qp, expected.target_slot)), &mut got);
    match sent.iter().zip(&got).position(|(sent, got)| sent != got) {
        Some(offset) => {
            let (got, expected) = (got[offset], sent[offset]);
            Err(CheckError::Byte { qp, message, offset, size, got, expected })
        }
        None => Ok(()),
    }
}

/// An offset as an index.
pub fn at(offset: u64) -> usize {
    usize::try_from(offset).expect("64-bit machines only")
}

#[cfg(test)]
mod tests {
    use feroce_engine::device::settings::Settings;

    use super::super::options::TestOptions;
    use super::super::plan::Op;
    use super::*;

    #[test]
    fn slots_do_not_overlap_and_fit_the_buffer() {
        let plans = [
            TestOptions { qps: Some(3), size: Some(1000), ..TestOptions::default() },
            TestOptions { qps: Some(3), size: Some(0), ..TestOptions::default() },
            TestOptions { qps: Some(100_000), size: Some(1), ..TestOptions::default() },
            TestOptions { all: true, ..TestOptions::default() },
            TestOptions { op: Some(Op::AtomicFadd), tx_depth: Some(5), ..TestOptions::default() },
        ];
        for options in plans {
            let plan = options.plan(&Settings::default()).unwrap();
            let layout = Layout::new(&plan);
            let longest = u64::from(*plan.sizes().last().unwrap());
            let offsets = (0..plan.qps as usize)
                .flat_map(|qp| (0..layout.slots).map(move |slot| layout.offset(qp, slot)));
            let offsets: Vec<u64> = offsets.collect();
            assert!(offsets.windows(2).all(|pair| pair[0] + longest <= pair[1]), "{options:?}");
            assert!(offsets.last().unwrap() + longest <= layout.bytes() as u64, "{options:?}");
            assert_eq!(layout.offset(0, layout.slots), layout.offset(0, 0));
        }
    }

    #[test]
    fn the_slots_of_many_qps_take_no_more_memory_than_those_of_4096() {
        let bytes = |qps, size| {
            let options =
                TestOptions { qps: Some(qps), size: Some(size), ..TestOptions::default() };
            Layout::new(&options.plan(&Settings::default()).unwrap()).bytes()
        };
        assert_eq!(bytes(4096, 4096), 1 << 30);
        assert!(bytes(100_000, 4096) <= 1 << 30);
        assert_eq!(bytes(100_000, 65_536), 100_000 * 65_536, "one slot for each QP");
    }

    #[test]
    fn patterns_differ_by_round_qp_and_slot() {
        let one = pattern(1, 0, 0, 64);
        for other in [pattern(2, 0, 0, 64), pattern(1, 1, 0, 64), pattern(1, 0, 1, 64)] {
            assert!(one != other);
        }
        assert_eq!(one, pattern(1, 0, 0, 64));
        assert_eq!(one[..33], pattern(1, 0, 0, 33));
    }
}
