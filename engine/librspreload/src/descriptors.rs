//! Creating, accepting, connecting, duplicating and closing sockets.

use std::cell::Cell;
use std::ffi::c_int;

use libc::{sockaddr, socklen_t};

use crate::names::{RSOCKETS, kernel, other_calls};
use crate::socket_options::{copy_options, set_sizes};
use crate::table::{self, Backing, Kind, Pending};
use crate::{forking, selection};

thread_local! {
    /// True while rsockets creates a socket: kernel sockets that it opens must not become rsockets.
    static CREATING: Cell<bool> = const { Cell::new(false) };
}

/// Opens a descriptor for the program to hold.
fn placeholder() -> c_int {
    // SAFETY: the path is a C string.
    unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY) }
}

/// Puts a socket behind the program's descriptor and returns the descriptor.
fn set_backing(index: c_int, backing: Backing) -> c_int {
    table::set(index, backing);
    index
}

#[unsafe(no_mangle)]
unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: the function takes no pointers.
    let kernel_socket = || unsafe { (kernel().socket)(domain, kind, protocol) };
    let internet = matches!(domain, libc::AF_INET | libc::AF_INET6);
    let plain = matches!(kind, libc::SOCK_STREAM | libc::SOCK_DGRAM);
    if !internet || !plain || CREATING.get() || !selection::is_selected(domain, kind, protocol) {
        return kernel_socket();
    }
    let index = placeholder();
    if index < 0 {
        return index;
    }
    let tcp = kind == libc::SOCK_STREAM && matches!(protocol, 0 | libc::IPPROTO_TCP);
    if tcp && selection::forks() {
        let fd = kernel_socket();
        if fd >= 0 {
            return set_backing(index, Backing::kernel(fd, Pending::Undecided));
        }
    } else {
        CREATING.set(true);
        // SAFETY: the function takes no pointers.
        let fd = unsafe { (RSOCKETS.socket)(domain, kind, protocol) };
        CREATING.set(false);
        if fd >= 0 {
            set_sizes(fd);
            return set_backing(index, Backing::rsocket(fd));
        }
    }
    // SAFETY: this library owns the descriptor.
    unsafe { (kernel().close)(index) };
    kernel_socket()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
    let backing = table::resolve(fd);
    let pending = match (backing.kind, backing.pending) {
        (Kind::Rsocket, _) => Pending::None,
        (Kind::Kernel, Pending::Listening) => Pending::Passive,
        // SAFETY: the program passes null pointers, or a writable `length` and `*length` writable
        // bytes at `address`.
        (Kind::Kernel, _) => return unsafe { (kernel().accept)(backing.fd, address, length) },
    };
    // SAFETY: the program passes null pointers, or a writable `length` and `*length` writable
    // bytes at `address`.
    let accepted = unsafe { (backing.calls().accept)(backing.fd, address, length) };
    if accepted < 0 {
        return accepted;
    }
    let index = placeholder();
    if index < 0 {
        // SAFETY: this library owns the descriptor.
        unsafe { (backing.calls().close)(accepted) };
        return index;
    }
    set_backing(index, Backing { kind: backing.kind, pending, fd: accepted })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    let backing = table::resolve(fd);
    // SAFETY: the function takes no pointers.
    let code = unsafe { (backing.calls().listen)(backing.fd, backlog) };
    if code == 0 && backing.pending == Pending::Undecided {
        table::set(fd, Backing { pending: Pending::Listening, ..backing });
    }
    code
}

#[unsafe(no_mangle)]
unsafe extern "C" fn connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
    let mut backing = table::resolve(fd);
    if backing.kind == Kind::Rsocket {
        // SAFETY: the program passes an address of `length` bytes.
        let code = unsafe { (RSOCKETS.connect)(backing.fd, address, length) };
        let in_progress = std::io::Error::last_os_error().raw_os_error() == Some(libc::EINPROGRESS);
        if code == 0 || in_progress {
            return code;
        }
        // The peer does not support rsockets: use TCP or UDP.
        let Some(kernel_socket) = kernel_socket_like(backing.fd) else { return code };
        // SAFETY: this library owns the descriptor.
        unsafe { (RSOCKETS.close)(backing.fd) };
        backing = Backing::kernel(kernel_socket, Pending::None);
        table::set(fd, backing);
    } else if backing.pending == Pending::Undecided {
        table::set(fd, Backing { pending: Pending::Active, ..backing });
    }
    // SAFETY: the program passes an address of `length` bytes.
    unsafe { (kernel().connect)(backing.fd, address, length) }
}

/// Creates a kernel socket with the options of a stream rsocket.
fn kernel_socket_like(rsocket: c_int) -> Option<c_int> {
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

#[unsafe(no_mangle)]
unsafe extern "C" fn close(fd: c_int) -> c_int {
    // SAFETY: the program closes a descriptor that it holds.
    unsafe {
        let Some((backing, last)) = table::take(fd) else { return (kernel().close)(fd) };
        (kernel().close)(fd);
        if last { (backing.calls().close)(backing.fd) } else { 0 }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    if old == new {
        // SAFETY: the function takes no pointers.
        return unsafe { (other_calls().dup2)(old, new) };
    }
    forking::resolve(old);
    if table::find(new).is_some() {
        // SAFETY: the program gives `new` up by the call.
        unsafe { close(new) };
    }
    // SAFETY: the function takes no pointers.
    let code = unsafe { (other_calls().dup2)(old, new) };
    if code >= 0
        && let Some(backing) = table::find(old)
    {
        table::share(new, backing);
    }
    code
}
