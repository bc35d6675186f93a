//! The wire of a rig: delay, and frames lost, doubled, reordered and damaged by a seed.

use std::collections::BTreeMap;

use feroce_engine::port::shm::ShmPort;
use feroce_engine::port::{Port, Priority};
use feroce_engine::time::{Duration, Instant};
use rand_xoshiro::Xoshiro256StarStar;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// What happens to frames, in parts per million.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WireFaults {
    /// Lost.
    pub loss: u32,
    /// Arrives twice, the second time late.
    pub duplicate: u32,
    /// Arrives late, behind others.
    pub reorder: u32,
    /// One bit is flipped.
    pub corrupt: u32,
    /// How late the late ones are at most.
    pub jitter: Duration,
}

/// A frame on its way.
#[derive(Debug, Clone)]
struct Flying {
    to: usize,
    bytes: Vec<u8>,
}

/// A frame as the wire saw it, for looking at afterwards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// When it was sent.
    pub at: Instant,
    /// End that sent it.
    pub from: usize,
    /// The frame as sent.
    pub bytes: Vec<u8>,
}

/// Drops frames: called with the sending end, the number of the frame from that end, and its bytes.
pub type Filter = Box<dyn FnMut(usize, u64, &[u8]) -> bool + Send>;

/// See the [module](self).
pub struct Wire {
    ends: [ShmPort; 2],
    delay: Duration,
    faults: WireFaults,
    random: Xoshiro256StarStar,
    /// By arrival and then by order of sending: ties are settled the same way each time.
    flying: BTreeMap<(Instant, u64), Flying>,
    sequence: u64,
    counts: [u64; 2],
    filter: Option<Filter>,
    record: Option<Vec<Seen>>,
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wire").field("flying", &self.flying.len()).finish_non_exhaustive()
    }
}

impl Wire {
    /// A wire between the far ends of two shm pairs.
    pub fn new(ends: [ShmPort; 2], delay: Duration) -> Self {
        Self {
            ends,
            delay,
            faults: WireFaults::default(),
            random: Xoshiro256StarStar::seed_from_u64(0),
            flying: BTreeMap::new(),
            sequence: 0,
            counts: [0; 2],
            filter: None,
            record: None,
        }
    }

    /// From now on frames meet `faults`, drawn from `seed`.
    pub fn set_faults(&mut self, faults: WireFaults, seed: u64) {
        self.faults = faults;
        self.random = Xoshiro256StarStar::seed_from_u64(seed);
    }

    /// Frames for which `filter` answers true are dropped.
    pub fn set_filter(&mut self, filter: Option<Filter>) {
        self.filter = filter;
    }

    /// Starts to keep what is sent, or stops.
    pub fn set_record(&mut self, record: bool) {
        self.record = record.then(Vec::new);
    }

    /// What was kept since last asked.
    pub fn take_record(&mut self) -> Vec<Seen> {
        self.record.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Drops everything on its way.
    pub fn clear(&mut self) {
        self.flying.clear();
    }

    /// Puts a frame on the wire towards end `to`, as if the other had sent it.
    pub fn inject(&mut self, to: usize, bytes: &[u8], now: Instant) {
        self.launch(to, bytes.to_vec(), now + self.delay);
    }

    /// Frames on their way.
    pub fn in_flight(&self) -> usize {
        self.flying.len()
    }

    /// When the next frame arrives.
    pub fn next_arrival(&self) -> Option<Instant> {
        self.flying.keys().next().map(|(at, _)| *at)
    }

    /// Takes what the ends sent and delivers what has arrived; returns how many frames moved.
    pub fn step(&mut self, now: Instant) -> usize {
        let mut moved = 0;
        for from in 0..2 {
            loop {
                let count = self.ends[from].rx_burst();
                if count == 0 {
                    break;
                }
                moved += count;
                for index in 0..count {
                    let bytes = self.ends[from].rx_frame(index).first.to_vec();
                    self.take(from, bytes, now);
                }
            }
        }
        moved + self.deliver(now)
    }

    fn take(&mut self, from: usize, bytes: Vec<u8>, now: Instant) {
        if let Some(record) = &mut self.record {
            record.push(Seen { at: now, from, bytes: bytes.clone() });
        }
        let number = self.counts[from];
        self.counts[from] += 1;
        if self.filter.as_mut().is_some_and(|drops| drops(from, number, &bytes)) {
            return;
        }
        // The draws are the same for every frame, so that one probability does not stir the others.
        let draws = [0; 4].map(|_: u32| self.draw(1_000_000));
        let late = self.jitter();
        let late_copy = self.jitter();
        let bit = self.draw(u64::MAX);
        let to = 1 - from;
        if draws[1] < u64::from(self.faults.duplicate) {
            self.launch(to, bytes.clone(), now + self.delay + late_copy);
        }
        if draws[0] < u64::from(self.faults.loss) {
            return;
        }
        let mut bytes = bytes;
        if draws[3] < u64::from(self.faults.corrupt) {
            let bits = bytes.len() as u64 * 8;
            let at = usize::try_from(bit % bits).expect("a frame is short");
            bytes[at / 8] ^= 1 << (at % 8);
        }
        let arrival = now + self.delay;
        let is_late = draws[2] < u64::from(self.faults.reorder);
        self.launch(to, bytes, if is_late { arrival + late } else { arrival });
    }

    fn launch(&mut self, to: usize, bytes: Vec<u8>, arrival: Instant) {
        self.flying.insert((arrival, self.sequence), Flying { to, bytes });
        self.sequence += 1;
    }

    fn deliver(&mut self, now: Instant) -> usize {
        let mut moved = 0;
        while let Some(entry) = self.flying.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let end = &mut self.ends[entry.get().to];
            if end.tx_room() == 0 {
                break;
            }
            let Flying { bytes, .. } = entry.remove();
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
        let most = u64::try_from(self.faults.jitter.as_nanos()).expect("short").max(1);
        Duration::from_nanos(1 + self.draw(most))
    }
}
