//! What functions return: 0, or -1 and `errno`.

use std::ffi::c_int;

use crate::errno;

/// 0, or -1 and `errno`.
pub fn returned(done: Result<(), c_int>) -> c_int {
    match done {
        Ok(()) => 0,
        Err(code) => {
            errno::set(code);
            -1
        }
    }
}

/// What a function that returns an error number says.
pub fn checked(code: c_int) -> Result<(), c_int> {
    if code == 0 { Ok(()) } else { Err(code) }
}

/// What a function that returns an object, or null and `errno`, says.
pub fn made<T>(object: *mut T) -> Result<*mut T, c_int> {
    if object.is_null() { Err(errno::last()) } else { Ok(object) }
}
