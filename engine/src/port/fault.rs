//! Seeded faults on the transmit side of a port: loss, duplication, reordering, corruption, and the
//! ECN marks of congested switches.
//!
//! A [`FaultPort`] wraps any port. It leaves received frames alone, so a test with faults in both
//! directions wraps both ends. The faults of the n-th frame depend only on the seed, the [`Faults`]
//! and n: with the same seed the same run fails again.
//!
//! A capture port ([`super::pcap::PcapPort`]) inside a `FaultPort` shows the frames that really
//! left, after the faults. A capture port around a `FaultPort` shows the frames before the faults.
//!
//! Every packet is a frame of its own, because links lose and reorder single packets.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use feroce_wire::mark_ce;
use rand_xoshiro::Xoshiro256StarStar;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use thiserror::Error;

use super::contract::{Port, PortAttributes, PortStats, Priority, RxFrame};

/// Probabilities are in parts per million.
const MILLION: u32 = 1_000_000;

/// Largest [`Faults::reorder_depth`].
const DEPTH_MAX: u16 = 1_024;

/// Length of an Ethernet header in bytes. Corruption spares the header: otherwise the frame might
/// just be lost.
const ETHERNET_HEADER: usize = 14;

/// Receive bursts without a transmission after which held frames are sent, overtaken or not.
const IDLE_BURSTS: u32 = 256;

/// Probabilities of the faults per frame, in parts per million.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Faults {
    /// The frame is not sent.
    pub loss: u32,
    /// The frame is sent twice. If it is also reordered, the second copy is late.
    pub duplicate: u32,
    /// The frame is held until 1 to `reorder_depth` later frames have overtaken it, or until the
    /// port is idle.
    pub reorder: u32,
    /// One bit after the Ethernet header is flipped: in a header, the payload or the ICRC.
    pub corrupt: u32,
    /// An ECN-capable packet is marked CE, as by a congested switch.
    pub mark: u32,
    /// Maximum number of frames that overtake a reordered frame, and of frames held at once; 1 to
    /// 1024. If this many frames are held, the next frame is sent in order.
    pub reorder_depth: u16,
}

impl Default for Faults {
    /// No faults; up to 8 frames overtake a reordered frame.
    fn default() -> Self {
        Self { loss: 0, duplicate: 0, reorder: 0, corrupt: 0, mark: 0, reorder_depth: 8 }
    }
}

/// Invalid [`Faults`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum FaultsError {
    /// More than a million parts per million.
    #[error("{fault} of {ppm} parts per million exceeds 100%")]
    Probability {
        /// The fault.
        fault: &'static str,
        /// Its probability.
        ppm: u32,
    },
    /// A reorder depth outside 1 to 1024.
    #[error("a reorder depth of {depth} is not in 1 to {DEPTH_MAX}")]
    Depth {
        /// The depth.
        depth: u16,
    },
}

impl Faults {
    fn check(&self) -> Result<(), FaultsError> {
        let probabilities = [
            ("loss", self.loss),
            ("duplicate", self.duplicate),
            ("reorder", self.reorder),
            ("corrupt", self.corrupt),
            ("mark", self.mark),
        ];
        for (fault, ppm) in probabilities {
            if ppm > MILLION {
                return Err(FaultsError::Probability { fault, ppm });
            }
        }
        if !(1..=DEPTH_MAX).contains(&self.reorder_depth) {
            let depth = self.reorder_depth;
            return Err(FaultsError::Depth { depth });
        }
        Ok(())
    }
}

/// Numbers of frames by fault.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FaultStats {
    /// Frames committed by the core.
    pub frames: u64,
    /// Frames not sent.
    pub lost: u64,
    /// Frames sent twice.
    pub duplicated: u64,
    /// Frames held back.
    pub reordered: u64,
    /// Frames sent with a flipped bit.
    pub corrupted: u64,
    /// Frames marked CE; they may have been lost.
    pub marked: u64,
}

/// The counters of a [`FaultPort`], readable while a core owns the port.
#[derive(Debug, Default)]
pub struct FaultCounters {
    frames: AtomicU64,
    lost: AtomicU64,
    duplicated: AtomicU64,
    reordered: AtomicU64,
    corrupted: AtomicU64,
    marked: AtomicU64,
}

