//! Data that a core shares with its device and with the other cores.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use feroce_wire::Qpn;

use crate::congestion::CongestionConfig;
use crate::counters::Counters;
use crate::memory::frame_ring::{FrameConsumer, FrameProducer};
use crate::memory::{Memory, MrTable, Recent};
use crate::pfc::{PfcConfig, XoffRequesters};
use crate::qp::{Env, SrqTable};
use crate::time::Instant;
use crate::verbs::EventQueue;

/// How QP numbers map to cores and slots. The indices of QPs are assigned to the cores round robin.
/// QP 1, the general services QP, has a slot of its own on the first core.
///
/// A device that owns its port has all numbers: the low bits of a number are `base` plus an index,
/// the high bits are a generation, so that the QPs that use a slot one after the other have
/// different numbers. A device whose port belongs to a daemon has the numbers of its [`Slices`].
#[derive(Debug, Clone)]
pub struct QpnMap {
    /// The low bits of the first number.
    pub base: u32,
    /// Number of indices: QPs that can exist at the same time.
    pub count: u32,
    /// Number of cores of the device.
    pub cores: u32,
    /// Number of low bits.
    bits: u32,
    slices: Option<Arc<Slices>>,
}

/// Number of bits of a QP number.
const QPN_BITS: u32 = 24;

/// Number of QP numbers in a slice. The first number of a slice is a multiple of it.
pub const SLICE: u32 = 256;

/// Number of slices in the space of QP numbers.
const SLICES: usize = 1 << QPN_BITS >> SLICE.trailing_zeros();

/// The slices of QP numbers that a daemon has given to a device, in order. Every received packet
/// reads this table; a slice is never removed.
#[derive(Debug)]
pub struct Slices {
    /// Indexed by slice: its place in the order, counted from 1; 0 for a slice of another device.
    places: Box<[AtomicU16]>,
    /// Number of the device's slices.
    given: AtomicU16,
}

impl Default for Slices {
    fn default() -> Self {
        let places = (0..SLICES).map(|_| AtomicU16::new(0)).collect();
        Self { places, given: AtomicU16::new(0) }
    }
}

impl Slices {
    /// Adds the slice that begins with the number `first`. Returns false if the device already has
    /// the slice, or if no slice begins with `first`.
    pub fn add(&self, first: u32) -> bool {
        let Some(place) = self.places.get((first / SLICE) as usize) else { return false };
        if !first.is_multiple_of(SLICE) || place.load(Ordering::Relaxed) != 0 {
            return false;
        }
        place.store(self.given.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Release);
        true
    }

    /// The index of the QP with this number.
    #[inline]
    fn index(&self, qpn: Qpn) -> Option<u32> {
        let place = self.places[(qpn.value() / SLICE) as usize].load(Ordering::Acquire);
        let before = u32::from(place).checked_sub(1)?;
        Some(before * SLICE + qpn.value() % SLICE)
    }
}

impl QpnMap {
    /// A map of the `count` numbers from `base` on, without generations.
    pub fn fixed(base: u32, count: u32, cores: u32) -> Self {
        Self { base, count, cores, bits: QPN_BITS, slices: None }
    }

    /// A map with as many generations as fit. `base + count` must be below 2^24. Low bits that are
    /// all ones are not used, so that no QP gets the multicast number 0xffffff.
    pub fn drawn(base: u32, count: u32, cores: u32) -> Self {
        let bits = u32::BITS - (base + count).leading_zeros();
        Self { base, count, cores, bits: bits.min(QPN_BITS), slices: None }
    }

    /// A map without numbers, to which slices are added: at most `count` numbers.
    pub fn sliced(count: u32, cores: u32) -> Self {
        let slices = Some(Arc::default());
        Self { base: 0, count, cores, bits: QPN_BITS, slices }
    }

    /// The slices of a device whose port belongs to a daemon.
    pub fn slices(&self) -> Option<&Slices> {
        self.slices.as_deref()
    }

    /// Number of generations.
    pub fn generations(&self) -> u32 {
        1 << (QPN_BITS - self.bits)
    }

    /// The number of the QP with this index and generation.
    pub fn number(&self, index: u32, generation: u32) -> Qpn {
        Qpn::masked(generation << self.bits | (self.base + index))
    }

    /// The number of the same index `distance` generations later; after the last generation comes
    /// the first. Numbers of slices have one generation, and stay the same.
    pub fn later_generation(&self, qpn: Qpn, distance: u32) -> Qpn {
        let distance = u64::from(distance) << self.bits;
        Qpn::masked(u32::try_from(distance & 0xff_ffff).expect("24 bits") + qpn.value())
    }

