//! Connection management: an endpoint of RDMA CM as a value.
//!
//! An [`Endpoint`] eats MADs, commands and the time, and gives MADs to send, events, and when it wants to be called again. It owns no
//! socket, clock or thread; resolving addresses is somebody else's, who is told what to resolve by the program's command and tells
//! the endpoint how it went.
//!
//! | question | file |
//! |---|---|
//! | which message is for which state? | `state.rs` |
//! | what is set, and found, before? who gets a port? | `setup.rs`, `ports.rs` |
//! | how is a connection asked for? | `active.rs` |
//! | who is asked, and what is answered? | `passive.rs`; ahead of its listener: `pending_req.rs` |
//! | how does it end? | `disconnect.rs` |
//! | and datagrams? | `sidr.rs` |
//! | what is set, for how long? | `types.rs`: [`CmConfig`], codes of time |
//!
//! # Order
//!
//! After every call that takes the time, [`Endpoint::transmit`] and [`Endpoint::event`] are called until they give `None`, and
//! [`Endpoint::next_deadline`] says when [`Endpoint::expire`] has something to do.
//!
//! # What differs from Linux
//!
//! Messages, states, timers and events are those of Linux' `ib_cm` and `rdma_cm`, but for this:
//!
//! * An identifier that the program destroys while connected goes on sending its DREQ until it is answered: Linux sends one. One that
//!   is accepted and not confirmed sends its DREQ, too, after the REJ: that may be lost, and nobody answers it.
//! * Answers to requests that are over (REJ, SIDR REP, and that a connection is in timewait) are kept for a while: a copy of the
//!   request that comes late gets the same answer, and no second connection appears. Linux forgets them.
//! * If an accepted connection is never confirmed, its peer is told (REJ, timeout): else it would believe to be connected.
//! * A DREQ for a connection that is over is answered: Linux answers while it is in timewait, and once it is destroyed.
//! * When both sides end the connection at once, both answer at once: Linux answers when the identifiers are destroyed.
//! * Where it is told so ([`Endpoint::keep_early`]), requests for a port wait a moment for a listener, and are refused then.
//! * The host's loopback is any address to bind to ([`is_any`]), as in Linux; none to connect to: Linux resolves it to the host itself.
//! * Among several listeners at a port the one with the very address goes before one with any.

mod active;
mod conn;
mod pending_req;
mod disconnect;
mod passive;
mod ports;
mod sidr;
mod setup;
mod state;
mod types;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use feroce_wire::cm::{CmMad, CmMessage, PortSpace};
use feroce_wire::{MAD_LEN, MadError, Psn, Qpn};

pub use ports::is_any;
use state::Phase;
pub use state::State;
pub use types::{
    CmConfig, CmError, CmId, DeviceKey, Ece, Event, EventKind, Outgoing, Parameters, Path, QpKind,
    QpParameters, Source, Status, Unresolved,
};

use crate::time::{Duration, Instant};
use conn::Conn;
use pending_req::Early;
use ports::Ports;
use types::{Resend, lasts};

/// Most requests that wait at a listener, and as many as wait if the program does not say.
pub const BACKLOG_MAX: u32 = 1024;

/// A request that is over, by what its copies are known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Over {
    /// A REQ: node GUID and communication id.
    Request(u64, u32),
    /// A SIDR REQ: address and request id.
    Question(IpAddr, u32),
}

/// What copies of a request that is over are answered.
#[derive(Clone, Copy, Debug)]
struct Answered {
    until: Instant,
    answer: Outgoing,
}

/// An endpoint of RDMA CM: see the [module](self).
pub struct Endpoint {
    config: CmConfig,
    random: Box<dyn FnMut() -> u32 + Send>,
    /// What a number is mixed with, to be a communication id.
    operand: u32,
    last: u32,
    devices: BTreeMap<DeviceKey, u64>,
    ids: BTreeMap<CmId, Conn>,
    ports: Ports,
    /// Conversations by the peer's node GUID and communication id.
    remote_ids: BTreeMap<(u64, u32), CmId>,
    /// Conversations by the peer's node GUID and QP: a QP is in one only.
    remote_qps: BTreeMap<(u64, Qpn), CmId>,
    /// Questions that are not answered yet.
    questions: BTreeMap<(IpAddr, u32), CmId>,
    answered: BTreeMap<Over, Answered>,
    /// When answers are forgotten.
    kept_until: BTreeSet<(Instant, Over)>,
    timers: BTreeSet<(Instant, CmId)>,
    early: Early,
    outbox: VecDeque<Outgoing>,
    events: VecDeque<Event>,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("ids", &self.ids)
            .field("answered", &self.answered.len())
            .finish_non_exhaustive()
    }
}

