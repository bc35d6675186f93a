//! Deadlocks: ingress queues that have paused their senders, and whose packets all wait for lines that another such queue has paused.
//!
//! Seen from outside, and exactly: a queue is *stuck* if its line is paused and every packet in it stands in a queue that a stuck one has
//! paused. That is the largest set of queues for which it is true; it is for ever if nobody in it has been let go for as long as a PFC
//! frame can have been on its way.

use std::collections::{BTreeMap, BTreeSet};

use super::Fabric;
use super::config::Network;
use super::time::Time;

/// An ingress queue: what comes to a switch from a neighbour, of one priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stuck {
    /// The switch.
    pub node: usize,
    /// The neighbour that it has paused.
    pub from: usize,
    /// The priority.
    pub priority: u8,
}

/// Queues that wait for each other for ever.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deadlock {
    /// When the last line of the cycle was paused.
    pub since: Time,
    /// Each waits for the next, the last for the first.
    pub cycle: Vec<Stuck>,
    /// All queues that are stuck: those of the cycle and behind it.
    pub stuck: usize,
}

impl Deadlock {
    /// In words.
    pub fn told(&self, network: &Network) -> String {
        let line =
            |queue: &Stuck| format!("{}->{}", network.name(queue.from), network.name(queue.node));
        let lines: Vec<String> = self.cycle.iter().map(line).collect();
        format!(
            "deadlock since {:.1} us: {} wait for each other for ever, {} lines in all",
            self.since.seconds() * 1e6,
            lines.join(", "),
            self.stuck
        )
    }
}

/// An ingress queue: the fabric's number of its port, and its priority.
type Queue = (u32, u8);

/// Whom each queue waits for: every queue that has paused a line that a packet of it waits for, or `None` for a line that is not paused.
type Waits = BTreeMap<Queue, BTreeSet<Option<Queue>>>;

/// A queue under suspicion: since when its line has been paused without a break, and when it was first seen stuck.
#[derive(Debug, Clone, Copy)]
struct Suspect {
    paused: Time,
    seen: Time,
}

/// What looks for deadlocks.
#[derive(Debug, Default)]
pub(crate) struct Detector {
    suspects: BTreeMap<Queue, Suspect>,
    found: Option<Deadlock>,
}

impl Detector {
    pub fn into_found(self) -> Option<Deadlock> {
        self.found
    }
}

impl Fabric {
    /// Looks at all queues now. Changes nothing but what is known of deadlocks.
    pub(super) fn look_for_deadlock(&mut self) {
        if self.detector.found.is_some() {
            return;
        }
        let (now, mut paused) = (self.now, self.paused_queues());
        if paused.is_empty() {
            self.detector.suspects.clear();
            return;
        }
        let waits = self.waits(&paused);
        largest_stuck(&mut paused, &waits);
        let before = std::mem::take(&mut self.detector.suspects);
        let suspect = |(queue, since): (Queue, Time)| {
            let known = before.get(&queue).filter(|known| known.paused == since);
            (queue, Suspect { paused: since, seen: known.map_or(now, |known| known.seen) })
        };
        let suspects: BTreeMap<Queue, Suspect> = paused.into_iter().map(suspect).collect();
        let settled = suspects.iter().filter(|(_, one)| now - one.seen >= self.settle());
        let mut stuck: BTreeMap<Queue, Time> = settled.map(|(&q, one)| (q, one.paused)).collect();
        largest_stuck(&mut stuck, &waits);
        self.detector.suspects = suspects;
        self.detector.found = self.deadlock(&stuck, &waits);
    }

    /// After so long, every PFC frame that was on its way has arrived.
    fn settle(&self) -> Time {
        let frame = self.packet.payload + self.packet.headers + self.packet.gap;
        let longest = |port: &super::Port| {
            port.delay + port.rate.time_of(frame) + port.rate.time_of(2 * self.packet.control)
        };
        self.pause_response + self.ports.iter().map(longest).max().unwrap_or_default()
    }

    /// The ingress queues of switches whose senders obey a pause now that is repeated for as long as it must, and since when.
    fn paused_queues(&mut self) -> BTreeMap<Queue, Time> {
        let mut paused = BTreeMap::new();
        for switch in self.switches.iter().filter(|switch| switch.pfc.repeat) {
            for (local, &port) in switch.ports.iter().enumerate() {
                for priority in (0..8).filter(|&p| switch.buffer.is_paused(local, p)) {
                    let sender = self.ports[port as usize].peer;
                    let pauses = &mut self.ports[sender as usize].pauses;
                    if let Some(since) = pauses.waits_since(priority, self.now) {
                        paused.insert((port, priority), since);
                    }
                }
            }
        }
        paused
    }

    /// Whom packets wait for that are in one of the `paused` queues.
    fn waits(&self, paused: &BTreeMap<Queue, Time>) -> Waits {
        let mut waits = Waits::new();
        for switch in &self.switches {
            for &out in &switch.ports {
                let port = &self.ports[out as usize];
                for priority in (0..8).filter(|p| port.backlog() >> p & 1 == 1) {
                    let next = (port.peer, priority);
                    let next = paused.contains_key(&next).then_some(next);
                    for packet in port.queue(priority).iter(&self.packets) {
                        let queue = (switch.ports[usize::from(packet.ingress)], priority);
                        waits.entry(queue).or_default().insert(next);
                    }
                }
            }
        }
        waits
    }

    /// The deadlock that `stuck` queues make, if there are any.
    fn deadlock(&self, stuck: &BTreeMap<Queue, Time>, waits: &Waits) -> Option<Deadlock> {
        let (mut way, mut at) = (Vec::new(), *stuck.keys().next()?);
        while !way.contains(&at) {
            way.push(at);
            // All that a stuck queue waits for is stuck.
            at = waits[&at].iter().flatten().copied().next()?;
        }
        let begin = way.iter().position(|&queue| queue == at)?;
        let cycle = way.split_off(begin);
        let since = cycle.iter().map(|queue| stuck[queue]).max()?;
        let owner = |port: u32| self.node_of(port);
        let told = |&(port, priority): &Queue| Stuck {
            node: owner(port),
            from: owner(self.ports[port as usize].peer),
            priority,
        };
        Some(Deadlock { since, cycle: cycle.iter().map(told).collect(), stuck: stuck.len() })
    }
}

/// Takes out of `queues`, again and again, what holds a packet that waits for none of them.
fn largest_stuck(queues: &mut BTreeMap<Queue, Time>, waits: &Waits) {
    loop {
        let is_stuck = |queue: &Queue| {
            let of = waits.get(queue);
            of.is_some_and(|of| of.iter().all(|on| on.is_some_and(|on| queues.contains_key(&on))))
        };
        let free: Vec<Queue> = queues.keys().copied().filter(|queue| !is_stuck(queue)).collect();
        if free.is_empty() {
            return;
        }
        for queue in free {
            queues.remove(&queue);
        }
    }
}
