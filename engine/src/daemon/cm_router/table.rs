//! The table of exchanges: the state of each connection and each service ID resolution, with
//! indexes, deadlines and the order of last use.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use feroce_wire::cm::ServiceId;
use feroce_wire::{FlowSpec, Qpn};

use crate::daemon::ClientId;
use crate::time::{Duration, Instant};

/// Minimum time for which an exchange is remembered after its last message: as long as endpoints
/// cache responses (`CmConfig::response_cache_time`).
pub(super) const LINGER: Duration = Duration::from_secs(100);

/// Returns the duration of a time code: 4.096 us * 2^code.
pub(super) fn code_duration(code: u8) -> Duration {
    Duration::from_nanos(4096 << code.min(31))
}

/// The kind of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// A connection: REQ, REP, RTU, DREQ, DREP.
    Connection,
    /// A service ID resolution: SIDR REQ, SIDR REP.
    Sidr,
}

/// Progress of an exchange: the state of the local side according to the messages that passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// REQ or SIDR REQ sent.
    ReqSent,
    /// REQ or SIDR REQ received and not answered.
    ReqReceived,
    /// REP sent. The connection may be established already: by data that arrived before the RTU.
    RepSent,
    /// REP received.
    RepReceived,
    /// RTU sent or received.
    Established,
    /// DREQ sent, or a REP withdrawn by a REJ.
    DreqSent,
    /// DREQ received.
    DreqReceived,
    /// Ended; copies of messages may still arrive.
    Ended,
}

/// Exchanges that are limited and forgotten together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    /// Ended.
    Ended,
    /// Received requests without an answer.
    Waiting,
    /// Everything else: connections, and requests that were sent.
    Live,
}

impl Class {
    pub const ALL: [Self; 3] = [Self::Ended, Self::Waiting, Self::Live];
}

/// Addresses of the two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ends {
    pub local: IpAddr,
    pub remote: IpAddr,
}

/// Retransmission of a DREQ by the router.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Resend {
    /// Number of copies still to be sent.
    pub left: u8,
    /// Time until the next copy; doubles with each.
    pub interval: Duration,
}

/// A connection or a service ID resolution.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exchange {
    /// The client, or `None` if it is gone and the router answers for it.
    pub owner: Option<ClientId>,
    pub kind: Kind,
    /// The local side sent the request.
    pub is_active: bool,
    pub state: State,
    /// Communication ID of the local side; for a resolution, the request ID if the local side sent
    /// the request.
    pub local_id: Option<u32>,
    /// Communication ID of the peer; for a resolution, the request ID if the peer sent the request.
    pub remote_id: Option<u32>,
    pub ends: Ends,
    pub local_qpn: Qpn,
    pub remote_qpn: Qpn,
    /// The peer's node GUID.
    pub guid: u64,
    pub service: ServiceId,
    /// Transaction ID of the request.
    pub transaction: u64,
    /// Communication ID of the peer in its last DREQ.
    pub dreq_id: Option<u32>,
    /// Transaction ID of the peer's or the router's DREQ.
    pub dreq_transaction: u64,
    /// Headers of frames to the peer.
    pub flow: FlowSpec,
    /// The longer of the two response times in the REQ.
    pub timeout: Duration,
    /// When the exchange is forgotten, or the next DREQ is sent; [`Instant::FAR`] for never.
    pub deadline: Instant,
    pub resend: Resend,
}

impl Exchange {
    /// A new exchange about which nothing else is known.
    pub fn new(owner: ClientId, kind: Kind, is_active: bool, ends: Ends, flow: FlowSpec) -> Self {
        Self {
            owner: Some(owner),
            kind,
            is_active,
            state: if is_active { State::ReqSent } else { State::ReqReceived },
            local_id: None,
            remote_id: None,
            ends,
            local_qpn: Qpn::default(),
            remote_qpn: Qpn::default(),
            guid: 0,
            service: ServiceId::default(),
            transaction: 0,
            dreq_id: None,
            dreq_transaction: 0,
            flow,
            timeout: Duration::ZERO,
            deadline: Instant::FAR,
            resend: Resend::default(),
        }
    }

