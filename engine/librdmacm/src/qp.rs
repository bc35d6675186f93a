//! QPs that belong to an identifier: creating them, including the CQs that the program leaves to
//! the library, and moving them through their states.

use std::ffi::{c_int, c_uint};

use crate::abi::connections::{CmEce, feroce_cm_establish};
use crate::abi::{
    IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_XRCD, IBV_QP_SQ_PSN, IBV_QP_STATE, IBV_QPT_UD,
    IBV_QPT_XRC_RECV, RDMA_MAX_INIT_DEPTH, RDMA_MAX_RESP_RES, ibv_cq, ibv_ece, ibv_pd, ibv_qp,
    ibv_qp_init_attr, ibv_qp_init_attr_ex, rdma_cm_id,
};
use crate::attributes::{self, ERR, INIT, RTR, RTS};
use crate::errno;
use crate::id;
use crate::outcome::{check_code, non_null, return_code};
use crate::verbs;

/// Modifies a QP.
///
/// # Safety
/// `qp` is live.
unsafe fn modify(
    qp: *mut ibv_qp,
    (mut attr, mask): (crate::abi::ibv_qp_attr, c_uint),
) -> Result<(), c_int> {
    // SAFETY: `qp` is live.
    check_code(unsafe { verbs::ibv_modify_qp(qp, &raw mut attr, mask.cast_signed()) })
}

/// Moves the identifier's QP, if any, through INIT and RTR to RTS.
///
/// # Safety
/// `id` is live.
///
/// # Errors
/// The error number of the failed verbs call.
pub unsafe fn modify_to_send(
    id: *mut rdma_cm_id,
    responder_resources: u8,
    initiator_depth: u8,
) -> Result<(), c_int> {
    // SAFETY: `id` is live, and its QP is live if it is not null.
    unsafe {
        let qp = (*id).qp;
        if qp.is_null() {
            return Ok(());
        }
        // access rights depend on the resources that both peers requested
        modify(qp, attributes::init(id, INIT)?)?;
        let (mut attr, mask) = attributes::init(id, RTR)?;
        if responder_resources != RDMA_MAX_RESP_RES {
            attr.max_dest_rd_atomic = responder_resources;
        }
        modify(qp, (attr, mask))?;
        let (mut attr, mask) = attributes::init(id, RTS)?;
        if initiator_depth != RDMA_MAX_INIT_DEPTH {
            attr.max_rd_atomic = initiator_depth;
        }
        modify(qp, (attr, mask))
    }
}

/// Moves the identifier's QP, if any, to the error state.
///
/// # Safety
/// `id` is live.
///
/// # Errors
/// The error number of the failed verbs call.
pub unsafe fn modify_to_error(id: *mut rdma_cm_id) -> Result<(), c_int> {
    // SAFETY: `id` is live.
    let qp = unsafe { (*id).qp };
    if qp.is_null() {
        return Ok(());
    }
    let mut attr = attributes::empty();
    attr.qp_state = ERR;
    // SAFETY: the QP of a live identifier is live if it is not null.
    unsafe { modify(qp, (attr, IBV_QP_STATE)) }
}

/// Connects the QP after the peer's REP and confirms the connection with an RTU.
///
/// # Safety
/// `id` is live and has a live QP.
///
/// # Errors
/// The error number of the verbs call or of the connection manager.
pub unsafe fn establish(id: *mut rdma_cm_id) -> Result<(), c_int> {
    // SAFETY: `id` is live and has a live QP.
    unsafe {
        let live = id::borrow(id);
        let done = apply_peer_ece(id).and_then(|()| {
            modify_to_send(id, RDMA_MAX_RESP_RES, RDMA_MAX_INIT_DEPTH)?;
            check_code(feroce_cm_establish(live.number()))
        });
        if done.is_err() {
            let _ = modify_to_error(id);
        }
        done
    }
}

/// Applies the ECE options that the peer accepted.
///
/// # Safety
/// `id` is live and has a live QP.
unsafe fn apply_peer_ece(id: *mut rdma_cm_id) -> Result<(), c_int> {
    // SAFETY: `id` is live.
    let (live, qp) = unsafe { (id::borrow(id), (*id).qp) };
    let (local, remote) = {
        let private = live.private();
        (private.local_ece, private.remote_ece)
    };
    // Options of another vendor have another meaning, and options that were not offered have none.
    let agreed = if remote.vendor_id == local.vendor_id { remote.options } else { 0 };
    let (vendor_id, options) = (local.vendor_id, agreed & local.options);
    let mut ece = ibv_ece { vendor_id, options, comp_mask: 0 };
    // SAFETY: the QP is live.
    let code = unsafe { verbs::ibv_set_ece(qp, &raw mut ece) };
    live.private().local_ece.options = options;
    if code == libc::EOPNOTSUPP { Ok(()) } else { check_code(code) }
}

