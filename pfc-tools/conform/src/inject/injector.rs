//! Applies the events of a script to the packets between two endpoints and records the packets. The
//! injector does no I/O; time is an argument.

use std::collections::BTreeMap;
use std::time::Duration;

use feroce_wire::Packet;
use feroce_wire::cm::CmMessage;

use super::action::Action;
use super::change;
use super::flows::Flows;
use super::script::{Event, PacketSelector, Script};
use super::trace::{Arrived, Sent, Side, Trace};

/// A frame to forward.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forwarded {
    /// Delay from now.
    pub after: Duration,
    /// The frame.
    pub bytes: Vec<u8>,
}

/// Stands for the messages of the CM, which belong to no flow.
const CM: usize = usize::MAX;

/// A frame that is held until others have passed.
#[derive(Debug, Clone)]
struct Held {
    sent: usize,
    left: u32,
    bytes: Vec<u8>,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Injector {
    events: Vec<Event>,
    /// For each event, the number of packets that matched its filter.
    counted: Vec<u32>,
    /// For each event, the number of packets it was applied to.
    times_applied: Vec<u32>,
    flows: Flows,
    /// How often each PSN was seen, by event.
    iterations: BTreeMap<(usize, u32), u32>,
    held: BTreeMap<(usize, Side), Vec<Held>>,
    /// Latency of the link.
    latency: Duration,
    trace: Trace,
}

impl Injector {
    /// Creates an injector that applies `script` to the packets of `flows`. `latency` is the
    /// latency of the link.
    pub fn new(script: &Script, flows: Flows, latency: Duration) -> Self {
        let count = script.events.len();
        Self {
            events: script.events.clone(),
            counted: vec![0; count],
            times_applied: vec![0; count],
            flows,
            iterations: BTreeMap::new(),
            held: BTreeMap::new(),
            latency,
            trace: Trace::default(),
        }
    }

    /// Takes a frame sent at `now` (nanoseconds) and returns the frames to forward. Frames of no
    /// flow are forwarded unchanged.
    pub fn take(&mut self, bytes: &[u8], now: u64) -> Vec<Forwarded> {
        let unchanged = || vec![Forwarded { after: Duration::ZERO, bytes: bytes.to_vec() }];
        let Ok(packet) = Packet::parse(bytes, &[]) else { return unchanged() };
        if let Some((message, from)) = self.flows.message(&packet) {
            return self.take_message(&message, from, bytes);
        }
        let Some((flow, from)) = self.flows.find(&packet) else { return unchanged() };
        let actions = self.actions(&packet, flow, from);
        let number = self.trace.sent.len();
        let events = actions.iter().map(|action| format!("{action:?}")).collect();
        self.trace.sent.push(Sent { at: now, flow, from, bytes: bytes.to_vec(), events });
        let mut forwarded = self.act(&actions, number, bytes);
        let released = self.release((flow, from));
        for (sent, Forwarded { after, bytes }) in forwarded.iter().chain(&released) {
            let after = (self.latency + *after).as_nanos();
            let at = now + u64::try_from(after).unwrap_or(u64::MAX);
            self.trace.arrived.push(Arrived { at, sent: *sent, bytes: bytes.clone() });
        }
        if let Some(held) = self.held_now(&actions, number, bytes) {
            self.held.entry((flow, from)).or_default().push(held);
        }
        forwarded.extend(released);
        forwarded.into_iter().map(|(_, forwarded)| forwarded).collect()
    }

    /// Takes a message of the CM. Connections do not exist yet, so it is in no trace.
    fn take_message(&mut self, message: &CmMessage, from: Side, bytes: &[u8]) -> Vec<Forwarded> {
        let mut actions = Vec::new();
        for (index, event) in self.events.iter().enumerate() {
            if event.from != from || !event.what.matches_message(message) {
                continue;
            }
            self.counted[index] += 1;
            if event.at.is_nth(self.counted[index]) {
                self.times_applied[index] += 1;
                actions.push(event.action);
            }
        }
        let mut forwarded = self.act(&actions, CM, bytes);
        forwarded.extend(self.release((CM, from)));
        if let Some(held) = self.held_now(&actions, CM, bytes) {
            self.held.entry((CM, from)).or_default().push(held);
        }
        forwarded.into_iter().map(|(_, forwarded)| forwarded).collect()
    }