    pub fn class(&self) -> Class {
        match self.state {
            State::Ended => Class::Ended,
            State::ReqReceived => Class::Waiting,
            _ => Class::Live,
        }
    }

    /// Changes the state and sets the deadline of the new one. Connections have no deadline: they
    /// last until a message ends them, even if no message is sent for a long time.
    pub fn enter(&mut self, state: State, now: Instant) {
        self.state = state;
        self.deadline = self.deadline_after(now);
    }

    /// Extends the deadline, because another message has gone through.
    pub fn touch(&mut self, now: Instant) {
        self.deadline = self.deadline.max(self.deadline_after(now));
    }

    /// Extends the deadline after an MRA, which reports that a response takes up to `service_time`
    /// longer. The requester then repeats its message only after this time, and copies may be lost.
    pub fn extend(&mut self, service_time: Duration, now: Instant) {
        self.deadline = self.deadline.max(now + LINGER + service_time * 4);
    }

    fn deadline_after(&self, now: Instant) -> Instant {
        match self.state {
            State::ReqSent | State::ReqReceived | State::DreqSent => {
                now + LINGER + self.timeout * 2
            }
            State::Ended => now + LINGER,
            State::RepSent | State::RepReceived | State::Established | State::DreqReceived => {
                Instant::FAR
            }
        }
    }

    /// The key under which copies of the peer's request find the exchange.
    fn remote_key(&self) -> Option<RemoteKey> {
        Some((self.ends.remote, self.kind, self.remote_id?))
    }
}

type RemoteKey = (IpAddr, Kind, u32);
/// Place of an exchange in the order of last use.
type Rank = (Option<ClientId>, Class, u64, u64);

/// An exchange in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key(u64);

#[derive(Debug)]
struct Entry {
    exchange: Exchange,
    /// Number of its last use.
    used: u64,
}

/// The exchanges of all clients, and those of clients that are gone.
#[derive(Debug, Default)]
pub(super) struct Table {
    entries: BTreeMap<u64, Entry>,
    /// By the local communication ID. Each belongs to one exchange.
    local: BTreeMap<u32, u64>,
    /// By address and communication ID of the peer: the latest exchange with these.
    remote: BTreeMap<RemoteKey, u64>,
    order: BTreeSet<Rank>,
    counts: BTreeMap<(Option<ClientId>, Class), usize>,
    deadlines: BTreeSet<(Instant, u64)>,
    last: u64,
}

impl Table {
    /// Adds an exchange. Its local communication ID is unused.
    pub fn insert(&mut self, exchange: Exchange) -> Key {
        self.last += 1;
        let key = self.last;
        if let Some(remote) = exchange.remote_key() {
            self.remote.remove(&remote);
        }
        self.link(key, exchange);
        Key(key)
    }

    /// Returns an exchange.
    pub fn get(&self, key: Key) -> Option<&Exchange> {
        self.entries.get(&key.0).map(|entry| &entry.exchange)
    }

    /// Changes an exchange, which thereby is the last one used.
    pub fn update(&mut self, key: Key, change: impl FnOnce(&mut Exchange)) {
        let Some(mut exchange) = self.remove(key) else { return };
        change(&mut exchange);
        self.link(key.0, exchange);
    }

