//! Communication management: the state machine of an RDMA CM endpoint.
//!
//! An [`Endpoint`] takes received MADs, commands and the time. It returns MADs to send, events, and
//! the time of its next deadline. It owns no socket, clock or thread. The caller resolves addresses
//! and routes: a command of the program starts a resolution, and the caller passes the result to
//! the endpoint.
//!
//! | topic | file |
//! |---|---|
//! | which state accepts which message | `state.rs` |
//! | options, addresses, routes; port allocation | `setup.rs`, `ports.rs` |
//! | the active side: REQ, and the messages after a REP | `active.rs` |
//! | the passive side: listening, REP, RTU | `passive.rs` |
//! | a request that arrives before its listener | `pending_req.rs` |
//! | responses for late copies of completed requests | `responses.rs` |
//! | how many accepted connections may be unconfirmed | `half_open.rs` |
//! | REJ, DREQ, DREP, timewait, destruction | `disconnect.rs` |
//! | datagrams: service ID resolution (SIDR) | `sidr.rs` |
//! | configuration ([`CmConfig`]), time codes, connection parameters | `types.rs` |
//!
//! # Calling order
//!
//! After every call that takes the time, call [`Endpoint::transmit`] and [`Endpoint::event`] until
//! both return `None`. Call [`Endpoint::expire`] at the time that [`Endpoint::next_deadline`]
//! returns.
//!
//! # Differences from Linux
//!
//! Messages, states, timers and events are those of Linux `ib_cm` and `rdma_cm`, with these
//! exceptions:
//!
//! * An identifier that the program destroys while it is connected sends its DREQ until a DREP
//!   arrives; Linux sends one DREQ. A connection that was accepted and is not yet confirmed also
//!   sends a DREQ after its REJ, because the REJ may be lost and no message answers a REJ.
//! * Responses to completed requests (REJ, SIDR REP, and the REJ of a connection in timewait) are
//!   cached for a while. A late copy of the request gets the same response, and no second
//!   connection appears. Linux keeps no responses.
//! * If the peer never confirms an accepted connection, it receives a REJ (timeout). Otherwise it
//!   would regard itself as connected.
//! * A REQ or REP that names a QP of another connection is rejected once (stale connection), and
//!   the old connection is disconnected. The rejection of a REP ends the attempt at both ends. The
//!   next attempt succeeds; in Linux it succeeds after the DREP, or after the last retry of the
//!   DREQ.
//! * A DREQ for a connection that has ended gets a DREP. Linux responds while the connection is in
//!   timewait and after it is destroyed.
//! * At most 4096 accepted connections, 2048 of one source, may wait for their RTU; the oldest is
//!   given up for a further one. Besides, a listener's backlog is the limit of each source, and all
//!   sources together have a quarter more. Linux has the backlog alone.
//! * When both sides end the connection at the same time, both respond at once. Linux responds when
//!   the identifiers are destroyed.
//! * After [`Endpoint::hold_early_requests`], a request for a port without a listener is held for a
//!   moment before it is rejected.
//! * For binding, the host's loopback address means any address ([`is_any`]), as in Linux. As a
//!   destination it means the device itself, as in Linux: the path leads from an address of the
//!   device to the same address. The request carries that address; Linux sends the loopback address
//!   and refuses such requests on RoCE.
//! * Among several listeners at a port, one bound to the exact address takes precedence over one
//!   bound to any address.

mod active;
mod conn;
mod disconnect;
mod half_open;
mod passive;
mod pending_req;
mod ports;
mod responses;
mod setup;
mod sidr;
mod state;
mod types;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use feroce_wire::cm::{CmMad, CmMessage, PortSpace};
use feroce_wire::{MAD_LEN, MadError, Psn, Qpn};

pub use ports::{ServicePort, ServiceRegistry, is_any};
use state::Phase;
pub use state::State;
pub use types::{
    CmConfig, CmError, CmId, DeviceKey, Ece, Event, EventKind, Outgoing, Parameters, Path, QpKind,
    QpParameters, Source, Status, Unresolved,
};

use crate::time::Instant;
use conn::Conn;
use half_open::HalfOpen;
use pending_req::PendingRequests;
use ports::Ports;
use responses::{CachedResponse, CompletedRequest};
use types::Resend;

