//! Waiting for a socket. Each thread has an eventfd, on which it sleeps together with the
//! descriptors of the socket. A thread that changes the state of a socket wakes all its waiters, so
//! it does not matter which thread consumed the event.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::configuration::Configuration;
use crate::errno;

/// Locks a mutex, even if a thread panicked while holding it.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    static EVENTFD: Option<OwnedFd> = create_eventfd();
}

fn create_eventfd() -> Option<OwnedFd> {
    // SAFETY: the function takes no pointers.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    // SAFETY: the kernel has just created the descriptor, and nothing else owns it.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns the eventfd that wakes this thread.
///
/// # Errors
/// EMFILE if no descriptor is left.
pub fn thread_eventfd() -> Result<RawFd, c_int> {
    EVENTFD.with(|fd| fd.as_ref().map(AsRawFd::as_raw_fd)).ok_or(libc::EMFILE)
}

/// Eventfds of the threads that wait for a socket.
#[derive(Debug, Default)]
pub struct Waiters(Vec<RawFd>);

impl Waiters {
    /// Registers a waiting thread.
    pub fn add(&mut self, thread: RawFd) {
        self.0.push(thread);
    }

    /// Removes a thread.
    pub fn remove(&mut self, thread: RawFd) {
        if let Some(at) = self.0.iter().position(|&fd| fd == thread) {
            self.0.swap_remove(at);
        }
    }

    /// Returns true if no thread waits.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Wakes all waiting threads.
    pub fn wake(&self) {
        let one = 1u64.to_ne_bytes();
        for &fd in &self.0 {
            // SAFETY: the kernel reads the eight bytes; the descriptor is nonblocking.
            unsafe { libc::write(fd, one.as_ptr().cast(), one.len()) };
        }
    }
}

/// Returns the current time, for waiting only.
#[allow(clippy::disallowed_methods)] // rsockets are not replayed from a seed
pub fn now() -> Instant {
    Instant::now()
}

/// A socket that threads can wait for; methods are called with its lock held.
pub trait Awaited {
    /// Processes completions.
    fn progress(&mut self);

    /// Requests notifications for the next completions. Returns the descriptors that report them.
    /// The caller must check the socket again before it sleeps.
    fn arm(&mut self) -> Vec<RawFd>;

    /// Consumes the notifications that have arrived.
    fn disarm(&mut self);

    /// Returns the waiting threads.
    fn waiters(&mut self) -> &mut Waiters;

    /// Returns the `revents` for `poll`.
    fn ready(&mut self, events: i16) -> i16;
}

/// Waits until `test` returns a value.
///
/// # Errors
/// EAGAIN if the call must not wait; EINTR.
pub fn until<W: Awaited, T>(
    awaited: &Mutex<W>,
    nonblocking: bool,
    mut test: impl FnMut(&mut W) -> Option<T>,
) -> Result<T, c_int> {
    let mut progress_and_test = |awaited: &mut W| {
        awaited.progress();
        test(awaited)
    };
    let polling = now() + Configuration::get().polling_time;
    loop {
        if let Some(value) = progress_and_test(&mut lock(awaited)) {
            return Ok(value);
        }
        if nonblocking {
            return Err(libc::EAGAIN);
        }
        if now() > polling {
            break;
        }
    }
    let eventfd = thread_eventfd()?;
    loop {
        let mut guarded = lock(awaited);
        let mut fds: Vec<_> = guarded.arm().into_iter().map(readable).collect();
        if let Some(value) = progress_and_test(&mut guarded) {
            return Ok(value);
        }
        guarded.waiters().add(eventfd);
        drop(guarded);
        fds.push(readable(eventfd));
        let slept = sleep(&mut fds, Until::Forever);
        let mut guarded = lock(awaited);
        guarded.waiters().remove(eventfd);
        guarded.disarm();
        drop(guarded);
        slept?;
    }
}

/// When waiting ends.
#[derive(Debug, Clone, Copy)]
pub enum Until {
    /// No limit.
    Forever,
    /// At this time.
    At(Instant),
}

impl Until {
    /// Returns the time `timeout` milliseconds from now; no limit if it is negative.
    pub fn milliseconds(timeout: c_int) -> Self {
        match u64::try_from(timeout) {
            Ok(timeout) => Self::At(now() + Duration::from_millis(timeout)),
            Err(_) => Self::Forever,
        }
    }

    /// Returns true if the time has passed.
    pub fn is_over(self) -> bool {
        matches!(self, Self::At(time) if now() >= time)
    }

    /// Returns the remaining milliseconds for `poll`, rounded up; -1 for no limit.
    pub fn left(self) -> c_int {
        match self {
            Self::Forever => -1,
            Self::At(time) => {
                let left = time.saturating_duration_since(now());
                c_int::try_from(left.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX)
            }
        }
    }
}

/// Returns a `pollfd` that waits until the descriptor is readable.
pub fn readable(fd: RawFd) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}

/// Sleeps until a descriptor is ready. The last one is this thread's eventfd, which is then reset.
///
/// # Errors
/// EINTR, or the error of `poll`.
pub fn sleep(fds: &mut [libc::pollfd], until: Until) -> Result<(), c_int> {
    // SAFETY: the kernel reads and writes the array of `fds.len()` entries.
    let ready = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, until.left()) };
    let failed = if ready < 0 { Err(errno::last()) } else { Ok(()) };
    if let Some(eventfd) = fds.last() {
        let mut count = [0u8; 8];
        // SAFETY: the kernel writes at most eight bytes; the descriptor is nonblocking.
        unsafe { libc::read(eventfd.fd, count.as_mut_ptr().cast(), count.len()) };
    }
    failed
}

/// Sets `revents` for what is ready now.
///
/// # Errors
/// The error of `poll`.
pub fn set_revents(fds: &mut [libc::pollfd]) -> Result<(), c_int> {
    // SAFETY: the kernel reads and writes the array of `fds.len()` entries.
    let ready = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, 0) };
    if ready < 0 { Err(errno::last()) } else { Ok(()) }
}
