//! Traffic generation: flows from a pattern and a seed.

mod arrivals;
pub mod collective;
mod distribution;
mod workload;

use rand_xoshiro::rand_core::{Rng, SeedableRng};
use rand_xoshiro::{SplitMix64, Xoshiro256PlusPlus};

use super::config::{Control, FlowConfig, Network};
use super::formats::FileFlow;
use super::time::{LinkRate, Time};

use collective::Collective;
pub use distribution::Distribution;
pub use workload::Workload;

/// How flows are generated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pattern {
    /// From each sender to the receiver at the same position of the list; the list of receivers
    /// repeats.
    Flows {
        /// Flows per sender.
        per_pair: u32,
        /// Use only this many of the senders.
        senders: Option<usize>,
    },
    /// Random senders to the one receiver.
    Incast {
        /// Number of senders.
        senders: usize,
    },
    /// Flows that start at random times between random hosts.
    Poisson {
        /// Load of the senders' links, in units of 2^-31.
        load: u32,
        /// Flow sizes.
        sizes: Distribution,
    },
    /// Closed loops: random pairs of hosts, each with one QP and one transfer after another.
    Pairs {
        /// Number of pairs.
        pairs: u32,
        /// Transfer sizes.
        sizes: Distribution,
    },
    /// Collective communication.
    Collective(Collective),
    /// The flows of a file. Senders and receivers are numbers of hosts.
    File(Vec<FileFlow>),
}

/// A traffic group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Traffic {
    /// Name in the results.
    pub name: String,
    /// How flows are generated.
    pub pattern: Pattern,
    /// Numbers of the sending hosts.
    pub from: Vec<u32>,
    /// Numbers of the receiving hosts.
    pub to: Vec<u32>,
    /// Priority of data packets.
    pub priority: u8,
    /// Bytes of a message.
    pub message: u64,
    /// Messages of a flow; `None` for endless flows.
    pub messages: Option<u32>,
    /// Start of the first flow.
    pub start: Time,
    /// Delay between the starts of consecutive flows.
    pub stagger: Time,
    /// Time at which flows stop sending.
    pub stop: Time,
    /// Congestion control.
    pub control: Control,
    /// Initial rate in bits per second.
    pub initial_rate: Option<u64>,
    /// Numbers of the traffic groups whose end this group waits for.
    pub after: Vec<u32>,
    /// Time between the end of these groups and the start of this one.
    pub delay: Time,
    /// End of the run.
    pub end: Time,
}

impl Traffic {
    /// Adds the flows of this traffic group, numbered `group`.
    ///
    /// # Errors
    /// If more senders are requested than exist, or a host has no receiver.
    pub fn draw(
        &self,
        network: &Network,
        seed: u64,
        group: u32,
        workload: &mut Workload,
    ) -> Result<(), String> {
        let stream = SplitMix64::seed_from_u64(seed ^ u64::from(group) << 40).next_u64();
        let mut random = Xoshiro256PlusPlus::seed_from_u64(stream);
        match &self.pattern {
            Pattern::Pairs { pairs, sizes } => {
                for chain in 0..*pairs {
                    let pair = self.pair(&mut random)?;
                    self.transfers((pair, chain), (network, group), sizes, &mut random, workload)?;
                }
            }
            Pattern::Flows { per_pair, senders } => {
                let senders = senders.unwrap_or(self.from.len());
                self.check_senders(senders, self.from.len())?;
                for (number, &from) in self.from[..senders].iter().enumerate() {
                    for nth in 0..*per_pair {
                        let place = number as u64 * u64::from(*per_pair) + u64::from(nth);
                        let to = self.to[number % self.to.len()];
                        self.add(self.flow(from, to, group, place), workload)?;
                    }
                }
            }
            Pattern::Incast { senders } => {
                let to = self.to[0];
                let mut from: Vec<u32> =
                    self.from.iter().copied().filter(|&host| host != to).collect();
                self.check_senders(*senders, from.len())?;
                for number in 0..*senders {
                    let other = number + below(&mut random, from.len() - number);
                    from.swap(number, other);
                    self.add(self.flow(from[number], to, group, number as u64), workload)?;
                }
            }
            Pattern::Poisson { load, sizes } => {
                self.arrivals((network, group), (*load, sizes), &mut random, workload)?;
            }
            Pattern::Collective(collective) => {
                let flow = self.flow(0, 0, group, 0);
                collective.draw(&self.name, flow, workload)?;
            }
            Pattern::File(own) => {
                for &FileFlow { from, to, priority, bytes, start, .. } in own {
                    let flow = self.flow(from, to, group, 0);
                    let priority = priority.unwrap_or(self.priority);
                    let (start, messages) = (start + self.start, Some(1));
                    let flow = FlowConfig { message: bytes, messages, priority, start, ..flow };
                    self.add(flow, workload)?;
                }
            }
        }
        Ok(())
    }

