//! Behaviour after `fork`. A child process has a copy of the parent's memory but none of its
//! threads, and the parent keeps using the rings that both have mapped. The child must not touch
//! the inherited engine; it may open its own.

use std::ffi::c_int;
use std::sync::Once;

use crate::process;
pub use crate::process::generation;

/// Fails for objects that a process of another generation created.
///
/// # Errors
/// EIO, after a message on standard error.
#[inline]
pub fn check(born: u32) -> Result<(), c_int> {
    if process::is_own(born) { Ok(()) } else { Err(refuse()) }
}

/// Prints a message on standard error once and returns EIO.
#[cold]
pub fn refuse() -> c_int {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        crate::log::print(
            "the device was opened before this process was forked and cannot be used here: \
             open the device after the fork",
        );
    });
    libc::EIO
}

/// `IBV_FORK_UNNEEDED`: registered memory does not restrict `fork`.
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
