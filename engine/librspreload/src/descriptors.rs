//! Sockets that are made, duplicated, changed from one kind to the other, and closed.

use std::cell::Cell;
use std::ffi::{c_int, c_long, c_void};

use libc::{sockaddr, socklen_t};

use crate::names::{Calls, RSOCKETS, kernel, others};
use crate::table::{self, Behind, Kind, Pending};
use crate::{choice, forking};

/// The level of options that only rsockets have.
const SOL_RDMA: c_int = 0x10000;
#[allow(clippy::cast_possible_truncation)] // 4.
pub const INT: socklen_t = size_of::<c_int>() as socklen_t;

thread_local! {
    /// A socket is being made: what is asked for meanwhile is asked for by the library that makes it.
    static MAKING: Cell<bool> = const { Cell::new(false) };
}

/// A descriptor for the program to hold.
fn placeholder() -> c_int {
    // SAFETY: the name is a string.
    unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY) }
}

/// Gives the program a descriptor for something.
fn hold(index: c_int, behind: Behind) -> c_int {
    table::set(index, behind);
    index
}

/// Sets an rsocket to what the environment says; it has defaults.
pub fn set_sizes(rsocket: c_int) {
    for (option, size) in choice::sizes() {
        let value = (&raw const *size).cast();
        // SAFETY: the value is there for the call.
        unsafe { (RSOCKETS.setsockopt)(rsocket, SOL_RDMA, *option, value, INT) };
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: no pointers are involved.
    let of_kernel = || unsafe { (kernel().socket)(domain, kind, protocol) };
    let internet = matches!(domain, libc::AF_INET | libc::AF_INET6);
    let plain = matches!(kind, libc::SOCK_STREAM | libc::SOCK_DGRAM);
    if !internet || !plain || MAKING.get() || !choice::is_meant(domain, kind, protocol) {
        return of_kernel();
    }
    let index = placeholder();
    if index < 0 {
        return index;
    }
    let tcp = kind == libc::SOCK_STREAM && matches!(protocol, 0 | libc::IPPROTO_TCP);
    if tcp && choice::forks() {
        let fd = of_kernel();
        if fd >= 0 {
            return hold(index, Behind::kernel(fd, Pending::Undecided));
        }
    } else {
        MAKING.set(true);
        // SAFETY: no pointers are involved.
        let fd = unsafe { (RSOCKETS.socket)(domain, kind, protocol) };
        MAKING.set(false);
        if fd >= 0 {
            set_sizes(fd);
            return hold(index, Behind::rsocket(fd));
        }
    }
    // SAFETY: the descriptor is the library's own.
    unsafe { (kernel().close)(index) };
    of_kernel()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
    let behind = table::resolve(fd);
    let pending = match (behind.kind, behind.pending) {
        (Kind::Rsocket, _) => Pending::None,
        (Kind::Kernel, Pending::Listening) => Pending::Passive,
        // SAFETY: the program answers for the pointers.
        (Kind::Kernel, _) => return unsafe { (kernel().accept)(behind.fd, address, length) },
    };
    // SAFETY: as above.
    let accepted = unsafe { (behind.calls().accept)(behind.fd, address, length) };
    if accepted < 0 {
        return accepted;
    }
    let index = placeholder();
    if index < 0 {
        // SAFETY: the descriptor is the library's own.
        unsafe { (behind.calls().close)(accepted) };
        return index;
    }
    hold(index, Behind { kind: behind.kind, pending, fd: accepted })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    let behind = table::resolve(fd);
    // SAFETY: no pointers are involved.
    let code = unsafe { (behind.calls().listen)(behind.fd, backlog) };
    if code == 0 && behind.pending == Pending::Undecided {
        table::set(fd, Behind { pending: Pending::Listening, ..behind });
    }
    code
}

#[unsafe(no_mangle)]
unsafe extern "C" fn connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
    let mut behind = table::resolve(fd);
    if behind.kind == Kind::Rsocket {
        // SAFETY: the program answers for the address.
        let code = unsafe { (RSOCKETS.connect)(behind.fd, address, length) };
        let in_progress = std::io::Error::last_os_error().raw_os_error() == Some(libc::EINPROGRESS);
        if code == 0 || in_progress {
            return code;
        }
        // The peer has no rsockets: plain TCP, or UDP.
        let Some(of_kernel) = to_kernel(behind.fd) else { return code };
        // SAFETY: the descriptor is the library's own.
        unsafe { (RSOCKETS.close)(behind.fd) };
        behind = Behind::kernel(of_kernel, Pending::None);
        table::set(fd, behind);
    } else if behind.pending == Pending::Undecided {
        table::set(fd, Behind { pending: Pending::Active, ..behind });
    }
    // SAFETY: the program answers for the address.
    unsafe { (kernel().connect)(behind.fd, address, length) }
}

/// A socket of the kernel that is set as a stream rsocket is.
fn to_kernel(rsocket: c_int) -> Option<c_int> {
    // SAFETY: all zeros is an address of no family.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut length = socklen_t::try_from(size_of_val(&storage)).ok()?;
    // SAFETY: there is room for any address.
    unsafe { (RSOCKETS.getsockname)(rsocket, (&raw mut storage).cast(), &raw mut length) };
    let v6 = c_int::from(storage.ss_family) == libc::AF_INET6;
    let domain = if v6 { libc::AF_INET6 } else { libc::AF_INET };
    // SAFETY: no pointers are involved.
    let fd = unsafe { (kernel().socket)(domain, libc::SOCK_STREAM, 0) };
    if fd < 0 {
        return None;
    }
    copy_options((kernel(), fd), (&RSOCKETS, rsocket));
    Some(fd)
}

/// Sets a socket as another is, as far as most programs set any.
pub fn copy_options(to: (&Calls, c_int), from: (&Calls, c_int)) {
    let options = [(libc::SOL_SOCKET, libc::SO_REUSEADDR), (libc::IPPROTO_TCP, libc::TCP_NODELAY)];
    // SAFETY: the values are there for the calls.
    unsafe {
        let flags = (from.0.fcntl)(from.1, libc::F_GETFL, 0);
        if flags > 0 {
            (to.0.fcntl)(to.1, libc::F_SETFL, c_long::from(flags));
        }
        for (level, option) in options {
            let (mut value, mut length): (c_int, _) = (0, INT);
            let place = (&raw mut value).cast::<c_void>();
            let code = (from.0.getsockopt)(from.1, level, option, place, &raw mut length);
            if code == 0 && value != 0 {
                (to.0.setsockopt)(to.1, level, option, place, INT);
            }
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn close(fd: c_int) -> c_int {
    // SAFETY: the program closes what it holds.
    unsafe {
        let Some((behind, last)) = table::take(fd) else { return (kernel().close)(fd) };
        (kernel().close)(fd);
        if last { (behind.calls().close)(behind.fd) } else { 0 }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    if old == new {
        // SAFETY: no pointers are involved.
        return unsafe { (others().dup2)(old, new) };
    }
    forking::resolve(old);
    if table::find(new).is_some() {
        // SAFETY: the program lets go of it.
        unsafe { close(new) };
    }
    // SAFETY: no pointers are involved.
    let code = unsafe { (others().dup2)(old, new) };
    if code >= 0
        && let Some(behind) = table::find(old)
    {
        table::share(new, behind);
    }
    code
}
