//! `poll` and `select`, of sockets of both kinds and of other descriptors.

use std::ffi::c_int;

use libc::{fd_set, nfds_t, pollfd, timeval};

use crate::names::{RSOCKETS, kernel};
use crate::table::{self, Kind};

fn is_rsocket(fd: c_int) -> bool {
    table::find(fd).is_some_and(|behind| behind.kind == Kind::Rsocket)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    let length = usize::try_from(count).unwrap_or(0);
    if length == 0 {
        // SAFETY: the program answers for the array.
        return unsafe { (kernel().poll)(fds, count, timeout) };
    }
    // SAFETY: as above.
    let polled = unsafe { std::slice::from_raw_parts_mut(fds, length) };
    if !polled.iter().any(|polled| table::find(polled.fd).is_some()) {
        // SAFETY: as above.
        return unsafe { (kernel().poll)(fds, count, timeout) };
    }
    let mut behind: Vec<pollfd> = polled
        .iter()
        .map(|polled| pollfd { fd: table::resolve(polled.fd).fd, revents: 0, ..*polled })
        .collect();
    let any = polled.iter().any(|polled| is_rsocket(polled.fd));
    let calls = if any { &RSOCKETS } else { kernel() };
    // SAFETY: the array is there for the call.
    let ready = unsafe { (calls.poll)(behind.as_mut_ptr(), count, timeout) };
    for (polled, behind) in polled.iter_mut().zip(&behind) {
        polled.revents = behind.revents;
    }
    ready
}

/// What makes a descriptor a member of a set: what is asked for, and what is told.
const SETS: [(i16, i16); 3] = [
    (libc::POLLIN, libc::POLLIN | libc::POLLHUP | libc::POLLERR),
    (libc::POLLOUT, libc::POLLOUT | libc::POLLERR),
    (libc::POLLPRI, libc::POLLPRI),
];

#[unsafe(no_mangle)]
unsafe extern "C" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let sets = [read, write, except];
    let is_member = |fd, set: *mut fd_set| {
        // SAFETY: the program answers for the sets.
        !set.is_null() && unsafe { libc::FD_ISSET(fd, set) }
    };
    let limit = count.clamp(0, c_int::try_from(libc::FD_SETSIZE).unwrap_or(c_int::MAX));
    let members: Vec<c_int> =
        (0..limit).filter(|&fd| sets.iter().any(|&set| is_member(fd, set))).collect();
    if !members.iter().any(|&fd| table::find(fd).is_some()) {
        // SAFETY: as above.
        return unsafe { (kernel().select)(count, read, write, except, timeout) };
    }
    let asked = |fd| {
        let bits = sets.iter().zip(SETS).filter(|&(&set, _)| is_member(fd, set));
        bits.fold(0, |bits, (_, (asked, _))| bits | asked)
    };
    let mut polled: Vec<pollfd> =
        members.iter().map(|&fd| pollfd { fd, events: asked(fd), revents: 0 }).collect();
    let milliseconds = if timeout.is_null() {
        -1
    } else {
        // SAFETY: as above.
        let timeval { tv_sec, tv_usec } = unsafe { *timeout };
        c_int::try_from(tv_sec * 1000 + (tv_usec + 999) / 1000).unwrap_or(c_int::MAX)
    };
    let length = nfds_t::try_from(polled.len()).unwrap_or(0);
    // SAFETY: the array is there for the call.
    let ready = unsafe { poll(polled.as_mut_ptr(), length, milliseconds) };
    if ready < 0 {
        return ready;
    }
    let mut total = 0;
    for (set, (asked, told)) in sets.into_iter().zip(SETS) {
        if set.is_null() {
            continue;
        }
        // SAFETY: as above.
        unsafe { libc::FD_ZERO(set) };
        for polled in polled.iter().filter(|polled| polled.events & asked != 0) {
            if polled.revents & told != 0 {
                // SAFETY: as above.
                unsafe { libc::FD_SET(polled.fd, set) };
                total += 1;
            }
        }
    }
    total
}
