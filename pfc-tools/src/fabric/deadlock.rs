//! Deadlock detection: finds ingress queues that have paused their senders and whose packets all
//! wait for links that another such queue has paused.
//!
//! The detector sees the whole network, so its result is exact. A queue is *stuck* if it has paused
//! its link and every packet in it waits in a queue that a stuck queue has paused. The stuck queues
//! are the largest set with this property. They form a deadlock if none of them has been resumed
//! for as long as a PFC frame can be in flight.

use std::collections::{BTreeMap, BTreeSet};

use super::Fabric;
use super::config::Network;
use super::time::Time;

/// An ingress queue of a switch: the packets of one priority from one neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stuck {
    /// The switch.
    pub node: usize,
    /// The neighbour whose transmission is paused.
    pub from: usize,
    /// The priority.
    pub priority: u8,
}

/// Queues that wait for each other forever.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deadlock {
    /// Time at which the last link of the cycle was paused.
    pub since: Time,
    /// The cycle: each queue waits for the next, the last for the first.
    pub cycle: Vec<Stuck>,
    /// Number of stuck queues: those of the cycle, and those that wait for the cycle.
    pub stuck: usize,
}

impl Deadlock {
    /// A description in words.
    pub fn describe(&self, network: &Network) -> String {
        let link =
            |queue: &Stuck| format!("{}->{}", network.name(queue.from), network.name(queue.node));
        let links: Vec<String> = self.cycle.iter().map(link).collect();
        format!(
            "deadlock since {:.1} us: {} wait for each other, {} links in all",
            self.since.seconds() * 1e6,
            links.join(", "),
            self.stuck
        )
    }
}

/// An ingress queue: its port (numbered within the fabric) and its priority.
type Queue = (u32, u8);

/// The wait-for graph: for each queue, the queues that have paused a link its packets wait for;
/// `None` stands for a link that is not paused.
type Waits = BTreeMap<Queue, BTreeSet<Option<Queue>>>;

/// A queue that may be stuck: the time since which its link has been paused without interruption,
/// and the time at which the queue was first seen stuck.
#[derive(Debug, Clone, Copy)]
struct Suspect {
    paused: Time,
    seen: Time,
}

/// The deadlock detector.
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
    /// Checks all queues at the current time. Changes only the state of the detector.
    pub(super) fn detect_deadlock(&mut self) {
        if self.detector.found.is_some() {
            return;
        }
        let (now, mut paused) = (self.now, self.paused_queues());
        if paused.is_empty() {
            self.detector.suspects.clear();
            return;
        }
        let waits = self.waits(&paused);
        retain_stuck(&mut paused, &waits);
        let before = std::mem::take(&mut self.detector.suspects);
        let suspect = |(queue, since): (Queue, Time)| {
            let known = before.get(&queue).filter(|known| known.paused == since);
            (queue, Suspect { paused: since, seen: known.map_or(now, |known| known.seen) })
        };
        let suspects: BTreeMap<Queue, Suspect> = paused.into_iter().map(suspect).collect();
        let confirmed = suspects.iter().filter(|(_, one)| now - one.seen >= self.max_in_flight());
        let mut stuck: BTreeMap<Queue, Time> = confirmed.map(|(&q, one)| (q, one.paused)).collect();
        retain_stuck(&mut stuck, &waits);
        self.detector.suspects = suspects;
        self.detector.found = self.deadlock(&stuck, &waits);
    }

    /// Upper bound on the time that a PFC frame can be in flight.
    fn max_in_flight(&self) -> Time {
        let frame = self.packet.payload + self.packet.headers + self.packet.gap;
        let longest = |port: &super::Port| {
            port.delay + port.rate.time_of(frame) + port.rate.time_of(2 * self.packet.control)
        };
        self.pause_response + self.ports.iter().map(longest).max().unwrap_or_default()
    }

    /// The ingress queues whose senders obey a pause now, and since when. Only switches that repeat
    /// their pauses are considered.
    fn paused_queues(&mut self) -> BTreeMap<Queue, Time> {
        let mut paused = BTreeMap::new();
        for switch in self.switches.iter().filter(|switch| switch.pfc.repeat) {
            for (local, &port) in switch.ports.iter().enumerate() {
                let priorities = switch.buffer.paused(local);
                for priority in (0..8).filter(|p| priorities >> p & 1 == 1) {
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

    /// The wait-for graph of the packets in the `paused` queues.
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

    /// The deadlock among the `stuck` queues, if any.
    fn deadlock(&self, stuck: &BTreeMap<Queue, Time>, waits: &Waits) -> Option<Deadlock> {
        let (mut path, mut at) = (Vec::new(), *stuck.keys().next()?);
        while !path.contains(&at) {
            path.push(at);
            // A stuck queue waits only for stuck queues.
            at = waits[&at].iter().flatten().copied().next()?;
        }
        let begin = path.iter().position(|&queue| queue == at)?;
        let cycle = path.split_off(begin);
        let since = cycle.iter().map(|queue| stuck[queue]).max()?;
        let owner = |port: u32| self.node_of(port);
        let stuck_queue = |&(port, priority): &Queue| Stuck {
            node: owner(port),
            from: owner(self.ports[port as usize].peer),
            priority,
        };
        Some(Deadlock { since, cycle: cycle.iter().map(stuck_queue).collect(), stuck: stuck.len() })
    }
}

/// Reduces `queues` to the stuck ones: repeatedly removes each queue with a packet that waits for
/// none of the others.
fn retain_stuck(queues: &mut BTreeMap<Queue, Time>, waits: &Waits) {
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
