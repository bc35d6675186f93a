//! How an idle core sleeps on a device that has nothing to wake it: by a timer, a little longer each time.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// The first sleep after a frame.
const SHORTEST: Duration = Duration::from_micros(50);

#[derive(Debug)]
pub(super) struct Nap {
    timer: OwnedFd,
    longest: Duration,
    next: Duration,
}

impl Nap {
    /// Naps of at most `longest`; zero means none at all.
    pub fn new(longest: Duration) -> io::Result<Self> {
        let flags = libc::TFD_NONBLOCK | libc::TFD_CLOEXEC;
        // SAFETY: no pointers are involved.
        let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just given this descriptor to us alone.
        let timer = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { timer, longest, next: SHORTEST.min(longest) })
    }

    /// Frames came: the next nap is short again.
    pub fn reset(&mut self) {
        self.next = SHORTEST.min(self.longest);
    }

    /// Begins a nap: the descriptor becomes readable at its end. `None` if there are to be none.
    pub fn begin(&mut self) -> Option<RawFd> {
        if self.longest.is_zero() {
            return None;
        }
        let spec = libc::itimerspec {
            it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: libc::timespec {
                tv_sec: libc::time_t::try_from(self.next.as_secs()).unwrap_or(libc::time_t::MAX),
                tv_nsec: self.next.subsec_nanos().into(),
            },
        };
        self.next = (self.next * 2).min(self.longest);
        let fd = self.timer.as_raw_fd();
        // SAFETY: the structure outlives the call. An earlier end that nobody read is forgotten by it.
        let status = unsafe { libc::timerfd_settime(fd, 0, &raw const spec, std::ptr::null_mut()) };
        (status == 0).then_some(fd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::poll_readable;
    use crate::time::Clock;

    #[test]
    fn naps_grow_and_end() {
        let mut nap = Nap::new(Duration::from_millis(2)).unwrap();
        let (clock, mut scratch) = (Clock::start(), Vec::new());
        for _ in 0..8 {
            let (start, expected) = (clock.now(), nap.next);
            let fd = nap.begin().unwrap();
            poll_readable(&[fd], &mut scratch, Some(Duration::from_secs(5)));
            assert!(scratch[0].revents != 0, "the nap ended");
            assert!(clock.now() - start >= expected, "not before its time");
        }
        assert_eq!(nap.next, Duration::from_millis(2));
        nap.reset();
        assert_eq!(nap.next, SHORTEST);
    }

    #[test]
    fn no_naps_if_none_are_wanted() {
        assert_eq!(Nap::new(Duration::ZERO).unwrap().begin(), None);
    }
}
