//! System calls that std lacks. The `unsafe` calls are `ppoll` and `setsockopt`.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::EventfdFlags;
use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
};
use rustix::rand::GetRandomFlags;

/// Makes a non-blocking eventfd that is closed on exec.
///
/// # Errors
/// When the process or the system has no free descriptor.
pub fn eventfd() -> io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?)
}

/// Sleeps until one of `fds` is readable or `timeout` has passed. A signal ends the sleep early.
///
/// `scratch` is reused between calls, so that sleeping allocates nothing. rustix's `poll` would
/// need a new list per call, because its entries borrow the descriptors.
pub fn poll_readable(fds: &[RawFd], scratch: &mut Vec<libc::pollfd>, timeout: Option<Duration>) {
    scratch.clear();
    scratch.extend(fds.iter().map(|&fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }));
    let spec = timeout.map(|timeout| libc::timespec {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(timeout.subsec_nanos()),
    });
    let spec = spec.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let count = libc::nfds_t::try_from(scratch.len()).expect("few descriptors");
    // SAFETY: `scratch` holds `count` entries; `spec` is null or points to a `timespec` on this
    // stack; a null signal mask leaves the thread's mask as it is.
    unsafe { libc::ppoll(scratch.as_mut_ptr(), count, spec, std::ptr::null()) };
}

/// Makes the kernel refuse messages with descriptors to this Unix socket (`SO_PASSRIGHTS`, Linux
/// 6.16). Closing a descriptor for the last time can block for long, and the receiver of a
/// descriptor must close it.
///
/// # Errors
/// ENOPROTOOPT before Linux 6.16.
pub fn refuse_descriptors(socket: BorrowedFd<'_>) -> io::Result<()> {
    const SO_PASSRIGHTS: libc::c_int = 83;
    let off: libc::c_int = 0;
    let len = libc::socklen_t::try_from(size_of_val(&off)).expect("small");
    // SAFETY: the value is an integer on this stack, and its length is given.
    let done = unsafe {
        let value = std::ptr::from_ref(&off).cast();
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, value, len)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns 16 random bytes from the kernel.
///
/// # Errors
/// When `getrandom` fails, for example because a seccomp filter forbids it.
pub fn random_u128() -> io::Result<u128> {
    let mut bytes = [0u8; 16];
    // getrandom returns requests of up to 256 bytes whole, unless a signal interrupts it.
    let got = rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty())?;
    if got != bytes.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(u128::from_ne_bytes(bytes))
}

/// Forbids IP fragmentation of packets from `socket`, on this host and on the path
/// (`PMTUDISC_PROBE`). The path MTU that the kernel has learned does not matter; sending a packet
/// longer than the interface's MTU fails with EMSGSIZE.
///
/// # Errors
/// When the descriptor is not an IPv4 socket or, with `v6`, not an IPv6 socket.
pub fn never_fragment(socket: BorrowedFd<'_>, v6: bool) -> io::Result<()> {
    match v6 {
        false => set_ip_mtu_discover(socket, Ipv4PathMtuDiscovery::PROBE)?,
        true => set_ipv6_mtu_discover(socket, Ipv6PathMtuDiscovery::PROBE)?,
    }
    Ok(())
}
