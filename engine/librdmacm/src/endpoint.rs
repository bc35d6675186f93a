//! Endpoints: `rdma_create_ep` prepares an identifier in one call; `rdma_get_request` waits for
//! connection requests.

use std::ffi::c_int;

use crate::abi::{
    RAI_PASSIVE, RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_REJECTED, ibv_pd, ibv_qp_init_attr,
    rdma_addrinfo, rdma_cm_event, rdma_cm_id, rdma_event_channel,
};
use crate::address::rdma_bind_addr;
use crate::channel::Uncancellable;
use crate::device;
use crate::errno;
use crate::event::rdma_get_cm_event;
use crate::event_channel::acknowledge_last;
use crate::id::{self, NewId, rdma_destroy_id};
use crate::option::rdma_set_option;
use crate::outcome::return_code;
use crate::qp::{rdma_create_qp, rdma_destroy_qp};
use crate::resolve::{rdma_resolve_addr, rdma_resolve_route};
use crate::srq::rdma_destroy_srq;

/// Time limit of address and route resolution, in milliseconds.
const RESOLVE_TIMEOUT_MS: c_int = 2000;

/// Returns the result of a function of this library that sets `errno`.
fn last_result(code: c_int) -> Result<(), c_int> {
    if code == 0 { Ok(()) } else { Err(errno::last()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    info: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the program passes a writable pointer and a valid `rdma_addrinfo`; PD and attributes
    // are null or valid.
    unsafe {
        let new = NewId {
            channel: std::ptr::null_mut(),
            context: std::ptr::null_mut(),
            space: (*info).ai_port_space.cast_unsigned(),
            qp_type: (*info).ai_qp_type.cast_unsigned(),
            number: None,
        };
        return_code(device::check_present().and_then(|()| new.create()).and_then(|made| {
            let ready = match (*info).ai_flags & RAI_PASSIVE {
                0 => connect_endpoint(made, &*info, pd, init.as_mut()),
                _ => listen_endpoint(made, &*info, pd, init.as_ref()),
            };
            match ready {
                Ok(()) => id.write(made),
                Err(_) => rdma_destroy_ep(made),
            }
            ready
        }))
    }
}

/// Prepares a listening endpoint.
///
/// # Safety
/// `id` is live, `info` is valid, `pd` is null or live.
unsafe fn listen_endpoint(
    id: *mut rdma_cm_id,
    info: &rdma_addrinfo,
    pd: *mut ibv_pd,
    init: Option<&ibv_qp_init_attr>,
) -> Result<(), c_int> {
    // SAFETY: `id` is live and `info` is valid.
    unsafe {
        last_result(rdma_bind_addr(id, info.ai_src_addr))?;
        if !pd.is_null() {
            (*id).pd = pd;
        }
        let qp_type = info.ai_qp_type.cast_unsigned();
        id::borrow(id).private().qp_init = init.map(|init| ibv_qp_init_attr { qp_type, ..*init });
    }
    Ok(())
}

/// Prepares a connecting endpoint: resolves address and route, creates the QP.
///
/// # Safety
/// `id` is live, `info` is valid, `pd` is null or live.
unsafe fn connect_endpoint(
    id: *mut rdma_cm_id,
    info: &rdma_addrinfo,
    pd: *mut ibv_pd,
    init: Option<&mut ibv_qp_init_attr>,
) -> Result<(), c_int> {
    // SAFETY: `id` is live and `info` is valid; `ai_connect` has `ai_connect_len` bytes.
    unsafe {
        last_result(rdma_resolve_addr(id, info.ai_src_addr, info.ai_dst_addr, RESOLVE_TIMEOUT_MS))?;
        if info.ai_route_len > 0 {
            use crate::abi::{RDMA_OPTION_IB, RDMA_OPTION_IB_PATH};
            let (route, length) = (info.ai_route, info.ai_route_len);
            last_result(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, route, length))?;
        }
        last_result(rdma_resolve_route(id, RESOLVE_TIMEOUT_MS))?;
        if let Some(init) = init {
            init.qp_type = info.ai_qp_type.cast_unsigned();
            last_result(rdma_create_qp(id, pd, init))?;
        }
        if info.ai_connect_len > 0 {
            let data =
                std::slice::from_raw_parts(info.ai_connect.cast::<u8>(), info.ai_connect_len);
            id::borrow(id).private().connect_data = data.to_vec();
        }
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    let Some(_known) = id::known(id) else {
        errno::set(libc::EINVAL);
        return;
    };
    // SAFETY: the identifier is referenced.
    unsafe {
        if !(*id).qp.is_null() {
            rdma_destroy_qp(id);
        }
        if !(*id).srq.is_null() {
            rdma_destroy_srq(id);
        }
        rdma_destroy_id(id);
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_get_request(
    listener: *mut rdma_cm_id,
    id: *mut *mut rdma_cm_id,
) -> c_int {
    let channel = await_request(listener);
    let mut event = std::ptr::null_mut();
    // The thread may be cancelled here, so that this function has no value to drop.
    // SAFETY: the listener is live, and so is its channel.
    if channel.is_null() || unsafe { rdma_get_cm_event(channel, &raw mut event) } != 0 {
        return -1;
    }
    // SAFETY: the listener and the event are live; the program passes a writable pointer.
    unsafe { take_request(listener, event, id) }
}

/// Returns the listener's channel, or null with `errno` set if the listener is not usable.
extern "C" fn await_request(listener: *mut rdma_cm_id) -> *mut rdma_event_channel {
    if !id::live(listener).is_ok_and(|live| live.is_sync()) {
        return errno::fail(libc::EINVAL);
    }
    // SAFETY: the listener is live.
    unsafe {
        acknowledge_last(listener);
        (*listener).channel
    }
}

/// Gives the program the identifier of a request.
///
/// # Safety
/// `listener` and `event` are live, `id` is writable.
unsafe extern "C" fn take_request(
    listener: *mut rdma_cm_id,
    event: *mut rdma_cm_event,
    id: *mut *mut rdma_cm_id,
) -> c_int {
    let _uncancellable = Uncancellable::new(); // creating a QP makes system calls
    // SAFETY: the listener is live; the pointer is writable; events are live until they are
    // acknowledged.
    unsafe {
        let read = &*event;
        let ready = match (read.event, read.status) {
            (RDMA_CM_EVENT_REJECTED, _) => Err(libc::ECONNREFUSED),
            (_, status) if status != 0 => Err(status.abs()),
            (RDMA_CM_EVENT_CONNECT_REQUEST, _) => {
                let init = id::borrow(listener).private().qp_init;
                match init {
                    Some(mut init) => {
                        last_result(rdma_create_qp(read.id, (*listener).pd, &raw mut init))
                    }
                    None => Ok(()),
                }
            }
            _ => Err(libc::EINVAL),
        };
        match ready {
            Ok(()) => {
                id.write(read.id);
                (*read.id).event = event;
            }
            Err(_) => (*listener).event = event,
        }
        return_code(ready)
    }
}
