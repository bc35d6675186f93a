//! Programs that fork, with `RDMAV_FORK_SAFE` set at both ends.
//!
//! A connection of RDMA stays in its process. So a socket begins as the kernel's, is passed on as such, and becomes an rsocket in
//! the process that first reads from it or writes to it: the server then listens for the second connection at the first one's
//! port, and says so over the first with four zero bytes.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

use libc::{SOCK_STREAM, sockaddr, sockaddr_storage, socklen_t};

use crate::descriptors::{INT, copy_options, set_sizes};
use crate::names::{RSOCKETS, kernel};
use crate::table::{self, Behind, Pending};

/// Servers of one host take turns at their port.
const SEMAPHORE: &std::ffi::CStr = c"/rsocket_fork";

/// What is behind a descriptor, once it is what it is to be.
pub fn resolve(fd: c_int) -> Behind {
    let behind = table::resolve(fd);
    match behind.pending {
        Pending::Active => become_rsocket(fd, behind, active(behind.fd)),
        Pending::Passive => become_rsocket(fd, behind, passive(behind.fd)),
        _ => behind,
    }
}

/// Replaces a socket of the kernel, or leaves it at that.
fn become_rsocket(fd: c_int, behind: Behind, made: Option<c_int>) -> Behind {
    let new = match made {
        None => Behind::kernel(behind.fd, Pending::None),
        Some(rsocket) => {
            set_sizes(rsocket);
            copy_options((&RSOCKETS, rsocket), (kernel(), behind.fd));
            // SAFETY: the descriptor is the library's own.
            unsafe {
                (kernel().shutdown)(behind.fd, libc::SHUT_RDWR);
                (kernel().close)(behind.fd);
            }
            Behind::rsocket(rsocket)
        }
    };
    table::set(fd, new);
    new
}

/// An address of a socket of the kernel.
fn address(
    socket: c_int,
    get: unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int,
) -> Option<(sockaddr_storage, socklen_t)> {
    // SAFETY: all zeros is an address of no family.
    let mut storage: sockaddr_storage = unsafe { MaybeUninit::zeroed().assume_init() };
    let mut length = socklen_t::try_from(size_of_val(&storage)).ok()?;
    // SAFETY: there is room for any address.
    let code = unsafe { get(socket, (&raw mut storage).cast(), &raw mut length) };
    (code == 0).then_some((storage, length))
}

/// The client's end: waits for the word, and connects.
fn active(socket: c_int) -> Option<c_int> {
    let mut word = [0xffu8; 4];
    // SAFETY: the kernel writes as many bytes as there are.
    let got = unsafe {
        let flags = (kernel().fcntl)(socket, libc::F_GETFL, 0);
        (kernel().fcntl)(socket, libc::F_SETFL, 0);
        let flag = libc::MSG_PEEK | libc::MSG_WAITALL;
        let got = (kernel().recv)(socket, word.as_mut_ptr().cast(), word.len(), flag);
        (kernel().fcntl)(socket, libc::F_SETFL, flags.into());
        got
    };
    if got != 4 || word != [0; 4] {
        return None;
    }
    let (peer, length) = address(socket, kernel().getpeername)?;
    // SAFETY: the address is there for the call.
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

/// The server's end: listens, says so, and accepts.
fn passive(socket: c_int) -> Option<c_int> {
    let (own, length) = address(socket, kernel().getsockname)?;
    let any = any_address(own);
    let on: c_int = 1;
    // SAFETY: the name is a string; what is passed is there for the calls.
    unsafe {
        let semaphore = libc::sem_open(SEMAPHORE.as_ptr(), libc::O_CREAT | libc::O_RDWR, 0o770, 1);
        if semaphore == libc::SEM_FAILED {
            return None;
        }
        let listener = (RSOCKETS.socket)(any.ss_family.into(), SOCK_STREAM, 0);
        let mut accepted = -1;
        if listener >= 0 {
            let value = (&raw const on).cast::<c_void>();
            (RSOCKETS.setsockopt)(listener, libc::SOL_SOCKET, libc::SO_REUSEADDR, value, INT);
            libc::sem_wait(semaphore);
            let word = [0u8; 4];
            if (RSOCKETS.bind)(listener, (&raw const any).cast(), length) == 0
                && (RSOCKETS.listen)(listener, 1) == 0
                && (kernel().write)(socket, word.as_ptr().cast(), word.len()) == 4
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

/// The same port of any address.
fn any_address(mut address: sockaddr_storage) -> sockaddr_storage {
    let place = &raw mut address;
    // SAFETY: the storage is large and aligned enough for any address.
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
