//! `select` by way of `poll`: sets of descriptors as lists, and back.

use std::ffi::c_int;

use libc::{fd_set, pollfd, timeval};

/// Sets of descriptors, any of which may be missing: to be read, to be written, and those that have something else to say.
#[derive(Debug, Clone, Copy)]
pub struct Sets(pub [*mut fd_set; 3]);

impl Sets {
    const EVENTS: [i16; 3] = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];

    /// What makes a descriptor a member again. Errors as the kernel tells them, and as rsockets do.
    const READY: [i16; 3] = [
        libc::POLLIN | libc::POLLHUP | libc::POLLERR,
        libc::POLLOUT | libc::POLLERR,
        !(libc::POLLIN | libc::POLLOUT | libc::POLLHUP),
    ];

    /// # Safety
    /// The sets that are there are valid.
    unsafe fn has(set: *mut fd_set, fd: c_int) -> bool {
        // SAFETY: the caller says so, and descriptors are below its size.
        !set.is_null() && unsafe { libc::FD_ISSET(fd, set) }
    }

    /// What the sets ask for, of descriptors below `count`.
    ///
    /// # Safety
    /// Those that are there are valid.
    pub unsafe fn polled(&self, count: c_int) -> Vec<pollfd> {
        let limit = count.clamp(0, c_int::try_from(libc::FD_SETSIZE).unwrap_or(c_int::MAX));
        let asked = |fd: c_int| {
            let bits = self.0.iter().zip(Self::EVENTS);
            // SAFETY: the caller says so.
            let bits = bits.filter(|(set, _)| unsafe { Self::has(**set, fd) });
            let events = bits.fold(0, |events, (_, event)| events | event);
            (events != 0).then_some(pollfd { fd, events, revents: 0 })
        };
        (0..limit).filter_map(asked).collect()
    }

    /// Leaves in the sets what is ready; how many members they have.
    ///
    /// # Safety
    /// Those that are there are valid.
    pub unsafe fn fill(&self, polled: &[pollfd]) -> c_int {
        let mut members = 0;
        for ((&set, event), ready) in self.0.iter().zip(Self::EVENTS).zip(Self::READY) {
            if set.is_null() {
                continue;
            }
            // SAFETY: the caller says so.
            unsafe { libc::FD_ZERO(set) };
            let is_ready =
                |polled: &&pollfd| polled.events & event != 0 && polled.revents & ready != 0;
            for polled in polled.iter().filter(is_ready) {
                // SAFETY: as above; its descriptor came from a set.
                unsafe { libc::FD_SET(polled.fd, set) };
                members += 1;
            }
        }
        members
    }
}

/// The time that a program waits, as `poll` has it: for ever without one.
pub fn milliseconds(timeout: Option<&timeval>) -> c_int {
    timeout.map_or(-1, |&timeval { tv_sec, tv_usec }| {
        c_int::try_from(tv_sec * 1000 + (tv_usec + 999) / 1000).unwrap_or(c_int::MAX)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_become_lists_and_lists_sets() {
        // SAFETY: empty sets are zeros, and they are there for the calls.
        unsafe {
            let [mut read, mut write]: [fd_set; 2] = std::mem::zeroed();
            libc::FD_SET(3, &raw mut read);
            libc::FD_SET(3, &raw mut write);
            libc::FD_SET(9, &raw mut read);
            libc::FD_SET(20, &raw mut read);
            let sets = Sets([&raw mut read, &raw mut write, std::ptr::null_mut()]);
            let mut polled = sets.polled(20);
            let asked: Vec<_> = polled.iter().map(|polled| (polled.fd, polled.events)).collect();
            assert_eq!(asked, [(3, libc::POLLIN | libc::POLLOUT), (9, libc::POLLIN)]);
            (polled[0].revents, polled[1].revents) = (libc::POLLOUT, libc::POLLHUP);
            assert_eq!(sets.fill(&polled), 2);
            assert!(!libc::FD_ISSET(3, &raw const read) && libc::FD_ISSET(9, &raw const read));
            assert!(libc::FD_ISSET(3, &raw const write) && !libc::FD_ISSET(20, &raw const read));
        }
        assert_eq!(milliseconds(None), -1);
        assert_eq!(milliseconds(Some(&timeval { tv_sec: 2, tv_usec: 1 })), 2001);
    }
}
