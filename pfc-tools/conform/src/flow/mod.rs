//! Packets to flows: the requests from one QP to another, and the answers to them.
//!
//! A packet of a connection names its destination QP only. Which answers belong to which requests is told by connection management, if its
//! messages were captured, or found out: an answer belongs to the one flow between the two addresses that waits for its PSN.

mod channel;
pub mod window;

use std::collections::BTreeMap;
use std::net::IpAddr;

use feroce_wire::{Psn, Qpn};

pub use channel::{Agreed, Channel, Mark, Message, Nak, Pending, Rnr};

/// Where packets go: what they have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Place of capture.
    pub tap: u16,
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Destination QP.
    pub qpn: Qpn,
}

/// All flows.
#[derive(Debug, Default)]
pub struct Flows {
    channels: Vec<Channel>,
    by_request: BTreeMap<Key, usize>,
    by_answer: BTreeMap<Key, usize>,
    /// The last that were asked for, of two places of capture in both directions: most packets are of these.
    recent: [Option<(Key, bool, usize)>; 4],
    /// Packets of flows that there were too many of.
    pub left_out: u64,
}

/// How many flows are kept.
const MOST: usize = 1 << 16;
/// How many flows between two addresses are looked at to find that of an answer.
const CANDIDATES: usize = 256;

/// To whom an answer belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answers {
    /// This flow.
    Flow(usize),
    /// This flow, whose answers went to another QP until now.
    OtherQp(usize),
    /// A flow of which no request was captured.
    Alone(usize),
}

impl Flows {
    /// All of them, in the order in which they were first seen.
    pub fn all(&self) -> &[Channel] {
        &self.channels
    }

    /// The same, to be changed.
    pub fn all_mut(&mut self) -> &mut [Channel] {
        &mut self.channels
    }

    /// A flow by its place.
    pub fn get(&mut self, place: usize) -> &mut Channel {
        &mut self.channels[place]
    }

    #[inline(always)] // The key stays in registers: a look at it would stall on the stores before.
    fn cached(&self, key: &Key, is_answer: bool) -> Option<usize> {
        let hit = |(known, answer, place): &(Key, bool, usize)| {
            (*answer == is_answer && known.qpn == key.qpn && known == key).then_some(*place)
        };
        self.recent.iter().flatten().find_map(hit)
    }

    fn remember(&mut self, key: Key, is_answer: bool, place: usize) {
        self.recent.rotate_right(1);
        self.recent[0] = Some((key, is_answer, place));
    }

    /// The flow of requests with `key`, a new one if there is none yet; `None` if there are too many.
    #[inline(always)] // As `cached`.
    pub fn of_request(&mut self, key: Key) -> Option<usize> {
        match self.cached(&key, false) {
            Some(place) => Some(place),
            None => self.found_or_new(key),
        }
    }

    fn found_or_new(&mut self, key: Key) -> Option<usize> {
        let place = match self.by_request.get(&key) {
            Some(&place) => place,
            None => {
                let place = self.add(Channel::new(key))?;
                self.by_request.insert(key, place);
                place
            }
        };
        self.remember(key, false, place);
        Some(place)
    }

    fn add(&mut self, channel: Channel) -> Option<usize> {
        if self.channels.len() == MOST {
            self.left_out += 1;
            return None;
        }
        self.channels.push(channel);
        Some(self.channels.len() - 1)
    }

    /// The flow of requests with `key`, if there is one.
    pub fn known_request(&self, key: &Key) -> Option<usize> {
        self.cached(key, false).or_else(|| self.by_request.get(key).copied())
    }

    /// The flow that has been found to have answers with `key`.
    pub fn bound(&self, key: &Key) -> Option<usize> {
        self.cached(key, true).or_else(|| self.by_answer.get(key).copied())
    }

    /// The flow whose requests are answered by a packet with `key` and `psn`.
    #[inline(always)] // As `cached`.
    pub fn of_answer(&mut self, key: Key, psn: Psn) -> Option<Answers> {
        match self.cached(&key, true) {
            Some(place) => Some(Answers::Flow(place)),
            None => self.found_out(key, psn),
        }
    }

    fn found_out(&mut self, key: Key, psn: Psn) -> Option<Answers> {
        let known = self.by_answer.get(&key).copied();
        if let Some(place) = known
            && !self.channels[place].is_alone()
        {
            self.remember(key, true, place);
            return Some(Answers::Flow(place));
        }
        if let Some(found) = self.search(&key, psn) {
            if let Answers::Flow(place) = found {
                self.bind(place, key.qpn);
                if let Some(alone) = known {
                    self.channels[alone].is_merged = true;
                }
            }
            return Some(found);
        }
        if let Some(place) = known {
            return Some(Answers::Alone(place));
        }
        let place = self.add(Channel::alone(key))?;
        self.by_answer.insert(key, place);
        Some(Answers::Alone(place))
    }

    /// The flow that waits for `psn`; else the only one that could.
    fn search(&self, key: &Key, psn: Psn) -> Option<Answers> {
        let Key { tap, src, dst, .. } = *key;
        let back = |qpn| Key { tap, src: dst, dst: src, qpn };
        let between = self.by_request.range(back(Qpn::masked(0))..=back(Qpn::MULTICAST));
        let mut waiting = [None; 2];
        let (mut unbound, mut count) = (None, 0);
        for (_, &place) in between.take(CANDIDATES) {
            let channel = &self.channels[place];
            if !channel.is_reliable() {
                continue;
            }
            if channel.waits_for(psn) {
                let slot = usize::from(channel.answers.is_some());
                waiting[slot] = match waiting[slot] {
                    None => Some((place, 1)),
                    Some((first, count)) => Some((first, count + 1)),
                };
            }
            count += 1;
            if channel.answers.is_none() {
                unbound = Some(place);
            }
        }
        match (waiting, unbound) {
            ([Some((place, 1)), _], _) => Some(Answers::Flow(place)),
            ([None, Some((place, 1))], None) => Some(Answers::OtherQp(place)),
            ([None, None], Some(place))
                if count == 1 && self.channels[place].may_have_sent(psn) =>
            {
                Some(Answers::Flow(place))
            }
            _ => None,
        }
    }

    /// The answers to the requests of `place` go to `qpn`.
    pub fn bind(&mut self, place: usize, qpn: Qpn) {
        let channel = &mut self.channels[place];
        let Key { tap, src, dst, .. } = channel.key;
        channel.answers = Some(qpn);
        self.by_answer.insert(Key { tap, src: dst, dst: src, qpn }, place);
        self.recent = [None; 4];
    }

    /// Begins the flow with `key` anew, for another connection of the same QP.
    pub fn begin_anew(&mut self, key: Key, answers: Qpn, agreed: Agreed) -> Option<usize> {
        let place = self.of_request(key)?;
        if let Some(old) = self.channels[place].answers {
            self.by_answer.remove(&Key { src: key.dst, dst: key.src, qpn: old, ..key });
        }
        self.channels[place].begin_anew(agreed);
        self.bind(place, answers);
        Some(place)
    }
}
