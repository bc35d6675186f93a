//! The QP numbers of a device: which are free, and which one the next QP gets.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};

use feroce_wire::Qpn;

use crate::core::{QpnMap, SLICE};
use crate::fresh::{FreshNumbers, REUSE};

/// The free QP numbers of a device. A device whose port belongs to a daemon begins with none and
/// gets slices of them from the daemon as it needs them.
///
/// A number is one of the few things that a forger of packets must guess, and the numbers of a
/// program's other QPs must not tell it. Therefore each number is drawn. Also, a restarted program
/// must not get the numbers of its predecessor: a peer that still knows the old connection refuses
/// the new one as stale, and retransmits to the old number. Therefore a number that is given back
/// is reused only after all other generations of its slot, and slots are reused in the order in
/// which they became free.
#[derive(Debug)]
pub(super) struct FreeQpns {
    map: QpnMap,
    draw: Draw,
    /// Indices that had no number yet, in the order in which they are taken.
    fresh: FreshNumbers,
    /// Numbers that were given back.
    free: VecDeque<Qpn>,
    /// Numbers that came with a slice and had no QP yet.
    sliced: Vec<Qpn>,
    /// Numbers of slices that the device may still get.
    missing: u32,
}

/// Draws numbers that nobody can foretell who does not know the key. The same key gives the same
/// numbers.
#[derive(Debug)]
struct Draw {
    key: u128,
    drawn: u64,
}

impl Draw {
    /// A number below `limit`, which is not 0.
    fn below(&mut self, limit: usize) -> usize {
        self.drawn += 1;
        usize::try_from(self.hash(self.drawn) % limit as u64).expect("below the limit")
    }

    /// The place of `n` in an order of the numbers below `count` that depends on the key: a Feistel
    /// network, repeated until the result is below `count`.
    fn permuted(&self, n: u32, count: u32) -> u32 {
        let half = half_bits(count);
        let round = |[left, right]: [u32; 2], round| [right, left ^ self.mix(round, right, half)];
        walk(n, count, |n| join((0..ROUNDS).fold(split(n, half), round), half))
    }

    /// The number whose place in that order is `n`.
    fn restored(&self, n: u32, count: u32) -> u32 {
        let half = half_bits(count);
        let round = |[left, right]: [u32; 2], round| [right ^ self.mix(round, left, half), left];
        walk(n, count, |n| join((0..ROUNDS).rev().fold(split(n, half), round), half))
    }

    fn mix(&self, round: u64, n: u32, half: u32) -> u32 {
        let hash = self.hash(1 << 40 | round << 32 | u64::from(n)) & ((1 << half) - 1);
        u32::try_from(hash).expect("at most 12 bits")
    }

    /// A number that depends only on the key and `of`.
    fn hash(&self, of: u64) -> u64 {
        let mut hasher = DefaultHasher::new(); // SipHash
        (self.key, of).hash(&mut hasher);
        hasher.finish()
    }
}

const ROUNDS: u64 = 4;

/// Half of the bits of the numbers below `count`, rounded up.
fn half_bits(count: u32) -> u32 {
    (u32::BITS - count.saturating_sub(1).leading_zeros()).div_ceil(2).max(1)
}

fn split(n: u32, half: u32) -> [u32; 2] {
    [n >> half, n & ((1 << half) - 1)]
}

fn join([left, right]: [u32; 2], half: u32) -> u32 {
    left << half | right
}

/// Applies the permutation `step` until the result is below `count`, as `n` is.
fn walk(mut n: u32, count: u32, step: impl Fn(u32) -> u32) -> u32 {
    loop {
        n = step(n);
        if n < count {
            return n;
        }
    }
}

impl FreeQpns {
    /// All numbers of `map`. `drawn`: random bits, which choose the numbers.
    pub(super) fn new(map: QpnMap, drawn: u128) -> Self {
        let (fresh, missing) = match map.slices() {
            Some(_) => (0, map.count),
            None => (map.count, 0),
        };
        Self {
            draw: Draw { key: drawn, drawn: 0 },
            fresh: FreshNumbers::new(fresh),
            free: VecDeque::new(),
            sliced: Vec::new(),
            missing,
            map,
        }
    }

    /// The number of free QPs.
    pub(super) fn len(&self) -> usize {
        let known = self.free.len() + self.sliced.len();
        self.fresh.len() + known + self.missing as usize
    }

    /// Returns true if the next number must come from a new slice.
    pub(super) fn needs_slice(&self) -> bool {
        self.free.is_empty() && self.sliced.is_empty() && self.missing > 0
    }

    /// Adds the numbers of the slice that begins with `first`. Returns false if the
    /// device already has the slice, or if no slice begins with `first`.
    pub(super) fn add_slice(&mut self, first: u32) -> bool {
        if !self.map.slices().is_some_and(|slices| slices.add(first)) {
            return false;
        }
        let count = SLICE.min(self.missing);
        self.missing -= count;
        self.sliced.extend((first..first + count).map(Qpn::masked));
        true
    }