impl FaultCounters {
    /// The current counts. Each is exact, but they are not read at the same instant.
    pub fn read(&self) -> FaultStats {
        FaultStats {
            frames: self.frames.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
            duplicated: self.duplicated.load(Ordering::Relaxed),
            reordered: self.reordered.load(Ordering::Relaxed),
            corrupted: self.corrupted.load(Ordering::Relaxed),
            marked: self.marked.load(Ordering::Relaxed),
        }
    }
}

/// A port with faults on its transmit side.
#[derive(Debug)]
pub struct FaultPort {
    inner: Box<dyn Port>,
    attributes: PortAttributes,
    faults: Faults,
    rng: Xoshiro256StarStar,
    /// For marks, so that marks do not change the other faults of a frame.
    mark_rng: Xoshiro256StarStar,
    /// The slot that the core writes to.
    stage: Box<[u8]>,
    taken: bool,
    /// Held frames, oldest first.
    held: Vec<Held>,
    /// Unused buffers for `held`.
    spare: Vec<Box<[u8]>>,
    idle_bursts: u32,
    counters: Arc<FaultCounters>,
}

#[derive(Debug)]
struct Held {
    frame: Box<[u8]>,
    len: usize,
    priority: Priority,
    /// Frames that must still overtake it.
    overtakers: u64,
}

/// The faults of one frame.
#[derive(Debug)]
struct FrameFaults {
    lost: bool,
    duplicate: bool,
    reorder: bool,
    corrupt: bool,
    /// Number of frames that overtake the frame if it is reordered.
    overtakers: u64,
    /// Random number that selects the bit to flip.
    bit: u64,
}

impl FaultPort {
    /// Wraps `inner` with `faults` drawn from `seed`.
    ///
    /// # Errors
    /// [`FaultsError`] for a probability above one or a depth out of range.
    pub fn new(inner: Box<dyn Port>, faults: Faults, seed: u64) -> Result<Self, FaultsError> {
        faults.check()?;
        let mut attributes = inner.attributes().clone();
        attributes.kind.push_str(" with faults");
        attributes.segments_max = 1;
        let buffer = vec![0; attributes.frame_max].into_boxed_slice();
        let places = if faults.reorder > 0 { usize::from(faults.reorder_depth) } else { 0 };
        Ok(Self {
            inner,
            faults,
            rng: Xoshiro256StarStar::seed_from_u64(seed),
            mark_rng: Xoshiro256StarStar::seed_from_u64(!seed),
            stage: buffer.clone(),
            taken: false,
            held: Vec::with_capacity(places),
            spare: vec![buffer; places],
            idle_bursts: 0,
            counters: Arc::default(),
            attributes,
        })
    }

    /// The counters, which stay readable after a core took the port.
    pub fn counters(&self) -> Arc<FaultCounters> {
        Arc::clone(&self.counters)
    }

    /// Slots of the inner port that one frame may need.
    fn slots_per_frame(&self) -> usize {
        if self.faults.duplicate > 0 { 2 } else { 1 }
    }

    /// Draws the faults of a frame. Draws the same number of values for every frame, so that one
    /// probability does not affect the other faults.
    fn draw(&mut self) -> FrameFaults {
        let mut draw = || self.rng.next_u64();
        FrameFaults {
            lost: hits(draw(), self.faults.loss),
            duplicate: hits(draw(), self.faults.duplicate),
            reorder: hits(draw(), self.faults.reorder),
            corrupt: hits(draw(), self.faults.corrupt),
            overtakers: 1 + draw() % u64::from(self.faults.reorder_depth),
            bit: draw(),
        }
    }

    /// Sends the staged frame to the inner port. The frame overtakes all held frames.
    fn send(&mut self, len: usize, priority: Priority) {
        forward(&mut *self.inner, &self.stage[..len], priority);
        overtake(&mut self.held);
    }

    /// Holds the staged frame back. Returns false if no buffer is free.
    fn hold(&mut self, len: usize, priority: Priority, overtakers: u64) -> bool {
        let Some(mut frame) = self.spare.pop() else {
            return false;
        };
        frame[..len].copy_from_slice(&self.stage[..len]);
        self.held.push(Held { frame, len, priority, overtakers });
        true
    }

