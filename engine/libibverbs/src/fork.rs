//! A child process has a copy of the parent's memory but none of its threads, and the parent goes on using the
//! rings that both have mapped: the child must leave the engine alone. It may open one of its own.

use std::ffi::c_int;
use std::sync::Once;

use crate::process;
pub use crate::process::generation;

/// Refuses objects of a process of another generation.
///
/// # Errors
/// EIO, after a word on standard error.
#[inline]
pub fn check(born: u32) -> Result<(), c_int> {
    if process::is_own(born) { Ok(()) } else { Err(refuse()) }
}

/// EIO, after a word on standard error.
#[cold]
pub fn refuse() -> c_int {
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