/// What an endpoint holds: for tests that nothing is left behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holds {
    /// Identifiers, those included that the program has destroyed and that are not over.
    pub ids: usize,
    /// Ports in use.
    pub ports: usize,
    /// Entries about peers.
    pub peers: usize,
    /// Answers kept.
    pub answered: usize,
    /// Timers set.
    pub timers: usize,
}

impl Endpoint {
    /// An endpoint without devices. `random` gives starting PSNs, communication ids and ports.
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
            questions: BTreeMap::new(),
            answered: BTreeMap::new(),
            kept_until: BTreeSet::new(),
            timers: BTreeSet::new(),
            early: Early::default(),
            outbox: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// Adds a device with its node GUID.
    pub fn add_device(&mut self, device: DeviceKey, guid: u64) {
        self.devices.insert(device, guid);
    }

    /// Takes a device away: everything that goes through it is told so and says nothing any more.
    pub fn remove_device(&mut self, device: DeviceKey) {
        self.devices.remove(&device);
        let through = |conn: &Conn| conn.path.is_some_and(|path| path.device == device);
        let gone: Vec<CmId> =
            self.ids.iter().filter(|(_, conn)| through(conn)).map(|(id, _)| *id).collect();
        for id in gone {
            self.tell(id, EventKind::DeviceRemoval, Status::Success, Vec::new());
            self.reset(id);
            self.bury(id);
        }
    }

    /// A new identifier.
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

    /// Its name in messages.
    fn comm_id(&self, id: CmId) -> u32 {
        id.0 ^ self.operand
    }

    /// Whose name in messages it is.
    fn by_comm_id(&self, comm_id: u32) -> Option<CmId> {
        let id = CmId(comm_id ^ self.operand);
        self.ids.contains_key(&id).then_some(id)
    }

    /// The conversation that `local` and `remote` are the names of.
    fn by_comm_ids(&self, local: u32, remote: u32) -> Option<CmId> {
        let id = self.by_comm_id(local)?;
        (self.ids[&id].peer.comm_id == Some(remote)).then_some(id)
    }

    /// Names an exchange that it begins.
    fn new_transaction(&self, id: CmId) -> u64 {
        u64::from(self.operand) << 32 | u64::from(self.comm_id(id))
    }

    fn conn(&self, id: CmId) -> Result<&Conn, CmError> {
        self.ids.get(&id).filter(|conn| !conn.orphan).ok_or(CmError::Unknown)
    }

    fn conn_mut(&mut self, id: CmId) -> Result<&mut Conn, CmError> {
        self.ids.get_mut(&id).filter(|conn| !conn.orphan).ok_or(CmError::Unknown)
    }

    // What is known.

    /// Own address and port, once bound.
    ///
    /// # Errors
    /// [`CmError::Unknown`].
    pub fn source(&self, id: CmId) -> Result<Option<SocketAddr>, CmError> {
        Ok(self.conn(id)?.source)
    }

    /// The peer's.
    ///
    /// # Errors
    /// [`CmError::Unknown`].
    pub fn destination(&self, id: CmId) -> Result<Option<SocketAddr>, CmError> {
        Ok(self.conn(id)?.destination)
    }

    /// The way to the peer, once known.
    ///
    /// # Errors
    /// [`CmError::Unknown`].
    pub fn path(&self, id: CmId) -> Result<Option<Path>, CmError> {
        Ok(self.conn(id)?.path)
    }

    /// How far its conversation has come.
    ///
    /// # Errors
    /// [`CmError::Unknown`].
    pub fn state(&self, id: CmId) -> Result<State, CmError> {
        Ok(self.conn(id)?.state)
    }

    /// What its QP is set to, to be connected.
    ///
    /// # Errors
    /// [`CmError::State`] before the peer has said its part, and after the end.
    pub fn qp_parameters(&self, id: CmId) -> Result<QpParameters, CmError> {
        let conn = self.conn(id)?;
        let path = conn.path.filter(|_| conn.state.has_peer()).ok_or(CmError::State)?;
        Ok(QpParameters {
            kind: conn.kind,
            path,
            remote_qpn: conn.peer.qpn,
            rq_psn: conn.local_psn,
            sq_psn: conn.peer.psn,
            responder_resources: conn.agreed.responder_resources,
            initiator_depth: conn.agreed.initiator_depth,
            retry_count: conn.agreed.retry_count,
            rnr_retry_count: conn.agreed.rnr_retry_count,
            ack_timeout: conn.ack_timeout,
        })
    }

