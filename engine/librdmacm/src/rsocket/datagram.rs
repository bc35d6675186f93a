//! A datagram socket: a UDP socket, and a UD QP per local address.
//!
//! The first datagram to a peer goes over UDP, with a header that contains the sender's QP number.
//! The peer replies with its own QP number. From then on, datagrams go from QP to QP. The service
//! thread receives what arrives over UDP.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard};

use libc::iovec;

use super::gather::Gather;
use super::options::{self, Options, SOL_RDMA};
use super::port::{Arrived, DATAGRAM_MAX, Handle, Port};
use super::protocol::{UDP_HEADER_MAX, UdpHeader, UdpOp};
use super::service;
use super::stream::SEND_LOW_WATER;
use super::udp::Udp;
use super::wait::{self, Awaited, Waiters};

/// State of a peer.
#[derive(Debug)]
struct Destination {
    /// Index of the port (local address) that routes to the peer.
    port: usize,
    /// Address handle and QP number; `None` until the peer has sent its QP number.
    handle: Option<Handle>,
}

/// A received datagram.
#[derive(Debug)]
enum Received {
    /// Received by the QP of the port with this index.
    Port(usize, Arrived),
    /// Received over UDP.
    Udp(Vec<u8>, SocketAddr),
}

/// State that the lock guards. Field order is drop order: address handles must go before their
/// port.
#[derive(Debug)]
pub struct Inner {
    destinations: BTreeMap<SocketAddr, Destination>,
    received: VecDeque<Received>,
    ports: Vec<Port>,
    options: Options,
    waiters: Waiters,
    peer: Option<SocketAddr>,
    watched: bool,
    closed: bool,
}

/// A datagram socket.
#[derive(Debug)]
pub struct Datagram {
    udp: Udp,
    inner: Mutex<Inner>,
    flags: AtomicI32,
}

impl Datagram {
    /// Creates a socket of the address family `domain`.
    pub fn new(domain: c_int) -> Result<Self, c_int> {
        let inner = Inner {
            destinations: BTreeMap::new(),
            received: VecDeque::new(),
            ports: Vec::new(),
            options: Options::default(),
            waiters: Waiters::default(),
            peer: None,
            watched: false,
            closed: false,
        };
        let (udp, inner) = (Udp::new(domain)?, Mutex::new(inner));
        Ok(Self { udp, inner, flags: AtomicI32::new(0) })
    }

    /// Returns the descriptor.
    pub fn fd(&self) -> RawFd {
        self.udp.fd()
    }

