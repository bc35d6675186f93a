//! Asynchronous events: `ibv_get_async_event` and `ibv_ack_async_event`.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use crate::abi::{self, ibv_async_event, ibv_context};
use crate::cq::Cq;
use crate::engine::Event;
use crate::qp::Qp;
use crate::srq::Srq;
use crate::{context, errno, object};

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    let count = |event: &Event| {
        if let Some(account) = &event.unacknowledged {
            account.add();
        }
    };
    // A thread that sleeps here holds the queue alone, so that the engine can close meanwhile.
    let events = context::shared(context).map(|shared| Arc::clone(&shared.events));
    match events.and_then(|events| events.get(count)) {
        Ok(got) => {
            let element = std::ptr::with_exposed_provenance_mut::<c_void>(got.element);
            // SAFETY: the program passes a writable `ibv_async_event`.
            unsafe { event.write(ibv_async_event { element, event_type: got.kind }) };
            0
        }
        Err(code) => {
            errno::set(code);
            -1
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: the program passes an event that `ibv_get_async_event` returned.
    let ibv_async_event { element, event_type } = unsafe { *event };
    // The object exists: destroying it waits for this acknowledgement.
    let account = match event_type {
        abi::IBV_EVENT_CQ_ERR => {
            object::known::<Cq>(element.cast()).map(|cq| Arc::clone(&cq.async_events))
        }
        abi::IBV_EVENT_QP_FATAL
        | abi::IBV_EVENT_QP_REQ_ERR
        | abi::IBV_EVENT_QP_ACCESS_ERR
        | abi::IBV_EVENT_COMM_EST
        | abi::IBV_EVENT_SQ_DRAINED
        | abi::IBV_EVENT_QP_LAST_WQE_REACHED => {
            object::known::<Qp>(element.cast()).map(|qp| Arc::clone(&qp.async_events))
        }
        abi::IBV_EVENT_SRQ_LIMIT_REACHED | abi::IBV_EVENT_SRQ_ERR => {
            object::known::<Srq>(element.cast()).map(|srq| Arc::clone(&srq.async_events))
        }
        _ => None, // port events have no counter
    };
    if let Some(account) = account {
        account.acknowledge(1);
    }
}