    /// Core and slot of `qpn`; `None` if the device does not have this number. The QP in the slot
    /// may be of another generation.
    #[inline]
    pub fn locate(&self, qpn: Qpn) -> Option<(usize, u32)> {
        let index = match &self.slices {
            None => (qpn.value() & ((1 << self.bits) - 1)).checked_sub(self.base),
            Some(slices) => slices.index(qpn),
        };
        match index {
            Some(index) if index < self.count => match self.cores {
                1 => Some((0, index)), // The common case needs no division.
                cores => Some(((index % cores) as usize, index / cores)),
            },
            None if qpn == Qpn::GSI => Some((0, self.count.div_ceil(self.cores))),
            _ => None,
        }
    }

    /// Number of slots that each core needs.
    pub fn slots(&self) -> usize {
        self.count.div_ceil(self.cores) as usize + 1
    }
}

/// Maximum numbers of packets that QPs may have outstanding.
#[derive(Debug, Clone, Copy)]
pub struct Windows {
    /// SEND and WRITE packets of one QP.
    pub send: u32,
    /// SEND and WRITE packets of all QPs of a core at one peer; at least `send`.
    pub peer: u32,
    /// Response packets of READs of all QPs of a core.
    pub read: u32,
}

/// The parts of the device that a core uses.
#[derive(Debug)]
pub struct CoreShared {
    /// Registered memory.
    pub memory: Arc<MrTable>,
    /// The region that this core used last.
    pub recent: Recent,
    /// Asynchronous events.
    pub events: Arc<EventQueue>,
    /// Counters of this core.
    pub counters: Arc<Counters>,
    /// Mapping of QP numbers.
    pub qpns: QpnMap,
    /// Maximum numbers of outstanding packets.
    pub windows: Windows,
    /// Shared receive queues of XRC domains.
    pub srqs: SrqTable,
    /// The congestion control configuration at the time the device was opened.
    pub congestion: CongestionConfig,
    /// The flow control configuration at the time the device was opened.
    pub pfc: PfcConfig,
    /// The cores of the device that request a pause from the neighbour.
    pub xoff_requesters: Arc<XoffRequesters>,
}

impl CoreShared {
    /// The environment of a QP call at the time `now`.
    pub(super) fn env(&self, now: Instant) -> Env<'_> {
        let memory = Memory::new(&self.memory, &self.recent);
        Env::new(now, memory, &self.counters, &self.events, self.windows.send, &self.srqs)
    }
}

/// The rings that carry frames between this core and the others, indexed by core number.
#[derive(Debug, Default)]
pub struct Handover {
    /// Frames from each other core.
    pub inbox: Vec<FrameConsumer>,
    /// Frames to each other core; `None` at this core's own number.
    pub outbox: Vec<Option<FrameProducer>>,
}

impl Handover {
    /// Makes the frames that were handed over visible to the other cores.
    pub(super) fn publish(&mut self) {
        for outbox in self.outbox.iter_mut().flatten() {
            outbox.publish();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_slices_are_located_in_the_order_of_the_slices() {
        let map = QpnMap::sliced(2 * SLICE, 2);
        let slices = map.slices().expect("a sliced map");
        assert!(slices.add(7 * SLICE) && slices.add(3 * SLICE));
        assert!(!slices.add(3 * SLICE), "twice");
        assert!(!slices.add(4 * SLICE + 1), "no slice begins there");
        assert!(!slices.add(1 << QPN_BITS), "beyond the numbers");
        let at = |qpn| map.locate(Qpn::masked(qpn));
        assert_eq!(at(7 * SLICE), Some((0, 0)));
        assert_eq!(at(7 * SLICE + 5), Some((1, 2)));
        assert_eq!(at(3 * SLICE + 4), Some((0, (SLICE + 4) / 2)));
        assert_eq!(at(5 * SLICE), None, "of another device");
        assert_eq!(map.locate(Qpn::GSI), Some((0, SLICE)));
    }

    #[test]
    fn a_number_of_any_generation_is_located() {
        let map = QpnMap::drawn(2, 6, 1);
        assert_eq!(map.generations(), 1 << (QPN_BITS - 4));
        for generation in [0, 1, map.generations() - 1] {
            let number = map.number(5, generation);
            assert_eq!(map.locate(number), Some((0, 5)), "{number}");
            assert_eq!(map.locate(map.later_generation(number, 3)), Some((0, 5)));
        }
        assert_eq!(map.later_generation(map.number(5, map.generations() - 1), 1), map.number(5, 0));
        assert_eq!(map.locate(Qpn::masked(1 << 4 | 9)), None, "beyond the count");
    }
}
