//! Asynchronous events: `ibv_get_async_event` and `ibv_ack_async_event`.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use crate::abi::{self, ibv_async_event, ibv_context};
use crate::cq::Cq;
use crate::engine::Event;
use crate::qp::Qp;
use crate::srq::Srq;
use crate::{channel, context, errno, object};

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    loop {
        let fd = await_event(context);
        if fd < 0 || !channel::wait(fd) {
            return -1;
        }
        // SAFETY: the program passes a writable `ibv_async_event`.
        if unsafe { take_event(event) } {
            return 0;
        }
    }
}

/// Begins to wait. Returns -1 with `errno` set if the context is not usable.
extern "C" fn await_event(context: *mut ibv_context) -> c_int {
    // A thread that sleeps holds the queue alone, so that the engine can close meanwhile.
    match context::shared(context).map(|shared| Arc::clone(&shared.events)) {
        Ok(events) => channel::begin(events),
        Err(code) => {
            errno::set(code);
            -1
        }
    }
}

/// Writes the event for the program. Returns false if the event was removed.
///
/// # Safety
/// `event` is writable.
unsafe extern "C" fn take_event(event: *mut ibv_async_event) -> bool {
    let count = |event: &Event| {
        if let Some(account) = &event.unacknowledged {
            account.add();
        }
    };
    let Some(got) = channel::end::<Event>(count) else { return false };
    let element = std::ptr::with_exposed_provenance_mut::<c_void>(got.element);
    // SAFETY: the pointer is writable.
    unsafe { event.write(ibv_async_event { element, event_type: got.kind }) };
    true
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