    /// Before the peer has said its part: how many READs and atomics its QP shall answer at a time; `None` if nobody was asked yet.
    ///
    /// # Errors
    /// [`CmError::State`] after the end, and of a listener.
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

    /// What it holds.
    pub fn holds(&self) -> Holds {
        Holds {
            ids: self.ids.len(),
            ports: self.ports.len(),
            peers: self.remote_ids.len() + self.remote_qps.len() + self.questions.len(),
            answered: self.answered.len(),
            timers: self.timers.len(),
        }
    }

    // In and out.

    /// Takes the payload of a packet to QP 1.
    ///
    /// # Errors
    /// That it is no message of communication management; it is not answered.
    pub fn receive(&mut self, mad: &[u8], from: &Source, now: Instant) -> Result<(), MadError> {
        let bytes = mad;
        let mad = CmMad::parse(bytes)?;
        match &mad.message {
            CmMessage::Req(req) if self.keep_if_early(req.service_id, bytes, from, now) => {}
            CmMessage::SidrReq(ask) if self.keep_if_early(ask.service_id, bytes, from, now) => {}
            CmMessage::Req(req) => self.on_req(&mad, req, from, now),
            CmMessage::Mra(mra) => self.on_mra(mra, now),
            CmMessage::Rej(rej) => self.on_rej(rej, now),
            CmMessage::Rep(rep) => self.on_rep(&mad, rep, from, now),
            CmMessage::Rtu(rtu) => self.on_rtu(rtu),
            CmMessage::Dreq(dreq) => self.on_dreq(&mad, dreq, from, now),
            CmMessage::Drep(drep) => self.on_drep(drep, now),
            CmMessage::SidrReq(ask) => self.on_question(&mad, ask, from, now),
            CmMessage::SidrRep(answer) => self.on_answer(answer),
        }
        Ok(())
    }

    /// The next MAD to be sent.
    pub fn transmit(&mut self) -> Option<Outgoing> {
        self.outbox.pop_front()
    }

