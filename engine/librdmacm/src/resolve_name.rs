//! Names resolved with an event (`rdma_resolve_addrinfo`), and events that programs write.

use std::ffi::{c_char, c_int, c_uint};

use crate::abi::{RAI_SA, RDMA_CM_EVENT_USER, rdma_addrinfo, rdma_cm_id};
use crate::addrinfo::AddrInfoList;
use crate::event::complete;
use crate::id::{self, Id, Resolution};
use crate::outcome::return_code;

/// Resolves a name as `rdma_getaddrinfo` does, within the call as rdma-core, and queues the event.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_resolve_addrinfo(
    id: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> c_int {
    return_code(id::check(id).and_then(|()| {
        let live = id::live(id)?;
        begin(&live)?;
        // SAFETY: the program passes C strings or null, and null or valid hints; the identifier is
        // live.
        let done = unsafe { resolve(&live, node, service, hints).and_then(|()| complete(id)) };
        if done.is_err() {
            live.private().resolution = Resolution::Idle;
        }
        done
    }))
}

/// Marks the identifier as resolving a name.
///
/// # Errors
/// EBUSY if another thread resolves one, or if the program has not taken the last result.
fn begin(live: &Id) -> Result<(), c_int> {
    let mut private = live.private();
    match private.resolution {
        Resolution::Idle => {
            private.resolution = Resolution::Resolving;
            Ok(())
        }
        Resolution::Resolving | Resolution::Done(_) => Err(libc::EBUSY),
    }
}

/// Resolves the name and queues the event.
///
/// # Safety
/// `node` and `service` are null or C strings, and `hints` is null or valid.
unsafe fn resolve(
    live: &Id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> Result<(), c_int> {
    // SAFETY: `hints` is null or valid.
    let flags = unsafe { hints.as_ref() }.map_or(0, |hints| hints.ai_flags);
    if flags & RAI_SA != 0 {
        return Err(libc::ENOTSUP); // only InfiniBand has a subnet administrator
    }
    // SAFETY: `node` and `service` are null or C strings, and `hints` is null or valid.
    let list = unsafe { AddrInfoList::resolve(node, service, hints)? };
    live.private().resolution = Resolution::Done(list);
    live.state.queue_resolved_event();
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_query_addrinfo(
    id: *mut rdma_cm_id,
    info: *mut *mut rdma_addrinfo,
) -> c_int {
    return_code(id::live(id).and_then(|live| {
        if info.is_null() {
            return Err(libc::EINVAL);
        }
        let mut private = live.private();
        match std::mem::take(&mut private.resolution) {
            Resolution::Done(list) => {
                // SAFETY: the program passes a writable pointer.
                unsafe { info.write(list.into_raw()) };
                Ok(())
            }
            other => {
                private.resolution = other;
                Err(libc::ENOENT)
            }
        }
    }))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_write_cm_event(
    id: *mut rdma_cm_id,
    event: c_uint,
    status: c_int,
    arg: u64,
) -> c_int {
    return_code(id::check(id).and_then(|()| match event {
        RDMA_CM_EVENT_USER => {
            id::live(id)?.state.queue_user_event(status, arg);
            Ok(())
        }
        _ => Err(libc::EINVAL),
    }))
}
