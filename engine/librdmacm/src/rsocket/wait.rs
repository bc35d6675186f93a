//! Threads that wait for a socket: each has an eventfd of its own, which it sleeps on beside the descriptors it is interested
//! in. Whoever changes a socket's state wakes all that wait for it, so that it does not matter which of them has seen the
//! event.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::configuration::Configuration;
use crate::errno;

/// Locks, whoever has panicked.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    static OWN: Option<OwnedFd> = eventfd();
}

fn eventfd() -> Option<OwnedFd> {
    // SAFETY: no pointers are involved.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    // SAFETY: the kernel has just given this descriptor to us alone.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// What wakes this thread.
///
/// # Errors
/// EMFILE when no descriptor is left.
pub fn own() -> Result<RawFd, c_int> {
    OWN.with(|fd| fd.as_ref().map(AsRawFd::as_raw_fd)).ok_or(libc::EMFILE)
}

/// The threads that wait for a socket.
#[derive(Debug, Default)]
pub struct Waiters(Vec<RawFd>);

impl Waiters {
    /// A thread begins to wait.
    pub fn add(&mut self, thread: RawFd) {
        self.0.push(thread);
    }

    /// A thread ends it.
    pub fn remove(&mut self, thread: RawFd) {
        if let Some(at) = self.0.iter().position(|&fd| fd == thread) {
            self.0.swap_remove(at);
        }
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Wakes them.
    pub fn wake(&self) {
        let one = 1u64.to_ne_bytes();
        for &fd in &self.0 {
            // SAFETY: the eight bytes are read by the kernel. It does not block.
            unsafe { libc::write(fd, one.as_ptr().cast(), one.len()) };
        }
    }
}

/// The time, which only waiting needs.
#[allow(clippy::disallowed_methods)] // Nothing here is repeated from a seed.
pub fn now() -> Instant {
    Instant::now()
}

/// What can be waited for, behind its lock.
pub trait Awaited {
    /// Takes what has come.
    fn progress(&mut self);

    /// Asks to be told of the next completions, on these descriptors. One must look once more before one sleeps.
    fn arm(&mut self) -> Vec<RawFd>;

    /// Takes the word that there are completions.
    fn disarm(&mut self);

    /// Who waits.
    fn waiters(&mut self) -> &mut Waiters;

    /// What `poll` says of it.
    fn ready(&mut self, events: i16) -> i16;
}

/// Waits until `test` has an answer.
///
/// # Errors
/// EAGAIN if it is not to wait; EINTR.
pub fn until<W: Awaited, T>(
    awaited: &Mutex<W>,
    nonblocking: bool,
    mut test: impl FnMut(&mut W) -> Option<T>,
) -> Result<T, c_int> {
    let mut look = |awaited: &mut W| {
        awaited.progress();
        test(awaited)
    };
    let polling = now() + Configuration::get().polling_time;
    loop {
        if let Some(answer) = look(&mut lock(awaited)) {
            return Ok(answer);
        }
        if nonblocking {
            return Err(libc::EAGAIN);
        }
        if now() > polling {
            break;
        }
    }
    let own = own()?;
    loop {
        let mut guarded = lock(awaited);
        let mut fds: Vec<_> = guarded.arm().into_iter().map(readable).collect();
        if let Some(answer) = look(&mut guarded) {
            return Ok(answer);
        }
        guarded.waiters().add(own);
        drop(guarded);
        fds.push(readable(own));
        let slept = sleep(&mut fds, Until::Forever);
        let mut guarded = lock(awaited);
        guarded.waiters().remove(own);
        guarded.disarm();
        drop(guarded);
        slept?;
    }
}

/// When waiting ends.
#[derive(Debug, Clone, Copy)]
pub enum Until {
    /// Never.
    Forever,
    /// Then.
    Then(Instant),
}

impl Until {
    /// So many milliseconds from now, or never if negative.
    pub fn milliseconds(timeout: c_int) -> Self {
        match u64::try_from(timeout) {
            Ok(timeout) => Self::Then(now() + Duration::from_millis(timeout)),
            Err(_) => Self::Forever,
        }
    }

    /// Whether it is over.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Then(then) if now() >= then)
    }

    /// For `poll`, rounded up.
    fn left(self) -> c_int {
        match self {
            Self::Forever => -1,
            Self::Then(then) => {
                let left = then.saturating_duration_since(now());
                c_int::try_from(left.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX)
            }
        }
    }
}

/// What to sleep for.
pub fn readable(fd: RawFd) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}

/// Sleeps until one of the descriptors, the last of which is this thread's own, is ready.
///
/// # Errors
/// EINTR, as `poll` gives it.
pub fn sleep(fds: &mut [libc::pollfd], until: Until) -> Result<(), c_int> {
    // SAFETY: the kernel reads and writes the array.
    let ready = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, until.left()) };
    let failed = if ready < 0 { Err(errno::last()) } else { Ok(()) };
    if let Some(own) = fds.last() {
        let mut count = [0u8; 8];
        // SAFETY: the kernel writes eight bytes at most. It does not block.
        unsafe { libc::read(own.fd, count.as_mut_ptr().cast(), count.len()) };
    }
    failed
}

/// Fills in what is ready now.
///
/// # Errors
/// What `poll` says.
pub fn look(fds: &mut [libc::pollfd]) -> Result<(), c_int> {
    // SAFETY: the kernel reads and writes the array.
    let ready = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, 0) };
    if ready < 0 { Err(errno::last()) } else { Ok(()) }
}