    /// Removes an exchange.
    pub fn remove(&mut self, key: Key) -> Option<Exchange> {
        let key = key.0;
        let Entry { exchange, used } = self.entries.remove(&key)?;
        if let Some(id) = exchange.local_id {
            self.local.remove(&id);
        }
        if let Some(remote) = exchange.remote_key().filter(|at| self.remote.get(at) == Some(&key)) {
            self.remote.remove(&remote);
        }
        let (owner, class) = (exchange.owner, exchange.class());
        self.order.remove(&(owner, class, used, key));
        self.deadlines.remove(&(exchange.deadline, key));
        if let Some(count) = self.counts.get_mut(&(owner, class)) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&(owner, class));
            }
        }
        Some(exchange)
    }

    fn link(&mut self, key: u64, exchange: Exchange) {
        self.last += 1;
        let used = self.last;
        if let Some(id) = exchange.local_id {
            self.local.insert(id, key);
        }
        if let Some(remote) = exchange.remote_key() {
            self.remote.entry(remote).or_insert(key);
        }
        let (owner, class) = (exchange.owner, exchange.class());
        self.order.insert((owner, class, used, key));
        if exchange.deadline < Instant::FAR {
            self.deadlines.insert((exchange.deadline, key));
        }
        *self.counts.entry((owner, class)).or_default() += 1;
        self.entries.insert(key, Entry { exchange, used });
    }

    /// Returns the exchange with this local communication ID.
    pub fn by_local(&self, id: u32) -> Option<(Key, &Exchange)> {
        let key = Key(*self.local.get(&id)?);
        Some((key, self.get(key)?))
    }

    /// Returns the latest exchange with this address and communication ID of the peer.
    pub fn by_remote(&self, ip: IpAddr, kind: Kind, id: u32) -> Option<(Key, &Exchange)> {
        let key = Key(*self.remote.get(&(ip, kind, id))?);
        Some((key, self.get(key)?))
    }

    /// Counts the exchanges of `owner` in `class`.
    pub fn count(&self, owner: Option<ClientId>, class: Class) -> usize {
        self.counts.get(&(owner, class)).copied().unwrap_or(0)
    }

    /// Returns the exchange of `owner` in `class` that has not been used for the longest time.
    pub fn oldest(&self, owner: Option<ClientId>, class: Class) -> Option<Key> {
        self.of(owner, class).next()
    }

    /// Returns the exchanges of `owner` in `class`, in the order of last use.
    pub fn of(&self, owner: Option<ClientId>, class: Class) -> impl Iterator<Item = Key> {
        let (first, last) = ((owner, class, 0, 0), (owner, class, u64::MAX, u64::MAX));
        self.order.range(first..=last).map(|(.., key)| Key(*key))
    }

    /// Returns an exchange whose deadline is not after `now`.
    pub fn due(&self, now: Instant) -> Option<Key> {
        let (due, key) = self.deadlines.first()?;
        (*due <= now).then_some(Key(*key))
    }

    /// Returns the earliest deadline.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(due, _)| *due)
    }
}

#[cfg(test)]
impl Table {
    /// Checks that indexes, counts and deadlines are those of the exchanges.
    pub fn check(&self) {
        let count: usize = self.counts.values().sum();
        assert_eq!((self.entries.len(), self.order.len()), (count, count));
        for (&key, Entry { exchange, used }) in &self.entries {
            let (owner, class) = (exchange.owner, exchange.class());
            assert!(self.order.contains(&(owner, class, *used, key)), "{exchange:?}");
            if let Some(id) = exchange.local_id {
                assert_eq!(self.local.get(&id), Some(&key), "{exchange:?}");
            }
            let is_timed = exchange.deadline < Instant::FAR;
            assert_eq!(self.deadlines.contains(&(exchange.deadline, key)), is_timed);
        }
        let ids = self.entries.values().filter(|entry| entry.exchange.local_id.is_some());
        assert_eq!(self.local.len(), ids.count());
        let timed = self.entries.values().filter(|entry| entry.exchange.deadline < Instant::FAR);
        assert_eq!(self.deadlines.len(), timed.count());
        for (remote, key) in &self.remote {
            assert_eq!(self.entries[key].exchange.remote_key(), Some(*remote));
        }
    }

    /// Number of exchanges.
    pub fn len(&self) -> usize {
        self.entries.len()
    }
}
