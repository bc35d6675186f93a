//! A stream socket: what state it is in, and how calls wait for another.
//!
//! One lock guards it, and nobody sleeps holding it: whoever has to wait says so in the list of waiters, and sleeps on the
//! completion channel and a descriptor of the thread's own. So a thread that waits for credits keeps none from reading.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use super::Socket;
use super::connecting::Attempt;
use super::identifier::Identifier;
use super::link::{Link, Ready};
use super::mapping::Mappings;
use super::options::Options;
use super::stream::{Half, Phase};
use super::wait::{self, Awaited, Waiters};

/// What a socket is doing.
#[derive(Debug)]
pub enum State {
    /// Nothing yet.
    Idle,
    /// PendingEvent for others: those that came, oldest first.
    Listening(VecDeque<Arc<Socket>>),
    /// On its way to a peer.
    Opening(Attempt),
    /// Asked for a connection.
    Connecting(Ready),
    /// Accepted one, and waiting for the word that this was heard.
    Accepting(Link),
    /// Connected, or no longer.
    Open(Link),
    /// Did not come to be.
    Refused,
    /// Closed by the program.
    Closed,
}

/// What the lock guards. The order is that in which it goes: queues need their identifier.
#[derive(Debug)]
pub struct Inner {
    /// What it is doing.
    pub state: State,
    /// Buffers for the peer to write.
    pub mappings: Mappings,
    /// Its address, and what connects it.
    pub identifier: Arc<Identifier>,
    /// What programs have set.
    pub options: Options,
    /// Who waits.
    pub waiters: Waiters,
    /// What `SO_ERROR` says.
    pub error: c_int,
    /// When something was last heard or asked.
    pub quiet_since: Instant,
}

/// The socket.
#[derive(Debug)]
pub struct StreamSocket {
    fd: RawFd,
    inner: Mutex<Inner>,
    /// What `F_SETFL` has set.
    flags: AtomicI32,
    /// One call sends at a time, and one receives.
    pub sending: Mutex<()>,
    /// See `sending`.
    pub receiving: Mutex<()>,
}

impl StreamSocket {
    /// One with that identifier.
    pub fn new(identifier: Identifier, options: Options) -> Self {
        let inner = Inner {
            state: State::Idle,
            mappings: Mappings::default(),
            identifier: Arc::new(identifier),
            options,
            waiters: Waiters::default(),
            error: 0,
            quiet_since: wait::now(),
        };
        Self {
            fd: inner.identifier.fd(),
            inner: Mutex::new(inner),
            flags: AtomicI32::new(0),
            sending: Mutex::default(),
            receiving: Mutex::default(),
        }
    }

    /// Its descriptor.
    pub fn fd(&self) -> RawFd {
        self.fd
    }

