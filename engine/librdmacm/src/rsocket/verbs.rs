//! Data path functions of `libibverbs.so.1`, which only rsockets use.

use std::ffi::{c_int, c_uint, c_void};

use crate::abi::{
    ibv_ah, ibv_ah_attr, ibv_comp_channel, ibv_context, ibv_cq, ibv_mr, ibv_pd, ibv_qp,
    ibv_recv_wr, ibv_send_wr, ibv_wc,
};

unsafe extern "C" {
    pub fn ibv_get_cq_event(
        channel: *mut ibv_comp_channel,
        cq: *mut *mut ibv_cq,
        context: *mut *mut c_void,
    ) -> c_int;
    pub fn ibv_ack_cq_events(cq: *mut ibv_cq, events: c_uint);
    pub fn ibv_reg_mr(
        pd: *mut ibv_pd,
        address: *mut c_void,
        length: usize,
        access: c_int,
    ) -> *mut ibv_mr;
    pub fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
    pub fn ibv_create_ah(pd: *mut ibv_pd, attributes: *mut ibv_ah_attr) -> *mut ibv_ah;
    pub fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int;
    pub fn ibv_query_gid(
        context: *mut ibv_context,
        port: u8,
        index: c_int,
        gid: *mut [u64; 2],
    ) -> c_int;
}

/// `ibv_poll_cq`, an inline function of `verbs.h`.
///
/// # Safety
/// `cq` is a live CQ.
pub unsafe fn poll_cq(cq: *mut ibv_cq, completions: &mut [ibv_wc]) -> c_int {
    // SAFETY: `cq` is a live CQ, so its context is open.
    unsafe {
        let Some(poll) = (*(*cq).context).ops.poll_cq else { return -libc::EOPNOTSUPP };
        let room = c_int::try_from(completions.len()).unwrap_or(c_int::MAX);
        poll(cq, room, completions.as_mut_ptr())
    }
}

/// `ibv_req_notify_cq`
///
/// # Safety
/// `cq` is a live CQ.
pub unsafe fn req_notify_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: `cq` is a live CQ, so its context is open.
    unsafe { (*(*cq).context).ops.req_notify_cq.map_or(libc::EOPNOTSUPP, |notify| notify(cq, 0)) }
}

/// `ibv_post_send`
///
/// # Safety
/// `qp` is a live QP; the request is as `ibv_post_send` requires.
pub unsafe fn post_send(qp: *mut ibv_qp, request: &mut ibv_send_wr) -> c_int {
    let mut bad = std::ptr::null_mut();
    // SAFETY: `qp` is a live QP, so its context is open; the request is valid.
    unsafe {
        let post = (*(*qp).context).ops.post_send;
        post.map_or(libc::EOPNOTSUPP, |post| post(qp, request, &raw mut bad))
    }
}

/// `ibv_post_recv`
///
/// # Safety
/// `qp` is a live QP; the request is as `ibv_post_recv` requires.
pub unsafe fn post_recv(qp: *mut ibv_qp, request: &mut ibv_recv_wr) -> c_int {
    let mut bad = std::ptr::null_mut();
    // SAFETY: `qp` is a live QP, so its context is open; the request is valid.
    unsafe {
        let post = (*(*qp).context).ops.post_recv;
        post.map_or(libc::EOPNOTSUPP, |post| post(qp, request, &raw mut bad))
    }
}