/// Maximum backlog of a listener, and the backlog if the program gives none.
pub const BACKLOG_MAX: u32 = 1024;

/// An RDMA CM endpoint: see the [module](self).
pub struct Endpoint {
    config: CmConfig,
    random: Box<dyn FnMut() -> u32 + Send>,
    /// A communication ID is an identifier's number XORed with this random value.
    operand: u32,
    last: u32,
    devices: BTreeMap<DeviceKey, u64>,
    ids: BTreeMap<CmId, Conn>,
    ports: Ports,
    /// Connections by the peer's node GUID and communication ID.
    remote_ids: BTreeMap<(u64, u32), CmId>,
    /// Connections by the peer's node GUID and QP number. A QP is in at most one connection.
    remote_qps: BTreeMap<(u64, Qpn), CmId>,
    /// SIDR REQs without a response so far, by address and request ID.
    sidr_requests: BTreeMap<(IpAddr, u32), CmId>,
    responses: BTreeMap<CompletedRequest, CachedResponse>,
    /// When each cached response expires.
    response_expiry: BTreeSet<(Instant, CompletedRequest)>,
    timers: BTreeSet<(Instant, CmId)>,
    pending: PendingRequests,
    half_open: HalfOpen,
    outbox: VecDeque<Outgoing>,
    events: VecDeque<Event>,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("ids", &self.ids)
            .field("responses", &self.responses.len())
            .finish_non_exhaustive()
    }
}

/// Number of objects an endpoint holds, for tests that nothing leaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectCounts {
    /// Identifiers, including those that the program destroyed and whose connection has not
    /// ended.
    pub ids: usize,
    /// Ports in use.
    pub ports: usize,
    /// Entries about peers.
    pub peers: usize,
    /// Cached responses.
    pub cached_responses: usize,
    /// Accepted connections that the peer has not confirmed.
    pub half_open: usize,
    /// Timers set.
    pub timers: usize,
}