    /// Takes the lock.
    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        wait::lock(&self.inner)
    }

    /// The own address, and the peer's.
    pub fn addresses(&self) -> (Option<SocketAddr>, Option<SocketAddr>) {
        self.lock().identifier.addresses()
    }

    /// What `F_GETFL` says.
    pub fn flags(&self) -> c_int {
        self.flags.load(Ordering::Relaxed)
    }

    /// What `F_SETFL` says.
    pub fn set_flags(&self, flags: c_int) {
        self.flags.store(flags, Ordering::Relaxed);
    }

    /// Whether a call with these flags does not wait.
    pub fn is_nonblocking(&self, flags: c_int) -> bool {
        self.flags() & libc::O_NONBLOCK != 0 || flags & libc::MSG_DONTWAIT != 0
    }

    /// Waits until `test` has an answer.
    ///
    /// # Errors
    /// EAGAIN if it is not to wait; EINTR.
    pub fn wait<T>(
        &self,
        nonblocking: bool,
        test: impl FnMut(&mut Inner) -> Option<T>,
    ) -> Result<T, c_int> {
        wait::until(&self.inner, nonblocking, test)
    }

    /// Waits until a connection is there.
    ///
    /// # Errors
    /// EAGAIN, EINTR; ENOTCONN if there will be none.
    pub fn wait_open(&self, nonblocking: bool) -> Result<(), c_int> {
        if matches!(self.lock().state, State::Open(_)) {
            return Ok(()); // Nothing has to have come.
        }
        self.wait(nonblocking, |inner| match inner.state {
            State::Open(_) => Some(Ok(())),
            State::Opening(_) | State::Connecting(_) | State::Accepting(_) => None,
            _ => Some(Err(libc::ENOTCONN)),
        })?
    }

    /// Closes a half, and waits until the peer has all that was sent.
    ///
    /// # Errors
    /// EINVAL for another `how`, ENOTCONN, EINTR.
    pub fn shutdown(&self, how: c_int) -> Result<(), c_int> {
        let half = match how {
            libc::SHUT_RD => Half::Read,
            libc::SHUT_WR => Half::Write,
            libc::SHUT_RDWR => Half::Both,
            _ => return Err(libc::EINVAL),
        };
        if !matches!(self.lock().state, State::Open(_)) {
            return Err(libc::ENOTCONN);
        }
        let closed = self.wait(false, |inner| {
            let link = inner.link()?;
            let connected = link.stream.phase() == Phase::Connected;
            (link.stream.can_control() || !connected).then(|| link.close(half))
        });
        if half == Half::Read {
            self.lock().waiters.wake();
            return closed;
        }
        closed?;
        self.wait(false, |inner| {
            let Some(link) = inner.link() else { return Some(()) };
            let connected = link.stream.phase() == Phase::Connected;
            (link.stream.is_idle() || !connected).then_some(())
        })?;
        self.lock().waiters.wake();
        Ok(())
    }

    /// Closes it: others that use it are told so.
    pub fn close(&self) {
        while self.shutdown(libc::SHUT_RDWR) == Err(libc::EINTR) {}
        let mut inner = self.lock();
        if matches!(inner.state, State::Open(_) | State::Accepting(_)) {
            inner.identifier.disconnect();
        }
        inner.mappings.clear();
        let before = std::mem::replace(&mut inner.state, State::Closed);
        inner.waiters.wake();
        drop(inner);
        if let State::Listening(accepted) = before {
            for socket in accepted {
                super::service::close(&socket);
            }
        }
    }
}

impl Inner {
    /// The connection, if it is or was there.
    pub fn link(&mut self) -> Option<&mut Link> {
        match &mut self.state {
            State::Open(link) => Some(link),
            _ => None,
        }
    }
}

impl Awaited for Inner {
    fn progress(&mut self) {
        let Some(link) = self.link() else { return };
        let before = link.stream.phase();
        let heard = link.progress();
        let broke = before == Phase::Connected && link.stream.phase() == Phase::Failed;
        if broke {
            self.error = libc::EIO;
        }
        if heard {
            self.quiet_since = wait::now();
            self.waiters.wake();
        }
    }

    fn arm(&mut self) -> Vec<RawFd> {
        let Some(link) = self.link() else { return Vec::new() };
        link.queues().arm();
        vec![link.queues().fd()]
    }

    fn waiters(&mut self) -> &mut Waiters {
        &mut self.waiters
    }

    fn disarm(&mut self) {
        if let Some(link) = self.link() {
            link.queues().disarm();
        }
    }

    fn ready(&mut self, events: i16) -> i16 {
        self.progress();
        let asked = events & (libc::POLLIN | libc::POLLOUT);
        match &mut self.state {
            State::Open(link) => {
                let mut ready = 0;
                if link.stream.has_data() || !link.stream.is_readable() {
                    ready |= libc::POLLIN;
                }
                if link.can_send() {
                    ready |= libc::POLLOUT;
                }
                let ended = match link.stream.phase() {
                    Phase::Connected => 0,
                    // First what came before: rstream takes the word as an error.
                    Phase::Disconnected
                        if ready & asked & libc::POLLIN != 0 && link.stream.has_data() =>
                    {
                        0
                    }
                    Phase::Disconnected => libc::POLLHUP,
                    Phase::Failed => libc::POLLERR,
                };
                ready & asked | ended
            }
            State::Listening(accepted) if !accepted.is_empty() => libc::POLLIN & asked,
            State::Refused => asked | libc::POLLERR,
            State::Closed => libc::POLLNVAL,
            _ => 0,
        }
    }
}