    /// Takes a number: one that was never used, or the one that was free for longest. `None` if all
    /// are in use.
    pub(super) fn take(&mut self) -> Option<Qpn> {
        if !self.sliced.is_empty() {
            let at = self.draw.below(self.sliced.len());
            return Some(self.sliced.swap_remove(at));
        }
        let fresh = if self.free.len() < REUSE { self.take_fresh() } else { None };
        fresh.or_else(|| self.free.pop_front())
    }

    /// Draws a number for an index that had none. The cores take turns.
    fn take_fresh(&mut self) -> Option<Qpn> {
        let place = self.fresh.take()?;
        let index = self.reordered(place, Draw::permuted);
        let generation = self.draw.below(self.map.generations() as usize);
        Some(self.map.number(index, u32::try_from(generation).expect("24 bits")))
    }

    /// The place of `index` in the order in which indices are taken.
    fn place_of(&self, index: u32) -> u32 {
        self.reordered(index, Draw::restored)
    }

    /// Applies `reorder` to the slot of `index` among those of its core. Given numbers, which have
    /// one generation, keep their order.
    fn reordered(&self, index: u32, reorder: fn(&Draw, u32, u32) -> u32) -> u32 {
        let QpnMap { count, cores, .. } = self.map;
        let slots = count / cores; // Some cores may have one more, which stays the last one.
        if self.map.generations() == 1 || index >= slots * cores {
            return index;
        }
        reorder(&self.draw, index / cores, slots) * cores + index % cores
    }

    /// Takes the number `qpn`. Returns false if its slot is in use, or if it has none.
    pub(super) fn take_number(&mut self, qpn: Qpn) -> bool {
        let Some((core, slot)) = self.map.locate(qpn) else { return false };
        let index = slot * self.map.cores + u32::try_from(core).expect("at most 64");
        if index < self.map.count && self.fresh.take_number(self.place_of(index)) {
            return true;
        }
        let is_its = |free: &Qpn| self.map.locate(*free) == Some((core, slot));
        if let Some(at) = self.sliced.iter().position(is_its) {
            self.sliced.swap_remove(at);
            return true;
        }
        let at = self.free.iter().position(is_its);
        at.and_then(|at| self.free.remove(at)).is_some()
    }

    /// Gives the number `qpn` back. Its slot gets another generation: the distance to it differs
    /// from slot to slot. It is odd, so that all generations come once before one comes again.
    pub(super) fn give(&mut self, qpn: Qpn) {
        let (core, slot) = self.map.locate(qpn).unwrap_or_default();
        let slot = (core as u64) << 32 | u64::from(slot);
        let distance = u32::try_from(self.draw.hash(!slot) & 0xff_ffff).expect("24 bits") | 1;
        self.free.push_back(self.map.later_generation(qpn, distance));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn map(count: u32, cores: u32) -> QpnMap {
        QpnMap::drawn(0x10, count, cores)
    }

    #[test]
    fn each_number_is_located_in_a_slot_of_its_own() {
        for (count, cores) in [(1, 1), (64, 1), (64, 3), (100, 7), (16_384, 4)] {
            let map = map(count, cores);
            for drawn in [0, 1 << 64, 0x1234_5678_9abc_def0_0fed_cba9_8765_4321, u128::MAX] {
                let mut free = FreeQpns::new(map.clone(), drawn);
                let slots: BTreeSet<(usize, u32)> = std::iter::from_fn(|| free.take())
                    .inspect(|qpn| assert!((2..0xff_ffff).contains(&qpn.value())))
                    .map(|qpn| map.locate(qpn).expect("a slot"))
                    .collect();
                assert_eq!(slots.len(), count as usize);
                assert!(slots.iter().all(|(_, slot)| (*slot as usize) < map.slots() - 1));
            }
        }
    }

    #[test]
    fn qps_are_spread_over_the_cores_whatever_is_drawn() {
        let map = map(64, 4);
        for drawn in 0..50u128 {
            let mut free =
                FreeQpns::new(map.clone(), drawn.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060));
            let cores: Vec<usize> =
                (0..4).map(|_| map.locate(free.take().unwrap()).unwrap().0).collect();
            assert_eq!(cores, [0, 1, 2, 3]);
        }
    }

    #[test]
    fn the_reserved_numbers_have_no_slot() {
        let map = map(1024, 2);
        assert_eq!(map.locate(Qpn::MULTICAST), None);
        assert_eq!(map.locate(Qpn::masked(0)), None);
        let gsi = map.locate(Qpn::GSI).expect("QP 1 has a slot");
        assert_eq!(gsi, (0, 512));
        for generation in 1..map.generations() {
            let low = map.number(0, generation).value() - 0x10;
            assert_eq!([0, 1].map(|n| map.locate(Qpn::masked(low + n))), [None; 2]);
        }
    }

    #[test]
    fn a_number_comes_again_after_all_generations_of_its_slot() {
        let map = map(2, 1);
        let mut free = FreeQpns::new(map.clone(), 77 | 1 << 64);
        let mut seen = BTreeSet::new();
        for _ in 0..2 * map.generations() {
            let qpn = free.take().unwrap();
            assert!(seen.insert(qpn), "{qpn} comes again");
            free.give(qpn);
        }
        let again = free.take().unwrap();
        assert!(seen.contains(&again));
    }

