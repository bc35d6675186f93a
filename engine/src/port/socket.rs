//! Sockets of the kernel: options, filters, addresses, and bursts of messages.
#![allow(unsafe_code)] // System calls that `std` lacks.

use std::io;
use std::mem::{size_of, size_of_val, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

use super::classic_bpf::Instruction;

/// Memory of a socket (`SO_MEMINFO`).
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Memory {
    /// Bytes of the receive buffer in use, with the kernel's overhead.
    rx_used: u32,
    /// Bytes of the receive buffer.
    rx_all: u32,
    _others: [u32; 6],
    /// Packets dropped, for lack of room or by the filter.
    drops: u32,
}

impl Memory {
    /// The memory of `socket`; all zeros if the kernel refuses.
    pub fn of(socket: &OwnedFd) -> Self {
        let mut memory = Self::default();
        let _zeros = get(socket, libc::SOL_SOCKET, libc::SO_MEMINFO, &mut memory);
        memory
    }

    /// Fill level of the receive buffer in per cent.
    pub fn fill(self) -> u8 {
        let fill = (u64::from(self.rx_used) * 100).checked_div(self.rx_all.into());
        u8::try_from(fill.unwrap_or(0).min(100)).expect("at most 100")
    }

    /// Packets dropped since the socket was opened, modulo 2^32.
    pub fn drops(self) -> u32 {
        self.drops
    }
}

/// Bytes of the send buffer: enough for a burst. With less, the end of a burst waits until its
/// beginning was sent.
const SEND_BUFFER: libc::c_int = 8 << 20;

/// Sets the size of the receive buffer to `rx_bytes`, and of the send buffer to a burst, or to what
/// the kernel grants.
pub(super) fn size_buffers(socket: &OwnedFd, rx_bytes: u32) -> io::Result<()> {
    let bytes = libc::c_int::try_from(rx_bytes).unwrap_or(libc::c_int::MAX);
    // The options that end in FORCE have no limit but need CAP_NET_ADMIN.
    let options = [
        (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, SEND_BUFFER),
        (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, bytes),
    ];
    options.into_iter().try_for_each(|(force, ordinary, bytes)| {
        set(socket, libc::SOL_SOCKET, force, &bytes)
            .or_else(|_| set(socket, libc::SOL_SOCKET, ordinary, &bytes))
    })
}

/// Bytes of the receive buffer that the kernel granted.
pub(super) fn rx_bytes(socket: &OwnedFd) -> io::Result<u32> {
    let mut bytes: libc::c_int = 0;
    get(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, &mut bytes)?;
    Ok(bytes.cast_unsigned())
}

/// Receives messages into their buffers, without waiting. Returns their number.
///
/// # Safety
/// The messages point to writable buffers of the stated lengths that nothing else accesses during
/// the call.
pub(super) unsafe fn receive(
    socket: &OwnedFd,
    messages: &mut [libc::mmsghdr],
) -> io::Result<usize> {
    let count = libc::c_uint::try_from(messages.len()).expect("a burst is short");
    // SAFETY: the caller guarantees the buffers; there are `count` messages.
    let got = unsafe {
        let (fd, flags) = (socket.as_raw_fd(), libc::MSG_DONTWAIT as _);
        libc::recvmmsg(fd, messages.as_mut_ptr(), count, flags, ptr::null_mut())
    };
    usize::try_from(got).map_err(|_| io::Error::last_os_error())
}

/// Sends messages from their buffers, without waiting. Returns how many were sent, at least one.
///
/// # Safety
/// The messages point to readable buffers of the stated lengths.
pub(super) unsafe fn send(socket: &OwnedFd, messages: &mut [libc::mmsghdr]) -> io::Result<usize> {
    let count = libc::c_uint::try_from(messages.len()).expect("a burst is short");
    // SAFETY: the caller guarantees the buffers; there are `count` messages.
    let sent = unsafe {
        let (fd, flags) = (socket.as_raw_fd(), libc::MSG_DONTWAIT as _);
        libc::sendmmsg(fd, messages.as_mut_ptr(), count, flags)
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// The content of the control message with this level and type, if there is one.
///
/// # Safety
/// The kernel filled the header, the memory that it points to is still valid, and messages of this
/// type hold a `T`.
pub(super) unsafe fn control_message<T: Copy>(
    header: &libc::msghdr,
    kind: (libc::c_int, libc::c_int),
) -> Option<T> {
    // SAFETY: the caller guarantees the header; the kernel writes complete control messages.
    unsafe {
        let mut control = libc::CMSG_FIRSTHDR(header);
        while let Some(head) = control.as_ref() {
            if (head.cmsg_level, head.cmsg_type) == kind {
                return Some(ptr::read_unaligned(libc::CMSG_DATA(control).cast()));
            }
            control = libc::CMSG_NXTHDR(header, control);
        }
    }
    None
}

/// A value of a socket option.
///
/// # Safety
/// The type is plain data: all bit patterns are valid and there is no padding.
pub(super) unsafe trait Plain {}
// SAFETY: an integer.
unsafe impl Plain for libc::c_int {}
// SAFETY: bytes.
unsafe impl Plain for [u8; 16] {}
// SAFETY: integers.
unsafe impl Plain for [u32; 2] {}
// SAFETY: integers.
unsafe impl Plain for Memory {}

fn size<T>() -> libc::socklen_t {
    libc::socklen_t::try_from(size_of::<T>()).expect("a few bytes")
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Opens a socket with protocol 0 that is closed on exec.
pub(super) fn open(family: libc::c_int, kind: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed; the descriptor is checked below.
    let fd = unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, 0) };
    check(fd)?;
    // SAFETY: `fd` is open and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets a socket option.
pub(super) fn set<T: Plain>(
    socket: &OwnedFd,
    level: libc::c_int,
    option: libc::c_int,
    value: &T,
) -> io::Result<()> {
    let (fd, value) = (socket.as_raw_fd(), ptr::from_ref(value).cast());
    // SAFETY: `value` has the stated length and outlives the call.
    check(unsafe { libc::setsockopt(fd, level, option, value, size::<T>()) })
}

/// Reads a socket option.
pub(super) fn get<T: Plain>(
    socket: &OwnedFd,
    level: libc::c_int,
    option: libc::c_int,
    value: &mut T,
) -> io::Result<()> {
    let mut size = size::<T>();
    let (fd, value) = (socket.as_raw_fd(), ptr::from_mut(value).cast());
    // SAFETY: `value` has room for `size` bytes, and any bytes are a valid `T`.
    check(unsafe { libc::getsockopt(fd, level, option, value, &raw mut size) })
}

/// Attaches a filter to a socket.
pub(super) fn attach(socket: &OwnedFd, program: &[Instruction]) -> io::Result<()> {
    attach_as(socket, libc::SO_ATTACH_FILTER, program)
}

/// Attaches a program to the `SO_REUSEPORT` group of a socket. It returns the index of the socket
/// that gets a packet, in the order in which the sockets were bound.
pub(super) fn attach_chooser(socket: &OwnedFd, program: &[Instruction]) -> io::Result<()> {
    attach_as(socket, libc::SO_ATTACH_REUSEPORT_CBPF, program)
}

fn attach_as(socket: &OwnedFd, option: libc::c_int, program: &[Instruction]) -> io::Result<()> {
    let len = u16::try_from(program.len()).expect("at most 4096 instructions");
    let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    let level = libc::SOL_SOCKET;
    let (fd, value) = (socket.as_raw_fd(), (&raw const program).cast());
    // SAFETY: the kernel copies `len` instructions and writes none.
    check(unsafe { libc::setsockopt(fd, level, option, value, size::<libc::sock_fprog>()) })
}

/// Binds a UDP socket to `port` of any local address.
pub(super) fn bind_any(socket: &OwnedFd, is_v6: bool, port: u16) -> io::Result<()> {
    // SAFETY: socket addresses are plain data, and all zeros is a valid value: any address.
    let (mut four, mut six): (libc::sockaddr_in, libc::sockaddr_in6) = unsafe { zeroed() };
    let family = |number| libc::sa_family_t::try_from(number).expect("a small number");
    (four.sin_family, four.sin_port) = (family(libc::AF_INET), port.to_be());
    (six.sin6_family, six.sin6_port) = (family(libc::AF_INET6), port.to_be());
    if is_v6 { bind(socket, &six) } else { bind(socket, &four) }
}

/// The UDP port that a socket is bound to.
pub(super) fn local_port(socket: &OwnedFd) -> io::Result<u16> {
    // SAFETY: plain data, for which all zeros is a valid value.
    let mut address: libc::sockaddr_in6 = unsafe { zeroed() };
    let mut len = size::<libc::sockaddr_in6>();
    let (fd, place) = (socket.as_raw_fd(), (&raw mut address).cast());
    // SAFETY: the address has room for `len` bytes and outlives the call.
    check(unsafe { libc::getsockname(fd, place, &raw mut len) })?;
    // The port is at the same place in addresses of both families.
    Ok(u16::from_be(address.sin6_port))
}

/// Binds a socket to an address of its family.
pub(super) fn bind<A: Address>(socket: &OwnedFd, address: &A) -> io::Result<()> {
    let len = libc::socklen_t::try_from(size_of_val(address)).expect("a few bytes");
    // SAFETY: the address has the stated length and outlives the call.
    check(unsafe { libc::bind(socket.as_raw_fd(), ptr::from_ref(address).cast(), len) })
}

/// A socket address.
///
/// # Safety
/// The type is a socket address of the kernel, which begins with its family.
pub(super) unsafe trait Address {}
// SAFETY: an address of the family AF_INET.
unsafe impl Address for libc::sockaddr_in {}
// SAFETY: an address of the family AF_INET6.
unsafe impl Address for libc::sockaddr_in6 {}
