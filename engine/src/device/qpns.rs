//! The QP numbers of a device: which are free, and which one the next QP gets.

use std::collections::VecDeque;

use feroce_wire::Qpn;

use crate::core::{QpnMap, SLICE};
use crate::fresh::{FreshNumbers, REUSE};

/// The free QP numbers of a device, the one that was free for longest first. A device whose port
/// belongs to a daemon begins with none and gets slices of them from the daemon as it needs them.
///
/// A restarted program must not get the numbers of its predecessor: a peer that still knows the old
/// connection refuses the new one as stale, and retransmits to the old number. Therefore the first
/// number is chosen at random, and a number that is given back is reused only after all other
/// generations of its slot.
#[derive(Debug)]
pub(super) struct FreeQpns {
    map: QpnMap,
    /// Indices that had no number yet, counted from `first`.
    fresh: FreshNumbers,
    first: u32,
    /// Generation of the numbers that they get.
    generation: u32,
    /// Numbers that were given back, or that came with a slice.
    free: VecDeque<Qpn>,
    /// Numbers of slices that the device may still get.
    missing: u32,
}

impl FreeQpns {
    /// All numbers of `map`. `drawn`: random bits, which choose the first number.
    pub(super) fn new(map: QpnMap, drawn: u128) -> Self {
        if map.slices().is_some() {
            let (fresh, free, missing) = (FreshNumbers::new(0), VecDeque::new(), map.count);
            return Self { map, fresh, first: 0, generation: 0, free, missing };
        }
        let [low, high] = [drawn, drawn >> 64].map(|bits| bits & u128::from(u64::MAX));
        let bounded = |bits: u128, limit: u32| {
            u32::try_from(bits % u128::from(limit.max(1))).expect("below the limit")
        };
        let generation = bounded(low, map.generations());
        // The first QP is on the first core, as without a draw.
        let first = match map.generations() {
            1 => 0,
            _ => bounded(high, map.count / map.cores) * map.cores,
        };
        let (fresh, free) = (FreshNumbers::new(map.count), VecDeque::new());
        Self { map, fresh, first, generation, free, missing: 0 }
    }

    /// The number of free QPs.
    pub(super) fn len(&self) -> usize {
        self.fresh.len() + self.free.len() + self.missing as usize
    }

    /// Returns true if the next number must come from a new slice.
    pub(super) fn needs_slice(&self) -> bool {
        self.free.is_empty() && self.missing > 0
    }

    /// Adds the numbers of the slice that begins with `first`. Returns false if the
    /// device already has the slice, or if no slice begins with `first`.
    pub(super) fn add_slice(&mut self, first: u32) -> bool {
        if !self.map.slices().is_some_and(|slices| slices.add(first)) {
            return false;
        }
        let count = SLICE.min(self.missing);
        self.missing -= count;
        self.free.extend((first..first + count).map(Qpn::masked));
        true
    }

    /// Takes a number: one that was never used, or the one that was free for longest. `None` if all
    /// are in use.
    pub(super) fn take(&mut self) -> Option<Qpn> {
        let fresh = if self.free.len() < REUSE { self.fresh.take() } else { None };
        match fresh {
            Some(n) => {
                let end = self.map.count - self.first;
                let index = if n < end { self.first + n } else { n - end };
                Some(self.map.number(index, self.generation))
            }
            None => self.free.pop_front(),
        }
    }

    /// Takes the number `qpn`. Returns false if its slot is in use, or if it has none.
    pub(super) fn take_number(&mut self, qpn: Qpn) -> bool {
        let slot = self.map.locate(qpn);
        if let Some((core, slot)) = slot.filter(|_| self.map.slices().is_none()) {
            let index = slot * self.map.cores + u32::try_from(core).expect("at most 64");
            let first = self.first;
            let n = if index < first { index + self.map.count - first } else { index - first };
            if self.fresh.take_number(n) {
                return true;
            }
        }
        let at = self.free.iter().position(|&free| self.map.locate(free) == slot);
        at.and_then(|at| self.free.remove(at)).is_some()
    }

    /// Gives the number `qpn` back. Its slot gets the number of the next generation.
    pub(super) fn give(&mut self, qpn: Qpn) {
        self.free.push_back(self.map.next_generation(qpn));
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
    fn slices_are_added_as_they_are_needed() {
        let map = QpnMap::sliced(SLICE + 2, 2);
        let mut free = FreeQpns::new(map.clone(), 1);
        assert!(free.needs_slice() && free.take().is_none());
        assert!(free.add_slice(0x4300));
        for no_slice in [0x4300, 0x4301, 1 << 24] {
            assert!(!free.add_slice(no_slice), "{no_slice:#x}");
        }
        let numbers: Vec<Qpn> = std::iter::from_fn(|| free.take()).collect();
        assert_eq!((numbers.len(), numbers[0].value()), (256, 0x4300));
        assert!(free.needs_slice() && free.add_slice(0x200));
        assert_eq!(free.len(), 2);
        assert_eq!([free.take(), free.take()], [0x200, 0x201].map(|n| Some(Qpn::masked(n))));
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
