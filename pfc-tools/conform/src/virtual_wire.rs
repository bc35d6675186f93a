//! The wire of a device pair: delays frames, and loses, duplicates, reorders and damages them at
//! random by a seed.

use std::collections::BTreeMap;

use feroce_engine::port::{Port, PortStats, Priority};
use feroce_engine::time::{Duration, Instant};
use feroce_wire::mark_ce;
use rand_xoshiro::Xoshiro256StarStar;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// Probabilities of faults, in parts per million.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WireFaults {
    /// Frames lost.
    pub loss: u32,
    /// Frames duplicated; the copy arrives late.
    pub duplicate: u32,
    /// Frames delayed beyond later ones.
    pub reorder: u32,
    /// Frames with one flipped bit.
    pub corrupt: u32,
    /// ECN-capable frames marked CE, as by a congested switch.
    pub mark: u32,
    /// The longest extra delay of late frames.
    pub jitter: Duration,
}

/// A frame in flight.
#[derive(Debug, Clone)]
struct InFlight {
    to: usize,
    bytes: Vec<u8>,
}

/// A recorded frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Time of sending.
    pub at: Instant,
    /// The sending end.
    pub from: usize,
    /// The frame as sent.
    pub bytes: Vec<u8>,
    /// Faults applied to it.
    pub faults: FrameFaults,
}

/// The faults applied to a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FrameFaults {
    /// True if it is lost.
    pub lost: bool,
    /// True if it arrives twice.
    pub duplicated: bool,
    /// True if it arrives late.
    pub late: bool,
    /// True if it is damaged.
    pub damaged: bool,
}

impl FrameFaults {
    /// Returns true if it arrives once, in time and undamaged.
    pub fn is_unaffected(self) -> bool {
        self == Self::default()
    }
}

impl std::fmt::Display for FrameFaults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = [
            (self.lost, "lost"),
            (self.duplicated, "duplicated"),
            (self.late, "late"),
            (self.damaged, "damaged"),
        ];
        for (_, name) in names.iter().filter(|(is, _)| *is) {
            write!(f, "[{name}]")?;
        }
        Ok(())
    }
}

/// Returns true for frames to drop. Arguments: the sending end, the number of the frame from this
/// end, its bytes.
pub type Filter = Box<dyn FnMut(usize, u64, &[u8]) -> bool + Send>;

/// Returns what arrives instead of a frame, each with an additional delay. Arguments: the sending
/// end, the time, the frame.
pub type Replacement = Box<dyn FnMut(usize, Instant, &[u8]) -> Vec<(Duration, Vec<u8>)> + Send>;

/// See the [module](self).
pub struct Wire {
    ends: [Box<dyn Port>; 2],
    delay: Duration,
    burst: usize,
    stalled: [bool; 2],
    faults: WireFaults,
    random: Xoshiro256StarStar,
    /// Separate generator for marks: other faults are the same with and without marks.
    mark_random: Xoshiro256StarStar,
    /// Frames in flight, by arrival and then by order of sending, which makes ties deterministic.
    in_flight: BTreeMap<(Instant, u64), InFlight>,
    sequence: u64,
    counts: [u64; 2],
    faulted: u64,
    filter: Option<Filter>,
    replacement: Option<Replacement>,
    record: Option<Vec<Seen>>,
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wire").field("in_flight", &self.in_flight.len()).finish_non_exhaustive()
    }
}

impl Wire {
    /// Creates a wire between `ends`, the ports that the devices' ports are connected to.
    pub fn new(ends: [Box<dyn Port>; 2], delay: Duration) -> Self {
        Self {
            ends,
            delay,
            burst: usize::MAX,
            stalled: [false; 2],
            faults: WireFaults::default(),
            random: Xoshiro256StarStar::seed_from_u64(0),
            mark_random: Xoshiro256StarStar::seed_from_u64(!0),
            in_flight: BTreeMap::new(),
            sequence: 0,
            counts: [0; 2],
            faulted: 0,
            filter: None,
            replacement: None,
            record: None,
        }
    }

    /// Sets the delay of frames.
    pub fn set_delay(&mut self, delay: Duration) {
        self.delay = delay;
    }

    /// Limits the frames delivered to an end per step to `burst`, for ports that cannot hold all
    /// frames of one point in time: no time passes between steps.
    pub fn set_burst(&mut self, burst: usize) {
        self.burst = burst;
    }

    /// Stops taking frames from the `stalled` ends: their frames fill the rings.
    pub fn set_stalled(&mut self, stalled: [bool; 2]) {
        self.stalled = stalled;
    }

    /// Sets the probabilities of faults and the seed.
    pub fn set_faults(&mut self, faults: WireFaults, seed: u64) {
        self.faults = faults;
        self.random = Xoshiro256StarStar::seed_from_u64(seed);
        self.mark_random = Xoshiro256StarStar::seed_from_u64(!seed);
    }

    /// Drops frames for which `filter` returns true.
    pub fn set_filter(&mut self, filter: Option<Filter>) {
        self.filter = filter;
    }

    /// Passes every frame to `replacement`, bypassing filter and faults.
    pub fn set_replacement(&mut self, replacement: Option<Replacement>) {
        self.replacement = replacement;
    }