    /// Locks and returns the state.
    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        wait::lock(&self.inner)
    }

    /// Returns the value of `F_GETFL`.
    pub fn flags(&self) -> c_int {
        self.flags.load(Ordering::Relaxed)
    }

    /// Sets the value of `F_SETFL`.
    pub fn set_flags(&self, flags: c_int) {
        self.flags.store(flags, Ordering::Relaxed);
    }

    fn is_nonblocking(&self, flags: c_int) -> bool {
        self.flags() & libc::O_NONBLOCK != 0 || flags & libc::MSG_DONTWAIT != 0
    }

    /// Returns the local address.
    pub fn local(&self) -> Result<SocketAddr, c_int> {
        self.udp.local()
    }

    /// Returns the address of the connected peer.
    pub fn peer(&self) -> Result<SocketAddr, c_int> {
        self.udp.peer()
    }

    /// Makes the service thread receive what arrives over UDP.
    fn start_receiving(&self) -> Result<(), c_int> {
        let mut inner = self.lock();
        if !inner.watched {
            service::watch(self.fd())?;
            inner.watched = true;
        }
        Ok(())
    }

    /// Binds to a local address.
    pub fn bind(&self, address: SocketAddr) -> Result<(), c_int> {
        self.udp.bind(address)?;
        self.start_receiving()
    }

    /// Sets the default destination.
    pub fn connect(&self, peer: SocketAddr) -> Result<(), c_int> {
        self.udp.connect(peer)?;
        self.start_receiving()?;
        let mut inner = self.lock();
        inner.destination(&self.udp, peer)?;
        inner.peer = Some(peer);
        Ok(())
    }

    /// Sends a datagram.
    ///
    /// # Errors
    /// EDESTADDRREQ without a destination, EMSGSIZE, EAGAIN, EINTR, or the error of the post.
    ///
    /// # Safety
    /// The memory in `from` is readable.
    pub unsafe fn send(
        &self,
        mut from: Gather<'_>,
        to: Option<SocketAddr>,
        flags: c_int,
    ) -> Result<usize, c_int> {
        self.start_receiving()?;
        let length = from.left();
        let mut inner = self.lock();
        let to = to.or(inner.peer).ok_or(libc::EDESTADDRREQ)?;
        if length > DATAGRAM_MAX - UDP_HEADER_MAX {
            return Err(libc::EMSGSIZE);
        }
        let destination = inner.destination(&self.udp, to)?;
        let (port, known) = (destination.port, destination.handle.is_some());
        if !known {
            // SAFETY: the memory in `from` is readable.
            unsafe { self.send_udp(&inner.ports[port], UdpOp::Data, from, to)? };
            return Ok(length);
        }
        drop(inner);
        // SAFETY: the memory in `from` is readable.
        let sent = wait::until(&self.inner, self.is_nonblocking(flags), |inner| unsafe {
            let handle = inner.destinations.get(&to).and_then(|peer| peer.handle.as_ref());
            let (Some(handle), Some(port)) = (handle, inner.ports.get_mut(port)) else {
                return Some(Err(libc::EBADF));
            };
            port.can_send().then(|| port.send(&mut from, handle))
        })?;
        sent.map(|()| length)
    }

    /// Sends a message over UDP.
    ///
    /// # Safety
    /// The memory in `from` is readable.
    unsafe fn send_udp(
        &self,
        port: &Port,
        op: UdpOp,
        mut from: Gather<'_>,
        to: SocketAddr,
    ) -> Result<(), c_int> {
        let address = port.source.ip();
        let (mut header, header_length) = UdpHeader { op, qpn: port.qpn(), address }.encode();
        let mut payload = [0u8; DATAGRAM_MAX];
        let length = from.left().min(DATAGRAM_MAX);
        // SAFETY: the memory in `from` is readable.
        unsafe {
            from.take(length, |part, at| payload[at..at + part.len()].copy_from_slice(part));
        }
        let mut parts = [
            iovec { iov_base: header.as_mut_ptr().cast(), iov_len: header_length },
            iovec { iov_base: payload.as_mut_ptr().cast(), iov_len: length },
        ];
        // SAFETY: both parts are local arrays of the given lengths.
        unsafe { self.udp.send(&mut parts, to, 0) }
    }

    /// Receives a datagram. Returns the bytes copied and the sender.
    ///
    /// # Errors
    /// EAGAIN, EINTR, EBADF if the socket is closed.
    ///
    /// # Safety
    /// The memory in `to` is writable.
    pub unsafe fn receive(
        &self,
        mut to: Gather<'_>,
        flags: c_int,
    ) -> Result<(usize, SocketAddr), c_int> {
        self.start_receiving()?;
        wait::until(&self.inner, self.is_nonblocking(flags), |inner| {
            if inner.closed {
                return Some(Err(libc::EBADF));
            }
            let peek = flags & libc::MSG_PEEK != 0;
            let (source, payload) = match inner.received.front()? {
                Received::Udp(payload, source) => (*source, payload.as_slice()),
                Received::Port(port, arrived) => inner.ports[*port].read(*arrived)?,
            };
            let mut left = payload;
            let length = to.fill(|begin, room| {
                let (now, later) = left.split_at(room.min(left.len()));
                // SAFETY: the memory in `to` is writable, and at most `room` bytes are copied.
                unsafe { begin.copy_from_nonoverlapping(now.as_ptr(), now.len()) };
                left = later;
                now.len()
            });
            if !peek && let Some(Received::Port(port, arrived)) = inner.received.pop_front() {
                inner.ports[port].release(arrived);
            }
            Some(Ok((length, source)))
        })?
    }

    /// Receives from the UDP socket. Called by the service thread.
    pub fn on_readable(&self) {
        let mut bytes = [0; DATAGRAM_MAX];
        while let Some((length, source)) = self.udp.receive(&mut bytes) {
            if let Some((header, payload)) = UdpHeader::decode(&bytes[..length]) {
                // An error loses this datagram, as the network may; the sender retransmits if it
                // needs to.
                let _ = self.on_udp(header, payload, source);
            }
        }
    }

    fn on_udp(&self, header: UdpHeader, payload: &[u8], source: SocketAddr) -> Result<(), c_int> {
        let mut inner = self.lock();
        let destination = inner.destination(&self.udp, source)?;
        let port = destination.port;
        let known = destination.handle.as_ref().map(|handle| handle.qpn);
        if known != Some(header.qpn) {
            let handle = inner.ports[port].handle(source.ip(), header.qpn)?;
            inner.destination(&self.udp, source)?.handle = Some(handle);
        }
        if header.op == UdpOp::Data {
            let nothing = Gather::default();
            // SAFETY: the gather list is empty.
            unsafe { self.send_udp(&inner.ports[port], UdpOp::Control, nothing, source)? };
            let room = usize::from(inner.receive_queue());
            if inner.received.len() < room {
                inner.received.push_back(Received::Udp(payload.to_vec(), source));
            }
        }
        inner.waiters.wake();
        Ok(())
    }

    /// Closes the socket after all sends have completed. Calls that wait on it return an error.
    pub fn close(&self) {
        let sent = |inner: &mut Inner| inner.ports.iter().all(Port::is_idle).then_some(());
        while wait::until(&self.inner, false, sent) == Err(libc::EINTR) {}
        let mut inner = self.lock();
        inner.closed = true;
        inner.destinations.clear();
        inner.received.clear();
        inner.ports.clear();
        inner.waiters.wake();
    }

    /// Sets an option.
    ///
    /// # Safety
    /// `value` has `length` readable bytes.
    pub unsafe fn set_option(
        &self,
        option: (c_int, c_int),
        value: *const c_void,
        length: usize,
    ) -> Result<(), c_int> {
        let mut inner = self.lock();
        if option.0 == SOL_RDMA && inner.watched {
            return Err(libc::EINVAL);
        }
        if option.0 != SOL_RDMA {
            // SAFETY: `value` has `length` readable bytes.
            unsafe { self.udp.set_option(option, value, length)? };
        }
        // SAFETY: `value` has `length` readable bytes.
        let number = unsafe { options::number(value, length)? };
        match inner.options.set(option, number) {
            // the kernel has set it on the UDP socket
            Err(libc::ENOTSUP) if option.0 != SOL_RDMA => Ok(()),
            set => set,
        }
    }

    /// Returns the value of an option.
    pub fn option(&self, option: (c_int, c_int)) -> Result<c_int, c_int> {
        match option {
            (libc::SOL_SOCKET, libc::SO_ERROR) => Ok(0),
            _ => self.lock().options.get(option),
        }
    }
}

