//! Objects of ours that programs hold by the address of the C structure at their beginning.
//!
//! What every `extern "C"` function of this crate relies on, as the manual pages demand of programs:
//!
//! * a pointer to an object is one that a creating function of this library gave out, and its destroying function
//!   has not been called on it;
//! * nobody uses an object while another thread destroys it;
//! * a pointer to a structure of attributes, work requests or completions is valid for reads, or for writes where it
//!   is filled in, and an array has as many elements as the call says;
//! * a string ends with a zero byte.
//!
//! Objects are shared between threads: they are only ever borrowed immutably here, and what programs may see
//! change behind their backs lies in cells.

use std::ffi::c_int;

use crate::errno;

/// An object with a C structure `Abi` at its beginning.
///
/// # Safety
/// The type is `repr(C)` and its first field is an `UnsafeCell<Abi>` or begins with an `Abi`.
pub unsafe trait Object {
    /// The structure that programs know.
    type Abi;
}

/// Gives an object to the program.
pub fn give<T: Object>(object: Box<T>) -> *mut T::Abi {
    Box::into_raw(object).cast()
}

/// The object that the program means.
///
/// # Safety
/// `abi` came from [`give`] for the same type and was not given to [`take`].
pub unsafe fn borrow<'a, T: Object>(abi: *mut T::Abi) -> &'a T {
    // SAFETY: the caller says that it is a live `T`, which begins with its `Abi`.
    unsafe { &*abi.cast::<T>() }
}

/// Takes an object back to drop it.
///
/// # Safety
/// As for [`borrow`]; nobody else uses the object.
pub unsafe fn take<T: Object>(abi: *mut T::Abi) -> Box<T> {
    // SAFETY: the caller says that it is a live `T` that came from a `Box`.
    unsafe { Box::from_raw(abi.cast::<T>()) }
}

/// What a creating function returns: the object, or null and `errno`.
pub fn give_or_fail<T: Object>(made: Result<Box<T>, c_int>) -> *mut T::Abi {
    match made {
        Ok(object) => give(object),
        Err(code) => errno::fail(code),
    }
}

/// What a function without a result returns: 0, or the error number.
pub fn code(done: Result<(), c_int>) -> c_int {
    done.err().unwrap_or(0)
}
