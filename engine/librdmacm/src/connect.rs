//! Connections: requesting, accepting, rejecting and disconnecting.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::Ordering;

use crate::abi::connections::{
    CmEce, CmParameters, feroce_cm_accept, feroce_cm_connect, feroce_cm_disconnect,
    feroce_cm_establish, feroce_cm_notify_established, feroce_cm_reject, feroce_cm_set_local_ece,
};
use crate::abi::{
    IBV_EVENT_COMM_EST, IBV_QPT_UD, RDMA_MAX_INIT_DEPTH, RDMA_MAX_RESP_RES, RDMA_PS_TCP,
    RDMA_UDP_QKEY, ibv_ece, rdma_cm_id, rdma_conn_param,
};
use crate::event::complete;
use crate::event_channel::acknowledge_last;
use crate::id::{self, Id};
use crate::outcome::{check_code, return_code};
use crate::qp;

/// Reject reasons: consumer reject, and vendor option (ECE) not supported.
const CONSUMER: u16 = 28;
const VENDOR_OPTION: u16 = 35;

/// Retry counts if the program passes no parameters.
const RETRIES: u8 = 7;

/// Returns how often the peer repeats a message that finds no receive.
fn rnr_retries(wanted: Option<&rdma_conn_param>) -> u8 {
    wanted.map_or(RETRIES, |wanted| wanted.rnr_retry_count)
}

/// Checks the requested resources against the device's limits.
///
/// # Safety
/// `id` is live.
unsafe fn check(id: *mut rdma_cm_id, wanted: Option<&rdma_conn_param>) -> Result<(), c_int> {
    // SAFETY: `id` is live.
    let (live, space, qp) = unsafe { (id::borrow(id), (*id).ps, (*id).qp) };
    if space != RDMA_PS_TCP {
        return Ok(());
    }
    let device = live.device()?;
    let Some(wanted) = wanted else {
        return if qp.is_null() { Err(libc::EINVAL) } else { Ok(()) };
    };
    let fits = |wanted: u8, any: u8, most: u8| wanted == any || wanted <= most;
    let responds =
        fits(wanted.responder_resources, RDMA_MAX_RESP_RES, device.max_responder_resources);
    let initiates = fits(wanted.initiator_depth, RDMA_MAX_INIT_DEPTH, device.max_initiator_depth);
    if responds && initiates { Ok(()) } else { Err(libc::EINVAL) }
}

/// Returns the CM parameters and the private data for the peer.
///
/// # Safety
/// `id` is live, and its QP is null or live.
unsafe fn parameters(
    id: *mut rdma_cm_id,
    wanted: Option<&rdma_conn_param>,
) -> (CmParameters, Vec<u8>) {
    // SAFETY: `id` is live, and its QP is null or live.
    let (live, qp) = unsafe { (id::borrow(id), (*id).qp.as_ref()) };
    let private = live.private();
    let mut data = private.connect_data.clone();
    if let Some(wanted) = wanted.filter(|wanted| !wanted.private_data.is_null()) {
        let length = usize::from(wanted.private_data_len);
        // SAFETY: the program passes `private_data_len` readable bytes.
        data.extend(unsafe {
            std::slice::from_raw_parts(wanted.private_data.cast::<u8>(), length)
        });
    }
    let given = wanted.map_or((0, 0), |wanted| (wanted.qp_num, wanted.srq));
    let local = CmParameters {
        qpn: qp.map_or(given.0, |qp| qp.qp_num),
        qkey: RDMA_UDP_QKEY,
        responder_resources: private.responder_resources,
        initiator_depth: private.initiator_depth,
        flow_control: wanted.map_or(0, |wanted| wanted.flow_control),
        retry_count: wanted.map_or(RETRIES, |wanted| wanted.retry_count),
        rnr_retry_count: rnr_retries(wanted),
        srq: qp.map_or(given.1, |qp| u8::from(!qp.srq.is_null())),
    };
    (local, data)
}

fn set_local_ece(live: &Id, ece: CmEce) -> Result<(), c_int> {
    // SAFETY: `ece` is readable.
    check_code(unsafe { feroce_cm_set_local_ece(live.number(), &raw const ece) })
}

/// Returns the program's value, or `max` if it passed none or the value that stands for "maximum".
fn value_or_max(wanted: Option<u8>, any: u8, max: u8) -> u8 {
    wanted.filter(|wanted| *wanted != any).unwrap_or(max)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: the program passes a live identifier; the parameters are null or valid.
    return_code(unsafe { connect(id, param.as_ref()) })
}