    /// Sends the held frames that were overtaken often enough, or all if `all` is true.
    fn release(&mut self, all: bool) {
        let due = |held: &Held| all || held.overtakers == 0;
        while let Some(index) = self.held.iter().position(due) {
            let held = self.held.remove(index);
            forward(&mut *self.inner, &held.frame[..held.len], held.priority);
            self.spare.push(held.frame);
            overtake(&mut self.held[..index]);
        }
    }

    /// Sends all held frames because no later frame may follow; holding them forever would be
    /// loss.
    fn release_idle(&mut self) {
        if !self.held.is_empty() {
            self.release(true);
            // The flush after the next transmission reports a dead link to the core.
            let _ = self.inner.flush();
        }
    }
}

/// Returns true with a probability of `ppm` parts per million.
fn hits(random: u64, ppm: u32) -> bool {
    random % u64::from(MILLION) < u64::from(ppm)
}

/// Counts that a later frame overtook all frames in `held`.
fn overtake(held: &mut [Held]) {
    for held in held {
        held.overtakers = held.overtakers.saturating_sub(1);
    }
}

/// Copies a frame to a slot of `port`.
fn forward(port: &mut dyn Port, frame: &[u8], priority: Priority) {
    // `tx_room` reserves a slot for every held frame and for all frames that one commit sends.
    let slot = port.tx_slot().expect("room was kept for this frame");
    slot[..frame.len()].copy_from_slice(frame);
    port.tx_commit(frame.len(), priority);
}

