//! `errno`, the error number of C functions.

use std::ffi::c_int;

/// Sets `errno`.
pub fn set(code: c_int) {
    // SAFETY: the location belongs to this thread and is always valid.
    unsafe { *libc::__errno_location() = code };
}

/// Sets `errno` and returns a null pointer.
pub fn fail<T>(code: c_int) -> *mut T {
    set(code);
    std::ptr::null_mut()
}

/// Returns the error number of the last failed system call.
pub fn last() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}
