//! A stream socket: its states, and waiting for state changes.
//!
//! One lock guards the state, and no thread sleeps while holding it: a waiting thread registers in
//! the list of waiters and sleeps on the completion channel and on its own eventfd. So a thread
//! that waits for credits does not block readers.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use super::attempt::Attempt;
use super::identifier::Identifier;
use super::link::{Link, Ready};
use super::mapped_buffers::Mappings;
use super::options::Options;
use super::service;
use super::stream::{Half, Phase};
use super::wait::{self, Awaited, Waiters};

/// State of a socket.
#[derive(Debug)]
pub enum State {
    /// Neither connected nor listening.
    Idle,
    /// Listening; descriptors of accepted connections, oldest first.
    Listening(VecDeque<RawFd>),
    /// Resolving the peer's address and route.
    Opening(Attempt),
    /// Connection request sent.
    Connecting(Ready),
    /// Connection request accepted; waiting for the RTU.
    Accepting(Link),
    /// Connected, or closed after it was connected.
    Open(Link),
    /// The connection attempt failed.
    Refused,
    /// Closed by the program.
    Closed,
}

/// State that the lock guards. Field order is drop order: queues must go before their identifier.
#[derive(Debug)]
pub struct Inner {
    /// State of the connection.
    pub state: State,
    /// Buffers that the program mapped.
    pub mappings: Mappings,
    /// The RDMA CM identifier.
    pub identifier: Arc<Identifier>,
    /// Options that the program has set.
    pub options: Options,
    /// Waiting threads.
    pub waiters: Waiters,
    /// Value of `SO_ERROR`.
    pub error: c_int,
    /// Time of the last received message or keep-alive.
    pub quiet_since: Instant,
}

/// A stream socket.
#[derive(Debug)]
pub struct StreamSocket {
    fd: RawFd,
    inner: Mutex<Inner>,
    /// Flags set with `F_SETFL`.
    flags: AtomicI32,
    /// One call sends at a time.
    pub sending: Mutex<()>,
    /// One call receives at a time.
    pub receiving: Mutex<()>,
}

impl StreamSocket {
    /// Creates a socket with an identifier.
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

    /// Returns the descriptor.
    pub fn fd(&self) -> RawFd {
        self.fd
    }

    /// Locks and returns the state.
    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        wait::lock(&self.inner)
    }

    /// Returns the local address and the peer's.
    pub fn addresses(&self) -> (Option<SocketAddr>, Option<SocketAddr>) {
        self.lock().identifier.addresses()
    }

    /// Returns the value of `F_GETFL`.
    pub fn flags(&self) -> c_int {
        self.flags.load(Ordering::Relaxed)
    }

    /// Sets the value of `F_SETFL`.
    pub fn set_flags(&self, flags: c_int) {
        self.flags.store(flags, Ordering::Relaxed);
    }

    /// Returns true if a call with these flags must not wait.
    pub fn is_nonblocking(&self, flags: c_int) -> bool {
        self.flags() & libc::O_NONBLOCK != 0 || flags & libc::MSG_DONTWAIT != 0
    }

    /// Waits until `test` returns a value.
    ///
    /// # Errors
    /// EAGAIN if the call must not wait; EINTR.
    pub fn wait<T>(
        &self,
        nonblocking: bool,
        test: impl FnMut(&mut Inner) -> Option<T>,
    ) -> Result<T, c_int> {
        wait::until(&self.inner, nonblocking, test)
    }

    /// Waits until the socket is connected.
    ///
    /// # Errors
    /// EAGAIN, EINTR; ENOTCONN if no connection is being set up.
    pub fn wait_open(&self, nonblocking: bool) -> Result<(), c_int> {
        if matches!(self.lock().state, State::Open(_)) {
            return Ok(()); // succeeds even if no data has arrived
        }
        self.wait(nonblocking, |inner| match inner.state {
            State::Open(_) => Some(Ok(())),
            State::Opening(_) | State::Connecting(_) | State::Accepting(_) => None,
            _ => Some(Err(libc::ENOTCONN)),
        })?
    }

    /// Closes one direction or both, and waits until the peer has received all data.
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

    /// Closes the socket. Calls that wait on it return an error. Returns the accepted connections
    /// that the program has not taken, which the caller must close.
    #[must_use]
    pub fn close(&self) -> VecDeque<RawFd> {
        while self.shutdown(libc::SHUT_RDWR) == Err(libc::EINTR) {}
        let mut inner = self.lock();
        if matches!(inner.state, State::Open(_) | State::Accepting(_)) {
            inner.identifier.disconnect();
        }
        inner.mappings.clear();
        let before = std::mem::replace(&mut inner.state, State::Closed);
        inner.waiters.wake();
        drop(inner);
        match before {
            State::Listening(accepted) => accepted,
            _ => VecDeque::new(),
        }
    }

    /// Sends a keep-alive if the program enabled it, or if a call waits for a silent peer: when the
    /// peer process was killed together with its software RNIC, nothing else reports that the peer
    /// is gone.
    pub fn keep_alive(&self) {
        let mut inner = self.lock();
        let waited_for = !inner.waiters.is_empty();
        let period = inner.options.keep_alive_period().or(waited_for.then_some(service::TICK));
        let Some(period) = period else { return };
        if !matches!(inner.state, State::Open(_)) || inner.quiet_since.elapsed() < period {
            return;
        }
        inner.quiet_since = wait::now();
        if let Some(link) = inner.link() {
            link.keep_alive();
            link.queues().arm(); // waiters learn about a failed keep-alive
        }
        inner.progress();
    }
}

impl Inner {
    /// Returns the connection, if one was established.
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
        let has_progressed = link.progress();
        let broke = before == Phase::Connected && link.stream.phase() == Phase::Failed;
        if broke {
            self.error = libc::EIO;
        }
        if has_progressed {
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
        let requested = events & (libc::POLLIN | libc::POLLOUT);
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
                    // First report data that arrived before the disconnect: rstream treats POLLHUP
                    // as an error.
                    Phase::Disconnected
                        if ready & requested & libc::POLLIN != 0 && link.stream.has_data() =>
                    {
                        0
                    }
                    Phase::Disconnected => libc::POLLHUP,
                    Phase::Failed => libc::POLLERR,
                };
                ready & requested | ended
            }
            State::Listening(accepted) if !accepted.is_empty() => libc::POLLIN & requested,
            State::Refused => requested | libc::POLLERR,
            State::Closed => libc::POLLNVAL,
            _ => 0,
        }
    }
}
