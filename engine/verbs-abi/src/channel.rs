//! A queue of events with a descriptor that programs may poll, read and make nonblocking.
//!
//! The descriptor is an eventfd in semaphore mode: it is readable once per event, and reading it
//! blocks or not, as the program has set it. The kernel's descriptors behave the same.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::errno;

/// A queue of events of type `T`.
#[derive(Debug)]
pub struct Channel<T> {
    fd: OwnedFd,
    events: Mutex<VecDeque<T>>,
}

impl<T> Channel<T> {
    /// Creates an empty queue.
    ///
    /// # Errors
    /// The error number if no descriptor is left.
    pub fn new() -> Result<Self, c_int> {
        // SAFETY: the function takes no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_SEMAPHORE | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(errno::last());
        }
        // SAFETY: the kernel has just created the descriptor, and nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd, events: Mutex::default() })
    }

    /// Returns the descriptor.
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    fn events(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an event.
    pub fn push(&self, event: T) {
        self.push_into(&mut self.events(), event);
    }

    /// Adds an event of a source, unless the source is retired. A source that sets the flag and
    /// then calls [`Channel::remove`] has no events in the queue afterwards.
    pub fn push_unless(&self, is_retired: &AtomicBool, event: T) {
        let mut events = self.events();
        // read while locked: either `remove` finds the event, or this line finds the flag
        if !is_retired.load(Ordering::Acquire) {
            self.push_into(&mut events, event);
        }
    }

    /// Adds an event with the queue locked, so that `remove` finds the count of each event.
    fn push_into(&self, events: &mut VecDeque<T>, event: T) {
        events.push_back(event);
        let one = 1u64.to_ne_bytes();
        // SAFETY: the kernel reads the eight bytes. The call blocks only at 2^64 events.
        unsafe { libc::write(self.fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Returns the oldest event, after calling `take` on it. Waits for one, unless the program made
    /// the descriptor nonblocking.
    ///
    /// # Errors
    /// EAGAIN or EINTR, from `read`.
    pub fn get(&self, take: impl Fn(&T)) -> Result<T, c_int> {
        loop {
            let mut count = [0u8; 8];
            // SAFETY: the kernel writes eight bytes to `count`.
            let got = unsafe { libc::read(self.fd(), count.as_mut_ptr().cast(), count.len()) };
            if got < 0 {
                return Err(errno::last());
            }
            // The queue is empty if `remove` took the event between the read and this line.
            // locked while `take` runs, so that `remove` sees the event either queued or counted
            let mut events = self.events();
            if let Some(event) = events.pop_front() {
                take(&event);
                return Ok(event);
            }
        }
    }

    /// Removes and returns the events for which `which` returns true.
    pub fn remove(&self, which: impl Fn(&T) -> bool) -> Vec<T> {
        let mut events = self.events();
        let (removed, kept): (VecDeque<T>, VecDeque<T>) =
            std::mem::take(&mut *events).into_iter().partition(|event| which(event));
        *events = kept;
        for _ in &removed {
            let mut count = [0u8; 8];
            let mut part =
                libc::iovec { iov_base: count.as_mut_ptr().cast(), iov_len: count.len() };
            // `RWF_NOWAIT` instead of `read`: a thread in `get` may have consumed the count
            // already. SAFETY: the kernel writes eight bytes to `count`, which outlives the call.
            unsafe { libc::preadv2(self.fd(), &raw mut part, 1, -1, libc::RWF_NOWAIT) };
        }
        removed.into()
    }
}

/// Number of an object's events that the program has read and not acknowledged.
#[derive(Debug, Default)]
pub struct Unacknowledged {
    count: Mutex<u64>,
    changed: Condvar,
}

impl Unacknowledged {
    fn count(&self) -> MutexGuard<'_, u64> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one more event as read.
    pub fn add(&self) {
        *self.count() += 1;
    }

    /// Counts `events` events as acknowledged.
    pub fn acknowledge(&self, events: u64) {
        let mut count = self.count();
        *count = count.saturating_sub(events);
        self.changed.notify_all();
    }

    /// Waits until all events are acknowledged.
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
    fn the_descriptor_is_readable_once_per_event_and_may_be_nonblocking() {
        let channel = Channel::new().unwrap();
        channel.push(1);
        channel.push(2);
        assert!(readable(channel.fd()));
        assert_eq!((channel.get(|_| ()), readable(channel.fd())), (Ok(1), true));
        assert_eq!((channel.get(|_| ()), readable(channel.fd())), (Ok(2), false));
        // SAFETY: the function takes no pointers.
        unsafe { libc::fcntl(channel.fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        assert_eq!(channel.get(|_| ()), Err(libc::EAGAIN));
    }

    #[test]
    fn removed_events_do_not_make_it_readable() {
        let channel = Channel::new().unwrap();
        for event in [1, 2, 1] {
            channel.push(event);
        }
        channel.remove(|&event| event == 1);
        assert_eq!((channel.get(|_| ()), readable(channel.fd())), (Ok(2), false));
    }

    #[test]
    fn a_retired_source_leaves_no_event() {
        let channel = Channel::new().unwrap();
        for _ in 0..200 {
            let is_retired = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let pusher = || (0..100).for_each(|_| channel.push_unless(&is_retired, 1));
                let pushing = scope.spawn(pusher);
                is_retired.store(true, Ordering::Release);
                channel.remove(|_| true);
                pushing.join().unwrap();
            });
            assert!(!readable(channel.fd()) && channel.events().is_empty());
        }
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