impl Inner {
    fn send_queue(&self) -> u16 {
        queue_entries(self.options.send_queue, self.options.send_buffer)
    }

    fn receive_queue(&self) -> u16 {
        queue_entries(self.options.receive_queue, self.options.receive_buffer)
    }

    /// Returns the state of a peer and creates it if there is none.
    fn destination(&mut self, udp: &Udp, peer: SocketAddr) -> Result<&mut Destination, c_int> {
        if !self.destinations.contains_key(&peer) {
            let source = udp.source_for(peer)?;
            let known = self.ports.iter().position(|port| port.source == source);
            let port = match known {
                Some(port) => port,
                None => {
                    let port = Port::new(source, self.send_queue(), self.receive_queue())?;
                    self.ports.push(port);
                    self.waiters.wake(); // waiters must sleep on the new port's channel, too
                    self.ports.len() - 1
                }
            };
            self.destinations.insert(peer, Destination { port, handle: None });
        }
        self.destinations.get_mut(&peer).ok_or(libc::ENOMEM)
    }
}

/// Returns the number of queue entries for datagrams, limited by what fits in the buffer.
fn queue_entries(queue: u16, buffer: u32) -> u16 {
    let room = buffer / SEND_LOW_WATER; // bytes counted per datagram
    queue.min(u16::try_from(room).unwrap_or(u16::MAX)).max(1)
}

impl Awaited for Inner {
    fn progress(&mut self) {
        let (mut has_progressed, received) = (false, &mut self.received);
        for (at, port) in self.ports.iter_mut().enumerate() {
            let first = received.len();
            has_progressed |=
                port.progress(|arrived| received.push_back(Received::Port(at, arrived)));
            let new = received.split_off(first);
            for datagram in new {
                match datagram {
                    Received::Port(_, arrived) if port.read(arrived).is_none() => {
                        port.release(arrived);
                    }
                    datagram => received.push_back(datagram),
                }
            }
        }
        if has_progressed {
            self.waiters.wake();
        }
    }

    fn arm(&mut self) -> Vec<RawFd> {
        self.ports.iter_mut().map(Port::arm).collect()
    }

    fn disarm(&mut self) {
        self.ports.iter_mut().for_each(Port::disarm);
    }

    fn waiters(&mut self) -> &mut Waiters {
        &mut self.waiters
    }

    fn ready(&mut self, events: i16) -> i16 {
        self.progress();
        if self.closed {
            return libc::POLLNVAL;
        }
        let mut ready = 0;
        if !self.received.is_empty() {
            ready |= libc::POLLIN;
        }
        if self.ports.iter().all(Port::can_send) {
            ready |= libc::POLLOUT;
        }
        ready & events
    }
}