    /// Starts or stops recording frames.
    pub fn set_record(&mut self, record: bool) {
        self.record = record.then(Vec::new);
    }

    /// Returns the frames recorded since the last call.
    pub fn take_record(&mut self) -> Vec<Seen> {
        self.record.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Drops all frames in flight.
    pub fn clear(&mut self) {
        self.in_flight.clear();
    }

    /// Sends a frame towards end `to`, as if the other end had sent it.
    pub fn inject(&mut self, to: usize, bytes: &[u8], now: Instant) {
        self.schedule(to, bytes.to_vec(), now + self.delay);
    }

    /// Returns the number of frames sent.
    pub fn frames(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the number of frames that were lost, duplicated, delayed or damaged.
    pub fn faulted(&self) -> u64 {
        self.faulted
    }

    /// Returns the number of frames in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Returns the statistics of its ports.
    pub fn stats(&self) -> [PortStats; 2] {
        self.ends.each_ref().map(|end| end.stats())
    }

    /// Returns the time of the next arrival.
    pub fn next_arrival(&self) -> Option<Instant> {
        self.in_flight.keys().next().map(|(at, _)| *at)
    }

    /// Takes frames from the ends and delivers those that have arrived. Returns the number of
    /// frames moved.
    pub fn step(&mut self, now: Instant) -> usize {
        let mut moved = 0;
        for from in 0..2 {
            while !self.stalled[from] {
                let count = self.ends[from].rx_burst();
                if count == 0 {
                    break;
                }
                moved += count;
                for index in 0..count {
                    let frame = self.ends[from].rx_frame(index);
                    let bytes = [frame.first, frame.second].concat();
                    self.take(from, bytes, now);
                }
            }
        }
        moved + self.deliver(now)
    }

    fn take(&mut self, from: usize, bytes: Vec<u8>, now: Instant) {
        let number = self.counts[from];
        self.counts[from] += 1;
        if let Some(replacement) = &mut self.replacement {
            for (later, bytes) in replacement(from, now, &bytes) {
                self.schedule(1 - from, bytes, now + self.delay + later);
            }
            return;
        }
        let filtered = self.filter.as_mut().is_some_and(|drops| drops(from, number, &bytes));
        // The number of draws per frame is constant, so that changing one probability does not
        // affect others.
        let mut faults = self.draw_faults();
        let late = self.jitter();
        let late_copy = self.jitter();
        let bit = self.draw(u64::MAX);
        if filtered {
            faults = FrameFaults { lost: true, ..FrameFaults::default() };
        }
        faults.late &= !faults.lost;
        faults.damaged &= !faults.lost;
        self.faulted += u64::from(!faults.is_unaffected());
        if let Some(record) = &mut self.record {
            record.push(Seen { at: now, from, bytes: bytes.clone(), faults });
        }
        let to = 1 - from;
        let mut bytes = bytes;
        if self.mark_random.next_u64() % 1_000_000 < u64::from(self.faults.mark) {
            mark_ce(&mut bytes);
        }
        if faults.duplicated {
            self.schedule(to, bytes.clone(), now + self.delay + late_copy);
        }
        if faults.lost {
            return;
        }
        if faults.damaged {
            let bits = bytes.len() as u64 * 8;
            let at = usize::try_from(bit % bits).expect("a frame is short");
            bytes[at / 8] ^= 1 << (at % 8);
        }
        let arrival = now + self.delay;
        self.schedule(to, bytes, if faults.late { arrival + late } else { arrival });
    }

    fn draw_faults(&mut self) -> FrameFaults {
        let draws = [0; 4].map(|_: u32| self.draw(1_000_000));
        let hits = |draw: u64, rate: u32| draw < u64::from(rate);
        FrameFaults {
            lost: hits(draws[0], self.faults.loss),
            duplicated: hits(draws[1], self.faults.duplicate),
            late: hits(draws[2], self.faults.reorder),
            damaged: hits(draws[3], self.faults.corrupt),
        }
    }

    fn schedule(&mut self, to: usize, bytes: Vec<u8>, arrival: Instant) {
        self.in_flight.insert((arrival, self.sequence), InFlight { to, bytes });
        self.sequence += 1;
    }

    fn deliver(&mut self, now: Instant) -> usize {
        let (mut moved, mut delivered) = (0, [0; 2]);
        while let Some(entry) = self.in_flight.first_entry() {
            let to = entry.get().to;
            if entry.key().0 > now || delivered[to] == self.burst {
                break;
            }
            let end = &mut self.ends[to];
            if end.tx_room() == 0 {
                break;
            }
            delivered[to] += 1;
            let InFlight { bytes, .. } = entry.remove();
            let slot = end.tx_slot().expect("there is room");
            slot[..bytes.len()].copy_from_slice(&bytes);
            end.tx_commit(bytes.len(), Priority::default());
            moved += 1;
        }
        for end in &mut self.ends {
            end.flush().expect("the device is open");
        }
        moved
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.random.next_u64() % below
    }

    fn jitter(&mut self) -> Duration {
        let max = u64::try_from(self.faults.jitter.as_nanos()).expect("short").max(1);
        Duration::from_nanos(1 + self.draw(max))
    }
}
