//! Creating, accepting, connecting, duplicating and closing sockets.

use std::cell::Cell;
use std::ffi::{c_int, c_long, c_void};

use libc::{sockaddr, socklen_t};

use crate::names::{Calls, RSOCKETS, kernel, others};
use crate::table::{self, Behind, Kind, Pending};
use crate::{choice, forking};

/// Level of the options that only rsockets have.
const SOL_RDMA: c_int = 0x10000;
#[allow(clippy::cast_possible_truncation)] // the value is 4
pub const INT: socklen_t = size_of::<c_int>() as socklen_t;

thread_local! {
    /// True while rsockets creates a socket: kernel sockets that it opens must not become rsockets.
    static MAKING: Cell<bool> = const { Cell::new(false) };
}

/// Opens a descriptor for the program to hold.
fn placeholder() -> c_int {
    // SAFETY: the path is a C string.
    unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY) }
}

/// Puts a socket behind the program's descriptor and returns the descriptor.
fn hold(index: c_int, behind: Behind) -> c_int {
    table::set(index, behind);
    index
}

/// Sets the sizes from the environment. Errors are ignored: the socket keeps its defaults.
pub fn set_sizes(rsocket: c_int) {
    for (option, size) in choice::sizes() {
        let value = (&raw const *size).cast();
        // SAFETY: the value is valid during the call.
        unsafe { (RSOCKETS.setsockopt)(rsocket, SOL_RDMA, *option, value, INT) };
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: the function takes no pointers.
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
        // SAFETY: the function takes no pointers.
        let fd = unsafe { (RSOCKETS.socket)(domain, kind, protocol) };
        MAKING.set(false);
        if fd >= 0 {
            set_sizes(fd);
            return hold(index, Behind::rsocket(fd));
        }
    }
    // SAFETY: this library owns the descriptor.
    unsafe { (kernel().close)(index) };
    of_kernel()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
    let behind = table::resolve(fd);
    let pending = match (behind.kind, behind.pending) {
        (Kind::Rsocket, _) => Pending::None,
        (Kind::Kernel, Pending::Listening) => Pending::Passive,
        // SAFETY: the program passes null pointers, or a writable length and as many bytes.
        (Kind::Kernel, _) => return unsafe { (kernel().accept)(behind.fd, address, length) },
    };
    // SAFETY: the program passes null pointers, or a writable length and as many bytes.
    let accepted = unsafe { (behind.calls().accept)(behind.fd, address, length) };
    if accepted < 0 {
        return accepted;
    }
    let index = placeholder();
    if index < 0 {
        // SAFETY: this library owns the descriptor.
        unsafe { (behind.calls().close)(accepted) };
        return index;
    }
    hold(index, Behind { kind: behind.kind, pending, fd: accepted })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    let behind = table::resolve(fd);
    // SAFETY: the function takes no pointers.
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
        // SAFETY: the program passes an address of `length` bytes.
        let code = unsafe { (RSOCKETS.connect)(behind.fd, address, length) };
        let in_progress = std::io::Error::last_os_error().raw_os_error() == Some(libc::EINPROGRESS);
        if code == 0 || in_progress {
            return code;
        }
        // The peer does not support rsockets: use TCP or UDP.
        let Some(of_kernel) = to_kernel(behind.fd) else { return code };
        // SAFETY: this library owns the descriptor.
        unsafe { (RSOCKETS.close)(behind.fd) };
        behind = Behind::kernel(of_kernel, Pending::None);
        table::set(fd, behind);
    } else if behind.pending == Pending::Undecided {
        table::set(fd, Behind { pending: Pending::Active, ..behind });
    }
    // SAFETY: the program passes an address of `length` bytes.
    unsafe { (kernel().connect)(behind.fd, address, length) }
}

/// Creates a kernel socket with the options of a stream rsocket.
fn to_kernel(rsocket: c_int) -> Option<c_int> {
    // SAFETY: all-zero bytes are an address without a family.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut length = socklen_t::try_from(size_of_val(&storage)).ok()?;
    // SAFETY: `storage` has room for any address.
    unsafe { (RSOCKETS.getsockname)(rsocket, (&raw mut storage).cast(), &raw mut length) };
    let v6 = c_int::from(storage.ss_family) == libc::AF_INET6;
    let domain = if v6 { libc::AF_INET6 } else { libc::AF_INET };
    // SAFETY: the function takes no pointers.
    let fd = unsafe { (kernel().socket)(domain, libc::SOCK_STREAM, 0) };
    if fd < 0 {
        return None;
    }
    copy_options((kernel(), fd), (&RSOCKETS, rsocket));
    Some(fd)
}

/// Copies the most common options and the flags from one socket to another.
pub fn copy_options(to: (&Calls, c_int), from: (&Calls, c_int)) {
    let options = [(libc::SOL_SOCKET, libc::SO_REUSEADDR), (libc::IPPROTO_TCP, libc::TCP_NODELAY)];
    // SAFETY: the values are valid during the calls.
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
    // SAFETY: the program closes a descriptor that it holds.
    unsafe {
        let Some((behind, last)) = table::take(fd) else { return (kernel().close)(fd) };
        (kernel().close)(fd);
        if last { (behind.calls().close)(behind.fd) } else { 0 }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    if old == new {
        // SAFETY: the function takes no pointers.
        return unsafe { (others().dup2)(old, new) };
    }
    forking::resolve(old);
    if table::find(new).is_some() {
        // SAFETY: the program gives `new` up by the call.
        unsafe { close(new) };
    }
    // SAFETY: the function takes no pointers.
    let code = unsafe { (others().dup2)(old, new) };
    if code >= 0
        && let Some(behind) = table::find(old)
    {
        table::share(new, behind);
    }
    code
}
