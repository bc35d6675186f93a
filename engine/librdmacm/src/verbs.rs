//! Functions of `libibverbs.so.1` that this library calls, as any program does.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;

use crate::abi::{
    IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQT_BASIC, IBV_XRCD_INIT_ATTR_FD,
    IBV_XRCD_INIT_ATTR_OFLAGS, ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_device_attr,
    ibv_ece, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_init_attr_ex, ibv_srq, ibv_srq_init_attr,
    ibv_srq_init_attr_ex, ibv_xrcd, ibv_xrcd_init_attr, verbs_context,
};

unsafe extern "C" {
    pub fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device;
    pub fn ibv_free_device_list(list: *mut *mut ibv_device);
    pub fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
    pub fn ibv_close_device(context: *mut ibv_context) -> c_int;
    pub fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int;
    pub fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    pub fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
    pub fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
    pub fn ibv_create_cq(
        context: *mut ibv_context,
        entries: c_int,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        vector: c_int,
    ) -> *mut ibv_cq;
    pub fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
    pub fn ibv_create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq;
    pub fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;
    pub fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int;
    pub fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
    pub fn ibv_query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int;
    pub fn ibv_set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int;
    pub fn ibv_attach_mcast(qp: *mut ibv_qp, group: *const [u8; 16], lid: u16) -> c_int;
    pub fn ibv_detach_mcast(qp: *mut ibv_qp, group: *const [u8; 16], lid: u16) -> c_int;
}

/// Returns the function table behind the inline functions of `verbs.h`.
///
/// # Safety
/// `context` is open.
unsafe fn extended(context: *mut ibv_context) -> *const verbs_context {
    // SAFETY: every context of Feroce's libibverbs is the `context` field of a `verbs_context`.
    unsafe { context.byte_sub(offset_of!(verbs_context, context)).cast_const().cast() }
}

/// `ibv_create_qp_ex`
///
/// # Safety
/// `context` is open, and the objects in the attributes are live.
pub unsafe fn create_qp_ex(
    context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: `context` is open, and the objects in the attributes are live.
    match unsafe { (*extended(context)).create_qp_ex } {
        // SAFETY: `context` is open, and the objects in the attributes are live.
        Some(create) => unsafe { create(context, init) },
        None => crate::errno::fail(libc::EOPNOTSUPP),
    }
}

/// `ibv_create_srq_ex`
///
/// # Safety
/// `context` is open, and the objects in the attributes are live.
pub unsafe fn create_srq_ex(
    context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    const PLAIN: u32 = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
    // SAFETY: `context` is open, and the objects in the attributes are live.
    unsafe {
        let ibv_srq_init_attr_ex { comp_mask, srq_type, pd, .. } = *init;
        if comp_mask == PLAIN && srq_type == IBV_SRQT_BASIC {
            return ibv_create_srq(pd, init.cast::<ibv_srq_init_attr>());
        }
        match (*extended(context)).create_srq_ex {
            Some(create) => create(context, init),
            None => crate::errno::fail(libc::EOPNOTSUPP),
        }
    }
}

/// `ibv_open_xrcd` without a file: the domain is not shared with other processes.
///
/// # Safety
/// `context` is open.
pub unsafe fn open_xrcd(context: *mut ibv_context) -> *mut ibv_xrcd {
    const COMP_MASK: u32 = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    let mut init = ibv_xrcd_init_attr { comp_mask: COMP_MASK, fd: -1, oflags: libc::O_CREAT };
    // SAFETY: `context` is open.
    match unsafe { (*extended(context)).open_xrcd } {
        // SAFETY: `context` is open.
        Some(open) => unsafe { open(context, &raw mut init) },
        None => crate::errno::fail(libc::EOPNOTSUPP),
    }
}