/// Creates the CQs that the program leaves to the library, with the given numbers of entries; 0
/// creates none.
///
/// # Safety
/// `id` is live.
pub unsafe fn create_cqs(id: *mut rdma_cm_id, send: u32, receive: u32) -> Result<(), c_int> {
    // SAFETY: `id` is live; the fields written here are the ones in which programs look for these
    // objects.
    unsafe {
        let (context, cq_context) = ((*id).verbs, id.cast());
        let make = |entries: u32| {
            let channel = non_null(verbs::ibv_create_comp_channel(context))?;
            let entries = c_int::try_from(entries).unwrap_or(c_int::MAX);
            match non_null(verbs::ibv_create_cq(context, entries, cq_context, channel, 0)) {
                Ok(cq) => Ok((channel, cq)),
                Err(code) => {
                    verbs::ibv_destroy_comp_channel(channel);
                    Err(code)
                }
            }
        };
        if receive > 0 {
            ((*id).recv_cq_channel, (*id).recv_cq) = make(receive)?;
        }
        if send > 0 {
            match make(send) {
                Ok((channel, cq)) => ((*id).send_cq_channel, (*id).send_cq) = (channel, cq),
                Err(code) => {
                    destroy_cqs(id);
                    return Err(code);
                }
            }
        }
        Ok(())
    }
}

/// Destroys the CQs that the library created, unless an XRC SRQ completes to them.
///
/// # Safety
/// `id` is live, and nothing else uses the CQs.
pub unsafe fn destroy_cqs(id: *mut rdma_cm_id) {
    // SAFETY: `id` is live and nothing else uses the CQs. Each CQ is destroyed before its channel.
    unsafe {
        if (*id).qp_type == IBV_QPT_XRC_RECV && !(*id).srq.is_null() {
            return;
        }
        let taken = |place: *mut *mut _| std::mem::replace(&mut *place, std::ptr::null_mut());
        for cq in [taken(&raw mut (*id).recv_cq), taken(&raw mut (*id).send_cq)] {
            if !cq.is_null() {
                verbs::ibv_destroy_cq(cq);
            }
        }
        let channels = [&raw mut (*id).recv_cq_channel, &raw mut (*id).send_cq_channel];
        for place in channels {
            let channel = std::mem::replace(&mut *place, std::ptr::null_mut());
            if !channel.is_null() {
                verbs::ibv_destroy_comp_channel(channel);
            }
        }
    }
}

/// Creates a QP from the program's attributes and prepares it for the connection.
///
/// # Safety
/// `id` and the objects in the attributes are live.
unsafe fn create(id: *mut rdma_cm_id, init: &mut ibv_qp_init_attr_ex) -> Result<(), c_int> {
    // SAFETY: `id` and the objects in the attributes are live.
    unsafe {
        let device = id::borrow(id).device()?;
        if !(*id).qp.is_null() {
            return Err(libc::EINVAL);
        }
        if init.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || init.pd.is_null() {
            init.comp_mask |= IBV_QP_INIT_ATTR_PD;
            init.pd = (*id).pd;
        }
        let is_target = (*id).qp_type == IBV_QPT_XRC_RECV;
        if is_target && (init.comp_mask & IBV_QP_INIT_ATTR_XRCD == 0 || init.xrcd.is_null()) {
            init.comp_mask |= IBV_QP_INIT_ATTR_XRCD;
            init.xrcd = device.xrc_domain()?;
        }
        let differ = |current: *mut ibv_cq, given: *mut ibv_cq| {
            !current.is_null() && !given.is_null() && current != given
        };
        if differ((*id).recv_cq, init.recv_cq) || differ((*id).send_cq, init.send_cq) {
            return Err(libc::EINVAL);
        }
        let needed = |current: *mut ibv_cq, given: *mut ibv_cq, entries: u32| {
            if current.is_null() && given.is_null() { entries } else { 0 }
        };
        let send = needed((*id).send_cq, init.send_cq, init.cap.max_send_wr);
        let receive = needed((*id).recv_cq, init.recv_cq, init.cap.max_recv_wr);
        create_cqs(id, send, receive)?;
        if init.send_cq.is_null() {
            init.send_cq = (*id).send_cq;
        }
        if init.recv_cq.is_null() {
            init.recv_cq = (*id).recv_cq;
        }
        if init.srq.is_null() {
            init.srq = (*id).srq;
        }
        // Fails with EINVAL for a PD of another context.
        let qp = verbs::create_qp_ex((*id).verbs, init);
        let done = non_null(qp).and_then(|qp| {
            prepare(id, qp).inspect_err(|_| _ = verbs::ibv_destroy_qp(qp)).map(|()| qp)
        });
        let qp = done.inspect_err(|_| destroy_cqs(id))?;
        (*id).pd = init.pd; // an XRC target QP has no PD, but its identifier has one
        (*id).qp = qp;
        Ok(())
    }
}