    /// Flows at random times.
    fn arrivals(
        &self,
        (network, group): (&Network, u32),
        (load, sizes): (u32, &Distribution),
        random: &mut Xoshiro256PlusPlus,
        workload: &mut Workload,
    ) -> Result<(), String> {
        let rates = self.from.iter().map(|&host| rate_of(network, host));
        let mean_gap = arrivals::mean_gap(sizes.mean(), rates.sum(), load);
        if mean_gap == Time::ZERO {
            return Err(format!(
                "{}: the mean time between flows is 0, so there would be infinitely \
                 many flows",
                self.name
            ));
        }
        let mut at = self.start;
        loop {
            at = at + arrivals::exponential(mean_gap, random.next_u32());
            if at >= self.stop.min(self.end) {
                break;
            }
            let (from, to) = self.pair(random)?;
            let message = sizes.draw(random.next_u32());
            let flow = self.flow(from, to, group, 0);
            let (start, stop) = (at, Time::FAR);
            let flow = FlowConfig { start, stop, message, messages: Some(1), ..flow };
            self.add(flow, workload)?;
        }
        Ok(())
    }

    fn check_senders(&self, senders: usize, hosts: usize) -> Result<(), String> {
        match senders > hosts {
            true => Err(format!("{}: {senders} senders, but only {hosts} hosts", self.name)),
            false => Ok(()),
        }
    }

    /// A random pair of sender and receiver.
    fn pair(&self, random: &mut impl Rng) -> Result<(u32, u32), String> {
        let from = self.from[below(random, self.from.len())];
        let others = self.to.iter().filter(|&&to| to != from);
        let count = others.clone().count();
        if count == 0 {
            return Err(format!("{}: a host has no receiver", self.name));
        }
        Ok((from, *others.clone().nth(below(random, count)).expect("below it")))
    }

    /// Adds the transfers of a pair: as many as its link could carry until the end.
    fn transfers(
        &self,
        (pair, chain): ((u32, u32), u32),
        (network, group): (&Network, u32),
        sizes: &Distribution,
        random: &mut impl Rng,
        workload: &mut Workload,
    ) -> Result<(), String> {
        let link_rate = LinkRate::new(rate_of(network, pair.0));
        let mut rest = link_rate.bytes_in(self.stop.min(self.end) - self.start);
        while rest > 0 {
            let message = sizes.draw(random.next_u32());
            rest = rest.saturating_sub(message);
            let flow = self.flow(pair.0, pair.1, group, u64::from(chain));
            let flow = FlowConfig { message, messages: Some(1), chain: Some(chain), ..flow };
            self.add(flow, workload)?;
        }
        Ok(())
    }

    fn add(&self, flow: FlowConfig, workload: &mut Workload) -> Result<(), String> {
        workload.flow(&self.name, flow).map(drop)
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
            is_held: false,
            released: None,
        }
    }
}

fn rate_of(network: &Network, host: u32) -> u64 {
    let host = host as usize;
    let link = network.links.iter().find(|link| link.a == host || link.b == host);
    link.map_or(0, |link| link.rate.bits_per_second())
}

/// A random number below `limit`, which is not 0.
#[allow(clippy::cast_possible_truncation)] // Below `limit`.
fn below(random: &mut impl Rng, limit: usize) -> usize {
    ((u64::from(random.next_u32()) * limit as u64) >> 32) as usize
}
