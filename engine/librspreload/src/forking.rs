//! Programs that fork, with `RDMAV_FORK_SAFE` set on both sides.
//!
//! An RDMA connection cannot leave its process. Therefore a socket starts as a kernel socket, which
//! a child process can inherit, and becomes an rsocket in the process that first reads or writes
//! it: the server then listens for a second connection on the same port and signals this by
//! four zero bytes on the first connection.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

use libc::{SOCK_STREAM, sockaddr, sockaddr_storage, socklen_t};

use crate::names::{RSOCKETS, kernel};
use crate::socket_options::{INT_LENGTH, copy_options, set_sizes};
use crate::table::{self, Backing, Pending};

/// Named semaphore: the servers of a host listen on the port one at a time.
const SEMAPHORE: &std::ffi::CStr = c"/rsocket_fork";

/// Returns the socket behind a descriptor. A pending socket becomes an rsocket first.
pub fn resolve(fd: c_int) -> Backing {
    let backing = table::resolve(fd);
    match backing.pending {
        Pending::Active => replace_socket(fd, backing, connect_rsocket(backing.fd)),
        Pending::Passive => replace_socket(fd, backing, accept_rsocket(backing.fd)),
        _ => backing,
    }
}

/// Replaces a kernel socket by the rsocket `rsocket`, or makes it a plain kernel socket if that is
/// `None`.
fn replace_socket(fd: c_int, backing: Backing, rsocket: Option<c_int>) -> Backing {
    let new = match rsocket {
        None => Backing::kernel(backing.fd, Pending::None),
        Some(rsocket) => {
            set_sizes(rsocket);
            copy_options((&RSOCKETS, rsocket), (kernel(), backing.fd));
            // SAFETY: this library owns the descriptor.
            unsafe {
                (kernel().shutdown)(backing.fd, libc::SHUT_RDWR);
                (kernel().close)(backing.fd);
            }
            Backing::rsocket(rsocket)
        }
    };
    table::set(fd, new);
    new
}

/// Returns an address of a kernel socket.
fn address(
    socket: c_int,
    get: unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int,
) -> Option<(sockaddr_storage, socklen_t)> {
    // SAFETY: all-zero bytes are an address without a family.
    let mut storage: sockaddr_storage = unsafe { MaybeUninit::zeroed().assume_init() };
    let mut length = socklen_t::try_from(size_of_val(&storage)).ok()?;
    // SAFETY: `storage` has room for any address.
    let code = unsafe { get(socket, (&raw mut storage).cast(), &raw mut length) };
    (code == 0).then_some((storage, length))
}

/// The client side: waits for the four zero bytes, then connects an rsocket.
fn connect_rsocket(socket: c_int) -> Option<c_int> {
    let mut bytes = [0xffu8; 4];
    // SAFETY: the kernel writes at most `bytes.len()` bytes.
    let got = unsafe {
        let flags = (kernel().fcntl)(socket, libc::F_GETFL, 0);
        (kernel().fcntl)(socket, libc::F_SETFL, 0);
        let flag = libc::MSG_PEEK | libc::MSG_WAITALL;
        let got = (kernel().recv)(socket, bytes.as_mut_ptr().cast(), bytes.len(), flag);
        (kernel().fcntl)(socket, libc::F_SETFL, flags.into());
        got
    };
    if got != 4 || bytes != [0; 4] {
        return None;
    }
    let (peer, length) = address(socket, kernel().getpeername)?;
    // SAFETY: this library owns the descriptor.
    unsafe {
        let rsocket = (RSOCKETS.socket)(peer.ss_family.into(), SOCK_STREAM, 0);
        if rsocket < 0 {
            return None;
        }
        if (RSOCKETS.connect)(rsocket, (&raw const peer).cast(), length) != 0 {
            (RSOCKETS.close)(rsocket);
            return None;
        }
        Some(rsocket)
    }
}

/// The server side: listens, notifies the client, and accepts.
fn accept_rsocket(socket: c_int) -> Option<c_int> {
    let (local, length) = address(socket, kernel().getsockname)?;
    let any = any_address(local);
    let on: c_int = 1;
    // SAFETY: the name is a C string; all arguments are valid during the calls.
    unsafe {
        let semaphore = libc::sem_open(SEMAPHORE.as_ptr(), libc::O_CREAT | libc::O_RDWR, 0o770, 1);
        if semaphore == libc::SEM_FAILED {
            return None;
        }
        let listener = (RSOCKETS.socket)(any.ss_family.into(), SOCK_STREAM, 0);
        let mut accepted = -1;
        if listener >= 0 {
            let value = (&raw const on).cast::<c_void>();
            (RSOCKETS.setsockopt)(
                listener,
                libc::SOL_SOCKET,
                libc::SO_REUSEADDR,
                value,
                INT_LENGTH,
            );
            libc::sem_wait(semaphore);
            let zeros = [0u8; 4];
            if (RSOCKETS.bind)(listener, (&raw const any).cast(), length) == 0
                && (RSOCKETS.listen)(listener, 1) == 0
                && (kernel().write)(socket, zeros.as_ptr().cast(), zeros.len()) == 4
            {
                accepted = (RSOCKETS.accept)(listener, std::ptr::null_mut(), std::ptr::null_mut());
            }
            (RSOCKETS.close)(listener);
            libc::sem_post(semaphore);
        }
        libc::sem_close(semaphore);
        (accepted >= 0).then_some(accepted)
    }
}

/// Returns the wildcard address with the same port.
fn any_address(mut address: sockaddr_storage) -> sockaddr_storage {
    let place = &raw mut address;
    // SAFETY: `sockaddr_storage` has room and alignment for any address.
    unsafe {
        if c_int::from((*place).ss_family) == libc::AF_INET6 {
            let v6 = place.cast::<libc::sockaddr_in6>();
            ((*v6).sin6_flowinfo, (*v6).sin6_scope_id) = (0, 0);
            (*v6).sin6_addr.s6_addr = [0; 16];
        } else {
            (*place.cast::<libc::sockaddr_in>()).sin_addr.s_addr = 0;
        }
    }
    address
}
