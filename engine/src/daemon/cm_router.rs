//! QP 1 of a host whose clients share it: checks the MADs that clients send, and finds the client
//! that an incoming MAD is for.
//!
//! Each client has its own `cm::Endpoint`, which executes the protocol. The [`CmRouter`] observes
//! the messages of the clients and their peers, and so knows which client each exchange belongs to.
//! An exchange is a connection, or a resolution of a service ID by SIDR. The router also answers
//! for clients that are gone. It has no socket, clock or thread, and no input makes it panic.
//!
//! | topic | file |
//! |---|---|
//! | which client receives requests for which service | `claims.rs` |
//! | the state of each exchange, and how an exchange is found | `table.rs` |
//! | MADs that clients send: checks, and changes of the exchanges | `outgoing.rs` |
//! | incoming MADs: the client, or the router's own answer | `incoming.rs` |
//! | exchanges of clients that are gone | `orphans.rs` |
//!
//! # Communication IDs
//!
//! A local communication ID (for a resolution by SIDR: a request ID) belongs to the client that
//! first sends the ID, until the exchange is forgotten. Clients choose their IDs independently. A
//! client whose ID collides with that of another client gets [`Refused::CommIdInUse`], and its
//! request times out. An endpoint XORs a counter with a random 32-bit number. Therefore two clients
//! with up to 2^k IDs each collide with a probability of about 2^(k-32).
//!
//! Both ends of a connection may be on this host. Then it is two exchanges, one per end, each with
//! its own local ID.
//!
//! # Bounds
//!
//! [`Limits`] bounds the claims and exchanges of a client, [`MAX_ORPHANS`] the exchanges of clients
//! that are gone, [`MAX_OUTBOX`] the MADs to send. An exchange takes about 400 bytes.
//!
//! # Sources
//!
//! InfiniBand Architecture Specification, volume 1, chapter 12 (communication management); Linux,
//! `drivers/infiniband/core/cm.c` and `cma.c`. Functions of the kernel are named where they decide.

mod claims;
mod incoming;
mod orphans;
mod outgoing;
mod table;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::net::IpAddr;

use feroce_wire::cm::CmMad;
use feroce_wire::{FlowSpec, IpAddresses, MAD_LEN, MadError, Qpn};

pub(crate) use claims::{Claim, ClaimError};

use super::ClientId;
use crate::cm::{CmConfig, Endpoint};
use crate::time::Instant;
use claims::Claims;
use table::{Class, Ends, Table};

/// Maximum number of exchanges of clients that are gone. Beyond it, the least recently used one is
/// forgotten, exchanges that have ended first.
pub(crate) const MAX_ORPHANS: usize = 16384;
/// Maximum number of MADs that wait for [`CmRouter::transmit`]. Further ones are dropped: peers and
/// the router repeat each message that needs a response.
pub(crate) const MAX_OUTBOX: usize = 8192;

/// Limits of one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Maximum number of distinct claims. Further ones are refused.
    pub claims: usize,
    /// Maximum number of connections and requests that the client has sent. Further REQ, REP and
    /// SIDR REQ are refused.
    pub connections: usize,
    /// Maximum number of received requests that the client has not answered. A further request
    /// replaces the least recently used one: copies of the replaced request are routed anew, and an
    /// answer to the replaced request is refused.
    pub requests: usize,
    /// Maximum number of exchanges that have ended, kept for late copies of their messages. A
    /// further one replaces the least recently used one.
    pub ended: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { claims: 1024, connections: 4096, requests: 4096, ended: 4096 }
    }
}

/// Why a client may not send a MAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    /// The client is not attached.
    #[error("the program is not attached")]
    UnknownClient,
    /// Not a message of communication management.
    #[error(transparent)]
    Malformed(#[from] MadError),
    /// The destination is a multicast group, or not the address of a host.
    #[error("a message to {0}, which is no host")]
    Destination(IpAddr),
    /// The request names a source address (GID, or address in the private data) other than that of
    /// its frame. A peer would send to that address.
    #[error("the request names a source address other than its own")]
    SourceAddress,
    /// The message names a node GUID other than that of the device. A peer would take the
    /// connection for that of another host.
    #[error("node GUID {0:#018x}, which is not that of the device")]
    Guid(u64),
    /// The message names a QP that the client does not have.
    #[error("QP {0} does not belong to the program")]
    Qpn(Qpn),
    /// The local communication ID is 0, belongs to another client, or is in use for another
    /// connection of the client.
    #[error("communication id {0:#010x} is in use or invalid")]
    CommIdInUse(u32),
    /// The message belongs to no connection of the client: its local communication ID is unknown,
    /// the peer or the peer's communication ID differ, or it answers a message that did not reach
    /// the client recently.
    #[error("no such connection: local id {local:#010x}, remote id {remote:#010x}")]
    NoConnection {
        /// Local communication ID, 0 if the message has none.
        local: u32,
        /// Communication ID of the peer.
        remote: u32,
    },
    /// The client has as many connections as it may have.
    #[error("a program may have at most {0} connections")]
    TooMany(usize),
}

