//! System calls that std lacks. The `unsafe` calls are `ppoll`, `setsockopt` and `getauxval`.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::EventfdFlags;
use rustix::io::Errno;
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

/// Returns true if all threads of this process share one CPU, by its affinity or by its cgroup.
pub fn has_one_cpu() -> bool {
    std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() == 1)
}

/// Returns major and minor version of the running kernel; zeros if they are not numbers.
pub fn kernel_version() -> (u32, u32) {
    version(&rustix::system::uname().release().to_string_lossy())
}

fn version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().ok());
    let mut next = || numbers.next().flatten().unwrap_or(0);
    (next(), next())
}

/// Returns true if this process has more privileges than the process that started it, which also
/// chose its environment: `AT_SECURE`.
pub fn has_gained_privileges() -> bool {
    // SAFETY: the call reads the auxiliary vector, which the kernel made, and has no other effect.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
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

/// Returns 16 random bytes from the kernel. Waits, after a warning, until the kernel has gathered
/// entropy after boot.
///
/// # Errors
/// When `getrandom` fails, for example because a seccomp filter forbids it.
pub fn random_u128() -> io::Result<u128> {
    random_from(|bytes, flags| rustix::rand::getrandom(bytes, flags))
}

/// As [`random_u128`], with `getrandom` as the system call.
fn random_from(
    mut getrandom: impl FnMut(&mut [u8], GetRandomFlags) -> rustix::io::Result<usize>,
) -> io::Result<u128> {
    let mut bytes = [0u8; 16];
    // getrandom returns requests of up to 256 bytes whole, unless a signal interrupts it.
    let got = match getrandom(&mut bytes, GetRandomFlags::NONBLOCK) {
        Err(Errno::AGAIN) => {
            tracing::warn!(
                "waiting for random numbers: the kernel has not gathered enough entropy since \
                 boot; a virtual machine gets entropy from a virtio-rng device, or from a CPU \
                 model with RDRAND"
            );
            getrandom(&mut bytes, GetRandomFlags::empty())?
        }
        other => other?,
    };
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

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;
    use crate::log::lines_of;

    #[test]
    fn versions_of_kernels() {
        assert_eq!(version("6.18.44-fc"), (6, 18));
        assert_eq!(version("6.1\n"), (6, 1));
        assert_eq!(version(""), (0, 0));
    }

    /// What `random_from` returns, logs and calls, if the kernel has entropy or not.
    fn random(has_entropy: bool) -> (io::Result<u128>, String, Vec<GetRandomFlags>) {
        let mut calls = Vec::new();
        let mut result = None;
        let log = lines_of(Level::WARN, || {
            result = Some(random_from(|bytes, flags| {
                calls.push(flags);
                if !has_entropy && flags.contains(GetRandomFlags::NONBLOCK) {
                    return Err(Errno::AGAIN);
                }
                bytes.fill(7);
                Ok(bytes.len())
            }));
        });
        (result.expect("it was called"), log, calls)
    }

    #[test]
    fn waiting_for_random_numbers_is_logged_once() {
        let bytes = u128::from_ne_bytes([7; 16]);
        let (result, log, calls) = random(false);
        assert_eq!(result.expect("random bytes"), bytes);
        assert_eq!(calls, [GetRandomFlags::NONBLOCK, GetRandomFlags::empty()]);
        assert!(log.starts_with("test: warning: waiting for random numbers: "), "{log}");
        assert_eq!(log.lines().count(), 1, "{log}");

        let (result, log, calls) = random(true);
        assert_eq!(result.expect("random bytes"), bytes);
        assert_eq!((log.as_str(), &*calls), ("", &[GetRandomFlags::NONBLOCK][..]));
    }

    #[test]
    fn other_errors_of_getrandom_are_returned() {
        let error = random_from(|_, _| Err(Errno::NOSYS)).expect_err("no such call");
        assert_eq!(error.raw_os_error(), Some(libc::ENOSYS));
        let error = random_from(|_, _| Ok(15)).expect_err("interrupted");
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        assert_ne!(random_u128().expect("random bytes"), random_u128().expect("random bytes"));
    }
}
