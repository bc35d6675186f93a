//! Queues of events behind a descriptor that programs poll, read and set non-blocking as they like.
//!
//! The descriptor is an eventfd that counts as a semaphore: it is readable once per event, and reading it blocks or
//! not as the program has set it, which is how it is with the kernel's.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::errno;

/// A queue of `T`.
#[derive(Debug)]
pub struct Channel<T> {
    fd: OwnedFd,
    events: Mutex<VecDeque<T>>,
}

impl<T> Channel<T> {
    /// An empty one.
    ///
    /// # Errors
    /// The system's number when no descriptor is left.
    pub fn new() -> Result<Self, c_int> {
        // SAFETY: no pointers are involved.
        let fd = unsafe { libc::eventfd(0, libc::EFD_SEMAPHORE | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(errno::last());
        }
        // SAFETY: the kernel has just given this descriptor to us alone.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd, events: Mutex::default() })
    }

    /// The descriptor.
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    fn events(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an event.
    pub fn push(&self, event: T) {
        self.events().push_back(event);
        let one = 1u64.to_ne_bytes();
        // SAFETY: the eight bytes are read by the kernel. It blocks only at 2^64 events.
        unsafe { libc::write(self.fd(), one.as_ptr().cast(), one.len()) };
    }

    /// The oldest event, once `take` has noted that it is taken; waits for one unless the program has set the
    /// descriptor non-blocking.
    ///
    /// # Errors
    /// EAGAIN, EINTR, as `read` gives them.
    pub fn get(&self, take: impl Fn(&T)) -> Result<T, c_int> {
        loop {
            let mut count = [0u8; 8];
            // SAFETY: the kernel writes eight bytes to `count`.
            let got = unsafe { libc::read(self.fd(), count.as_mut_ptr().cast(), count.len()) };
            if got < 0 {
                return Err(errno::last());
            }
            // None: the event's object was destroyed between the two steps.
            let mut events = self.events(); // Held while it is noted: `remove` finds it here or there.
            if let Some(event) = events.pop_front() {
                take(&event);
                return Ok(event);
            }
        }
    }

    /// Takes out the events that `which` says.
    pub fn remove(&self, which: impl Fn(&T) -> bool) -> Vec<T> {
        let mut events = self.events();
        let (removed, kept): (VecDeque<T>, VecDeque<T>) =
            std::mem::take(&mut *events).into_iter().partition(|event| which(event));
        *events = kept;
        for _ in &removed {
            let mut count = [0u8; 8];
            let mut part =
                libc::iovec { iov_base: count.as_mut_ptr().cast(), iov_len: count.len() };
            // Not `read`: a thread in `get` may have taken the count already.
            // SAFETY: the kernel writes eight bytes to `count`, which outlives the call.
            unsafe { libc::preadv2(self.fd(), &raw mut part, 1, -1, libc::RWF_NOWAIT) };
        }
        removed.into()
    }
}

/// Events of an object that the program has taken and not yet acknowledged.
#[derive(Debug, Default)]
pub struct Unacknowledged {
    count: Mutex<u64>,
    changed: Condvar,
}

impl Unacknowledged {
    fn count(&self) -> MutexGuard<'_, u64> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more was taken.
    pub fn add(&self) {
        *self.count() += 1;
    }

    /// So many were acknowledged.
    pub fn acknowledge(&self, events: u64) {
        let mut count = self.count();
        *count = count.saturating_sub(events);
        self.changed.notify_all();
    }

    /// Returns when none is left.
    pub fn wait(&self) {
        let mut count = self.count();
        while *count > 0 {
            count = self.changed.wait(count).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readable(fd: RawFd) -> bool {
        let mut polled = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure, which outlives the call.
        unsafe { libc::poll(&raw mut polled, 1, 0) };
        polled.revents != 0
    }

    #[test]
    fn it_is_readable_once_per_event_and_honours_non_blocking() {
        let channel = Channel::new().unwrap();
        channel.push(1);
        channel.push(2);
        assert!(readable(channel.fd()));
        assert_eq!((channel.get(|_| ()), readable(channel.fd())), (Ok(1), true));
        assert_eq!((channel.get(|_| ()), readable(channel.fd())), (Ok(2), false));
        // SAFETY: no pointers are involved.
        unsafe { libc::fcntl(channel.fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        assert_eq!(channel.get(|_| ()), Err(libc::EAGAIN));
    }

    #[test]
    fn what_is_removed_is_not_announced() {
        let channel = Channel::new().unwrap();
        for event in [1, 2, 1] {
            channel.push(event);
        }
        channel.remove(|&event| event == 1);
        assert_eq!((channel.get(|_| ()), readable(channel.fd())), (Ok(2), false));
    }

    #[test]
    fn waiting_ends_with_the_last_acknowledgement() {
        let unacknowledged = Unacknowledged::default();
        unacknowledged.add();
        unacknowledged.add();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| unacknowledged.wait());
            unacknowledged.acknowledge(1);
            assert!(!waiter.is_finished());
            unacknowledged.acknowledge(1);
        });
    }
}
