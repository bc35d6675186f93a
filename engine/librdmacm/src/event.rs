//! The delivery of connection manager events to the program.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use crate::abi::connections::{CmParameters, feroce_cm_destroy, feroce_cm_take_request};
use crate::abi::{
    IBV_QPT_UD, RDMA_CM_EVENT_ADDR_ERROR, RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_CONNECT_ERROR,
    RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_CONNECT_RESPONSE, RDMA_CM_EVENT_DISCONNECTED,
    RDMA_CM_EVENT_ESTABLISHED, RDMA_CM_EVENT_REJECTED, RDMA_CM_EVENT_ROUTE_RESOLVED,
    cm_event_param, rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_channel, rdma_ud_param,
};
use crate::channel::{self, Uncancellable};
use crate::event_channel::{DeliveredEvent, EventChannel, acknowledge_last};
use crate::id::{self, Id, NewId};
use crate::id_state::PendingEvent;
use crate::object;
use crate::outcome::{check_code, return_code};
use crate::{address, attributes, qp};

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    loop {
        let fd = await_event(channel, event);
        if fd < 0 || !channel::wait(fd) {
            return -1;
        }
        // SAFETY: the program passes a writable pointer.
        if unsafe { take_event(event) } {
            return 0;
        }
    }
}

/// Begins to wait. Returns -1 with `errno` set if an argument is not usable.
extern "C" fn await_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    let queue = match object::live::<EventChannel>(channel) {
        Ok(live) if !event.is_null() => live.check().map(|()| live.queue()),
        _ => Err(libc::EINVAL),
    };
    match queue {
        Ok(queue) => channel::begin(queue),
        Err(code) => return_code(Err(code)),
    }
}

/// Writes the event for the program. Returns false if the program gets no event.
///
/// # Safety
/// `event` is writable.
unsafe extern "C" fn take_event(event: *mut *mut rdma_cm_event) -> bool {
    let _uncancellable = Uncancellable::new(); // `process` makes system calls
    let Some(pending) = channel::end::<PendingEvent>(PendingEvent::count_as_read) else {
        return false;
    };
    let state = Arc::clone(&pending.state);
    // SAFETY: the identifier is live: destroying it waits until the event is acknowledged.
    let Some(delivered) = (unsafe { process(pending) }) else {
        state.unacknowledged.acknowledge(1);
        return false;
    };
    // SAFETY: the pointer is writable.
    unsafe { event.write(object::give(delivered)) };
    true
}

/// Does the work that belongs to an event and builds the event for the program. Returns `None` if
/// the program gets no event.
///
/// # Safety
/// The identifier of the event is live.
unsafe fn process(pending: PendingEvent) -> Option<Arc<DeliveredEvent>> {
    let mut id = pending.state.id();
    let mut listen_id = std::ptr::null_mut();
    let (mut kind, mut status) = (pending.kind, pending.status);
    // SAFETY: the identifier of the event is live.
    unsafe {
        let live = id::borrow(id);
        match kind {
            RDMA_CM_EVENT_ADDR_RESOLVED => {
                if let Err(code) = address::refresh(id) {
                    (kind, status) = (RDMA_CM_EVENT_ADDR_ERROR, -code);
                }
            }
            RDMA_CM_EVENT_ROUTE_RESOLVED => address::set_path_record(id),
            RDMA_CM_EVENT_CONNECT_REQUEST => {
                listen_id = id;
                id = create_requested(live, id, &pending)?;
            }
            RDMA_CM_EVENT_CONNECT_RESPONSE => {
                if let Ok(view) = live.view() {
                    live.private().remote_ece = view.remote_ece;
                }
                if !(*id).qp.is_null() {
                    (kind, status) = match qp::establish(id) {
                        Ok(()) => (RDMA_CM_EVENT_ESTABLISHED, 0),
                        Err(code) => {
                            live.private().connect_failed = true;
                            (RDMA_CM_EVENT_CONNECT_ERROR, -code)
                        }
                    };
                }
            }
            RDMA_CM_EVENT_REJECTED | RDMA_CM_EVENT_DISCONNECTED
                if live.private().connect_failed =>
            {
                return None;
            }
            RDMA_CM_EVENT_REJECTED => drop(qp::modify_to_error(id)),
            _ => {}
        }
    }
    let PendingEvent { state, membership, parameters, data, arg, .. } = pending;
    let at = if data.is_empty() { std::ptr::null() } else { data.as_ptr().cast::<c_void>() };
    let length = u8::try_from(data.len()).unwrap_or(u8::MAX);
    // SAFETY: the identifier of the event is live, or it was created above.
    let (live, qp_type) = unsafe { (id::borrow(id), (*id).qp_type) };
    let param = match (&membership, qp_type) {
        (Some(membership), _) => {
            let param;
            // SAFETY: the identifier is live.
            (kind, status, param) = unsafe { membership.joined(id) };
            param
        }
        (None, _) if arg.is_some() => cm_event_param { arg: arg.unwrap_or(0) },
        (None, IBV_QPT_UD) => cm_event_param { ud: ud_param(live, kind, &parameters, at, length) },
        (None, _) => cm_event_param { conn: conn_param(&parameters, at, length) },
    };
    let abi = rdma_cm_event { id, listen_id, event: kind, status, param };
    Some(DeliveredEvent::new(abi, state, membership, data))
}