/// Negotiates ECE and moves a new QP to INIT; a UD QP goes on to RTS at once.
///
/// # Safety
/// `id` and `qp` are live.
unsafe fn prepare(id: *mut rdma_cm_id, qp: *mut ibv_qp) -> Result<(), c_int> {
    // SAFETY: `id` and `qp` are live.
    unsafe {
        negotiate_ece(id, qp)?;
        let (attr, mask) = attributes::init(id, INIT)?;
        modify(qp, (attr, mask))?;
        if (*id).qp_type != IBV_QPT_UD {
            return Ok(());
        }
        let mut attr = attributes::empty();
        attr.qp_state = RTR;
        modify(qp, (attr, IBV_QP_STATE))?;
        attr.qp_state = RTS;
        modify(qp, (attr, IBV_QP_STATE | IBV_QP_SQ_PSN))
    }
}

/// Stores the QP's ECE and, if the peer sent its own, sets the options that both support.
///
/// # Safety
/// `id` and `qp` are live.
unsafe fn negotiate_ece(id: *mut rdma_cm_id, qp: *mut ibv_qp) -> Result<(), c_int> {
    let mut ece = ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 };
    let unless_unsupported =
        |code| if code == libc::EOPNOTSUPP { Ok(()) } else { check_code(code) };
    // SAFETY: `id` and `qp` are live.
    unsafe {
        unless_unsupported(verbs::ibv_query_ece(qp, &raw mut ece))?;
        let remote = {
            let mut private = id::borrow(id).private();
            private.local_ece = CmEce { vendor_id: ece.vendor_id, options: ece.options };
            private.remote_ece
        };
        if remote.vendor_id == 0 {
            return Ok(());
        }
        // Options of another vendor have another meaning.
        ece.options &= if remote.vendor_id == ece.vendor_id { remote.options } else { 0 };
        unless_unsupported(verbs::ibv_set_ece(qp, &raw mut ece))?;
        unless_unsupported(verbs::ibv_query_ece(qp, &raw mut ece))?;
        id::borrow(id).private().local_ece.options = ece.options;
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_qp_ex(
    id: *mut rdma_cm_id,
    init: *mut ibv_qp_init_attr_ex,
) -> c_int {
    // SAFETY: the identifier is live; the program passes valid attributes.
    return_code(id::live(id).and_then(|_| unsafe { create(id, &mut *init) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    if let Err(code) = id::live(id) {
        return return_code(Err(code));
    }
    // SAFETY: all-zero bytes are a valid `ibv_qp_init_attr_ex`, which begins with the fields of
    // `ibv_qp_init_attr`; the program passes a live identifier and attributes with live objects.
    unsafe {
        let mut extended: ibv_qp_init_attr_ex = std::mem::zeroed();
        let shorter = (&raw mut extended).cast::<ibv_qp_init_attr>();
        shorter.write(*init);
        extended.comp_mask = IBV_QP_INIT_ATTR_PD;
        extended.pd = pd;
        let done = create(id, &mut extended);
        *init = shorter.read();
        return_code(done)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    let Some(_known) = id::known(id) else {
        errno::set(libc::EINVAL);
        return;
    };
    // SAFETY: the identifier is referenced.
    unsafe {
        let qp = std::mem::replace(&mut (*id).qp, std::ptr::null_mut());
        if !qp.is_null() {
            verbs::ibv_destroy_qp(qp);
        }
        destroy_cqs(id);
    }
}