/// Sends a connection request.
///
/// # Safety
/// `id` is live.
unsafe fn connect(id: *mut rdma_cm_id, param: Option<&rdma_conn_param>) -> Result<(), c_int> {
    // SAFETY: `id` is live.
    unsafe {
        let live = id::live(id)?;
        check(id, param)?;
        let device = live.device()?;
        {
            let mut private = live.private();
            let initiates = param.map(|param| param.initiator_depth);
            let most = device.max_initiator_depth;
            private.initiator_depth = value_or_max(initiates, RDMA_MAX_INIT_DEPTH, most);
            let responds = param.map(|param| param.responder_resources);
            let most = device.max_responder_resources;
            private.responder_resources = value_or_max(responds, RDMA_MAX_RESP_RES, most);
            private.rnr_retries_requested = Some(rnr_retries(param));
        }
        let (local, data) = parameters(id, param);
        let ece = live.private().local_ece;
        set_local_ece(&live, ece)?;
        let data_at = data.as_ptr().cast::<c_void>();
        check_code(feroce_cm_connect(live.number(), &raw const local, data_at, data.len()))?;
        live.private().connect_data.clear();
        complete(id)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: the program passes a live identifier; the parameters are null or valid.
    return_code(unsafe { accept(id, param.as_ref()) })
}

/// Accepts a connection request.
///
/// # Safety
/// `id` is live.
unsafe fn accept(id: *mut rdma_cm_id, param: Option<&rdma_conn_param>) -> Result<(), c_int> {
    // SAFETY: `id` is live.
    unsafe {
        let live = id::live(id)?;
        check(id, param)?;
        let device = live.device()?;
        let (responds, initiates) = {
            let mut private = live.private();
            let initiates = param.map(|param| param.initiator_depth);
            let most = private.initiator_depth.min(device.max_initiator_depth);
            private.initiator_depth = value_or_max(initiates, RDMA_MAX_INIT_DEPTH, most);
            let responds = param.map(|param| param.responder_resources);
            let most = private.responder_resources.min(device.max_responder_resources);
            private.responder_resources = value_or_max(responds, RDMA_MAX_RESP_RES, most);
            private.rnr_retries_requested = Some(rnr_retries(param));
            (private.responder_resources, private.initiator_depth)
        };
        let is_datagram = (*id).qp_type == IBV_QPT_UD;
        if !is_datagram {
            qp::modify_to_send(id, responds, initiates)?;
        }
        let (local, data) = parameters(id, param);
        let CmEce { vendor_id, .. } = live.private().remote_ece;
        let options = live.private().local_ece.options;
        let data_at = data.as_ptr().cast::<c_void>();
        live.state.delivers_events.store(true, Ordering::Release);
        let accepted = set_local_ece(&live, CmEce { vendor_id, options }).and_then(|()| {
            check_code(feroce_cm_accept(live.number(), &raw const local, data_at, data.len()))
        });
        if let Err(code) = accepted {
            live.state.delivers_events.store(false, Ordering::Release);
            let _ = qp::modify_to_error(id);
            return Err(code);
        }
        if !is_datagram {
            return complete(id);
        }
        if live.is_sync() {
            acknowledge_last(id);
        }
        Ok(())
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the identifier is live where its fields are read.
    return_code(id::live(id).and_then(|live| match unsafe { (*id).qp.is_null() } {
        // SAFETY: the function takes no pointers.
        true => check_code(unsafe { feroce_cm_establish(live.number()) }),
        false => Err(libc::EINVAL), // `rdma_get_cm_event` establishes identifiers with a QP
    }))
}

/// Rejects a connection request.
///
/// # Safety
/// `data` is null or points to `length` readable bytes.
unsafe fn reject(id: *mut rdma_cm_id, data: *const c_void, length: u8, reason: u16) -> c_int {
    // SAFETY: `data` is null or points to `length` readable bytes.
    return_code(id::live(id).and_then(|live| unsafe {
        check_code(feroce_cm_reject(live.number(), reason, data, usize::from(length)))
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reject(
    id: *mut rdma_cm_id,
    data: *const c_void,
    length: u8,
) -> c_int {
    // SAFETY: the program passes private data of `length` bytes.
    unsafe { reject(id, data, length, CONSUMER) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reject_ece(
    id: *mut rdma_cm_id,
    data: *const c_void,
    length: u8,
) -> c_int {
    // SAFETY: the program passes private data of `length` bytes.
    unsafe { reject(id, data, length, VENDOR_OPTION) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, event: c_uint) -> c_int {
    if event != IBV_EVENT_COMM_EST {
        return return_code(Err(libc::EINVAL));
    }
    // SAFETY: the function takes no pointers.
    let notify = |number| check_code(unsafe { feroce_cm_notify_established(number) });
    return_code(id::live(id).and_then(|live| notify(live.number())))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    return_code(id::live(id).and_then(|live| {
        live.device()?;
        // SAFETY: the identifier is live.
        unsafe {
            qp::modify_to_error(id)?;
            check_code(feroce_cm_disconnect(live.number()))?;
            complete(id)
        }
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    if id::live(id).is_err() || ece.is_null() {
        return return_code(Err(libc::EINVAL));
    }
    // SAFETY: the identifier is live; the program passes valid ECE options.
    unsafe {
        let ibv_ece { vendor_id, options, comp_mask } = *ece;
        if !(*id).qp.is_null() || vendor_id == 0 || comp_mask != 0 {
            return return_code(Err(libc::EINVAL));
        }
        id::borrow(id).private().local_ece = CmEce { vendor_id, options };
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    if id::live(id).is_err() || ece.is_null() {
        return return_code(Err(libc::EINVAL));
    }
    // SAFETY: the identifier is live; the program passes a writable `ibv_ece`.
    unsafe {
        if !(*id).qp.is_null() {
            return return_code(Err(libc::EINVAL));
        }
        let CmEce { vendor_id, options } = id::borrow(id).private().remote_ece;
        ece.write(ibv_ece { vendor_id, options, comp_mask: 0 });
    }
    0
}
