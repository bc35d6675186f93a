//! The control socket: programs attach, and request resources (QP numbers, paths, connections,
//! groups, ports of RDMA CM).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, PoisonError};

use feroce_wire::Qpn;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::net::SocketFlags;

use super::client::{Client, ClientId, Credentials};
use super::host;
use super::paths::PathRequest;
use super::shared::Shared;
use crate::core::SLICE;
use crate::device::join_kernel;
use crate::memory::bell::{Bell, RemoteBell};
use crate::memory::frame_ring::{FrameConsumer, FrameProducer, RingShape};
use crate::memory::shared_memory::SharedMemory;
use crate::net::Gid;
use crate::pool::Pool;
use crate::port::daemon::channel;
use crate::port::daemon::protocol::{
    Answer, Attached, Call, Local, Message, PathRefusal, Refusal, Request, VERSION,
};
use crate::sys;
use crate::time::{Duration, Instant};

/// Slots of the ring from a client to the switch.
const TX_SLOTS: usize = 512;
/// Slots of the ring from the switch to a client. Frames of the same host may fill half of it. READ
/// responses have no window, so this half must hold a whole READ: 8 MiB at path MTU 4096.
const RX_SLOTS: usize = 4096;
/// Maximum number of newcomers: programs that have connected and not yet attached.
const NEWCOMERS: usize = 128;
/// Time for a program to attach once it has connected.
const ATTACH_WITHIN: Duration = Duration::from_secs(5);
/// Interval at which clients are checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum time to wait for the next hop of a path.
const RESOLVE_MAX: Duration = Duration::from_secs(30);
/// Maximum number of threads that wait for next hops.
const RESOLVERS: usize = 64;
/// Maximum number of paths of one user that wait for their next hops.
const RESOLVING: usize = 16;
/// Maximum number of multicast groups of one user. The filters of ports have room for 256
/// addresses.
const GROUPS: usize = 64;
/// Maximum number of drains of a client that has ended, a millisecond apart.
const DRAIN_ATTEMPTS: u32 = 5;

/// A program at the other end of a socket: a newcomer or a client.
#[derive(Debug)]
struct Program {
    socket: Arc<OwnedFd>,
    credentials: Credentials,
    since: Instant,
    /// The program's number, once it is attached.
    client: Option<ClientId>,
    /// Number of multicast groups that the program has joined.
    groups: usize,
    /// The memory of the program's rings, until the program has mapped it.
    memory: Option<Arc<SharedMemory>>,
}

/// Resources in use by a user.
#[derive(Debug, Default)]
struct Usage {
    clients: u32,
    /// Number of multicast groups of the user's clients.
    groups: usize,
}

/// The thread that serves the control socket.
#[derive(Debug)]
pub(super) struct Control {
    shared: Arc<Shared>,
    listener: OwnedFd,
    programs: BTreeMap<RawFd, Program>,
    users: BTreeMap<u32, Usage>,
    /// Key: user. The reference count minus 1 is the number of paths that wait for a next hop: each
    /// such path holds a reference, and this table holds one.
    resolving: BTreeMap<u32, Arc<()>>,
    /// The host's memberships in the groups of the clients. `None` if the port has no address
    /// filter.
    memberships: BTreeMap<IpAddr, Option<UdpSocket>>,
    resolvers: Arc<Pool>,
    /// Time of the current turn.
    now: Instant,
    checked_at: Instant,
    /// The listener is not polled before this time, because accepting failed. Without a free
    /// descriptor, the listener would stay readable.
    accepts_at: Instant,
    /// The sockets of the last wait, and which of them are readable.
    polled: Vec<libc::pollfd>,
    /// Receive buffer for one message.
    buffer: Vec<u8>,
}

impl Control {
    pub(super) fn new(shared: Arc<Shared>, listener: OwnedFd) -> Self {
        let now = shared.now();
        Self {
            shared,
            listener,
            programs: BTreeMap::new(),
            users: BTreeMap::new(),
            resolving: BTreeMap::new(),
            memberships: BTreeMap::new(),
            resolvers: Arc::new(Pool::new("feroce-paths", RESOLVERS)),
            now,
            checked_at: now,
            accepts_at: now,
            polled: Vec::new(),
            buffer: Vec::new(),
        }
    }

    /// Serves until the daemon ends.
    pub(super) fn run(mut self) {
        while !self.shared.is_stopping() {
            self.wait(CHECK_INTERVAL);
            self.turn(self.shared.now());
        }
        let programs: Vec<RawFd> = self.programs.keys().copied().collect();
        programs.into_iter().for_each(|fd| self.detach(fd, "the daemon ends"));
    }

