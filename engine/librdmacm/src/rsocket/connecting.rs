//! Connection set-up of a stream socket: the program's calls, and the connection manager events
//! that the service thread delivers.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;

use super::any_socket::Socket;
use super::attempt::Attempt;
use super::dispatch;
use super::identifier::{Event, Identifier};
use super::link::Ready;
use super::protocol::ConnectData;
use super::socket::{Inner, State, StreamSocket};
use super::wait::{self, Awaited};
use super::{service, table};
use crate::abi::{
    RDMA_CM_EVENT_ADDR_ERROR, RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_CONNECT_ERROR,
    RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_DEVICE_REMOVAL, RDMA_CM_EVENT_DISCONNECTED,
    RDMA_CM_EVENT_ESTABLISHED, RDMA_CM_EVENT_REJECTED, RDMA_CM_EVENT_ROUTE_ERROR,
    RDMA_CM_EVENT_ROUTE_RESOLVED, RDMA_CM_EVENT_UNREACHABLE, rdma_conn_param,
};

impl StreamSocket {
    /// Binds to a local address.
    pub fn bind(&self, address: SocketAddr) -> Result<(), c_int> {
        let inner = self.lock();
        match inner.state {
            State::Idle => inner.identifier.bind(address),
            _ => Err(libc::EINVAL),
        }
    }

    /// Starts to listen.
    pub fn listen(&self, backlog: c_int) -> Result<(), c_int> {
        let mut inner = self.lock();
        match inner.state {
            State::Listening(_) => return Ok(()),
            State::Idle => {}
            _ => return Err(libc::EINVAL),
        }
        inner.identifier.listen(backlog)?;
        inner.state = State::Listening(VecDeque::new());
        service::watch(self.fd())
    }

    /// Waits for an incoming connection and returns its descriptor.
    ///
    /// # Errors
    /// EBADF if the socket does not listen, EAGAIN, EINTR.
    pub fn accept(&self) -> Result<RawFd, c_int> {
        self.wait(self.is_nonblocking(0), |inner| match &mut inner.state {
            State::Listening(accepted) => accepted.pop_front().map(Ok),
            _ => Some(Err(libc::EBADF)),
        })?
    }

    /// Connects to `peer`.
    ///
    /// # Errors
    /// EINPROGRESS for a nonblocking socket; otherwise the reason of the failure.
    pub fn connect(&self, peer: SocketAddr) -> Result<(), c_int> {
        let mut inner = self.lock();
        match inner.state {
            State::Idle => {
                service::watch(self.fd())?;
                let mut attempt = Attempt { peer, tries: 0 };
                let started = inner.identifier.resolve_address(peer, attempt.timeout());
                inner.state = State::Opening(attempt);
                if let Err(error) = started {
                    inner.fail_attempt(error);
                    return Err(error);
                }
            }
            State::Opening(_) | State::Connecting(_) | State::Accepting(_) => {}
            State::Open(ref link) if link.stream.is_readable() || link.stream.is_writable() => {
                return Ok(());
            }
            State::Open(_) | State::Refused => return Err(libc::ENOTCONN),
            State::Listening(_) | State::Closed => return Err(libc::EINVAL),
        }
        drop(inner);
        let connected = self.wait(self.is_nonblocking(0), |inner| match inner.state {
            State::Open(_) => Some(Ok(())),
            State::Opening(_) | State::Connecting(_) | State::Accepting(_) => None,
            State::Refused => Some(Err(inner.error)),
            _ => Some(Err(libc::EBADF)),
        });
        connected.map_err(|code| if code == libc::EAGAIN { libc::EINPROGRESS } else { code })?
    }

    /// Handles pending connection manager events. Called by the service thread.
    pub fn on_readable(&self) {
        loop {
            let identifier = Arc::clone(&self.lock().identifier);
            match identifier.next_event() {
                Ok(Some(event)) => self.on_event(event),
                Ok(None) => return,
                Err(error) => return self.lock().fail_attempt(error),
            }
        }
    }

    fn on_event(&self, event: Event) {
        let mut inner = self.lock();
        if event.kind == RDMA_CM_EVENT_CONNECT_REQUEST {
            let Some((identifier, request)) = event.request else { return };
            let options = inner.options.inherited();
            drop(inner); // accepting must not block other calls on the listener
            let socket = StreamSocket::new(identifier, options);
            if let Some(socket) = respond(socket, &request, &event.data) {
                self.queue_accepted(socket);
            }
            return;
        }
        inner.on_event(&event);
        inner.waiters.wake();
    }

    /// Queues an accepted connection for the program.
    fn queue_accepted(&self, socket: Arc<Socket>) {
        let mut inner = self.lock();
        if let State::Listening(accepted) = &mut inner.state {
            accepted.push_back(socket.fd());
            inner.waiters.wake();
        } else {
            drop(inner);
            dispatch::close(&socket);
        }
    }
}

