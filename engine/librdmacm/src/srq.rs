//! Shared receive queues of an identifier.

use std::ffi::c_int;

use crate::abi::{
    IBV_QPT_XRC_RECV, IBV_SRQ_INIT_ATTR_CQ, IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE,
    IBV_SRQ_INIT_ATTR_XRCD, IBV_SRQT_BASIC, IBV_SRQT_XRC, ibv_pd, ibv_srq_init_attr,
    ibv_srq_init_attr_ex, rdma_cm_id,
};
use crate::errno;
use crate::id;
use crate::outcome::{non_null, return_code};
use crate::qp::{create_cqs, destroy_cqs};
use crate::verbs;

/// Creates an SRQ from the program's attributes.
///
/// # Safety
/// `id` and the objects in the attributes are live.
unsafe fn create(id: *mut rdma_cm_id, init: &mut ibv_srq_init_attr_ex) -> Result<(), c_int> {
    // SAFETY: `id` and the objects in the attributes are live.
    unsafe {
        let device = id::borrow(id).device()?;
        if init.comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 {
            return Err(libc::EINVAL);
        }
        if init.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 || init.pd.is_null() {
            init.pd = (*id).pd;
            init.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
        }
        if init.srq_type == IBV_SRQT_XRC {
            if init.comp_mask & IBV_SRQ_INIT_ATTR_XRCD == 0 || init.xrcd.is_null() {
                init.xrcd = device.xrc_domain()?;
            }
            if init.comp_mask & IBV_SRQ_INIT_ATTR_CQ == 0 || init.cq.is_null() {
                if (*id).qp_type == IBV_QPT_XRC_RECV {
                    destroy_cqs(id); // created for the XRC target QP, which has no completions
                }
                create_cqs(id, 0, init.attr.max_wr)?;
                init.cq = (*id).recv_cq;
            }
            init.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
        }
        let srq = non_null(verbs::create_srq_ex((*id).verbs, init));
        let srq = srq.inspect_err(|_| destroy_cqs(id))?;
        if (*id).pd.is_null() {
            (*id).pd = init.pd;
        }
        (*id).srq = srq;
        Ok(())
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_srq_ex(
    id: *mut rdma_cm_id,
    init: *mut ibv_srq_init_attr_ex,
) -> c_int {
    // SAFETY: the identifier is live; the program passes valid attributes.
    return_code(id::live(id).and_then(|_| unsafe { create(id, &mut *init) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> c_int {
    if let Err(code) = id::live(id) {
        return return_code(Err(code));
    }
    // SAFETY: all-zero bytes are a valid `ibv_srq_init_attr_ex`, which begins with the fields of
    // `ibv_srq_init_attr`; the program passes a live identifier and valid attributes.
    unsafe {
        let mut extended: ibv_srq_init_attr_ex = std::mem::zeroed();
        let shorter = (&raw mut extended).cast::<ibv_srq_init_attr>();
        shorter.write(*init);
        extended.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
        extended.pd = pd;
        let is_xrc = (*id).qp_type == IBV_QPT_XRC_RECV;
        extended.srq_type = if is_xrc { IBV_SRQT_XRC } else { IBV_SRQT_BASIC };
        let done = create(id, &mut extended);
        *init = shorter.read();
        return_code(done)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    let Some(_known) = id::known(id) else {
        errno::set(libc::EINVAL);
        return;
    };
    // SAFETY: the identifier is referenced.
    unsafe {
        let srq = std::mem::replace(&mut (*id).srq, std::ptr::null_mut());
        if !srq.is_null() {
            verbs::ibv_destroy_srq(srq);
        }
        destroy_cqs(id);
    }
}
