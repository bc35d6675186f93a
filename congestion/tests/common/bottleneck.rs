//! Senders that share one queue: the closed loop of reaction, notification and congestion point,
//! without a network. A packet waits in the queue, reaches its receiver, and a CNP reaches its
//! sender some time later.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use feroce_congestion::params::MarkAt;
use feroce_congestion::{
    Duration, Instant, NotificationPoint, Pacer, Params, Rate, ReactionPoint, Red,
};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// The setup.
#[derive(Clone, Copy, Debug)]
pub struct Bottleneck {
    pub params: Params,
    pub link_rate: Rate,
    pub senders: usize,
    pub packet: u64,
    /// Delay of a CNP from the receiver to the sender.
    pub feedback: Duration,
    /// Time before the measurement.
    pub warm_up: Duration,
    pub measured: Duration,
    pub seed: u64,
}

/// The results.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Mean queue length over time, in bytes.
    pub queue: f64,
    /// Mean alpha over time and senders.
    pub alpha: f64,
    /// Used part of the link rate.
    pub utilisation: f64,
    /// Smallest mean rate over the largest.
    pub fairness: f64,
    pub cnps: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    /// A sender may be ready.
    Wake(usize),
    /// A packet reaches its receiver, marked or not.
    Arrive(usize, bool),
    /// A receiver's interval ends.
    Interval(usize),
    /// A CNP reaches its sender.
    Cnp(usize),
    /// Alpha is sampled.
    Sample,
}

struct Sender {
    point: ReactionPoint,
    pacer: Pacer,
    receiver: NotificationPoint,
    /// Time of the latest scheduled wake; earlier scheduled wakes are ignored.
    wakes: Instant,
    interval: Instant,
    sent: u64,
}

struct Play {
    setup: Bottleneck,
    red: Red,
    random: Xoshiro256PlusPlus,
    events: BinaryHeap<Reverse<(Instant, u64, Event)>>,
    sequence: u64,
    senders: Vec<Sender>,
    /// Time at which the queue will be empty, in ns with 16 fractional bits.
    empty_at: u64,
    sums: Sums,
}

#[derive(Default)]
struct Sums {
    since: u64,
    /// Bytes * ns.
    queue: f64,
    alpha: f64,
    samples: u64,
    bytes: u64,
    cnps: u64,
}

/// Time between samples of alpha; no divisor of a protocol timer, so that samples fall at all
/// phases.
const SAMPLES: Duration = Duration::from_nanos(17_111);
const FINE: u64 = 1 << 16;

impl Bottleneck {
    /// Runs the simulation.
    pub fn play(&self) -> Measured {
        let mut play = Play::new(*self);
        let end = Instant::ZERO + self.warm_up + self.measured;
        let mut is_warm = false;
        while let Some(Reverse((now, _, event))) = play.events.pop() {
            if now >= end {
                break;
            }
            if !is_warm && now >= Instant::ZERO + self.warm_up {
                is_warm = true;
                play.sums = Sums { since: now.as_nanos(), ..Sums::default() };
                play.senders.iter_mut().for_each(|sender| sender.sent = 0);
            }
            play.on_event(event, now);
        }
        play.measured(end)
    }
}

impl Play {
    fn new(setup: Bottleneck) -> Self {
        let burst = u32::try_from(setup.packet).expect("a packet");
        let sender = || Sender {
            point: ReactionPoint::new(&setup.params, setup.link_rate, Instant::ZERO),
            pacer: Pacer::new(burst, Instant::ZERO),
            receiver: NotificationPoint::new(&setup.params.notification),
            wakes: Instant::ZERO,
            interval: Instant::FAR,
            sent: 0,
        };
        let mut play = Self {
            setup,
            red: Red::new(&setup.params.marking),
            random: Xoshiro256PlusPlus::seed_from_u64(setup.seed),
            events: BinaryHeap::new(),
            sequence: 0,
            senders: (0..setup.senders).map(|_| sender()).collect(),
            empty_at: 0,
            sums: Sums::default(),
        };
        for index in 0..setup.senders {
            let start = Instant::from_nanos(play.random.next_u64() % 1000);
            play.wake(index, start);
        }
        play.at(Instant::ZERO, Event::Sample);
        play
    }