    /// The oldest event not taken yet.
    pub fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Endpoint::expire`] has something to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        let answers = self.kept_until.first().map(|(until, _)| *until);
        let timers = self.timers.first().map(|(due, _)| *due);
        [answers, timers, self.early.due].into_iter().flatten().min()
    }

    /// Does what is due at the time `now`.
    pub fn expire(&mut self, now: Instant) {
        if self.early.due.is_some_and(|due| due <= now) {
            self.retry_early(now);
        }
        while let Some(&(until, request)) = self.kept_until.first()
            && until <= now
        {
            self.kept_until.pop_first();
            self.answered.remove(&request);
        }
        while let Some(&(due, id)) = self.timers.first()
            && due <= now
        {
            self.timers.pop_first();
            if let Some(conn) = self.ids.get_mut(&id) {
                conn.armed = None;
                self.on_timer(id, now);
                self.arm(id);
            }
        }
    }

    fn on_timer(&mut self, id: CmId, now: Instant) {
        let Some(conn) = self.ids.get_mut(&id) else { return };
        if conn.timewait.take_if(|until| *until <= now).is_some() {
            conn.state = State::Idle;
            self.tell(id, EventKind::TimewaitExit, Status::Success, Vec::new());
            self.bury(id);
            return;
        }
        let Some(resend) = conn.resend.as_mut().filter(|resend| resend.due <= now) else { return };
        if resend.left == 0 {
            self.on_silence(id, now);
            return;
        }
        resend.left -= 1;
        resend.due = now + resend.interval;
        let mad = resend.mad;
        let outgoing = conn.outgoing(mad);
        self.outbox.extend(outgoing);
    }

    /// A message was sent as often as may be, and nobody answered.
    fn on_silence(&mut self, id: CmId, now: Instant) {
        let state = self.ids[&id].state;
        match state {
            State::DreqSent => {
                self.enter_timewait(id, now);
                self.tell_disconnected(id, Status::TimedOut);
            }
            _ => {
                if state.awaits_rtu() {
                    self.send_rej_timeout(id);
                }
                self.tell(id, EventKind::Unreachable, Status::TimedOut, Vec::new());
                self.reset(id);
                if state.awaits_rtu() {
                    self.keep_over(id, now + self.kept(id));
                }
            }
        }
        self.bury(id);
    }

    // Shared by the parts.

    /// Sets the timer of `id` to its deadline.
    fn arm(&mut self, id: CmId) {
        let Some(conn) = self.ids.get_mut(&id) else { return };
        let deadline = conn.deadline();
        if let Some(old) = std::mem::replace(&mut conn.armed, deadline) {
            self.timers.remove(&(old, id));
        }
        self.timers.extend(deadline.map(|due| (due, id)));
    }

    /// Sends `mad` to the peer of `id`, once.
    fn send(&mut self, id: CmId, mad: &CmMad) -> [u8; MAD_LEN] {
        let bytes = mad.to_bytes();
        let outgoing = self.ids.get(&id).and_then(|conn| conn.outgoing(bytes));
        self.outbox.extend(outgoing);
        bytes
    }

    /// Sends `mad` to the peer of `id` until it is answered, or too often.
    fn send_until_answered(&mut self, id: CmId, mad: &CmMad, now: Instant) {
        let mad = self.send(id, mad);
        if let Some(conn) = self.ids.get_mut(&id) {
            let (interval, left) = (conn.patience.interval, conn.patience.retries);
            conn.resend = Some(Resend { mad, interval, left, due: now + interval });
        }
        self.arm(id);
    }

    /// The answer has come.
    fn stop_sending(&mut self, id: CmId) {
        if let Some(conn) = self.ids.get_mut(&id) {
            conn.resend = None;
        }
        self.arm(id);
    }

    /// Tells the program, unless it has destroyed the identifier.
    fn tell(&mut self, id: CmId, kind: EventKind, status: Status, private_data: Vec<u8>) {
        let Some(conn) = self.ids.get(&id).filter(|conn| !conn.orphan) else { return };
        let listener = conn.listener.filter(|_| kind == EventKind::ConnectRequest);
        let parameters = conn.agreed;
        self.events.push_back(Event { id, listener, kind, status, parameters, private_data });
    }

    /// Nothing is known of the peer's QP any more, and nothing is sent.
    fn forget_peer(&mut self, id: CmId) {
        let Some(conn) = self.ids.get_mut(&id) else { return };
        conn.resend = None;
        let (request, question) = (conn.request_key(), conn.question_key());
        let qp = (conn.peer.guid, conn.peer.qpn);
        if let Some(key) = request.filter(|key| self.remote_ids.get(key) == Some(&id)) {
            self.remote_ids.remove(&key);
        }
        if self.remote_qps.get(&qp) == Some(&id) {
            self.remote_qps.remove(&qp);
        }
        if let Some(key) = question.filter(|key| self.questions.get(key) == Some(&id)) {
            self.questions.remove(&key);
        }
        self.arm(id);
    }

    /// The conversation is over, and nothing of it can be under way.
    fn reset(&mut self, id: CmId) {
        self.forget_peer(id);
        if let Some(conn) = self.ids.get_mut(&id) {
            conn.state = State::Idle;
            conn.timewait = None;
        }
        self.arm(id);
    }

    /// Removes what the program has destroyed, once it is over.
    fn bury(&mut self, id: CmId) {
        let over = |conn: &Conn| conn.orphan && matches!(conn.state, State::Idle);
        if self.ids.get(&id).is_some_and(over) {
            self.forget_peer(id);
            if let Some(due) = self.ids.remove(&id).and_then(|conn| conn.armed) {
                self.timers.remove(&(due, id));
            }
        }
    }

    /// How long copies of its request may still come. A peer that was told to wait asks rarely, and some of that may get lost.
    fn kept(&self, id: CmId) -> Duration {
        match self.ids.get(&id) {
            Some(conn) if conn.has_stood => self.config.copies_kept,
            Some(conn) if conn.is_slow => {
                self.config.answer_kept + lasts(self.config.service_timeout) * 4
            }
            _ => self.config.answer_kept,
        }
    }

    /// Keeps `answer` for copies of a request.
    fn keep_answer(&mut self, request: Over, answer: Option<Outgoing>, until: Instant) {
        let Some(answer) = answer else { return };
        if let Some(old) = self.answered.insert(request, Answered { until, answer }) {
            self.kept_until.remove(&(old.until, request));
        }
        self.kept_until.insert((until, request));
    }

    /// Answers a copy of a request that is over. True if it is one.
    fn answer_again(&mut self, request: Over, now: Instant) -> bool {
        let Some(answered) = self.answered.get_mut(&request) else { return false };
        self.kept_until.remove(&(answered.until, request));
        answered.until = answered.until.max(now + self.config.answer_kept);
        self.kept_until.insert((answered.until, request));
        self.outbox.push_back(answered.answer);
        true
    }
}

/// `data` at the front of a field of `N` bytes.
fn private_data<const N: usize>(at: usize, data: &[u8]) -> Result<[u8; N], CmError> {
    let mut field = [0; N];
    let too_much = CmError::PrivateData { have: data.len(), room: N - at };
    field.get_mut(at..at + data.len()).ok_or(too_much)?.copy_from_slice(data);
    Ok(field)
}

/// A GID of an address: IPv4 is mapped.
fn gid(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}
