//! Resolving the address of a peer and the route to it.

use std::ffi::c_int;

use libc::sockaddr;

use crate::abi::connections::{CmAddress, feroce_cm_resolve_address, feroce_cm_resolve_route};
use crate::abi::rdma_cm_id;
use crate::address::{read, write};
use crate::event::complete;
use crate::outcome::{check_code, return_code};
use crate::{device, id};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    source: *mut sockaddr,
    destination: *mut sockaddr,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: the program passes a live identifier and a destination; the source is null or valid.
    unsafe {
        let Some(to) = read(destination) else { return return_code(Err(libc::EINVAL)) };
        let from = read(source);
        if !source.is_null() && from.is_none() {
            return return_code(Err(libc::EINVAL));
        }
        let (from, to_address) = (CmAddress::from(from), CmAddress::from(to));
        return_code(id::check(id).and_then(|()| device::open_all()).and_then(|()| {
            let number = id::borrow(id).number();
            // Before the call: another thread may read the event, which writes the address, too. No
            // event follows a call that is refused.
            let before = (*id).route.addr.dst_storage;
            write(&mut (*id).route.addr.dst_storage, to);
            let timeout = u32::try_from(timeout_ms).unwrap_or(0);
            let (from, destination) = (&raw const from, &raw const to_address);
            check_code(feroce_cm_resolve_address(number, from, destination, timeout))
                .inspect_err(|_| (*id).route.addr.dst_storage = before)?;
            complete(id)
        }))
    }
}

/// The route is known as soon as the address is resolved, so this call completes at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    // SAFETY: the identifier is live.
    return_code(id::live(id).and_then(|live| unsafe {
        check_code(feroce_cm_resolve_route(live.number())).and_then(|()| complete(id))
    }))
}
