//! Shared receive queues.

use std::ffi::c_int;

use crate::abi::{ibv_pd, ibv_recv_wr, ibv_srq, ibv_srq_attr, ibv_srq_init_attr};
use crate::errno;

#[unsafe(no_mangle)]
extern "C" fn ibv_create_srq(_pd: *mut ibv_pd, _init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    errno::fail(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_modify_srq(_srq: *mut ibv_srq, _attr: *mut ibv_srq_attr, _mask: c_int) -> c_int {
    libc::EOPNOTSUPP
}

#[unsafe(no_mangle)]
extern "C" fn ibv_query_srq(_srq: *mut ibv_srq, _attr: *mut ibv_srq_attr) -> c_int {
    libc::EOPNOTSUPP
}

#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_srq(_srq: *mut ibv_srq) -> c_int {
    libc::EOPNOTSUPP
}

/// `ibv_post_srq_recv`
pub unsafe extern "C" fn post_srq_recv(
    _srq: *mut ibv_srq,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the program passes a place to say which one was not posted.
    unsafe { *bad = first };
    libc::EOPNOTSUPP
}
