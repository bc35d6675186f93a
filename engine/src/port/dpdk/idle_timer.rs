//! The timer that wakes an idle core on a device without interrupts. Each sleep is twice as long as
//! the one before, up to a limit.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// The first sleep after a frame arrived.
const SHORTEST: Duration = Duration::from_micros(50);

#[derive(Debug)]
pub(super) struct IdleTimer {
    timer: OwnedFd,
    longest: Duration,
    next: Duration,
}

impl IdleTimer {
    /// Creates a timer for sleeps of at most `longest`; zero: no sleep at all.
    pub fn new(longest: Duration) -> io::Result<Self> {
        let flags = libc::TFD_NONBLOCK | libc::TFD_CLOEXEC;
        // SAFETY: no pointers are involved.
        let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and has no other owner.
        let timer = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { timer, longest, next: SHORTEST.min(longest) })
    }

    /// Makes the next sleep the shortest one again. Called when frames arrive.
    pub fn reset(&mut self) {
        self.next = SHORTEST.min(self.longest);
    }

    /// Starts the timer for the next sleep. Returns the descriptor that becomes readable at its
    /// end; `None` if the helper must not sleep.
    pub fn arm(&mut self) -> Option<RawFd> {
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
        // SAFETY: the structure outlives the call. Setting the timer clears an earlier expiration.
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
    fn sleeps_grow_up_to_the_limit() {
        let mut timer = IdleTimer::new(Duration::from_millis(2)).unwrap();
        let (clock, mut scratch) = (Clock::start(), Vec::new());
        for _ in 0..8 {
            let (start, expected) = (clock.now(), timer.next);
            let fd = timer.arm().unwrap();
            poll_readable(&[fd], &mut scratch, Some(Duration::from_secs(5)));
            assert!(scratch[0].revents != 0, "the timer expired");
            assert!(clock.now() - start >= expected, "not before its time");
        }
        assert_eq!(timer.next, Duration::from_millis(2));
        timer.reset();
        assert_eq!(timer.next, SHORTEST);
    }

    #[test]
    fn a_limit_of_zero_means_no_sleep() {
        assert_eq!(IdleTimer::new(Duration::ZERO).unwrap().arm(), None);
    }
}
