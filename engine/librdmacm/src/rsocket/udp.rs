//! The kernel UDP socket of a datagram socket.

use std::ffi::{c_int, c_void};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use libc::{iovec, socklen_t};

use super::address::{self, CAddress};
use crate::errno;

/// A UDP socket.
#[derive(Debug)]
pub struct Udp(OwnedFd);

fn check(code: c_int) -> Result<(), c_int> {
    if code < 0 { Err(errno::last()) } else { Ok(()) }
}

impl Udp {
    /// Creates a socket of the address family `domain`.
    pub fn new(domain: c_int) -> Result<Self, c_int> {
        // SAFETY: the function takes no pointers.
        let fd = unsafe { libc::socket(domain, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        check(fd)?;
        // SAFETY: the kernel has just created the descriptor, and nothing else owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Returns the descriptor.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Binds to a local address.
    pub fn bind(&self, address: SocketAddr) -> Result<(), c_int> {
        let mut address = CAddress::from(address);
        // SAFETY: the address is valid during the call.
        check(unsafe { libc::bind(self.fd(), address.pointer(), address.length()) })
    }

    /// Connects to a peer: the socket then sends to and receives from it only.
    pub fn connect(&self, peer: SocketAddr) -> Result<(), c_int> {
        let mut peer = CAddress::from(peer);
        // SAFETY: the address is valid during the call.
        check(unsafe { libc::connect(self.fd(), peer.pointer(), peer.length()) })
    }

    /// Returns the local address.
    pub fn local(&self) -> Result<SocketAddr, c_int> {
        self.name(libc::getsockname)
    }

    /// Returns the address of the connected peer.
    pub fn peer(&self) -> Result<SocketAddr, c_int> {
        self.name(libc::getpeername)
    }

    fn name(
        &self,
        get: unsafe extern "C" fn(c_int, *mut libc::sockaddr, *mut socklen_t) -> c_int,
    ) -> Result<SocketAddr, c_int> {
        let mut raw = CAddress::room();
        let mut length = raw.length();
        // SAFETY: `raw` has room for any address.
        check(unsafe { get(self.fd(), raw.pointer(), &raw mut length) })?;
        // SAFETY: the kernel has written `length` bytes.
        unsafe { address::read(raw.pointer(), length) }
    }

    /// Returns the local address that routes to a peer, with the port of this socket. Binds the
    /// socket to a port if it has none.
    pub fn source_for(&self, peer: SocketAddr) -> Result<SocketAddr, c_int> {
        let mut local = self.local()?;
        if local.port() == 0 {
            let any = match local {
                SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
                SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
            };
            self.bind(any)?;
            local = self.local()?;
        }
        if local.ip().is_unspecified() || local.ip().is_loopback() {
            let domain = if peer.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
            let probe = Self::new(domain)?;
            probe.connect(peer)?;
            let port = local.port();
            local = probe.local()?;
            local.set_port(port);
        }
        Ok(local)
    }

    /// Sends a message to a peer.
    ///
    /// # Safety
    /// The parts are readable.
    pub unsafe fn send(
        &self,
        parts: &mut [iovec],
        peer: SocketAddr,
        flags: c_int,
    ) -> Result<(), c_int> {
        let mut to = CAddress::from(peer);
        // SAFETY: all-zero bytes are a valid `msghdr`.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        (message.msg_name, message.msg_namelen) = (to.pointer().cast(), to.length());
        (message.msg_iov, message.msg_iovlen) = (parts.as_mut_ptr(), parts.len());
        // SAFETY: the message, its address and its parts are valid during the call.
        let sent = unsafe { libc::sendmsg(self.fd(), &raw const message, flags) };
        if sent < 0 { Err(errno::last()) } else { Ok(()) }
    }

    /// Receives a message without waiting; `None` if there is none.
    pub fn receive(&self, bytes: &mut [u8]) -> Option<(usize, SocketAddr)> {
        let mut from = CAddress::room();
        let mut length = from.length();
        let (to, room, flags) = (bytes.as_mut_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT);
        // SAFETY: the buffer and the address have the lengths passed.
        let received =
            unsafe { libc::recvfrom(self.fd(), to, room, flags, from.pointer(), &raw mut length) };
        let received = usize::try_from(received).ok()?;
        // SAFETY: the kernel has written `length` bytes.
        Some((received, unsafe { address::read(from.pointer(), length) }.ok()?))
    }

    /// Sets an option of the kernel socket.
    ///
    /// # Safety
    /// `value` has `length` readable bytes.
    pub unsafe fn set_option(
        &self,
        (level, option): (c_int, c_int),
        value: *const c_void,
        length: usize,
    ) -> Result<(), c_int> {
        let length = socklen_t::try_from(length).unwrap_or(socklen_t::MAX);
        // SAFETY: `value` has `length` readable bytes.
        check(unsafe { libc::setsockopt(self.fd(), level, option, value, length) })
    }
}