fn conn_param(
    parameters: &CmParameters,
    private_data: *const c_void,
    private_data_len: u8,
) -> rdma_conn_param {
    rdma_conn_param {
        private_data,
        private_data_len,
        responder_resources: parameters.responder_resources,
        initiator_depth: parameters.initiator_depth,
        flow_control: parameters.flow_control,
        retry_count: parameters.retry_count,
        rnr_retry_count: parameters.rnr_retry_count,
        srq: parameters.srq,
        qp_num: parameters.qpn,
    }
}

fn ud_param(
    live: &Id,
    kind: c_uint,
    parameters: &CmParameters,
    private_data: *const c_void,
    private_data_len: u8,
) -> rdma_ud_param {
    let answered = kind == RDMA_CM_EVENT_ESTABLISHED;
    let view = live.view().ok().filter(|_| answered);
    rdma_ud_param {
        private_data,
        private_data_len,
        ah_attr: attributes::ah_attr(&view.unwrap_or_default().path),
        qp_num: parameters.qpn,
        qkey: parameters.qkey,
    }
}

/// Creates the identifier of a connection request. Returns `None` if that fails or the request is
/// gone.
///
/// # Safety
/// The listener is live.
unsafe fn create_requested(
    listener: &Id,
    listen_id: *mut rdma_cm_id,
    pending: &PendingEvent,
) -> Option<*mut rdma_cm_id> {
    let number = pending.child?;
    // SAFETY: the function takes no pointers.
    // otherwise the request ended with its listener
    check_code(unsafe { feroce_cm_take_request(number) }).ok()?;
    // SAFETY: the listener is live, and so is its channel.
    let made = unsafe {
        let rdma_cm_id { context, ps: space, qp_type, channel, .. } = *listen_id;
        let channel = if listener.is_sync() { std::ptr::null_mut() } else { channel };
        NewId { channel, context, space, qp_type, number: Some(number) }.create()
    };
    let Ok(id) = made else {
        // SAFETY: the function takes no pointers.
        unsafe { feroce_cm_destroy(number) };
        return None;
    };
    // SAFETY: the identifier was created above.
    let live = unsafe { id::borrow(id) };
    {
        let mut private = live.private();
        private.initiator_depth = pending.parameters.initiator_depth;
        private.responder_resources = pending.parameters.responder_resources;
        private.remote_ece = live.view().map(|view| view.remote_ece).unwrap_or_default();
    }
    // SAFETY: the identifier was created above.
    unsafe {
        if address::refresh(id).is_err() {
            id::rdma_destroy_id(id);
            return None;
        }
        address::set_path_record(id);
    }
    Some(id)
}

/// Waits for the event that ends a call, if the identifier is synchronous.
///
/// # Safety
/// `id` is live.
///
/// # Errors
/// The error of the event.
pub unsafe fn complete(id: *mut rdma_cm_id) -> Result<(), c_int> {
    // SAFETY: `id` is live; an event is live until it is acknowledged.
    unsafe {
        if !id::borrow(id).is_sync() {
            return Ok(());
        }
        acknowledge_last(id);
        if rdma_get_cm_event((*id).channel, &raw mut (*id).event) != 0 {
            return Err(crate::errno::last());
        }
        let last = &*(*id).event;
        match (last.status, last.event) {
            (0, _) => Ok(()),
            (_, RDMA_CM_EVENT_REJECTED) => Err(libc::ECONNREFUSED),
            (status, _) => Err(status.abs()),
        }
    }
}