    /// Waits until a socket is readable, at most for `timeout`.
    pub(super) fn wait(&mut self, timeout: Duration) {
        let mut fds = vec![self.shared.wake_control.as_fd().as_raw_fd()];
        if self.now >= self.accepts_at {
            fds.push(self.listener.as_raw_fd());
        }
        fds.extend(self.programs.keys());
        sys::poll_readable(&fds, &mut self.polled, Some(timeout));
    }

    /// Serves the sockets that [`Self::wait`] found readable, one message each. Checks the clients
    /// every [`CHECK_INTERVAL`].
    pub(super) fn turn(&mut self, now: Instant) {
        self.now = now;
        let polled = self.polled.iter();
        let ready: Vec<RawFd> = polled.filter(|fd| fd.revents != 0).map(|fd| fd.fd).collect();
        for fd in ready {
            if fd == self.listener.as_raw_fd() {
                self.accept();
            } else if self.programs.contains_key(&fd) {
                self.serve(fd);
            }
        }
        if now.saturating_since(self.checked_at) >= CHECK_INTERVAL {
            self.checked_at = now;
            self.check(now);
        }
    }

    fn accept(&mut self) {
        let newcomers = self.programs.values().filter(|program| program.client.is_none());
        if newcomers.count() >= NEWCOMERS {
            self.evict_newcomer();
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = match rustix::net::accept_with(&self.listener, flags) {
            Ok(socket) => socket,
            Err(error) => {
                tracing::debug!(%error, "a program cannot connect");
                // Poll the listener later: see `accepts_at`.
                self.accepts_at = self.now + CHECK_INTERVAL;
                return;
            }
        };
        // A program must not send descriptors: the daemon would have to close them, which may
        // block.
        if let Err(error) = sys::refuse_descriptors(socket.as_fd()) {
            tracing::debug!(%error, "this kernel cannot refuse descriptors");
        }
        // Not rustix: its type for process ids has no 0, which the kernel returns for a process
        // of another pid namespace.
        let Ok(about) = getsockopt(&socket, PeerCredentials) else { return };
        self.admit(socket, about.uid(), about.pid());
    }

    /// Adds a newcomer: process `pid` of `user`, at the other end of `socket`.
    pub(super) fn admit(&mut self, socket: OwnedFd, user: u32, pid: i32) {
        let program = Program {
            socket: Arc::new(socket),
            credentials: Credentials { user, pid, program: String::new() },
            since: self.now,
            client: None,
            groups: 0,
            memory: None,
        };
        self.programs.insert(program.socket.as_raw_fd(), program);
    }

    /// Drops the oldest newcomer of the user who has most of them.
    fn evict_newcomer(&mut self) {
        let newcomers = || self.programs.iter().filter(|(_, program)| program.client.is_none());
        let mut counts = BTreeMap::<u32, usize>::new();
        newcomers()
            .for_each(|(_, program)| *counts.entry(program.credentials.user).or_default() += 1);
        let Some(greediest) = counts.iter().max_by_key(|(_, count)| **count) else { return };
        let of_user = newcomers().filter(|(_, program)| program.credentials.user == *greediest.0);
        if let Some(fd) = of_user.min_by_key(|(_, program)| program.since).map(|(fd, _)| *fd) {
            self.programs.remove(&fd);
        }
    }

    /// Serves one message of a program. One only, so that no program keeps the others waiting.
    fn serve(&mut self, fd: RawFd) {
        let socket = Arc::clone(&self.programs[&fd].socket);
        match channel::try_receive::<Call>(socket.as_fd(), &mut self.buffer) {
            Ok(Call { id, request }) => {
                if let Some((result, fds)) = self.handle(fd, id, request) {
                    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
                    let answer = Message::Answer { id, result };
                    if channel::send(socket.as_fd(), &answer, &fds).is_err() {
                        self.detach(fd, "it does not read its answers");
                    }
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                self.detach(fd, "it has ended");
            }
            Err(error) => self.detach(fd, &format!("it has sent an invalid message: {error}")),
        }
    }

    /// The answer to a request, with descriptors; `None` if the answer comes later.
    fn handle(&mut self, fd: RawFd, id: u64, request: Request) -> Option<AnswerWithFds> {
        let done = |result: Result<(), Refusal>| Some((result.map(|()| Answer::Done), Vec::new()));
        if request == Request::Stat {
            let user = self.programs[&fd].credentials.user;
            let sees_all = [0, rustix::process::geteuid().as_raw()].contains(&user);
            let stat = self.shared.stat((!sees_all).then_some(user));
            return Some((Ok(Answer::Stat(Box::new(stat))), Vec::new()));
        }
        let client = self.programs[&fd].client;
        let (client, request) = match (client, request) {
            (None, Request::Attach { version, program: name }) => {
                return Some(match self.attach(fd, version, name) {
                    Ok((attached, fds)) => (Ok(Answer::Attached(Box::new(attached))), fds),
                    Err(refusal) => (Err(refusal), Vec::new()),
                });
            }
            (Some(client), request) => (client, request),
            (None, _) => return done(Err(invalid("attach first"))),
        };
        match request {
            // `Stat` was answered above.
            Request::Attach { .. } | Request::Stat => done(Err(invalid("attached already"))),
            Request::Ready => done(self.ready(fd, client)),
            Request::QpnSlice => Some((self.slice(fd, client).map(Answer::Slice), Vec::new())),
            Request::Resolve { destination, source, timeout_ms } => {
                let timeout = Duration::from_millis(timeout_ms).min(RESOLVE_MAX);
                let path = PathRequest { client, destination: Gid(destination), source, timeout };
                self.resolve(fd, id, path).map(|result| (result, Vec::new()))
            }
            Request::Connect { qpn, remote, remote_qpn } => {
                done(self.connect(client, (qpn, remote, remote_qpn)))
            }
            Request::Disconnect { qpn } => {
                let now = self.now;
                self.shared.with(|switch| {
                    switch.drain(client, now);
                    if let Some(client) = switch.tables.get_mut(client) {
                        client.permits.disconnect(Qpn::masked(qpn));
                    }
                });
                done(Ok(()))
            }
            Request::Join { group } => done(self.join(fd, client, group)),
            Request::Leave { group } => {
                self.leave(fd, client, group);
                done(Ok(()))
            }
            Request::Claim(service) => {
                done(self.shared.with(|switch| switch.tables.claim(client, service)))
            }
            Request::Release(service) => {
                let now = self.now;
                self.shared.with(|switch| switch.tables.release(client, service, now));
                done(Ok(()))
            }
        }
    }

    fn attach(
        &mut self,
        fd: RawFd,
        version: u32,
        name: String,
    ) -> Result<(Attached, Vec<OwnedFd>), Refusal> {
        if version != VERSION {
            return Err(Refusal::Version(VERSION));
        }
        let program = self.programs.get_mut(&fd).expect("it has sent the request");
        // The program chooses this name: control characters must not reach a terminal.
        program.credentials.program = name.chars().take(64).collect::<String>();
        program.credentials.program = program.credentials.program.escape_debug().to_string();
        let user = self.users.entry(program.credentials.user).or_default();
        if user.clients >= self.shared.limits.clients {
            return Err(Refusal::Quota("programs".to_owned()));
        }
        let attributes = self.shared.with(|switch| switch.attributes().clone());
        let attached = Attached {
            kind: attributes.kind,
            mac: attributes.mac.0,
            mtu: attributes.mtu,
            frame_max: attributes.frame_max,
            link_rate: attributes.link_rate,
            segments_max: attributes.segments_max,
            source_ports: attributes.source_ports,
            window_max: self.shared.window_max,
            tx_slots: TX_SLOTS,
            rx_slots: RX_SLOTS,
            gids: Vec::new(),
        };
        let shapes = attached.shapes().map_err(|_| invalid("the port's frames are too long"))?;
        let credentials = program.credentials.clone();
        let rings =
            Rings::new(shapes).map_err(|error| system("make the rings of a program", &error))?;
        let Rings { memory, from_client, to_client, fds } = rings;
        let make = |id| Client::new(id, credentials, from_client, to_client);
        program.memory = Some(memory);
        let now = self.now;
        let id = self.shared.with(|switch| switch.tables.add(make, now));
        user.clients += 1;
        program.client = Some(id);
        let mut sockets = self.shared.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        sockets.insert(id, Arc::clone(&program.socket));
        drop(sockets);
        // Read after the socket is in the table: later changes reach the client as notices.
        let gids = self.shared.gids().iter().map(Local::from).collect();
        let attached = Attached { gids, ..attached };
        tracing::info!(
            ?id,
            pid = program.credentials.pid,
            program = program.credentials.program,
            "attached"
        );
        Ok((attached, fds))
    }

    /// Seals the rings, which the client has mapped. From now on the switch moves the client's
    /// frames.
    fn ready(&mut self, fd: RawFd, client: ClientId) -> Result<(), Refusal> {
        let memory = self.programs.get_mut(&fd).and_then(|program| program.memory.take());
        let memory = memory.ok_or_else(|| invalid("ready already"))?;
        memory.finish().map_err(|error| system("seal the rings", &error))?;
        self.shared.with(|switch| {
            if let Some(client) = switch.tables.get_mut(client) {
                client.is_ready = true;
            }
        });
        Ok(())
    }

    /// Removes a program that has ended, broke the protocol, or stalled. At the end of the daemon,
    /// removes any program.
    fn detach(&mut self, fd: RawFd, why: &str) {
        let Some(program) = self.programs.remove(&fd) else { return };
        let Some(id) = program.client else { return };
        tracing::info!(?id, pid = program.credentials.pid, why, "detached");
        self.shared.sockets.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        let now = self.now;
        self.drain(id);
        let groups = self.shared.with(|switch| {
            let before: BTreeSet<_> = switch.tables.groups().collect();
            switch.tables.remove(id, now);
            let after: BTreeSet<_> = switch.tables.groups().collect();
            before.difference(&after).copied().collect::<Vec<_>>()
        });
        if let Some(user) = self.users.get_mut(&program.credentials.user) {
            user.clients -= 1;
            user.groups = user.groups.saturating_sub(program.groups);
            if user.clients == 0 {
                self.users.remove(&program.credentials.user);
            }
        }
        if !groups.is_empty() {
            self.memberships.retain(|group, _| !groups.contains(group));
            host::warn_unset_filter(&self.shared);
        }
        let _ = rustix::net::shutdown(&*program.socket, rustix::net::Shutdown::Both);
    }

    /// Sends the frames that a client has left in its ring. Waits up to 5 ms if the port has no
    /// room.
    fn drain(&self, id: ClientId) {
        for _ in 0..DRAIN_ATTEMPTS {
            let now = self.now;
            if self.shared.with(|switch| switch.drain(id, now)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Detaches faulty clients, and newcomers that do not attach in time.
    fn check(&mut self, now: Instant) {
        let faulty = self.shared.with(|switch| switch.tables.faulty(now));
        for (id, why) in faulty {
            let fd = self
                .programs
                .iter()
                .find(|(_, program)| program.client == Some(id))
                .map(|(fd, _)| *fd);
            if let Some(fd) = fd {
                self.detach(fd, why);
            }
        }
        let is_late = |program: &Program| {
            program.client.is_none() && now.saturating_since(program.since) >= ATTACH_WITHIN
        };
        self.programs.retain(|_, program| !is_late(program));
    }

    /// Gives the client a slice of [`SLICE`] QP numbers.
    fn slice(&mut self, fd: RawFd, client: ClientId) -> Result<u32, Refusal> {
        let user_limit = (self.programs[&fd].credentials.user, self.shared.limits.qps / SLICE);
        let now = self.now;
        let given = self.shared.with(|switch| {
            let given = switch.tables.slices.give(client, user_limit, now)?;
            if let Some(client) = switch.tables.get_mut(client) {
                client.qp_numbers += SLICE;
            }
            Some(given)
        });
        given.ok_or_else(|| Refusal::Quota("QPs".to_owned()))
    }

    fn connect(
        &self,
        client: ClientId,
        (qpn, remote, remote_qpn): (u32, IpAddr, u32),
    ) -> Result<(), Refusal> {
        let (Some(qpn), Some(remote_qpn)) = (Qpn::new(qpn), Qpn::new(remote_qpn)) else {
            return Err(invalid("a QP number has 24 bits"));
        };
        if remote.is_multicast() || remote_qpn == Qpn::GSI || remote_qpn == Qpn::MULTICAST {
            return Err(invalid(
                "a QP cannot be connected to a multicast address or to QP 1 or 0xffffff",
            ));
        }
        let now = self.now;
        self.shared.with(|switch| {
            switch.drain(client, now);
            switch.tables.connect(client, qpn, (remote, remote_qpn), now)
        })
    }

    fn join(&mut self, fd: RawFd, client: ClientId, group: IpAddr) -> Result<(), Refusal> {
        if !group.is_multicast() {
            return Err(invalid("not a multicast group"));
        }
        let is_member = self.shared.with(|switch| {
            let client = switch.tables.get_mut(client);
            client.is_some_and(|client| client.permits.groups.contains(&group))
        });
        if is_member {
            return Ok(());
        }
        let user = self.users.entry(self.programs[&fd].credentials.user).or_default();
        if user.groups >= GROUPS {
            return Err(Refusal::Quota("multicast groups".to_owned()));
        }
        if !self.memberships.contains_key(&group) {
            let joined = match self.shared.filter {
                Some(_) => join_kernel(self.shared.gids().into_iter(), group).map(Some),
                None => Ok(None),
            };
            let joined = joined.map_err(|error| system("join the multicast group", &error))?;
            self.memberships.insert(group, joined);
        }
        user.groups += 1;
        if let Some(program) = self.programs.get_mut(&fd) {
            program.groups += 1;
        }
        if self.shared.with(|switch| switch.tables.join(client, group))
            && let Err(error) = host::set_filter(&self.shared)
        {
            self.leave(fd, client, group);
            return Err(Refusal::Quota(format!("multicast groups: {error}")));
        }
        Ok(())
    }

    fn leave(&mut self, fd: RawFd, client: ClientId, group: IpAddr) {
        let was_member = self.shared.with(|switch| {
            let client = switch.tables.get_mut(client);
            client.is_some_and(|client| client.permits.groups.contains(&group))
        });
        if let Some(program) = self.programs.get_mut(&fd).filter(|_| was_member) {
            program.groups -= 1;
            if let Some(user) = self.users.get_mut(&program.credentials.user) {
                user.groups -= 1;
            }
        }
        if self.shared.with(|switch| switch.tables.leave(client, group)) {
            self.memberships.remove(&group);
            host::warn_unset_filter(&self.shared);
        }
    }

    /// Resolves a path: at once, or in a thread that waits for the next hop and then sends the
    /// answer.
    fn resolve(
        &mut self,
        fd: RawFd,
        call: u64,
        path: PathRequest,
    ) -> Option<Result<Answer, Refusal>> {
        let at_once = PathRequest { timeout: Duration::ZERO, ..path.clone() };
        let result = at_once.resolve(&self.shared);
        let waits = matches!(&result, Err(Refusal::Path(PathRefusal::Unresolved(_))));
        if !waits || path.timeout.is_zero() {
            return Some(result);
        }
        let program = &self.programs[&fd];
        // Kept after the user's clients have ended, because the threads still wait.
        let waiting = self.resolving.entry(program.credentials.user).or_default();
        if Arc::strong_count(waiting) > RESOLVING {
            return Some(Err(Refusal::Quota("paths that wait for their next hops".to_owned())));
        }
        let (socket, waits) = (Arc::downgrade(&program.socket), Arc::clone(waiting));
        let shared = Arc::clone(&self.shared);
        let started = self.resolvers.run(Box::new(move || {
            let result = path.resolve(&shared);
            drop(waits);
            if let Some(socket) = socket.upgrade() {
                // A client that does not read its answers is detached at its next request.
                let _ = channel::send(socket.as_fd(), &Message::Answer { id: call, result }, &[]);
            }
        }));
        started.err().map(|error| Err(system("start a thread", &error)))
    }
}

/// An answer with descriptors.
type AnswerWithFds = (Result<Answer, Refusal>, Vec<OwnedFd>);

/// The daemon's ends of a client's rings, and the descriptors that the client gets.
struct Rings {
    memory: Arc<SharedMemory>,
    from_client: FrameConsumer,
    to_client: FrameProducer,
    fds: Vec<OwnedFd>,
}

impl Rings {
    fn new([tx, rx]: [RingShape; 2]) -> io::Result<Self> {
        let memory = SharedMemory::create(tx.bytes() + rx.bytes())?;
        let (own, [waits_on, signals]) = RemoteBell::pair()?;
        let bell = Bell::Remote(Arc::new(own));
        let from_client = tx.consumer(&memory, 0, &bell);
        let to_client = rx.producer(&memory, tx.bytes(), &bell);
        let fds = vec![memory.as_fd().try_clone_to_owned()?, waits_on, signals];
        Ok(Self { memory, from_client, to_client, fds })
    }
}

fn invalid(what: &str) -> Refusal {
    Refusal::Invalid(what.to_owned())
}

fn system(action: &str, error: &io::Error) -> Refusal {
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    Refusal::System { action: action.to_owned(), errno }
}
