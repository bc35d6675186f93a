//! The symbols of `IBVERBS_1.0`, the 2006 interface with its own structures. They exist because
//! programs of that time refer to them and because the library must export every symbol of
//! rdma-core's. Calling them fails.

use std::ffi::c_void;
use std::sync::Once;

use crate::symver::versioned;

fn warn_once() {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        crate::log::print(
            "the program was built for libibverbs 1.0 of 2006, which is not supported",
        )
    });
}

#[unsafe(no_mangle)]
extern "C" fn feroce_ibverbs_1_0_error() -> libc::c_long {
    warn_once();
    libc::ENOSYS.into()
}

#[unsafe(no_mangle)]
extern "C" fn feroce_ibverbs_1_0_null() -> *mut c_void {
    warn_once();
    crate::errno::fail(libc::ENOSYS)
}

versioned! {
    feroce_ibverbs_1_0_error "IBVERBS_1.0":
        ibv_ack_async_event ibv_ack_cq_events ibv_attach_mcast ibv_close_device
        ibv_dealloc_pd ibv_dereg_mr ibv_destroy_ah ibv_destroy_cq ibv_destroy_qp
        ibv_destroy_srq ibv_detach_mcast ibv_free_device_list ibv_get_async_event
        ibv_get_cq_event ibv_modify_qp ibv_modify_srq ibv_query_device ibv_query_gid
        ibv_query_pkey ibv_query_port ibv_query_qp ibv_query_srq ibv_resize_cq;
    feroce_ibverbs_1_0_error "IBVERBS_1.1":
        ibv_register_driver;
    feroce_ibverbs_1_0_null "IBVERBS_1.0":
        ibv_alloc_pd ibv_create_ah ibv_create_cq ibv_create_qp ibv_create_srq
        ibv_get_device_guid ibv_get_device_list ibv_get_device_name ibv_open_device
        ibv_reg_mr;
}
