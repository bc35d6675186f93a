//! A child process has a copy of the parent's memory but none of its threads, and the parent goes on using the
//! rings that both have mapped: the child must leave the engine alone.

use std::ffi::c_int;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// How many forks lie between the program's first process and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// The generation of this process. From the first call on, forks are noticed.
pub fn generation() -> u32 {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        // SAFETY: the handler only adds to an atomic, which is allowed in a child of a threaded process.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    GENERATION.load(Ordering::Relaxed)
}

/// Refuses objects of a process of another generation.
///
/// # Errors
/// EIO, after a word on standard error.
#[inline]
pub fn check(born: u32) -> Result<(), c_int> {
    if GENERATION.load(Ordering::Relaxed) == born {
        return Ok(());
    }
    Err(refuse())
}

#[cold]
fn refuse() -> c_int {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        crate::log::say(
            "this process was forked from the one that opened the device, and cannot use it: open the device after the fork",
        );
    });
    libc::EIO
}

/// `IBV_FORK_UNNEEDED`: nothing about registered memory keeps a program from forking.
const UNNEEDED: c_int = 2;

#[unsafe(no_mangle)]
extern "C" fn ibv_fork_init() -> c_int {
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_is_fork_initialized() -> c_int {
    UNNEEDED
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dontfork_range(_base: *mut libc::c_void, _size: libc::size_t) -> c_int {
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dofork_range(_base: *mut libc::c_void, _size: libc::size_t) -> c_int {
    0
}
