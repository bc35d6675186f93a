//! Assigns packets to flows: the requests from one QP to another, and their responses.
//!
//! Packets of different services never share a flow: a stray datagram to the QP of a connection has
//! a flow of its own.
//!
//! A packet of a connection names only its destination QP. Communication management messages, if
//! captured, show which responses belong to which requests. Otherwise a response belongs to the
//! only flow between the two addresses that expects its PSN.

mod channel;
pub mod figures;
pub mod recorder;
pub mod window;

use std::collections::BTreeMap;
use std::net::IpAddr;

use feroce_wire::{Psn, Qpn, Transport};

pub use channel::{Agreed, Channel, Mark, Message, Nak, Path, Pending, Rnr};

/// The addresses that the packets of one direction have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Capture point.
    pub tap: u16,
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Service.
    pub service: Service,
    /// Destination QP.
    pub qpn: Qpn,
}

/// The transport service of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Extended reliable connection.
    Xrc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
}

impl Service {
    /// All services.
    pub const ALL: [Self; 4] = [Self::Rc, Self::Xrc, Self::Uc, Self::Ud];

    /// Returns the service of a packet; `None` for a CNP, which belongs to no service.
    pub const fn of(transport: Transport) -> Option<Self> {
        match transport {
            Transport::Rc => Some(Self::Rc),
            Transport::Xrc => Some(Self::Xrc),
            Transport::Uc => Some(Self::Uc),
            Transport::Ud => Some(Self::Ud),
            Transport::Cnp => None,
        }
    }

    /// Returns the name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Xrc => "XRC",
            Self::Uc => "UC",
            Self::Ud => "UD",
        }
    }
}

/// The flows of a check.
#[derive(Debug, Default)]
pub struct Flows {
    channels: Vec<Channel>,
    by_request: BTreeMap<Key, usize>,
    by_response: BTreeMap<Key, usize>,
    /// The flows looked up last, for two capture points and two directions: most packets belong to
    /// these.
    recent: [Option<(Key, bool, usize)>; 4],
    /// Number of packets of flows beyond `MAX_FLOWS`.
    pub left_out: u64,
}

/// Maximum number of flows kept.
const MAX_FLOWS: usize = 1 << 16;
/// Maximum number of flows between two addresses searched for the one of a response.
const CANDIDATES: usize = 256;

