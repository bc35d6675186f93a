//! Options that this library sets on sockets: the configured sizes, and copies of another socket's.

use std::ffi::{c_int, c_long, c_void};

use libc::socklen_t;

use crate::names::{Calls, RSOCKETS};
use crate::selection;

/// Level of the options that only rsockets have.
const SOL_RDMA: c_int = 0x10000;
/// Length of an `int` option.
#[allow(clippy::cast_possible_truncation)] // the value is 4
pub const INT_LENGTH: socklen_t = size_of::<c_int>() as socklen_t;

/// Sets the sizes from the environment. Errors are ignored: the socket keeps its defaults.
pub fn set_sizes(rsocket: c_int) {
    for (option, size) in selection::sizes() {
        let value = (&raw const *size).cast();
        // SAFETY: the value is valid during the call.
        unsafe { (RSOCKETS.setsockopt)(rsocket, SOL_RDMA, *option, value, INT_LENGTH) };
    }
}

/// Copies the most common options and the flags from one socket to another.
pub fn copy_options(to: (&Calls, c_int), from: (&Calls, c_int)) {
    let options = [(libc::SOL_SOCKET, libc::SO_REUSEADDR), (libc::IPPROTO_TCP, libc::TCP_NODELAY)];
    // SAFETY: the values are valid during the calls.
    unsafe {
        let flags = (from.0.fcntl)(from.1, libc::F_GETFL, 0);
        if flags > 0 {
            (to.0.fcntl)(to.1, libc::F_SETFL, c_long::from(flags));
        }
        for (level, option) in options {
            let (mut value, mut length): (c_int, _) = (0, INT_LENGTH);
            let place = (&raw mut value).cast::<c_void>();
            let code = (from.0.getsockopt)(from.1, level, option, place, &raw mut length);
            if code == 0 && value != 0 {
                (to.0.setsockopt)(to.1, level, option, place, INT_LENGTH);
            }
        }
    }
}
