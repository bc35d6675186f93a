//! `rdma_set_option`.

use std::ffi::{c_int, c_void};

use crate::abi::connections::{feroce_cm_set_option, option};
use crate::abi::{
    RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, RDMA_OPTION_ID_AFONLY, RDMA_OPTION_ID_REUSEADDR,
    RDMA_OPTION_ID_TOS, rdma_cm_id,
};
use crate::id;
use crate::outcome::{check_code, return_code};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: usize,
) -> c_int {
    let byte = || match length {
        // SAFETY: the program passes `length` readable bytes.
        1 => Ok(u32::from(unsafe { *value.cast::<u8>() })),
        _ => Err(libc::EINVAL),
    };
    let flag = || match length {
        // SAFETY: the program passes `length` readable bytes.
        4 => Ok(u32::from(unsafe { value.cast::<c_int>().read_unaligned() } != 0)),
        _ => Err(libc::EINVAL),
    };
    return_code((|| {
        let (which, value) = match (level, name) {
            (RDMA_OPTION_ID, RDMA_OPTION_ID_TOS) => (option::TRAFFIC_CLASS, byte()?),
            (RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR) => (option::REUSE_ADDRESS, flag()?),
            (RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY) => (option::V6_ONLY, flag()?),
            (RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT) => (option::ACK_TIMEOUT, byte()?),
            // Paths come from the host's routes. The kernel accepts other paths on InfiniBand only.
            _ => return Err(libc::ENOSYS),
        };
        // SAFETY: the function takes no pointers.
        check_code(unsafe { feroce_cm_set_option(id::live(id)?.number(), which, value) })
    })())
}
