//! A datagram socket: a UDP socket, and a UD QP for each of its addresses.
//!
//! The first datagram to a peer goes over UDP, with a header that tells the own QP; the peer's answer tells its. From then on
//! they go between the QPs. What arrives over UDP is taken by the service thread.

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

/// What is known of a peer.
#[derive(Debug)]
struct Destination {
    /// The own address that leads to it.
    port: usize,
    /// How its QP is reached, once it has told its number.
    handle: Option<Handle>,
}

/// What came.
#[derive(Debug)]
enum Received {
    /// To the QP of this port.
    Port(usize, Arrived),
    /// Over UDP.
    Udp(Vec<u8>, SocketAddr),
}

/// What the lock guards. The order is that in which it goes: handles need their port.
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

/// The socket.
#[derive(Debug)]
pub struct Datagram {
    udp: Udp,
    inner: Mutex<Inner>,
    flags: AtomicI32,
}

impl Datagram {
    /// One of a family.
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

    /// Its descriptor.
    pub fn fd(&self) -> RawFd {
        self.udp.fd()
    }

    /// Takes the lock.
    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        wait::lock(&self.inner)
    }

    /// What `F_GETFL` says.
    pub fn flags(&self) -> c_int {
        self.flags.load(Ordering::Relaxed)
    }

    /// What `F_SETFL` says.
    pub fn set_flags(&self, flags: c_int) {
        self.flags.store(flags, Ordering::Relaxed);
    }

    fn is_nonblocking(&self, flags: c_int) -> bool {
        self.flags() & libc::O_NONBLOCK != 0 || flags & libc::MSG_DONTWAIT != 0
    }

    /// The own address.
    pub fn own(&self) -> Result<SocketAddr, c_int> {
        self.udp.own()
    }

    /// The peer it is connected to.
    pub fn peer(&self) -> Result<SocketAddr, c_int> {
        self.udp.peer()
    }

    /// From now on, what arrives over UDP is taken.
    fn begin(&self) -> Result<(), c_int> {
        let mut inner = self.lock();
        if !inner.watched {
            service::watch(self.fd())?;
            inner.watched = true;
        }
        Ok(())
    }

    /// Gives it an address.
    pub fn bind(&self, address: SocketAddr) -> Result<(), c_int> {
        self.udp.bind(address)?;
        self.begin()
    }

    /// Sends to that peer from now on.
    pub fn connect(&self, peer: SocketAddr) -> Result<(), c_int> {
        self.udp.connect(peer)?;
        self.begin()?;
        let mut inner = self.lock();
        inner.destination(&self.udp, peer)?;
        inner.peer = Some(peer);
        Ok(())
    }

    /// Sends a datagram.
    ///
    /// # Errors
    /// EDESTADDRREQ without a peer, EMSGSIZE, EAGAIN, EINTR, what posting says.
    ///
    /// # Safety
    /// The bytes can be read.
    pub unsafe fn send(
        &self,
        mut from: Gather<'_>,
        to: Option<SocketAddr>,
        flags: c_int,
    ) -> Result<usize, c_int> {
        self.begin()?;
        let length = from.left();
        let mut inner = self.lock();
        let to = to.or(inner.peer).ok_or(libc::EDESTADDRREQ)?;
        if length > DATAGRAM_MAX - UDP_HEADER_MAX {
            return Err(libc::EMSGSIZE);
        }
        let destination = inner.destination(&self.udp, to)?;
        let (port, known) = (destination.port, destination.handle.is_some());
        if !known {
            // SAFETY: the caller says so.
            unsafe { self.send_udp(&inner.ports[port], UdpOp::Data, from, to)? };
            return Ok(length);
        }
        drop(inner);
        // SAFETY: the caller says so.
        let sent = wait::until(&self.inner, self.is_nonblocking(flags), |inner| unsafe {
            let handle = inner.destinations.get(&to).and_then(|peer| peer.handle.as_ref());
            let (Some(handle), Some(port)) = (handle, inner.ports.get_mut(port)) else {
                return Some(Err(libc::EBADF));
            };
            port.can_send().then(|| port.send(&mut from, handle))
        })?;
        sent.map(|()| length)
    }

    /// Sends something over UDP.
    ///
    /// # Safety
    /// The bytes can be read.
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
        // SAFETY: the caller says so.
        unsafe {
            from.take(length, |part, at| payload[at..at + part.len()].copy_from_slice(part));
        }
        let mut parts = [
            iovec { iov_base: header.as_mut_ptr().cast(), iov_len: header_length },
            iovec { iov_base: payload.as_mut_ptr().cast(), iov_len: length },
        ];
        // SAFETY: both parts are there.
        unsafe { self.udp.send(&mut parts, to, 0) }
    }

    /// Receives a datagram; how many bytes of it there was room for, and who sent it.
    ///
    /// # Errors
    /// EAGAIN, EINTR, EBADF once it is closed.
    ///
    /// # Safety
    /// The memory can be written.
    pub unsafe fn receive(
        &self,
        mut to: Gather<'_>,
        flags: c_int,
    ) -> Result<(usize, SocketAddr), c_int> {
        self.begin()?;
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
                // SAFETY: the caller says so.
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

    /// Something has come over UDP: called by the service thread.
    pub fn on_readable(&self) {
        let mut bytes = [0; DATAGRAM_MAX];
        while let Some((length, source)) = self.udp.receive(&mut bytes) {
            if let Some((header, payload)) = UdpHeader::decode(&bytes[..length]) {
                // A datagram that is lost is sent again by whoever needs it.
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
            // SAFETY: there is nothing to read.
            unsafe { self.send_udp(&inner.ports[port], UdpOp::Control, nothing, source)? };
            let room = usize::from(inner.receive_queue());
            if inner.received.len() < room {
                inner.received.push_back(Received::Udp(payload.to_vec(), source));
            }
        }
        inner.waiters.wake();
        Ok(())
    }

    /// Closes it: others that use it are told so.
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
    /// `value` has `length` bytes.
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
            // SAFETY: the caller says so.
            unsafe { self.udp.set_option(option, value, length)? };
        }
        // SAFETY: the caller says so.
        let number = unsafe { options::number(value, length)? };
        match inner.options.set(option, number) {
            Err(libc::ENOTSUP) if option.0 != SOL_RDMA => Ok(()), // The kernel has taken it.
            set => set,
        }
    }

    /// What an option is set to.
    pub fn option(&self, option: (c_int, c_int)) -> Result<c_int, c_int> {
        match option {
            (libc::SOL_SOCKET, libc::SO_ERROR) => Ok(0),
            _ => self.lock().options.get(option),
        }
    }
}