    #[test]
    fn a_restarted_program_gets_other_numbers() {
        let map = map(16_384, 1);
        let first = |drawn: u128| FreeQpns::new(map.clone(), drawn).take().unwrap();
        let random = |n: u128| (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        let numbers: BTreeSet<Qpn> = (0..100).map(|n| first(random(n))).collect();
        assert!(numbers.len() > 95, "{} of 100 differ", numbers.len());
    }

    #[test]
    fn the_numbers_of_a_device_do_not_tell_the_next_one() {
        let map = map(16_384, 1);
        let mut free = FreeQpns::new(map.clone(), 4711);
        let numbers: Vec<u32> = (0..2000).map(|_| free.take().unwrap().value()).collect();
        let steps: BTreeSet<u32> =
            numbers.windows(2).map(|pair| pair[1].wrapping_sub(pair[0]) & 0xff_ffff).collect();
        assert!(steps.len() > 1990, "{} different steps", steps.len());
        let (slots, generations) = (1 << 15, 1 << 9);
        let in_order = numbers.windows(2).filter(|pair| pair[0] % slots < pair[1] % slots).count();
        assert!((900..1100).contains(&in_order), "{in_order} of 1999 slots are above the last one");
        let seen: BTreeSet<u32> = numbers.iter().map(|number| number / slots).collect();
        assert!(seen.len() > generations * 9 / 10, "{} generations", seen.len());
        // Nor does a number tell which one its slot gets next.
        let given = |free: &mut FreeQpns, number: u32| {
            free.give(Qpn::masked(number));
            (free.free.pop_back().unwrap().value() / slots).wrapping_sub(number / slots) % 512
        };
        let distances: BTreeSet<u32> = numbers.iter().map(|&n| given(&mut free, n)).collect();
        assert!(distances.len() > 200, "{} of 256 odd distances", distances.len());
    }

    #[test]
    fn an_order_is_a_permutation_and_can_be_undone() {
        let draw = Draw { key: 99, drawn: 0 };
        for count in [1, 2, 3, 64, 100, 1000, 16_384] {
            let places: Vec<u32> = (0..count).map(|n| draw.permuted(n, count)).collect();
            assert!(
                places.iter().enumerate().all(|(n, &place)| {
                    place < count && draw.restored(place, count) as usize == n
                })
            );
            assert!(count < 64 || !places.is_sorted());
        }
    }

    #[test]
    fn slices_are_added_as_they_are_needed() {
        let map = QpnMap::sliced(SLICE + 2, 2);
        let mut free = FreeQpns::new(map.clone(), 1);
        assert!(free.needs_slice() && free.take().is_none());
        assert!(free.add_slice(0x4300));
        for no_slice in [0x4300, 0x4301, 1 << 24] {
            assert!(!free.add_slice(no_slice), "{no_slice:#x}");
        }
        let numbers: Vec<Qpn> = std::iter::from_fn(|| free.take()).collect();
        let sorted = BTreeSet::from_iter(numbers.iter().map(|qpn| qpn.value()));
        assert!(sorted.into_iter().eq(0x4300..0x4400), "{numbers:?}");
        assert!(!numbers.is_sorted(), "they are drawn");
        assert!(free.needs_slice() && free.add_slice(0x200));
        assert_eq!(free.len(), 2);
        let rest = BTreeSet::from([free.take(), free.take()]);
        assert_eq!(rest, BTreeSet::from([0x200, 0x201].map(|n| Some(Qpn::masked(n)))));
        assert!(!free.needs_slice(), "all QPs that the device may have");
        let located = [0x4300, 0x4301, 0x43ff, 0x200, 0x202, 0x300];
        let located = located.map(|qpn| map.locate(Qpn::masked(qpn)));
        let slots = [Some((0, 0)), Some((1, 0)), Some((1, 127)), Some((0, 128)), None, None];
        assert_eq!(located, slots);
        free.give(numbers[7]);
        assert_eq!(free.take(), Some(numbers[7]));
    }

    #[test]
    fn given_numbers_are_taken_by_slot() {
        let mut free = FreeQpns::new(QpnMap::fixed(0x10, 4, 1), u128::MAX);
        assert!(free.take_number(Qpn::masked(0x12)));
        assert!(!free.take_number(Qpn::masked(0x12)), "in use");
        assert!(!free.take_number(Qpn::masked(0x14)), "outside");
        assert!(!free.take_number(Qpn::GSI));
        let rest: Vec<u32> = std::iter::from_fn(|| free.take()).map(|qpn| qpn.value()).collect();
        assert_eq!(rest, [0x10, 0x11, 0x13]);
        free.give(Qpn::masked(0x12));
        assert_eq!(free.take(), Some(Qpn::masked(0x12)), "given numbers have one generation");
        let map = map(4, 1);
        let mut free = FreeQpns::new(map.clone(), 5);
        let wanted = map.number(2, 99);
        assert!(free.take_number(wanted));
        assert_eq!(free.len(), 3);
    }
}
