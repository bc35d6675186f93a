//! Who sends what to whom, and when: from a pattern and a seed to flows.

mod arrivals;
mod distribution;

use rand_xoshiro::rand_core::{Rng, SeedableRng};
use rand_xoshiro::{SplitMix64, Xoshiro256PlusPlus};

use super::config::{Control, FlowConfig, Network};
use super::time::{LineRate, Time};

pub use distribution::Distribution;

/// How flows are drawn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pattern {
    /// From each sender to the receiver that stands at the same place of the list (which begins again at its end).
    Flows {
        /// Flows from each sender.
        per_pair: u32,
        /// Only so many of the senders.
        senders: Option<usize>,
    },
    /// Some senders, drawn at random, to the one receiver.
    Incast {
        /// How many.
        senders: usize,
    },
    /// Flows that begin at random times between random hosts.
    Poisson {
        /// The part of the senders' lines that is used, in units of 2^-31.
        load: u32,
        /// Sizes of the flows.
        sizes: Distribution,
    },
    /// A closed loop: some pairs of hosts, drawn at random, each with a QP and one transfer after another.
    Pairs {
        /// How many.
        pairs: u32,
        /// Sizes of the transfers.
        sizes: Distribution,
    },
}

/// A kind of traffic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Traffic {
    /// What results call it.
    pub name: String,
    /// How flows are drawn.
    pub pattern: Pattern,
    /// Numbers of sending hosts.
    pub from: Vec<u32>,
    /// Numbers of receiving hosts.
    pub to: Vec<u32>,
    /// Priority of data.
    pub priority: u8,
    /// Bytes of a message.
    pub message: u64,
    /// Messages of a flow; `None` for no end.
    pub messages: Option<u32>,
    /// When the first flow begins.
    pub start: Time,
    /// How much later each other one begins.
    pub stagger: Time,
    /// When flows stop to send.
    pub stop: Time,
    /// What decides the rate.
    pub control: Control,
    /// What it begins with in bits per second.
    pub initial_rate: Option<u64>,
    /// When the run ends.
    pub end: Time,
}

/// Most flows of a run: each takes about a kilobyte.
const MOST_FLOWS: usize = 1 << 20;

impl Traffic {
    /// Adds the flows of this traffic, as `group`.
    ///
    /// # Errors
    /// Says what cannot be drawn: more senders than there are.
    pub fn draw(
        &self,
        network: &Network,
        seed: u64,
        group: u32,
        flows: &mut Vec<FlowConfig>,
    ) -> Result<(), String> {
        let stream = SplitMix64::seed_from_u64(seed ^ u64::from(group) << 40).next_u64();
        let mut random = Xoshiro256PlusPlus::seed_from_u64(stream);
        match &self.pattern {
            Pattern::Pairs { pairs, sizes } => {
                for chain in 0..*pairs {
                    let pair = self.pair(&mut random)?;
                    self.transfers((pair, chain), (network, group), sizes, &mut random, flows)?;
                }
            }
            Pattern::Flows { per_pair, senders } => {
                let senders = senders.unwrap_or(self.from.len());
                if senders > self.from.len() {
                    return Err(format!("{}: {senders} senders of {}", self.name, self.from.len()));
                }
                for (number, &from) in self.from[..senders].iter().enumerate() {
                    for nth in 0..*per_pair {
                        let place = number as u64 * u64::from(*per_pair) + u64::from(nth);
                        let to = self.to[number % self.to.len()];
                        self.add(self.flow(from, to, group, place), flows)?;
                    }
                }
            }
            Pattern::Incast { senders } => {
                let to = self.to[0];
                let mut from: Vec<u32> =
                    self.from.iter().copied().filter(|&host| host != to).collect();
                if *senders > from.len() {
                    return Err(format!("{}: {senders} senders of {}", self.name, from.len()));
                }
                for number in 0..*senders {
                    let other = number + below(&mut random, from.len() - number);
                    from.swap(number, other);
                    self.add(self.flow(from[number], to, group, number as u64), flows)?;
                }
            }
            Pattern::Poisson { load, sizes } => {
                let rates = self.from.iter().map(|&host| rate_of(network, host));
                let mean_gap = arrivals::mean_gap(sizes.mean(), rates.sum(), *load);
                if mean_gap == Time::ZERO {
                    return Err(format!("{}: flows of less than a byte have no end", self.name));
                }
                let mut at = self.start;
                loop {
                    at = at + arrivals::exponential(mean_gap, random.next_u32());
                    if at >= self.stop.min(self.end) {
                        break;
                    }
                    let (from, to) = self.pair(&mut random)?;
                    let message = sizes.draw(random.next_u32());
                    let flow = self.flow(from, to, group, 0);
                    let (start, stop) = (at, Time::FAR);
                    let flow = FlowConfig { start, stop, message, messages: Some(1), ..flow };
                    self.add(flow, flows)?;
                }
            }
        }
        Ok(())
    }

    /// A sender and a receiver, drawn.
    fn pair(&self, random: &mut impl Rng) -> Result<(u32, u32), String> {
        let from = self.from[below(random, self.from.len())];
        let others = self.to.iter().filter(|&&to| to != from);
        let count = others.clone().count();
        if count == 0 {
            return Err(format!("{}: a host has nobody to send to", self.name));
        }
        Ok((from, *others.clone().nth(below(random, count)).expect("below it")))
    }

    /// The transfers of a pair: as many as its line could carry until the end.
    fn transfers(
        &self,
        (pair, chain): ((u32, u32), u32),
        (network, group): (&Network, u32),
        sizes: &Distribution,
        random: &mut impl Rng,
        flows: &mut Vec<FlowConfig>,
    ) -> Result<(), String> {
        let line = LineRate::new(rate_of(network, pair.0));
        let mut rest = line.bytes_in(self.stop.min(self.end) - self.start);
        while rest > 0 {
            let message = sizes.draw(random.next_u32());
            rest = rest.saturating_sub(message);
            let flow = self.flow(pair.0, pair.1, group, u64::from(chain));
            let flow = FlowConfig { message, messages: Some(1), chain: Some(chain), ..flow };
            self.add(flow, flows)?;
        }
        Ok(())
    }

    /// Adds a flow, unless memory is for fewer.
    fn add(&self, flow: FlowConfig, flows: &mut Vec<FlowConfig>) -> Result<(), String> {
        if flows.len() >= MOST_FLOWS {
            return Err(format!("{}: more than {MOST_FLOWS} flows", self.name));
        }
        flows.push(flow);
        Ok(())
    }

    fn flow(&self, from: u32, to: u32, group: u32, place: u64) -> FlowConfig {
        FlowConfig {
            from,
            to,
            group,
            priority: self.priority,
            message: self.message,
            messages: self.messages,
            start: self.start + Time(self.stagger.0.saturating_mul(place)),
            stop: self.stop,
            control: self.control,
            initial_rate: self.initial_rate,
            chain: None,
        }
    }
}

fn rate_of(network: &Network, host: u32) -> u64 {
    let host = host as usize;
    let line = network.links.iter().find(|link| link.a == host || link.b == host);
    line.map_or(0, |link| link.rate.bits_per_second())
}

/// A number below `limit`, which is not 0.
#[allow(clippy::cast_possible_truncation)] // Below `limit`.
fn below(random: &mut impl Rng, limit: usize) -> usize {
    ((u64::from(random.next_u32()) * limit as u64) >> 32) as usize
}
