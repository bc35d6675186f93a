//! `poll` and `select` for rsockets, kernel sockets and other descriptors together.

use std::ffi::c_int;

use feroce_verbs_abi::select::{Sets, milliseconds};
use libc::{fd_set, nfds_t, pollfd, timeval};

use crate::names::{RSOCKETS, kernel};
use crate::table::{self, Kind};

fn is_rsocket(fd: c_int) -> bool {
    table::find(fd).is_some_and(|backing| backing.kind == Kind::Rsocket)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    let length = usize::try_from(count).unwrap_or(0);
    if length == 0 {
        // SAFETY: the program passes an array of `count` entries.
        return unsafe { (kernel().poll)(fds, count, timeout) };
    }
    // SAFETY: the program passes an array of `count` entries.
    let polled = unsafe { std::slice::from_raw_parts_mut(fds, length) };
    if !polled.iter().any(|polled| table::find(polled.fd).is_some()) {
        // SAFETY: the program passes an array of `count` entries.
        return unsafe { (kernel().poll)(fds, count, timeout) };
    }
    let mut backing: Vec<pollfd> = polled
        .iter()
        .map(|polled| pollfd { fd: table::resolve(polled.fd).fd, revents: 0, ..*polled })
        .collect();
    let any = polled.iter().any(|polled| is_rsocket(polled.fd));
    let calls = if any { &RSOCKETS } else { kernel() };
    // SAFETY: the array is valid during the call.
    let ready = unsafe { (calls.poll)(backing.as_mut_ptr(), count, timeout) };
    for (polled, backing) in polled.iter_mut().zip(&backing) {
        polled.revents = backing.revents;
    }
    ready
}

#[unsafe(no_mangle)]
unsafe extern "C" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let sets = Sets([read, write, except]);
    // SAFETY: the sets are null or valid for `count` descriptors.
    let mut polled = unsafe { sets.polled(count) };
    if !polled.iter().any(|polled| table::find(polled.fd).is_some()) {
        // SAFETY: the sets are null or valid for `count` descriptors.
        return unsafe { (kernel().select)(count, read, write, except, timeout) };
    }
    let length = nfds_t::try_from(polled.len()).unwrap_or(0);
    // SAFETY: the timeout is null or valid; the array is valid during the call.
    let ready = unsafe { poll(polled.as_mut_ptr(), length, milliseconds(timeout.as_ref())) };
    // SAFETY: the sets are null or valid for `count` descriptors.
    if ready < 0 { ready } else { unsafe { sets.fill(&polled) } }
}