/// Accepts or rejects a connection request.
fn respond(socket: StreamSocket, request: &rdma_conn_param, data: &[u8]) -> Option<Arc<Socket>> {
    let mut inner = socket.lock();
    let accepted = (|| {
        let peer = ConnectData::decode(data).ok_or(libc::ENOTSUP)?;
        let ready = inner.prepare()?;
        let local = ready.connect_data().encode();
        inner.state = State::Accepting(ready.connect(peer));
        inner.identifier.accept(request, &local)
    })();
    if accepted.is_err() {
        inner.identifier.reject();
        return None;
    }
    drop(inner);
    let fd = socket.fd();
    let socket = Arc::new(Socket::Stream(Box::new(socket)));
    table::insert(fd, Arc::clone(&socket));
    if service::watch(fd).is_err() {
        dispatch::close(&socket);
        return None;
    }
    Some(socket)
}

impl Inner {
    /// Creates queues and memory in the sizes that the options give.
    fn prepare(&self) -> Result<Ready, c_int> {
        let sizes = self.options.sizes();
        Ready::new(&self.identifier, sizes, self.options.inline, self.options.mappings)
    }

    /// Marks the connection attempt as failed.
    fn fail_attempt(&mut self, error: c_int) {
        self.error = error;
        match &mut self.state {
            State::Open(link) => link.stream.fail(),
            State::Closed => {}
            state => *state = State::Refused,
        }
        self.waiters.wake();
    }

    fn on_event(&mut self, event: &Event) {
        let failed = match event.kind {
            RDMA_CM_EVENT_ADDR_RESOLVED => self.on_address(),
            RDMA_CM_EVENT_ROUTE_RESOLVED => self.on_route(),
            RDMA_CM_EVENT_ADDR_ERROR => self.retry(event.error, |identifier, attempt| {
                identifier.resolve_address(attempt.peer, attempt.timeout())
            }),
            RDMA_CM_EVENT_ROUTE_ERROR => self.retry(event.error, |identifier, attempt| {
                identifier.resolve_route(attempt.timeout())
            }),
            RDMA_CM_EVENT_ESTABLISHED => self.on_established(&event.data),
            RDMA_CM_EVENT_CONNECT_ERROR
            | RDMA_CM_EVENT_UNREACHABLE
            | RDMA_CM_EVENT_REJECTED
            | RDMA_CM_EVENT_DEVICE_REMOVAL => {
                Err(if event.error == 0 { libc::ECONNABORTED } else { event.error })
            }
            RDMA_CM_EVENT_DISCONNECTED => self.on_disconnected(),
            _ => Ok(()),
        };
        if let Err(error) = failed {
            self.fail_attempt(error);
        }
    }

    fn on_address(&mut self) -> Result<(), c_int> {
        let State::Opening(attempt) = &mut self.state else { return Ok(()) };
        attempt.tries = 0;
        self.identifier.resolve_route(attempt.timeout())
    }

    fn on_route(&mut self) -> Result<(), c_int> {
        if !matches!(self.state, State::Opening(_)) {
            return Ok(());
        }
        let ready = self.prepare()?;
        let local = ready.connect_data().encode();
        self.state = State::Connecting(ready);
        self.identifier.connect(&local)
    }

    fn retry(
        &mut self,
        error: c_int,
        step: impl FnOnce(&Identifier, &mut Attempt) -> Result<(), c_int>,
    ) -> Result<(), c_int> {
        match &mut self.state {
            State::Opening(attempt) if attempt.may_retry(error) => step(&self.identifier, attempt),
            _ => Err(error),
        }
    }

    fn on_established(&mut self, data: &[u8]) -> Result<(), c_int> {
        match mem::replace(&mut self.state, State::Refused) {
            State::Connecting(ready) => {
                let peer = ConnectData::decode(data).ok_or(libc::ENOTSUP)?;
                self.state = State::Open(ready.connect(peer));
            }
            State::Accepting(link) => self.state = State::Open(link),
            state => self.state = state,
        }
        self.quiet_since = wait::now();
        self.progress();
        Ok(())
    }

    fn on_disconnected(&mut self) -> Result<(), c_int> {
        match mem::replace(&mut self.state, State::Refused) {
            State::Open(mut link) | State::Accepting(mut link) => {
                link.progress(); // data that arrived before the disconnect counts
                link.stream.disconnect();
                self.state = State::Open(link);
                Ok(())
            }
            state @ (State::Closed | State::Listening(_)) => {
                self.state = state;
                Ok(())
            }
            _ => Err(libc::ECONNRESET),
        }
    }
}
