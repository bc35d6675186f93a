//! `select` by means of `poll`: converts descriptor sets to lists and back.

use std::ffi::c_int;

use libc::{fd_set, pollfd, timeval};

/// The read, write and exception sets of `select`; each may be null.
#[derive(Debug, Clone, Copy)]
pub struct Sets(pub [*mut fd_set; 3]);

impl Sets {
    const EVENTS: [i16; 3] = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];

    /// Events that put a descriptor into its set. Errors make it readable and writable, as with the
    /// kernel and rsockets.
    const READY: [i16; 3] = [
        libc::POLLIN | libc::POLLHUP | libc::POLLERR,
        libc::POLLOUT | libc::POLLERR,
        !(libc::POLLIN | libc::POLLOUT | libc::POLLHUP),
    ];

    /// Returns true if `fd` is in `set`.
    ///
    /// # Safety
    /// `set` is null or valid.
    unsafe fn has(set: *mut fd_set, fd: c_int) -> bool {
        // SAFETY: `set` is valid, and `fd` is less than `FD_SETSIZE`.
        !set.is_null() && unsafe { libc::FD_ISSET(fd, set) }
    }

    /// Returns the descriptors below `count` in the sets, with the requested events.
    ///
    /// # Safety
    /// The sets are null or valid.
    pub unsafe fn polled(&self, count: c_int) -> Vec<pollfd> {
        let limit = count.clamp(0, c_int::try_from(libc::FD_SETSIZE).unwrap_or(c_int::MAX));
        let requested = |fd: c_int| {
            let bits = self.0.iter().zip(Self::EVENTS);
            // SAFETY: the sets are null or valid.
            let bits = bits.filter(|(set, _)| unsafe { Self::has(**set, fd) });
            let events = bits.fold(0, |events, (_, event)| events | event);
            (events != 0).then_some(pollfd { fd, events, revents: 0 })
        };
        (0..limit).filter_map(requested).collect()
    }

    /// Leaves only ready descriptors in the sets. Returns the number of members.
    ///
    /// # Safety
    /// The sets are null or valid.
    pub unsafe fn fill(&self, polled: &[pollfd]) -> c_int {
        let mut members = 0;
        for ((&set, event), ready) in self.0.iter().zip(Self::EVENTS).zip(Self::READY) {
            if set.is_null() {
                continue;
            }
            // SAFETY: `set` is not null, so it is valid.
            unsafe { libc::FD_ZERO(set) };
            let is_ready =
                |polled: &&pollfd| polled.events & event != 0 && polled.revents & ready != 0;
            for polled in polled.iter().filter(is_ready) {
                // SAFETY: `set` is valid, and the descriptor came from a set.
                unsafe { libc::FD_SET(polled.fd, set) };
                members += 1;
            }
        }
        members
    }
}

/// Converts a `select` timeout to that of `poll`; -1 (no limit) for null.
pub fn milliseconds(timeout: Option<&timeval>) -> c_int {
    timeout.map_or(-1, |&timeval { tv_sec, tv_usec }| {
        c_int::try_from(tv_sec * 1000 + (tv_usec + 999) / 1000).unwrap_or(c_int::MAX)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_convert_to_lists_and_back() {
        // SAFETY: all-zero bytes are empty sets, which are valid during the calls.
        unsafe {
            let [mut read, mut write]: [fd_set; 2] = std::mem::zeroed();
            libc::FD_SET(3, &raw mut read);
            libc::FD_SET(3, &raw mut write);
            libc::FD_SET(9, &raw mut read);
            libc::FD_SET(20, &raw mut read);
            let sets = Sets([&raw mut read, &raw mut write, std::ptr::null_mut()]);
            let mut polled = sets.polled(20);
            let requested: Vec<_> =
                polled.iter().map(|polled| (polled.fd, polled.events)).collect();
            assert_eq!(requested, [(3, libc::POLLIN | libc::POLLOUT), (9, libc::POLLIN)]);
            (polled[0].revents, polled[1].revents) = (libc::POLLOUT, libc::POLLHUP);
            assert_eq!(sets.fill(&polled), 2);
            assert!(!libc::FD_ISSET(3, &raw const read) && libc::FD_ISSET(9, &raw const read));
            assert!(libc::FD_ISSET(3, &raw const write) && !libc::FD_ISSET(20, &raw const read));
        }
        assert_eq!(milliseconds(None), -1);
        assert_eq!(milliseconds(Some(&timeval { tv_sec: 2, tv_usec: 1 })), 2001);
    }
}