/// Flips bit `random` (modulo the length) of the bytes after the Ethernet header. Returns false if
/// there are none.
fn flip_bit(frame: &mut [u8], random: u64) -> bool {
    let Some(body) = frame.get_mut(ETHERNET_HEADER..).filter(|body| !body.is_empty()) else {
        return false;
    };
    let bits = body.len() as u64 * 8;
    let bit = usize::try_from(random % bits).expect("a bit of a slice");
    body[bit / 8] ^= 1 << (bit % 8);
    true
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Port for FaultPort {
    fn attributes(&self) -> &PortAttributes {
        &self.attributes
    }

    /// The counters of the inner port: lost frames are not counted, duplicates count twice.
    fn stats(&self) -> PortStats {
        self.inner.stats()
    }

    fn rx_burst(&mut self) -> usize {
        self.idle_bursts = self.idle_bursts.saturating_add(1);
        if self.idle_bursts == IDLE_BURSTS {
            self.release_idle();
        }
        self.inner.rx_burst()
    }

    fn rx_frame(&self, index: usize) -> RxFrame<'_> {
        self.inner.rx_frame(index)
    }

    fn rx_fill(&mut self) -> Option<u8> {
        self.inner.rx_fill()
    }

    fn tx_room(&mut self) -> usize {
        self.inner.tx_room().saturating_sub(self.held.len()) / self.slots_per_frame()
    }

    fn tx_moved(&mut self) -> bool {
        self.inner.tx_moved()
    }

    fn tx_slot(&mut self) -> Option<&mut [u8]> {
        self.taken = self.tx_room() > 0;
        self.taken.then_some(&mut *self.stage)
    }

    /// No packet joins another: super-frames are off.
    fn tx_identification(&self, len: usize, _joins: bool) -> Option<u16> {
        self.inner.tx_identification(len, false)
    }

    fn tx_commit(&mut self, len: usize, priority: Priority) {
        assert!(self.taken, "commit without a slot");
        assert!(len <= self.stage.len(), "commit of {len} bytes in a slot of {}", self.stage.len());
        self.taken = false;
        self.idle_bursts = 0;
        count(&self.counters.frames);
        let drawn = self.draw();
        if hits(self.mark_rng.next_u64(), self.faults.mark) && mark_ce(&mut self.stage[..len]) {
            count(&self.counters.marked);
        }
        if drawn.lost {
            count(&self.counters.lost);
            return;
        }
        if drawn.corrupt && flip_bit(&mut self.stage[..len], drawn.bit) {
            count(&self.counters.corrupted);
        }
        if drawn.duplicate {
            count(&self.counters.duplicated);
            self.send(len, priority);
        }
        if drawn.reorder && self.hold(len, priority, drawn.overtakers) {
            count(&self.counters.reordered);
        } else {
            self.send(len, priority);
        }
        self.release(false);
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }

    fn is_unfinished(&self) -> bool {
        !self.held.is_empty() || self.inner.is_unfinished()
    }

    fn arm_wakeup(&mut self, fds: &mut Vec<RawFd>) -> bool {
        self.release_idle();
        self.inner.arm_wakeup(fds)
    }

    fn disarm_wakeup(&mut self) {
        self.inner.disarm_wakeup();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use feroce_wire::{FlowSpec, IpAddresses, MacAddr};
    use proptest::prelude::*;

    use super::*;
    use crate::memory::arena::Arena;
    use crate::port::shm::{ShmConfig, ShmPort, shm_pair};

    const NONE: Faults =
        Faults { loss: 0, duplicate: 0, reorder: 0, corrupt: 0, mark: 0, reorder_depth: 8 };
    const HEADER: usize = ETHERNET_HEADER;

    fn faulty(faults: Faults, seed: u64, slots: usize) -> (FaultPort, ShmPort) {
        let arena = Arena::new(1 << 23).unwrap();
        let config = ShmConfig { slots, mtu: 100, ..ShmConfig::default() };
        let (left, right) = shm_pair(&arena, config).unwrap();
        (FaultPort::new(Box::new(left), faults, seed).unwrap(), right)
    }

    /// Frame number `serial`: a header of ones, the number, a payload of zeros.
    fn frame(serial: u32) -> [u8; HEADER + 36] {
        let mut frame = [0; HEADER + 36];
        frame[..HEADER].fill(1);
        frame[HEADER..][..4].copy_from_slice(&serial.to_le_bytes());
        frame
    }

    fn send(port: &mut FaultPort, serial: u32) {
        let frame = frame(serial);
        port.tx_slot().unwrap()[..frame.len()].copy_from_slice(&frame);
        port.tx_commit(frame.len(), Priority::default());
    }

    fn received(port: &mut ShmPort) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        loop {
            let burst = port.rx_burst();
            if burst == 0 {
                return frames;
            }
            frames.extend((0..burst).map(|index| port.rx_frame(index).first.to_vec()));
        }
    }

    /// Sends `count` frames, goes to sleep, and returns those that arrived, in order.
    fn run(faults: Faults, seed: u64, count: u32) -> (Vec<Vec<u8>>, FaultStats) {
        let (mut port, mut peer) = faulty(faults, seed, 64);
        let mut arrived = Vec::new();
        for serial in 0..count {
            send(&mut port, serial);
            port.flush().unwrap();
            arrived.append(&mut received(&mut peer));
        }
        port.arm_wakeup(&mut Vec::new());
        arrived.append(&mut received(&mut peer));
        (arrived, port.counters().read())
    }

    fn serials(frames: &[Vec<u8>]) -> Vec<u32> {
        let serial = |frame: &Vec<u8>| u32::from_le_bytes(frame[HEADER..][..4].try_into().unwrap());
        frames.iter().map(serial).collect()
    }

    #[test]
    fn without_faults_every_frame_passes_in_order() {
        let (arrived, stats) = run(NONE, 1, 500);
        assert_eq!(serials(&arrived), (0..500).collect::<Vec<_>>());
        assert_eq!(stats, FaultStats { frames: 500, ..FaultStats::default() });
    }

    #[test]
    fn the_same_seed_gives_the_same_run() {
        let faults =
            Faults { loss: 50_000, duplicate: 50_000, reorder: 100_000, corrupt: 50_000, ..NONE };
        assert_eq!(run(faults, 42, 2_000), run(faults, 42, 2_000));
        assert_ne!(run(faults, 42, 2_000).0, run(faults, 43, 2_000).0);
    }

    #[test]
    fn the_probability_of_a_fault_does_not_affect_other_faults() {
        let loss = Faults { loss: 100_000, ..NONE };
        let both = Faults { corrupt: 500_000, ..loss };
        assert_eq!(run(loss, 7, 1_000).1.lost, run(both, 7, 1_000).1.lost);
    }

    /// 1 % of 100,000 frames is 1,000, give or take 150 (over 4.7 sigma).
    #[test]
    fn faults_have_their_probabilities() {
        let faults =
            Faults { loss: 10_000, duplicate: 10_000, reorder: 10_000, corrupt: 10_000, ..NONE };
        let (arrived, stats) = run(faults, 2026, 100_000);
        for count in [stats.lost, stats.duplicated, stats.reordered, stats.corrupted] {
            assert!((850..1_150).contains(&count), "{stats:?}");
        }
        assert_eq!(arrived.len() as u64, stats.frames - stats.lost + stats.duplicated);
        let all = Faults { loss: MILLION, ..NONE };
        assert_eq!(
            run(all, 1, 100),
            (vec![], FaultStats { frames: 100, lost: 100, ..FaultStats::default() })
        );
    }

    #[test]
    fn a_duplicate_follows_its_frame() {
        let (arrived, _) = run(Faults { duplicate: MILLION, ..NONE }, 1, 10);
        assert_eq!(serials(&arrived), (0..20).map(|index| index / 2).collect::<Vec<_>>());
        assert!(
            arrived.iter().zip(serials(&arrived)).all(|(got, serial)| got[..] == frame(serial))
        );
    }

    #[test]
    fn a_reordered_duplicate_comes_late() {
        let faults = Faults { duplicate: MILLION, reorder: 200_000, reorder_depth: 4, ..NONE };
        let (arrived, stats) = run(faults, 5, 1_000);
        let order = serials(&arrived);
        let late = (0..1_000).filter(|&serial| {
            let first = order.iter().position(|&at| at == serial).unwrap();
            order[first + 1] != serial
        });
        assert!(stats.reordered > 100, "{stats:?}");
        assert_eq!(late.count() as u64, stats.reordered);
        assert_eq!(order.len(), 2_000);
    }

    #[test]
    fn reordering_loses_nothing_and_is_bounded() {
        let faults = Faults { reorder: 300_000, reorder_depth: 3, ..NONE };
        let (arrived, stats) = run(faults, 9, 10_000);
        let order = serials(&arrived);
        assert_eq!(order.iter().collect::<BTreeSet<_>>().len(), 10_000);
        assert_eq!(order.len(), 10_000);
        let mut overtaken = 0;
        for (at, serial) in order.iter().enumerate() {
            let earlier = &order[at.saturating_sub(20)..at];
            let by = earlier.iter().filter(|&other| other > serial).count();
            overtaken += u64::from(by > 0);
            assert!(by <= 3, "{serial} overtaken by {by}");
        }
        assert!(stats.reordered > 1_500, "{stats:?}");
        // Held frames that are sent at the end were overtaken by none.
        assert!(
            (stats.reordered - 3..=stats.reordered).contains(&overtaken),
            "{overtaken} {stats:?}"
        );
    }

    #[test]
    fn corruption_flips_one_bit_after_the_ethernet_header() {
        let (arrived, stats) = run(Faults { corrupt: MILLION, ..NONE }, 3, 20_000);
        let mut bits = BTreeSet::new();
        for (serial, got) in (0..).zip(&arrived) {
            let flipped: Vec<u8> = got.iter().zip(frame(serial)).map(|(a, b)| a ^ b).collect();
            assert_eq!(flipped.iter().map(|byte| byte.count_ones()).sum::<u32>(), 1);
            let at = flipped.iter().position(|&byte| byte != 0).unwrap();
            assert!(at >= HEADER);
            bits.insert((at, flipped[at]));
        }
        assert_eq!(
            (stats.corrupted, bits.len()),
            (20_000, 36 * 8),
            "every bit was flipped at least once"
        );
    }

    #[test]
    fn a_frame_of_only_an_ethernet_header_is_not_corrupted() {
        let (mut port, mut peer) = faulty(Faults { corrupt: MILLION, ..NONE }, 1, 4);
        port.tx_slot().unwrap()[..HEADER].fill(5);
        port.tx_commit(HEADER, Priority::default());
        port.flush().unwrap();
        assert_eq!(received(&mut peer), [[5; HEADER]]);
        assert_eq!(port.counters().read().corrupted, 0);
    }

    #[test]
    fn a_held_frame_is_sent_if_no_frame_follows() {
        let (mut port, mut peer) = faulty(Faults { reorder: MILLION, ..NONE }, 1, 16);
        send(&mut port, 0);
        port.flush().unwrap();
        for _ in 1..IDLE_BURSTS {
            assert_eq!(port.rx_burst(), 0);
            assert_eq!(peer.rx_burst(), 0);
        }
        port.rx_burst();
        assert_eq!(serials(&received(&mut peer)), [0]);
        send(&mut port, 1);
        assert_eq!(received(&mut peer).len(), 0);
        port.arm_wakeup(&mut Vec::new());
        assert_eq!(serials(&received(&mut peer)), [1]);
    }

    #[test]
    fn only_ecn_capable_packets_are_marked_and_marks_affect_no_other_fault() {
        let spec = |traffic_class| FlowSpec {
            traffic_class,
            ..FlowSpec::new(
                MacAddr([2; 6]),
                MacAddr([4; 6]),
                IpAddresses::V4 { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into() },
            )
        };
        for (traffic_class, expected) in [(0, 0), (106, 107)] {
            let (mut port, mut peer) = faulty(Faults { mark: MILLION, ..NONE }, 1, 8);
            let flow = feroce_wire::FlowHeader::new(&spec(traffic_class));
            let slot = port.tx_slot().unwrap();
            let qpn = feroce_wire::Qpn::masked(7);
            let len = feroce_wire::cnp::write(&mut slot[flow.len()..], qpn, Default::default());
            let len = flow.seal(slot, len, 1);
            port.tx_commit(len, Priority::default());
            port.flush().unwrap();
            let arrived = received(&mut peer);
            let packet = feroce_wire::Packet::parse(&arrived[0], &[]).unwrap();
            assert!(packet.icrc_valid());
            assert_eq!(packet.ip.traffic_class(), expected);
            assert_eq!(port.counters().read().marked, u64::from(expected != 0));
        }
        let loss = Faults { loss: 100_000, ..NONE };
        let both = Faults { mark: 500_000, ..loss };
        assert_eq!(run(loss, 7, 1_000), run(both, 7, 1_000));
    }

    #[test]
    fn invalid_faults_are_refused() {
        let arena = Arena::new(1 << 23).unwrap();
        let new = |faults| {
            let (left, _) = shm_pair(&arena, ShmConfig::default()).unwrap();
            FaultPort::new(Box::new(left), faults, 1).map(|_| ())
        };
        let over = FaultsError::Probability { fault: "corrupt", ppm: MILLION + 1 };
        assert_eq!(new(Faults { corrupt: MILLION + 1, ..NONE }), Err(over));
        for depth in [0, 1_025] {
            let error = FaultsError::Depth { depth };
            assert_eq!(new(Faults { reorder_depth: depth, ..NONE }), Err(error));
        }
        assert_eq!(new(Faults::default()), Ok(()));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whatever the faults and however full the ring, a slot that was given can be committed,
        /// and every frame that was not lost arrives as often as it should.
        #[test]
        fn every_slot_can_be_committed(
            seed: u64,
            (duplicate, reorder) in (0..=MILLION, 0..=MILLION),
            reorder_depth in 1..20_u16,
            drains in prop::collection::vec(0..12_u32, 1..80),
        ) {
            let faults = Faults { duplicate, reorder, reorder_depth, ..NONE };
            let (mut port, mut peer) = faulty(faults, seed, 32);
            let (mut sent, mut arrived) = (0, Vec::new());
            for fill in drains {
                for _ in 0..fill {
                    let room = port.tx_room();
                    prop_assert_eq!(port.tx_slot().is_some(), room > 0);
                    if room > 0 {
                        send(&mut port, sent);
                        sent += 1;
                    }
                }
                port.flush().unwrap();
                if fill % 3 == 0 {
                    arrived.append(&mut received(&mut peer));
                }
            }
            arrived.append(&mut received(&mut peer));
            port.arm_wakeup(&mut Vec::new());
            arrived.append(&mut received(&mut peer));
            let distinct: BTreeSet<u32> = serials(&arrived).into_iter().collect();
            prop_assert_eq!(distinct.len(), sent as usize);
            let duplicated = port.counters().read().duplicated;
            prop_assert_eq!(arrived.len() as u64, u64::from(sent) + duplicated);
        }
    }
}
