//! The few system calls that std has no door for. An `unsafe` room of one screen.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// A non-blocking eventfd, closed on exec.
///
/// # Errors
/// When the system has no descriptor left.
pub fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: no pointers are involved.
    let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given this descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sleeps until one of `fds` is readable or `timeout` is over. A signal ends the sleep early.
pub fn poll_readable(fds: &[RawFd], scratch: &mut Vec<libc::pollfd>, timeout: Option<Duration>) {
    scratch.clear();
    scratch.extend(fds.iter().map(|&fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }));
    let spec = timeout.map(|timeout| libc::timespec {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(timeout.subsec_nanos()),
    });
    let spec = spec.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let count = libc::nfds_t::try_from(scratch.len()).expect("a handful of descriptors");
    // SAFETY: `scratch` holds `count` entries and `spec` is null or points to a live timespec.
    unsafe { libc::ppoll(scratch.as_mut_ptr(), count, spec, std::ptr::null()) };
}

/// Sixteen bytes of the kernel's randomness.
///
/// # Errors
/// When the kernel has none to give (early boot).
pub fn random_u128() -> io::Result<u128> {
    let mut bytes = [0u8; 16];
    // SAFETY: the kernel writes at most `bytes.len()` bytes to `bytes`.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if usize::try_from(got) != Ok(bytes.len()) {
        return Err(io::Error::last_os_error());
    }
    Ok(u128::from_ne_bytes(bytes))
}

/// Keeps packets of an IPv4 or IPv6 socket from being cut, here or on the way, whatever the kernel has learned of the way
/// (`PMTUDISC_PROBE`): longer ones than the interface carries are errors.
///
/// # Errors
/// When the descriptor is no such socket.
pub fn never_fragment(socket: BorrowedFd<'_>, v6: bool) -> io::Result<()> {
    let (level, option, value) = match v6 {
        false => (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE),
        true => (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE),
    };
    let length = libc::socklen_t::try_from(size_of_val(&value)).expect("four");
    // SAFETY: the value outlives the call, and its length is told.
    let status = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), length)
    };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