    /// Returns the actions that apply to a packet.
    fn actions(&mut self, packet: &Packet<'_>, flow: usize, from: Side) -> Vec<Action> {
        let first = self.flows.known()[flow].first_psn;
        let psn = first.distance_to(packet.bth.psn);
        let mut actions = Vec::new();
        for (index, event) in self.events.iter().enumerate() {
            if event.flow as usize != flow || event.from != from || !event.what.matches(packet) {
                continue;
            }
            self.counted[index] += 1;
            let is_due = match event.at {
                PacketSelector::Nth { .. } => event.at.is_nth(self.counted[index]),
                PacketSelector::Psn { from, to, iteration } if (from..=to).contains(&psn) => {
                    let turn = self.iterations.entry((index, psn)).or_default();
                    *turn += 1;
                    iteration == 0 || iteration == *turn
                }
                PacketSelector::Psn { .. } => false,
            };
            // Nothing can be forged from a response without an AETH.
            let is_possible = !event.action.needs_response() || packet.ext.aeth.is_some();
            if is_due && is_possible {
                self.times_applied[index] += 1;
                actions.push(event.action);
            }
        }
        actions
    }

    /// Applies `actions` to a packet.
    fn act(&self, actions: &[Action], number: usize, bytes: &[u8]) -> Vec<(usize, Forwarded)> {
        let now = |bytes: Vec<u8>| Forwarded { after: Duration::ZERO, bytes };
        let mut out = vec![now(bytes.to_vec())];
        for &action in actions {
            let each = |out: &mut Vec<Forwarded>, change: &dyn Fn(&[u8]) -> Vec<u8>| {
                out.iter_mut().for_each(|forwarded| forwarded.bytes = change(&forwarded.bytes));
            };
            match action {
                Action::Drop | Action::Reorder(_) => out.clear(),
                Action::Corrupt => each(&mut out, &change::corrupt),
                Action::Mark => each(&mut out, &change::mark),
                Action::Duplicate(count) => {
                    let copy = out.first().cloned();
                    out.extend((0..count).filter_map(|_| copy.clone()));
                }
                Action::Echo(after) => {
                    let copy = out.first().cloned();
                    out.extend(copy.map(|copy| Forwarded { after, ..copy }));
                }
                Action::Delay(time) => out.iter_mut().for_each(|forwarded| forwarded.after += time),
                Action::Truncate(count) => each(&mut out, &|bytes| change::truncate(bytes, count)),
                Action::Shorten(count) => each(&mut out, &|bytes| change::shorten(bytes, count)),
                Action::AddPsn(count) => each(&mut out, &|bytes| change::add_psn(bytes, count)),
                Action::WrongKey => each(&mut out, &change::wrong_key),
                Action::WrongAddress => each(&mut out, &change::wrong_address),
                Action::Opcode(code) => each(&mut out, &|bytes| change::opcode(bytes, code)),
                Action::NoAckRequest => each(&mut out, &change::no_ack_request),
                Action::Pkey(pkey) => each(&mut out, &|bytes| change::pkey(bytes, pkey)),
                Action::Dscp(dscp) => each(&mut out, &|bytes| change::dscp(bytes, dscp)),
                Action::Fuzz(number) => each(&mut out, &|bytes| change::fuzz(bytes, number)),
                Action::WrongQpn => each(&mut out, &change::wrong_qpn),
                Action::Forge(syndrome) => out.extend(change::forged(bytes, syndrome).map(now)),
                Action::Cnp(count) => {
                    out.extend((0..count).map(|_| now(change::cnp(bytes))));
                }
            }
        }
        out.into_iter().map(|forwarded| (number, forwarded)).collect()
    }

    fn held_now(&self, actions: &[Action], sent: usize, bytes: &[u8]) -> Option<Held> {
        let places = actions.iter().find_map(|action| match action {
            Action::Reorder(places) => Some(*places),
            _ => None,
        });
        places.map(|left| Held { sent, left, bytes: bytes.to_vec() })
    }

    /// Returns the held frames that the current packet releases.
    fn release(&mut self, direction: (usize, Side)) -> Vec<(usize, Forwarded)> {
        let Some(waiting) = self.held.get_mut(&direction) else { return Vec::new() };
        waiting.iter_mut().for_each(|held| held.left = held.left.saturating_sub(1));
        let (released, left): (Vec<_>, _) = waiting.drain(..).partition(|held| held.left == 0);
        *waiting = left;
        let forwarded = |held: Held| Forwarded { after: Duration::ZERO, bytes: held.bytes };
        released.into_iter().map(|held| (held.sent, forwarded(held))).collect()
    }

    /// For each event of the script, returns the number of packets it was applied to.
    pub fn times_applied(&self) -> &[u32] {
        &self.times_applied
    }

    /// Returns the flows.
    pub const fn flows(&self) -> &Flows {
        &self.flows
    }

    /// Returns the recording.
    pub fn into_trace(mut self) -> Trace {
        let firsts = self.flows.known().iter().map(|flow| flow.first_psn.value());
        self.trace.first_psns = (0..).zip(firsts).collect();
        self.trace
    }
}
