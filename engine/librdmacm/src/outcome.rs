//! Conversions between `Result` and the ways C functions report errors.

use std::ffi::c_int;

use crate::errno;

/// Returns 0 for success; otherwise sets `errno` and returns -1.
pub fn return_code(done: Result<(), c_int>) -> c_int {
    match done {
        Ok(()) => 0,
        Err(code) => {
            errno::set(code);
            -1
        }
    }
}

/// Converts the return value of a function that returns an error number.
pub fn check_code(code: c_int) -> Result<(), c_int> {
    if code == 0 { Ok(()) } else { Err(code) }
}

/// Converts the return value of a function that returns an object, or null with `errno` set.
pub fn non_null<T>(object: *mut T) -> Result<*mut T, c_int> {
    if object.is_null() { Err(errno::last()) } else { Ok(object) }
}