/// Where an incoming MAD goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// To this client.
    Client(ClientId),
    /// To no client. The router has answered it: see [`CmRouter::transmit`].
    Answered,
    /// To no client, and without an answer.
    Dropped,
    /// To no client yet: no client claims the service of the request. Only
    /// [`CmRouter::incoming_early`] returns this; its caller presents the request again.
    Unclaimed,
}

/// A MAD that the router sends from QP 1 to the peer's QP 1, with Q_Key `Qkey::GSI`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RouterMad {
    /// Headers of the frame: those of the client's last frame to this peer about the connection, or
    /// the `reply_flow` of the message that is answered. The client's last frame may be old: a
    /// caller that knows the neighbour's present Ethernet address uses the present address.
    pub flow: FlowSpec,
    /// Bytes of the MAD.
    pub mad: [u8; MAD_LEN],
}

/// Shares QP 1 among the clients of a host: see the [module](self).
///
/// After every call with a parameter `now`, call [`CmRouter::transmit`] until it returns `None`.
/// Call [`CmRouter::expire`] at the time that [`CmRouter::next_deadline`] returns.
pub(crate) struct CmRouter {
    /// Node GUID of the device.
    guid: u64,
    random: Box<dyn FnMut() -> u32 + Send>,
    clients: BTreeMap<ClientId, Limits>,
    claims: Claims,
    table: Table,
    /// Has no listener and no connection. Answers messages that no client receives.
    endpoint: Endpoint,
    outbox: VecDeque<RouterMad>,
}

impl fmt::Debug for CmRouter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CmRouter")
            .field("clients", &self.clients)
            .field("claims", &self.claims)
            .field("table", &self.table)
            .finish_non_exhaustive()
    }
}

impl CmRouter {
    /// Makes a router without clients. `guid` is the node GUID of the device, which all its clients
    /// use. `random` supplies transaction IDs.
    pub fn new(guid: u64, mut random: impl FnMut() -> u32 + Send + 'static) -> Self {
        let operand = random();
        Self {
            guid,
            random: Box::new(random),
            clients: BTreeMap::new(),
            claims: Claims::default(),
            table: Table::default(),
            endpoint: Endpoint::new(CmConfig::default(), move || operand),
            outbox: VecDeque::new(),
        }
    }

    /// Attaches a client. A client that is attached already gets new limits.
    pub fn add_client(&mut self, client: ClientId, limits: Limits) {
        self.clients.insert(client, limits);
    }

    /// Gives requests for a service to `client`. Claims of one client never conflict with each
    /// other; its own endpoint decides about those. A claim that is made twice must be released
    /// twice.
    ///
    /// # Errors
    /// See [`ClaimError`].
    pub fn claim(&mut self, client: ClientId, claim: Claim) -> Result<(), ClaimError> {
        let limits = self.clients.get(&client).ok_or(ClaimError::UnknownClient)?;
        self.claims.add(client, claim, limits.claims)
    }

    /// Ends a claim of `client`, if it has this claim. Requests that have reached the client remain
    /// with it.
    pub fn release(&mut self, client: ClientId, claim: Claim) {
        self.claims.release(client, claim);
    }