impl Endpoint {
    /// Makes an endpoint without devices. `random` supplies starting PSNs, communication IDs and
    /// ports.
    pub fn new(config: CmConfig, mut random: impl FnMut() -> u32 + Send + 'static) -> Self {
        let operand = random();
        Self {
            config,
            random: Box::new(random),
            operand,
            last: 0,
            devices: BTreeMap::new(),
            ids: BTreeMap::new(),
            ports: Ports::default(),
            remote_ids: BTreeMap::new(),
            remote_qps: BTreeMap::new(),
            sidr_requests: BTreeMap::new(),
            responses: BTreeMap::new(),
            response_expiry: BTreeSet::new(),
            timers: BTreeSet::new(),
            pending: PendingRequests::default(),
            half_open: HalfOpen::default(),
            outbox: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// Adds a device with its node GUID.
    pub fn add_device(&mut self, device: DeviceKey, guid: u64) {
        self.devices.insert(device, guid);
    }

    /// From now on, ports are also reserved at `registry`, which knows those of other programs that
    /// share a device. Ports of active sides are not reserved, because no one listens there.
    pub fn add_registry(&mut self, registry: Box<dyn ServiceRegistry>) {
        self.ports.add_registry(registry);
    }

    /// Removes a device. Each identifier that uses it gets [`EventKind::DeviceRemoval`] and sends
    /// no more MADs.
    pub fn remove_device(&mut self, device: DeviceKey) {
        self.devices.remove(&device);
        let through = |conn: &Conn| conn.path.is_some_and(|path| path.device == device);
        let gone: Vec<CmId> =
            self.ids.iter().filter(|(_, conn)| through(conn)).map(|(id, _)| *id).collect();
        for id in gone {
            self.push_event(id, EventKind::DeviceRemoval, Status::Success, Vec::new());
            self.reset(id);
            self.remove_if_over(id);
        }
    }

    /// Makes a new identifier.
    pub fn create(&mut self, space: PortSpace, kind: QpKind) -> CmId {
        let psn = Psn::new((self.random)());
        self.insert(Conn::new(space, kind, psn))
    }

    fn insert(&mut self, conn: Conn) -> CmId {
        loop {
            self.last = self.last.wrapping_add(1);
            let id = CmId(self.last);
            if self.comm_id(id) != 0 && !self.ids.contains_key(&id) {
                self.ids.insert(id, conn);
                return id;
            }
        }
    }

    /// Returns the communication ID of `id`.
    fn comm_id(&self, id: CmId) -> u32 {
        id.0 ^ self.operand
    }

    /// Returns the identifier with this communication ID.
    fn by_comm_id(&self, comm_id: u32) -> Option<CmId> {
        let id = CmId(comm_id ^ self.operand);
        self.ids.contains_key(&id).then_some(id)
    }

    /// Returns the connection between these communication IDs.
    fn by_comm_ids(&self, local: u32, remote: u32) -> Option<CmId> {
        let id = self.by_comm_id(local)?;
        (self.ids[&id].peer.comm_id == Some(remote)).then_some(id)
    }

    /// Returns the transaction ID of an exchange that `id` starts.
    fn new_transaction(&self, id: CmId) -> u64 {
        u64::from(self.operand) << 32 | u64::from(self.comm_id(id))
    }

    fn conn(&self, id: CmId) -> Result<&Conn, CmError> {
        self.ids.get(&id).filter(|conn| !conn.is_destroyed).ok_or(CmError::Unknown)
    }

    fn conn_mut(&mut self, id: CmId) -> Result<&mut Conn, CmError> {
        self.ids.get_mut(&id).filter(|conn| !conn.is_destroyed).ok_or(CmError::Unknown)
    }

    // Queries.

    /// Returns the local address and port, once bound.
    ///
    /// # Errors
    /// [`CmError::Unknown`].
    pub fn source(&self, id: CmId) -> Result<Option<SocketAddr>, CmError> {
        Ok(self.conn(id)?.source)
    }

    /// Returns the peer's address and port, once set.
    ///
    /// # Errors
    /// [`CmError::Unknown`].
    pub fn destination(&self, id: CmId) -> Result<Option<SocketAddr>, CmError> {
        Ok(self.conn(id)?.destination)
    }

    /// Returns the path to the peer, once resolved.
    ///
    /// # Errors
    /// [`CmError::Unknown`].
    pub fn path(&self, id: CmId) -> Result<Option<Path>, CmError> {
        Ok(self.conn(id)?.path)
    }

    /// Returns the number of identifiers that listen.
    pub fn listeners(&self) -> usize {
        let listens = |conn: &&Conn| conn.phase == Phase::Listen && !conn.is_destroyed;
        self.ids.values().filter(listens).count()
    }

    /// Returns the state of the connection.
    ///
    /// # Errors
    /// [`CmError::Unknown`].
    pub fn state(&self, id: CmId) -> Result<State, CmError> {
        Ok(self.conn(id)?.state)
    }

    /// Returns the parameters for connecting the identifier's QP.
    ///
    /// # Errors
    /// [`CmError::State`] before the peer's parameters have arrived, and after the connection.
    pub fn qp_parameters(&self, id: CmId) -> Result<QpParameters, CmError> {
        let conn = self.conn(id)?;
        let path = conn.path.filter(|_| conn.state.has_peer()).ok_or(CmError::State)?;
        Ok(QpParameters {
            kind: conn.kind,
            path,
            rq_psn: conn.local_psn,
            sq_psn: conn.peer.psn,
            ack_timeout: conn.ack_timeout,
            agreed: Parameters { qpn: conn.peer.qpn, ..conn.agreed },
        })
    }

    /// Returns the number of READs and atomics for which the QP must have responder resources
    /// before the peer's parameters have arrived. `None` before the REQ is sent.
    ///
    /// # Errors
    /// [`CmError::State`] after the connection, and for a listener.
    pub fn wanted_resources(&self, id: CmId) -> Result<Option<u8>, CmError> {
        let conn = self.conn(id)?;
        match (conn.phase, conn.state) {
            (Phase::Listen | Phase::Connect | Phase::Disconnect, state) => {
                let wanted = state.awaits_rep().then_some(conn.agreed.responder_resources);
                wanted.map(Some).ok_or(CmError::State)
            }
            _ => Ok(None),
        }
    }

    /// Counts the objects that the endpoint holds.
    pub fn object_counts(&self) -> ObjectCounts {
        ObjectCounts {
            ids: self.ids.len(),
            ports: self.ports.len(),
            peers: self.remote_ids.len() + self.remote_qps.len() + self.sidr_requests.len(),
            cached_responses: self.responses.len(),
            half_open: self.half_open.len(),
            timers: self.timers.len(),
        }
    }

    // Input and output.

    /// Processes the payload of a packet to QP 1.
    ///
    /// # Errors
    /// If it is not a well-formed CM message. Such a MAD gets no response.
    pub fn receive(&mut self, mad: &[u8], from: &Source, now: Instant) -> Result<(), MadError> {
        let bytes = mad;
        let mad = CmMad::parse(bytes)?;
        match &mad.message {
            CmMessage::Req(req) if self.hold_if_early(req.service_id, bytes, from, now) => {}
            CmMessage::SidrReq(req) if self.hold_if_early(req.service_id, bytes, from, now) => {}
            CmMessage::Req(req) => self.on_req(&mad, req, from, now),
            CmMessage::Mra(mra) => self.on_mra(mra, now),
            CmMessage::Rej(rej) => self.on_rej(rej, now),
            CmMessage::Rep(rep) => self.on_rep(&mad, rep, from, now),
            CmMessage::Rtu(rtu) => self.on_rtu(rtu),
            CmMessage::Dreq(dreq) => self.on_dreq(&mad, dreq, from, now),
            CmMessage::Drep(drep) => self.on_drep(drep, now),
            CmMessage::SidrReq(req) => self.on_sidr_req(&mad, req, from, now),
            CmMessage::SidrRep(rep) => self.on_sidr_rep(rep),
        }
        Ok(())
    }

    /// Returns the next MAD to send.
    pub fn transmit(&mut self) -> Option<Outgoing> {
        self.outbox.pop_front()
    }

    /// Returns the oldest event not taken yet.
    pub fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns when [`Endpoint::expire`] is to be called.
    pub fn next_deadline(&self) -> Option<Instant> {
        let expiry = self.response_expiry.first().map(|(until, _)| *until);
        let timers = self.timers.first().map(|(due, _)| *due);
        [expiry, timers, self.pending.due].into_iter().flatten().min()
    }

    /// Runs the work that is due at `now`: held requests, expired responses, timers.
    pub fn expire(&mut self, now: Instant) {
        if self.pending.due.is_some_and(|due| due <= now) {
            self.redeliver_pending(now);
        }
        while let Some(&(until, request)) = self.response_expiry.first()
            && until <= now
        {
            self.response_expiry.pop_first();
            self.responses.remove(&request);
        }
        while let Some(&(due, id)) = self.timers.first()
            && due <= now
        {
            self.timers.pop_first();
            if let Some(conn) = self.ids.get_mut(&id) {
                conn.armed = None;
                self.on_timer(id, now);
                self.set_timer(id);
            }
        }
    }

    fn on_timer(&mut self, id: CmId, now: Instant) {
        let Some(conn) = self.ids.get_mut(&id) else { return };
        if conn.timewait.take_if(|until| *until <= now).is_some() {
            conn.state = State::Idle;
            self.push_event(id, EventKind::TimewaitExit, Status::Success, Vec::new());
            self.remove_if_over(id);
            return;
        }
        let Some(resend) = conn.resend.as_mut().filter(|resend| resend.next() <= now) else {
            return;
        };
        let past = resend.early.iter_mut().filter(|copy| **copy <= now);
        past.for_each(|copy| *copy = Instant::FAR);
        if resend.due <= now {
            if resend.left == 0 {
                self.on_retries_exhausted(id, now);
                return;
            }
            resend.left -= 1;
            resend.due = now + resend.interval;
        }
        let mad = resend.mad;
        let outgoing = conn.outgoing(mad);
        self.outbox.extend(outgoing);
    }

    /// The last retry of a message has timed out.
    fn on_retries_exhausted(&mut self, id: CmId, now: Instant) {
        let state = self.ids[&id].state;
        match state {
            State::DreqSent => {
                self.enter_timewait(id, now);
                self.report_disconnected(id, Status::TimedOut);
            }
            state if state.awaits_rtu() => self.give_up_unconfirmed(id, now),
            _ => {
                self.push_event(id, EventKind::Unreachable, Status::TimedOut, Vec::new());
                self.reset(id);
            }
        }
        self.remove_if_over(id);
    }

    // Shared by the files of this module.

    /// Sets the timer of `id` to its deadline. Every change of state that ends the wait for an RTU
    /// changes the deadline, and therefore comes here.
    fn set_timer(&mut self, id: CmId) {
        let Some(conn) = self.ids.get_mut(&id) else { return };
        if !conn.state.awaits_rtu() {
            self.half_open.remove(id);
        }
        let deadline = conn.deadline();
        if let Some(old) = std::mem::replace(&mut conn.armed, deadline) {
            self.timers.remove(&(old, id));
        }
        self.timers.extend(deadline.map(|due| (due, id)));
    }

    /// Sends `mad` to the peer of `id` once. Returns its bytes.
    fn send(&mut self, id: CmId, mad: &CmMad) -> [u8; MAD_LEN] {
        let bytes = mad.to_bytes();
        let outgoing = self.ids.get(&id).and_then(|conn| conn.outgoing(bytes));
        self.outbox.extend(outgoing);
        bytes
    }

    /// Sends `mad` to the peer of `id`, and again until a response arrives or the retries are used
    /// up.
    fn send_with_retries(&mut self, id: CmId, mad: &CmMad, now: Instant) {
        let mad = self.send(id, mad);
        if let Some(conn) = self.ids.get_mut(&id) {
            let (interval, left) = (conn.retry.interval, conn.retry.retries);
            conn.resend = Some(Resend::new(mad, interval, left, now));
        }
        self.set_timer(id);
    }

    /// Stops retransmission: the response has arrived.
    fn stop_sending(&mut self, id: CmId) {
        if let Some(conn) = self.ids.get_mut(&id) {
            conn.resend = None;
        }
        self.set_timer(id);
    }

    /// Queues an event, unless the program has destroyed the identifier.
    fn push_event(&mut self, id: CmId, kind: EventKind, status: Status, private_data: Vec<u8>) {
        let Some(conn) = self.ids.get(&id).filter(|conn| !conn.is_destroyed) else { return };
        let listener = conn.listener.filter(|_| kind == EventKind::ConnectRequest);
        let parameters = conn.agreed;
        self.events.push_back(Event { id, listener, kind, status, parameters, private_data });
    }

    /// Forgets the peer's communication ID and QP, and stops retransmission.
    fn forget_peer(&mut self, id: CmId) {
        let Some(conn) = self.ids.get_mut(&id) else { return };
        conn.resend = None;
        let (request, sidr) = (conn.request_key(), conn.sidr_key());
        if let Some(key) = request.filter(|key| self.remote_ids.get(key) == Some(&id)) {
            self.remote_ids.remove(&key);
        }
        self.forget_remote_qp(id);
        if let Some(key) = sidr.filter(|key| self.sidr_requests.get(key) == Some(&id)) {
            self.sidr_requests.remove(&key);
        }
        self.set_timer(id);
    }

    /// Removes the QP of the peer from the connection `id`.
    fn forget_remote_qp(&mut self, id: CmId) {
        let Some(conn) = self.ids.get(&id) else { return };
        let qp = (conn.peer.guid, conn.peer.qpn);
        if self.remote_qps.get(&qp) == Some(&id) {
            self.remote_qps.remove(&qp);
        }
    }

    /// Ends the connection without timewait.
    fn reset(&mut self, id: CmId) {
        self.forget_peer(id);
        if let Some(conn) = self.ids.get_mut(&id) {
            conn.state = State::Idle;
            conn.timewait = None;
        }
        self.set_timer(id);
    }

    /// Removes an identifier that the program has destroyed, once its connection has ended.
    fn remove_if_over(&mut self, id: CmId) {
        let over = |conn: &Conn| conn.is_destroyed && matches!(conn.state, State::Idle);
        if self.ids.get(&id).is_some_and(over) {
            self.forget_peer(id);
            if let Some(due) = self.ids.remove(&id).and_then(|conn| conn.armed) {
                self.timers.remove(&(due, id));
            }
        }
    }
}

/// Returns a field of `N` bytes with `data` at offset `at`.
fn private_data<const N: usize>(at: usize, data: &[u8]) -> Result<[u8; N], CmError> {
    let mut field = [0; N];
    let too_much = CmError::PrivateData { have: data.len(), room: N - at };
    field.get_mut(at..at + data.len()).ok_or(too_much)?.copy_from_slice(data);
    Ok(field)
}

/// Returns the GID of an address; IPv4 addresses are mapped to IPv6.
fn gid(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}
