//! Objects that programs hold by the address of the C structure at their beginning.
//!
//! Every `extern "C"` function of the libraries relies on the following, which the manual pages
//! require of programs:
//!
//! * A pointer to an object is live: a create function of this library returned it, and its destroy
//!   function has not been called.
//! * No thread uses an object while another thread destroys it.
//! * A pointer to attributes, work requests or completions is valid for reads, or for writes where
//!   the function fills it in. An array has as many elements as the call says.
//! * A string ends with a zero byte.
//!
//! Objects are shared between threads, so the libraries only borrow them immutably. Fields that
//! change while programs may read them are in cells.

use std::ffi::c_int;

use crate::errno;

/// An object with a C structure `Abi` at its beginning.
///
/// # Safety
/// The type is `repr(C)`, and its first field is an `UnsafeCell<Abi>` or begins with an `Abi`.
pub unsafe trait Object {
    /// The C structure.
    type Abi;
}

/// Hands an object to the program.
pub fn give<T: Object>(object: Box<T>) -> *mut T::Abi {
    Box::into_raw(object).cast()
}

/// Returns the object behind the program's pointer.
///
/// # Safety
/// `abi` was returned by [`give`] for the same type and was not passed to [`take`].
pub unsafe fn borrow<'a, T: Object>(abi: *mut T::Abi) -> &'a T {
    // SAFETY: `abi` points to a live `T`, which begins with its `Abi`.
    unsafe { &*abi.cast::<T>() }
}

/// Takes an object back from the program.
///
/// # Safety
/// `abi` was returned by [`give`] for the same type and was not passed to [`take`]; nothing else
/// uses the object.
pub unsafe fn take<T: Object>(abi: *mut T::Abi) -> Box<T> {
    // SAFETY: `abi` points to a live `T` that was allocated as a `Box`.
    unsafe { Box::from_raw(abi.cast::<T>()) }
}

/// Returns the object to the program; for an error sets `errno` and returns null.
pub fn give_or_fail<T: Object>(made: Result<Box<T>, c_int>) -> *mut T::Abi {
    match made {
        Ok(object) => give(object),
        Err(code) => errno::fail(code),
    }
}

/// Returns 0 or the error number.
pub fn code(done: Result<(), c_int>) -> c_int {
    done.err().unwrap_or(0)
}