    fn at(&mut self, time: Instant, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((time, self.sequence, event)));
    }

    fn wake(&mut self, index: usize, time: Instant) {
        self.senders[index].wakes = time;
        self.at(time, Event::Wake(index));
    }

    fn on_event(&mut self, event: Event, now: Instant) {
        match event {
            Event::Wake(index) if self.senders[index].wakes == now => self.send(index, now),
            Event::Wake(_) => {}
            Event::Arrive(index, marked) => {
                let marked = marked || (self.marks_at(MarkAt::Dequeue) && self.mark(now));
                let sends = self.senders[index].receiver.on_packet(marked, now);
                self.after_receiver(index, sends, now);
            }
            Event::Interval(index) => {
                self.senders[index].interval = Instant::FAR;
                let sends = self.senders[index].receiver.advance(now);
                self.after_receiver(index, sends, now);
            }
            Event::Sample => {
                for sender in &self.senders {
                    let mut point = sender.point;
                    point.advance(now);
                    self.sums.alpha += f64::from(point.alpha().units()) / f64::from(1u32 << 31);
                    self.sums.samples += 1;
                }
                self.at(now + SAMPLES, Event::Sample);
            }
            Event::Cnp(index) => {
                let sender = &mut self.senders[index];
                sender.pacer.advance(sender.point.rate(), now);
                sender.point.on_cnp(now);
                self.schedule(index);
            }
        }
    }

    fn after_receiver(&mut self, index: usize, sends: bool, now: Instant) {
        if sends {
            self.sums.cnps += 1;
            self.at(now + self.setup.feedback, Event::Cnp(index));
        }
        let next = self.senders[index].receiver.next_event();
        if next < self.senders[index].interval {
            self.senders[index].interval = next;
            self.at(next, Event::Interval(index));
        }
    }

    fn send(&mut self, index: usize, now: Instant) {
        let packet = self.setup.packet;
        let sender = &mut self.senders[index];
        sender.pacer.advance(sender.point.rate(), now);
        sender.point.advance(now);
        if sender.pacer.ready_at(packet, sender.point.rate()) <= now {
            sender.pacer.spend(packet, sender.point.rate(), now);
            sender.point.on_sent(packet, now);
            sender.sent += packet;
            self.enqueue(index, now);
        }
        self.schedule(index);
    }

    /// Schedules the sender's next wake: when a packet is ready, or earlier if its rate changes.
    fn schedule(&mut self, index: usize) {
        let sender = &self.senders[index];
        let ready = sender.pacer.ready_at(self.setup.packet, sender.point.rate());
        let time = ready.min(sender.point.next_event());
        self.wake(index, time);
    }

    fn marks_at(&self, place: MarkAt) -> bool {
        self.setup.params.marking.mark_at == place
    }

    /// Returns true if RED marks a packet at the queue length of `now`.
    fn mark(&mut self, now: Instant) -> bool {
        let queue = self.empty_at.saturating_sub(now.as_nanos() * FINE) / self.per_byte();
        self.red.mark(queue, self.random.next_u32())
    }

    /// Transmission time of a byte.
    fn per_byte(&self) -> u64 {
        8 * 1_000_000_000 * FINE / self.setup.link_rate.as_bps()
    }

    /// Adds the packet to the queue. Marking uses the queue length before.
    fn enqueue(&mut self, index: usize, now: Instant) {
        let per_byte = self.per_byte();
        let here = now.as_nanos() * FINE;
        let waits = self.empty_at.saturating_sub(here);
        let marked = self.marks_at(MarkAt::Enqueue) && self.mark(now);
        let serves = self.setup.packet * per_byte;
        // A packet counts with all its bytes while it waits, then with the bytes that are still
        // unsent.
        let (waits, serves) = (waits as f64, serves as f64);
        let fine = FINE as f64;
        let area = (serves * waits + serves * serves / 2.0) / fine / fine;
        self.sums.queue += area / (per_byte as f64 / fine);
        self.sums.bytes += self.setup.packet;
        self.empty_at = self.empty_at.max(here) + self.setup.packet * per_byte;
        let arrives = Instant::from_nanos(self.empty_at.div_ceil(FINE));
        self.at(arrives, Event::Arrive(index, marked));
    }

    fn measured(&self, end: Instant) -> Measured {
        let nanos = (end.as_nanos() - self.sums.since) as f64;
        let sent = self.senders.iter().map(|sender| sender.sent);
        let slowest = sent.clone().min().unwrap_or(0) as f64;
        let fastest = sent.max().unwrap_or(0) as f64;
        Measured {
            queue: self.sums.queue / nanos,
            alpha: self.sums.alpha / self.sums.samples as f64,
            utilisation: self.sums.bytes as f64 * 8.0
                / nanos
                / (self.setup.link_rate.as_bps() as f64 / 1e9),
            fairness: slowest / fastest,
            cnps: self.sums.cnps,
        }
    }
}
