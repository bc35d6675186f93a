//! DCQCN's fixed point in an independent simulation that shares only the paper's rules with the
//! fabric: floating point, one bottleneck, no frames, one packet after the other. Alpha of the
//! scenario `fixed-point` differs from the fluid model's at both ends (N = 2, N = 32). If two
//! simulations agree, the difference is due to the rules.

use rand_xoshiro::Xoshiro256StarStar;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

const LINK_RATE: f64 = 40e9;
const PACKET: f64 = 1000.0;
const STEP_PERIOD: f64 = 55e-6;
const ALPHA_PERIOD: f64 = 55e-6;
const CNP_INTERVAL: f64 = 50e-6;
const GAIN: f64 = 1.0 / 256.0;
const BYTES: f64 = 10e6;
const THRESHOLD: u32 = 5;
const INCREASE: f64 = 40e6;
const NEVER: f64 = f64::INFINITY;

/// A sender, with the receiver's state for it.
#[derive(Clone)]
struct Flow {
    rate: f64,
    target: f64,
    alpha: f64,
    next_packet: f64,
    next_step: f64,
    next_decay: f64,
    steps: u32,
    byte_steps: u32,
    bytes: f64,
    /// End of the CNP interval, and whether a mark was seen in it.
    interval: Option<(f64, bool)>,
}

impl Flow {
    fn new(number: usize, rate: f64) -> Self {
        Self {
            rate,
            target: rate,
            alpha: 0.2,
            next_packet: 10e-6 * number as f64,
            next_step: 0.0,
            next_decay: 0.0,
            steps: 0,
            byte_steps: 0,
            bytes: 0.0,
            interval: None,
        }
    }

    fn step(&mut self) {
        if self.steps.max(self.byte_steps) >= THRESHOLD {
            self.target = (self.target + INCREASE).min(LINK_RATE);
        }
        self.rate = f64::midpoint(self.rate, self.target);
    }

    fn cut(&mut self, now: f64) {
        self.target = self.rate;
        self.rate *= 1.0 - self.alpha / 2.0;
        self.alpha += GAIN * (1.0 - self.alpha);
        (self.steps, self.byte_steps, self.bytes) = (0, 0, 0.0);
        (self.next_step, self.next_decay) = (now + STEP_PERIOD, now + ALPHA_PERIOD);
        self.interval = Some((now + CNP_INTERVAL, false));
    }

    /// The sender's next event: its time, and which of the four timers it is.
    fn next(&self) -> (f64, usize) {
        let ends = self.interval.map_or(NEVER, |(end, _)| end);
        let clocks = [self.next_packet, self.next_step, self.next_decay, ends];
        let first = (0..4).min_by(|&a, &b| clocks[a].total_cmp(&clocks[b])).expect("four");
        (clocks[first], first)
    }

    /// Returns true if the sender transmits a packet.
    fn act(&mut self, now: f64, clock: usize) -> bool {
        match clock {
            0 => {
                self.next_packet = now + PACKET * 8.0 / self.rate;
                self.bytes += PACKET;
                if self.bytes >= BYTES {
                    (self.bytes, self.byte_steps) = (0.0, self.byte_steps + 1);
                    self.step();
                }
            }
            1 => {
                self.next_step = now + STEP_PERIOD;
                self.steps += 1;
                self.step();
            }
            2 => {
                self.next_decay = now + ALPHA_PERIOD;
                self.alpha *= 1.0 - GAIN;
            }
            _ => match self.interval {
                Some((_, true)) => self.cut(now),
                _ => self.interval = None,
            },
        }
        clock == 0
    }

    fn marked(&mut self, now: f64) {
        match &mut self.interval {
            Some((_, saw)) => *saw = true,
            None => self.cut(now),
        }
    }
}

/// Mean queue in KB and mean alpha of `count` flows over `seconds`, after a warm-up of the same
/// length.
fn steady_state(count: usize, seconds: f64) -> (f64, f64) {
    let mut random = Xoshiro256StarStar::seed_from_u64(1);
    let start = LINK_RATE * 1.1 / count as f64;
    let mut flows: Vec<Flow> = (0..count).map(|number| Flow::new(number, start)).collect();
    let mut queue = std::collections::VecDeque::new();
    let (mut served, mut last, mut area, mut alphas) = (NEVER, 0.0, 0.0, 0.0);
    while last < 2.0 * seconds {
        let next = flows.iter().map(Flow::next).enumerate();
        let (who, (at, clock)) = next.min_by(|a, b| a.1.0.total_cmp(&b.1.0)).expect("a flow");
        let now = at.min(served);
        if now > seconds {
            area += queue.len() as f64 * PACKET / 1e3 * (now - last);
            alphas += flows.iter().map(|flow| flow.alpha).sum::<f64>() * (now - last);
        }
        last = now;
        if served <= at {
            // Marked at dequeue: no step at Kmax.
            let probability = (queue.len() as f64 * PACKET - 5e3) / 195e3 * 0.01;
            let flow: usize = queue.pop_front().expect("one is served");
            served = if queue.is_empty() { NEVER } else { now + PACKET * 8.0 / LINK_RATE };
            if f64::from(random.next_u32()) / f64::from(u32::MAX) < probability {
                flows[flow].marked(now);
            }
        } else if flows[who].act(now, clock) {
            queue.push_back(who);
            served = served.min(now + PACKET * 8.0 / LINK_RATE);
        }
    }
    (area / seconds, alphas / count as f64 / seconds)
}

/// The values of a case in the scenario's report.
fn reported(case: &str, value: &str) -> f64 {
    let report = include_str!("../../docs/reproduction/report.md");
    let row = format!("| {case} | {value} | ");
    let line = report.lines().find(|line| line.starts_with(&row)).expect("a row");
    let figure = line[row.len()..].split(' ').next().expect("a figure");
    figure.parse().expect("a number")
}

#[test]
fn the_fabric_agrees_with_the_independent_simulation() {
    for (count, seconds) in [(2, 0.5), (4, 0.4), (32, 0.3)] {
        let (queue, alpha) = steady_state(count, seconds);
        let case = format!("N = {count}");
        let due = [reported(&case, "queue, mean, KB"), reported(&case, "alpha, mean")];
        println!("{case}: queue {queue:.2} KB for {}, alpha {alpha:.4} for {}", due[0], due[1]);
        assert!((queue / due[0] - 1.0).abs() < 0.08, "{case}: queue {queue:.2} for {}", due[0]);
        assert!((alpha / due[1] - 1.0).abs() < 0.03, "{case}: alpha {alpha:.4} for {}", due[1]);
    }
}