    /// Checks a MAD that `client` asks to send from QP 1 with the headers `flow`, and updates the
    /// MAD's exchange. The caller has checked that the client may use the addresses of `flow`.
    /// `owns` returns true if a QP belongs to the client.
    ///
    /// QP 0 means "no QP" and is accepted: a REP of an XRC target and a negative SIDR REP name QP
    /// 0, and a program may connect without a QP. No client has QP 0.
    ///
    /// # Errors
    /// See [`Refused`]. A refused MAD must not be sent, and has changed nothing.
    pub fn outgoing(
        &mut self,
        client: ClientId,
        flow: &FlowSpec,
        mad: &[u8],
        owns: &dyn Fn(Qpn) -> bool,
        now: Instant,
    ) -> Result<(), Refused> {
        let limits = *self.clients.get(&client).ok_or(Refused::UnknownClient)?;
        let mad = CmMad::parse(mad)?;
        let ends = ends(flow);
        if !is_host(ends.remote) {
            return Err(Refused::Destination(ends.remote));
        }
        let sent = outgoing::Sent { client, limits, flow: *flow, ends, owns, now };
        self.check(&sent, &mad)
    }

    /// Returns where an incoming MAD goes. `mad` is the payload of a packet to QP 1 whose ICRC is
    /// right. `reply_flow` has the headers of a frame back to the sender: from the address that the
    /// MAD was sent to, to the sender's address.
    ///
    /// As with a kernel device, a request for a service that no client claims is rejected at once.
    pub fn incoming(&mut self, reply_flow: &FlowSpec, mad: &[u8], now: Instant) -> Route {
        self.incoming_or_early(reply_flow, mad, false, now)
    }

    /// As [`CmRouter::incoming`], but a request for a service that no client claims is not
    /// rejected: [`Route::Unclaimed`].
    pub fn incoming_early(&mut self, reply_flow: &FlowSpec, mad: &[u8], now: Instant) -> Route {
        self.incoming_or_early(reply_flow, mad, true, now)
    }

    fn incoming_or_early(
        &mut self,
        reply_flow: &FlowSpec,
        mad: &[u8],
        is_early: bool,
        now: Instant,
    ) -> Route {
        let ends = ends(reply_flow);
        let Ok(parsed) = CmMad::parse(mad) else { return Route::Dropped };
        if !is_host(ends.remote) || !is_host(ends.local) {
            return Route::Dropped;
        }
        let received = incoming::Received { flow: *reply_flow, ends, bytes: mad, is_early, now };
        self.route(&received, &parsed)
    }

    /// Detaches a client that has ended or has closed the device. Its claims end at once, and the
    /// router ends its exchanges towards their peers: see `orphans.rs`. For 100 s after the end of
    /// an exchange, later messages about it reach no other client.
    pub fn client_gone(&mut self, client: ClientId, now: Instant) {
        self.claims.remove_client(client);
        self.clients.remove(&client);
        self.end_exchanges(client, now);
    }

    /// Returns the next MAD that the router itself sends.
    pub fn transmit(&mut self) -> Option<RouterMad> {
        self.outbox.pop_front()
    }

    /// Handles the deadlines up to `now`: repeats DREQs, forgets exchanges.
    pub fn expire(&mut self, now: Instant) {
        while let Some(key) = self.table.due(now) {
            self.on_deadline(key, now);
        }
    }

    /// Returns when [`CmRouter::expire`] must be called next.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.table.next_deadline()
    }

    /// Counts the connections of `client`, including those being set up or ended, and its requests
    /// that await a response.
    pub fn connections(&self, client: ClientId) -> usize {
        self.table.count(Some(client), Class::Live)
    }

    /// Queues a MAD. Returns false if the outbox is full.
    fn send(&mut self, flow: FlowSpec, mad: [u8; MAD_LEN]) -> bool {
        let has_room = self.outbox.len() < MAX_OUTBOX;
        if has_room {
            self.outbox.push_back(RouterMad { flow, mad });
        }
        has_room
    }

    /// Forgets the exchanges of `client` in `class` that exceed `limit`.
    fn trim(&mut self, client: ClientId, class: Class, limit: usize) {
        while self.table.count(Some(client), class) > limit
            && let Some(oldest) = self.table.oldest(Some(client), class)
        {
            self.table.remove(oldest);
        }
    }
}

/// Returns the source and the destination address of a flow.
fn ends(flow: &FlowSpec) -> Ends {
    match flow.addresses {
        IpAddresses::V4 { src, dst } => Ends { local: src.into(), remote: dst.into() },
        IpAddresses::V6 { src, dst } => Ends { local: src.into(), remote: dst.into() },
    }
}

/// Returns true if `ip` can be the address of a host's device.
fn is_host(ip: IpAddr) -> bool {
    let is_broadcast = ip == IpAddr::V4(std::net::Ipv4Addr::BROADCAST);
    !(ip.is_multicast() || ip.is_unspecified() || ip.is_loopback() || is_broadcast)
}
