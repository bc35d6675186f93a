//! Assigns packets to flows: the requests from one QP to another, and their responses.
//!
//! A packet of a connection names only its destination QP. Connection management messages, if
//! captured, tell which responses belong to which requests. Otherwise a response belongs to the
//! only flow between the two addresses that expects its PSN.

mod channel;
pub mod figures;
pub mod recorder;
pub mod window;

use std::collections::BTreeMap;
use std::net::IpAddr;

use feroce_wire::{Psn, Qpn};

pub use channel::{Agreed, Channel, Mark, Message, Nak, Pending, Rnr};

/// The addresses that the packets of one direction have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Capture point.
    pub tap: u16,
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Destination QP.
    pub qpn: Qpn,
}

/// The flows of a check.
#[derive(Debug, Default)]
pub struct Flows {
    channels: Vec<Channel>,
    by_request: BTreeMap<Key, usize>,
    by_answer: BTreeMap<Key, usize>,
    /// The flows looked up last, for two capture points and two directions: most packets belong to
    /// these.
    recent: [Option<(Key, bool, usize)>; 4],
    /// Number of packets of flows beyond [`MOST`].
    pub left_out: u64,
}

/// The most flows kept.
const MOST: usize = 1 << 16;
/// The most flows between two addresses searched for the one of a response.
const CANDIDATES: usize = 256;

/// The flow that a response belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answers {
    /// This flow.
    Flow(usize),
    /// This flow, but its previous responses went to another QP.
    OtherQp(usize),
    /// A flow whose requests were not captured.
    Alone(usize),
}

impl Flows {
    /// Returns all flows, in the order of their first packets.
    pub fn all(&self) -> &[Channel] {
        &self.channels
    }

    /// Returns all flows, to be changed.
    pub fn all_mut(&mut self) -> &mut [Channel] {
        &mut self.channels
    }

    /// Returns a flow by its index.
    pub fn get(&mut self, place: usize) -> &mut Channel {
        &mut self.channels[place]
    }

    #[inline(always)] // Keeps the key in registers; reading it back would stall on recent stores.
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

    /// Returns the flow of requests with `key`, creating it if necessary; `None` if there are too
    /// many flows.
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

    /// Returns the flow of requests with `key`, if it exists.
    pub fn known_request(&self, key: &Key) -> Option<usize> {
        self.cached(key, false).or_else(|| self.by_request.get(key).copied())
    }

    /// Returns the flow whose responses are known to have `key`.
    pub fn bound(&self, key: &Key) -> Option<usize> {
        self.cached(key, true).or_else(|| self.by_answer.get(key).copied())
    }

    /// Returns the flow that a response with `key` and `psn` belongs to.
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

    /// Returns the flow that expects `psn`, or else the only flow that could.
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

    /// Records that the responses to the requests of `place` go to `qpn`.
    pub fn bind(&mut self, place: usize, qpn: Qpn) {
        let channel = &mut self.channels[place];
        let Key { tap, src, dst, .. } = channel.key;
        channel.answers = Some(qpn);
        self.by_answer.insert(Key { tap, src: dst, dst: src, qpn }, place);
        self.recent = [None; 4];
    }

    /// Restarts the flow with `key` for a new connection of the same QP.
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
