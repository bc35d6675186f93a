//! The wire of a rig: delay, and frames lost, doubled, reordered and damaged by a seed.

use std::collections::BTreeMap;

use feroce_engine::port::{Port, PortStats, Priority};
use feroce_engine::time::{Duration, Instant};
use feroce_wire::mark_ce;
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
    /// Marked (CE), as by a congested switch, if they are ECN-capable.
    pub mark: u32,
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
    /// What became of it.
    pub fate: Fate,
}

/// What the wire does to a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fate {
    /// It is lost.
    pub lost: bool,
    /// It arrives twice.
    pub doubled: bool,
    /// It arrives late.
    pub late: bool,
    /// It is damaged.
    pub damaged: bool,
}

impl Fate {
    /// It arrives once, in time and whole.
    pub fn is_good(self) -> bool {
        self == Self::default()
    }
}

impl std::fmt::Display for Fate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = [
            (self.lost, "lost"),
            (self.doubled, "doubled"),
            (self.late, "late"),
            (self.damaged, "damaged"),
        ];
        for (_, name) in names.iter().filter(|(is, _)| *is) {
            write!(f, "[{name}]")?;
        }
        Ok(())
    }
}

/// Drops frames: called with the sending end, the number of the frame from that end, and its bytes.
pub type Filter = Box<dyn FnMut(usize, u64, &[u8]) -> bool + Send>;

/// Takes a frame from the sending end at a time, and says what arrives in its place: how much later than the wire's delay, and what.
pub type Tamper = Box<dyn FnMut(usize, Instant, &[u8]) -> Vec<(Duration, Vec<u8>)> + Send>;

/// See the [module](self).
pub struct Wire {
    ends: [Box<dyn Port>; 2],
    delay: Duration,
    burst: usize,
    stalled: [bool; 2],
    faults: WireFaults,
    random: Xoshiro256StarStar,
    /// For marks: a frame's other fates are the same with and without them.
    mark_random: Xoshiro256StarStar,
    /// By arrival and then by order of sending: ties are settled the same way each time.
    flying: BTreeMap<(Instant, u64), Flying>,
    sequence: u64,
    counts: [u64; 2],
    hurt: u64,
    filter: Option<Filter>,
    tamper: Option<Tamper>,
    record: Option<Vec<Seen>>,
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wire").field("flying", &self.flying.len()).finish_non_exhaustive()
    }
}

impl Wire {
    /// A wire between the ports that the devices' own are connected to.
    pub fn new(ends: [Box<dyn Port>; 2], delay: Duration) -> Self {
        Self {
            ends,
            delay,
            burst: usize::MAX,
            stalled: [false; 2],
            faults: WireFaults::default(),
            random: Xoshiro256StarStar::seed_from_u64(0),
            mark_random: Xoshiro256StarStar::seed_from_u64(!0),
            flying: BTreeMap::new(),
            sequence: 0,
            counts: [0; 2],
            hurt: 0,
            filter: None,
            tamper: None,
            record: None,
        }
    }

    /// From now on frames take `delay`.
    pub fn set_delay(&mut self, delay: Duration) {
        self.delay = delay;
    }

    /// From now on an end gets at most `burst` frames in a step, for ports that cannot hold all that arrives at one
    /// time: no time goes by between steps.
    pub fn set_burst(&mut self, burst: usize) {
        self.burst = burst;
    }

    /// From now on nothing is taken from the ends that are `stalled`: what they send fills their rings.
    pub fn set_stalled(&mut self, stalled: [bool; 2]) {
        self.stalled = stalled;
    }

    /// From now on frames meet `faults`, drawn from `seed`.
    pub fn set_faults(&mut self, faults: WireFaults, seed: u64) {
        self.faults = faults;
        self.random = Xoshiro256StarStar::seed_from_u64(seed);
        self.mark_random = Xoshiro256StarStar::seed_from_u64(!seed);
    }

    /// Frames for which `filter` answers true are dropped.
    pub fn set_filter(&mut self, filter: Option<Filter>) {
        self.filter = filter;
    }

    /// Hands every frame to `tamper`; neither filter nor faults see it then.
    pub fn set_tamper(&mut self, tamper: Option<Tamper>) {
        self.tamper = tamper;
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

    /// Frames sent so far.
    pub fn frames(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Frames sent so far that were lost, doubled, delayed or damaged.
    pub fn hurt(&self) -> u64 {
        self.hurt
    }

    /// Frames on their way.
    pub fn in_flight(&self) -> usize {
        self.flying.len()
    }

    /// What its ports have counted.
    pub fn stats(&self) -> [PortStats; 2] {
        self.ends.each_ref().map(|end| end.stats())
    }

    /// When the next frame arrives.
    pub fn next_arrival(&self) -> Option<Instant> {
        self.flying.keys().next().map(|(at, _)| *at)
    }

    /// Takes what the ends sent and delivers what has arrived; returns how many frames moved.
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
        if let Some(tamper) = &mut self.tamper {
            for (later, bytes) in tamper(from, now, &bytes) {
                self.launch(1 - from, bytes, now + self.delay + later);
            }
            return;
        }
        let filtered = self.filter.as_mut().is_some_and(|drops| drops(from, number, &bytes));
        // The draws are the same for every frame, so that one probability does not stir the others.
        let mut fate = self.draw_fate();
        let late = self.jitter();
        let late_copy = self.jitter();
        let bit = self.draw(u64::MAX);
        if filtered {
            fate = Fate { lost: true, ..Fate::default() };
        }
        fate.late &= !fate.lost;
        fate.damaged &= !fate.lost;
        self.hurt += u64::from(!fate.is_good());
        if let Some(record) = &mut self.record {
            record.push(Seen { at: now, from, bytes: bytes.clone(), fate });
        }
        let to = 1 - from;
        let mut bytes = bytes;
        if self.mark_random.next_u64() % 1_000_000 < u64::from(self.faults.mark) {
            mark_ce(&mut bytes);
        }
        if fate.doubled {
            self.launch(to, bytes.clone(), now + self.delay + late_copy);
        }
        if fate.lost {
            return;
        }
        if fate.damaged {
            let bits = bytes.len() as u64 * 8;
            let at = usize::try_from(bit % bits).expect("a frame is short");
            bytes[at / 8] ^= 1 << (at % 8);
        }
        let arrival = now + self.delay;
        self.launch(to, bytes, if fate.late { arrival + late } else { arrival });
    }

    fn draw_fate(&mut self) -> Fate {
        let draws = [0; 4].map(|_: u32| self.draw(1_000_000));
        let falls = |draw: u64, rate: u32| draw < u64::from(rate);
        Fate {
            lost: falls(draws[0], self.faults.loss),
            doubled: falls(draws[1], self.faults.duplicate),
            late: falls(draws[2], self.faults.reorder),
            damaged: falls(draws[3], self.faults.corrupt),
        }
    }

    fn launch(&mut self, to: usize, bytes: Vec<u8>, arrival: Instant) {
        self.flying.insert((arrival, self.sequence), Flying { to, bytes });
        self.sequence += 1;
    }

    fn deliver(&mut self, now: Instant) -> usize {
        let (mut moved, mut delivered) = (0, [0; 2]);
        while let Some(entry) = self.flying.first_entry() {
            let to = entry.get().to;
            if entry.key().0 > now || delivered[to] == self.burst {
                break;
            }
            let end = &mut self.ends[to];
            if end.tx_room() == 0 {
                break;
            }
            delivered[to] += 1;
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