/// The flow that a response belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseFlow {
    /// This flow.
    Flow(usize),
    /// This flow, but its previous responses went to another QP.
    OtherQp(usize),
    /// A flow whose requests were not captured.
    OnlyResponses(usize),
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
    fn cached(&self, key: &Key, is_response: bool) -> Option<usize> {
        let hit = |(known, response, place): &(Key, bool, usize)| {
            (*response == is_response && known.qpn == key.qpn && known == key).then_some(*place)
        };
        self.recent.iter().flatten().find_map(hit)
    }

    fn remember(&mut self, key: Key, is_response: bool, place: usize) {
        self.recent.rotate_right(1);
        self.recent[0] = Some((key, is_response, place));
    }

    /// Returns the flow of requests with `key`, creating it if necessary; `None` if there are too
    /// many flows.
    #[inline(always)] // As `cached`.
    pub fn of_request(&mut self, key: Key) -> Option<usize> {
        match self.cached(&key, false) {
            Some(place) => Some(place),
            None => self.find_or_create(key),
        }
    }

    fn find_or_create(&mut self, key: Key) -> Option<usize> {
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
        if self.channels.len() == MAX_FLOWS {
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
        self.cached(key, true).or_else(|| self.by_response.get(key).copied())
    }

    /// Returns the flow that a response with `key` and `psn` belongs to.
    #[inline(always)] // As `cached`.
    pub fn of_response(&mut self, key: Key, psn: Psn) -> Option<ResponseFlow> {
        match self.cached(&key, true) {
            Some(place) => Some(ResponseFlow::Flow(place)),
            None => self.find_response_flow(key, psn),
        }
    }

    fn find_response_flow(&mut self, key: Key, psn: Psn) -> Option<ResponseFlow> {
        let known = self.by_response.get(&key).copied();
        if let Some(place) = known
            && !self.channels[place].has_only_responses()
        {
            self.remember(key, true, place);
            return Some(ResponseFlow::Flow(place));
        }
        if let Some(found) = self.search(&key, psn) {
            if let ResponseFlow::Flow(place) = found {
                self.bind(place, key.qpn);
                if let Some(alone) = known {
                    self.channels[alone].is_merged = true;
                    // RNR NAKs count from the first one.
                    let rnr = self.channels[alone].rnr.filter(|rnr| rnr.psn == psn);
                    let channel = &mut self.channels[place];
                    channel.rnr = channel.rnr.or(rnr);
                }
            }
            return Some(found);
        }
        if let Some(place) = known {
            return Some(ResponseFlow::OnlyResponses(place));
        }
        let place = self.add(Channel::responses_only(key))?;
        self.by_response.insert(key, place);
        Some(ResponseFlow::OnlyResponses(place))
    }

    /// Returns the flow that expects `psn`, or else the only flow that could.
    fn search(&self, key: &Key, psn: Psn) -> Option<ResponseFlow> {
        let back = |qpn| Key { src: key.dst, dst: key.src, qpn, ..*key };
        let between = self.by_request.range(back(Qpn::masked(0))..=back(Qpn::MULTICAST));
        let mut waiting: [Option<(usize, u32)>; 2] = [None; 2];
        let (mut unbound, mut count) = (None, 0);
        for (_, &place) in between.take(CANDIDATES) {
            let channel = &self.channels[place];
            if channel.expects(psn) {
                // A flow of one packet may be a stray packet: it yields to a flow of several.
                let has_one = |place: usize| self.channels[place].figures.requests == 1;
                let slot = usize::from(channel.response_qpn.is_some());
                waiting[slot] = match waiting[slot] {
                    None => Some((place, 1)),
                    Some((first, _)) if has_one(first) && !has_one(place) => Some((place, 1)),
                    Some((first, count)) if has_one(place) && !has_one(first) => {
                        Some((first, count))
                    }
                    Some((first, count)) => Some((first, count + 1)),
                };
            }
            count += 1;
            if channel.response_qpn.is_none() {
                unbound = Some(place);
            }
        }
        match (waiting, unbound) {
            ([Some((place, 1)), _], _) => Some(ResponseFlow::Flow(place)),
            ([None, Some((place, 1))], None) => Some(ResponseFlow::OtherQp(place)),
            ([None, None], Some(place))
                if count == 1 && self.channels[place].may_have_sent(psn) =>
            {
                Some(ResponseFlow::Flow(place))
            }
            _ => None,
        }
    }

    /// Counts a response to the flow `place` that goes to another QP than the ones before. The QP
    /// with more responses is taken for that of the requester, unless communication management told
    /// it. Returns true if this response may be a right one.
    pub fn is_doubtful(&mut self, place: usize, qpn: Qpn) -> bool {
        let channel = &mut self.channels[place];
        if channel.is_agreed {
            return false;
        }
        let before = channel.other_qpn.filter(|&(other, _)| other == qpn);
        let count = before.map_or(0, |(_, count)| count) + 1;
        let known = channel.bound_responses;
        channel.other_qpn = Some((qpn, count));
        if count > known {
            channel.other_qpn = channel.response_qpn.map(|old| (old, known));
            channel.bound_responses = count;
            self.bind(place, qpn);
        }
        count >= known
    }

    /// Records that the responses to the requests of `place` go to `qpn`.
    pub fn bind(&mut self, place: usize, qpn: Qpn) {
        let channel = &mut self.channels[place];
        let back = |qpn| Key { src: channel.key.dst, dst: channel.key.src, qpn, ..channel.key };
        if let Some(old) = channel.response_qpn.replace(qpn) {
            self.by_response.remove(&back(old));
        }
        self.by_response.insert(back(qpn), place);
        self.recent = [None; 4];
    }

    /// Restarts the flow with `key` for a new connection of the same QP. Returns its index, and the
    /// state of the old connection.
    pub fn start_connection(
        &mut self,
        key: Key,
        response_qpn: Qpn,
        agreed: Agreed,
    ) -> Option<(usize, Channel)> {
        let place = self.of_request(key)?;
        if let Some(old) = self.channels[place].response_qpn.take() {
            self.by_response.remove(&Key { src: key.dst, dst: key.src, qpn: old, ..key });
        }
        let old = self.channels[place].start_connection(agreed);
        self.channels[place].is_agreed = true;
        self.bind(place, response_qpn);
        Some((place, old))
    }
}