impl Inner {
    fn send_queue(&self) -> u16 {
        datagrams(self.options.send_queue, self.options.send_buffer)
    }

    fn receive_queue(&self) -> u16 {
        datagrams(self.options.receive_queue, self.options.receive_buffer)
    }

    /// What is known of a peer; something is from now on.
    fn destination(&mut self, udp: &Udp, peer: SocketAddr) -> Result<&mut Destination, c_int> {
        if !self.destinations.contains_key(&peer) {
            let source = udp.source_for(peer)?;
            let known = self.ports.iter().position(|port| port.source == source);
            let port = match known {
                Some(port) => port,
                None => {
                    let port = Port::new(source, self.send_queue(), self.receive_queue())?;
                    self.ports.push(port);
                    self.waiters.wake(); // They are to sleep on its channel, too.
                    self.ports.len() - 1
                }
            };
            self.destinations.insert(peer, Destination { port, handle: None });
        }
        self.destinations.get_mut(&peer).ok_or(libc::ENOMEM)
    }
}

/// How many datagrams a queue is for: as many as its buffer has room for.
fn datagrams(queue: u16, buffer: u32) -> u16 {
    let room = buffer / SEND_LOW_WATER; // A datagram's.
    queue.min(u16::try_from(room).unwrap_or(u16::MAX)).max(1)
}

impl Awaited for Inner {
    fn progress(&mut self) {
        let (mut heard, received) = (false, &mut self.received);
        for (at, port) in self.ports.iter_mut().enumerate() {
            let first = received.len();
            heard |= port.progress(|arrived| received.push_back(Received::Port(at, arrived)));
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
        if heard {
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
