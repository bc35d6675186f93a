//! The symbols of `IBVERBS_1.0`, the 2006 interface with its own structures. They exist because
//! programs of that time refer to them and because the library must export every symbol of
//! rdma-core's. Calling them fails.

use std::ffi::c_void;
use std::sync::Once;

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

/// Defines an old symbol: a jump to the failing function, under a private name that the linker
/// exports as `name@version`.
macro_rules! legacy_symbols {
    ($( $to:ident $name:ident $version:literal )*) => { $(
        #[cfg(target_arch = "x86_64")]
        std::arch::global_asm!(concat!(
            ".text\n.globl feroce_old_", stringify!($name), "\n",
            ".type feroce_old_", stringify!($name), ", @function\n",
            "feroce_old_", stringify!($name),
            ": jmp feroce_ibverbs_1_0_", stringify!($to), "@PLT\n",
            ".symver feroce_old_", stringify!($name), ", ", stringify!($name), "@", $version, "\n",
        ));
        #[cfg(target_arch = "aarch64")]
        std::arch::global_asm!(concat!(
            ".text\n.globl feroce_old_", stringify!($name), "\n",
            ".type feroce_old_", stringify!($name), ", %function\n",
            "feroce_old_", stringify!($name), ": b feroce_ibverbs_1_0_", stringify!($to), "\n",
            ".symver feroce_old_", stringify!($name), ", ", stringify!($name), "@", $version, "\n",
        ));
    )* };
}

// First column: the failing function, which returns an error number (`error`) or a null pointer
// (`null`).
legacy_symbols! {
    error ibv_ack_async_event "IBVERBS_1.0"
    error ibv_ack_cq_events "IBVERBS_1.0"
    null ibv_alloc_pd "IBVERBS_1.0"
    error ibv_attach_mcast "IBVERBS_1.0"
    error ibv_close_device "IBVERBS_1.0"
    null ibv_create_ah "IBVERBS_1.0"
    null ibv_create_cq "IBVERBS_1.0"
    null ibv_create_qp "IBVERBS_1.0"
    null ibv_create_srq "IBVERBS_1.0"
    error ibv_dealloc_pd "IBVERBS_1.0"
    error ibv_dereg_mr "IBVERBS_1.0"
    error ibv_destroy_ah "IBVERBS_1.0"
    error ibv_destroy_cq "IBVERBS_1.0"
    error ibv_destroy_qp "IBVERBS_1.0"
    error ibv_destroy_srq "IBVERBS_1.0"
    error ibv_detach_mcast "IBVERBS_1.0"
    error ibv_free_device_list "IBVERBS_1.0"
    error ibv_get_async_event "IBVERBS_1.0"
    error ibv_get_cq_event "IBVERBS_1.0"
    null ibv_get_device_guid "IBVERBS_1.0"
    null ibv_get_device_list "IBVERBS_1.0"
    null ibv_get_device_name "IBVERBS_1.0"
    error ibv_modify_qp "IBVERBS_1.0"
    error ibv_modify_srq "IBVERBS_1.0"
    null ibv_open_device "IBVERBS_1.0"
    error ibv_query_device "IBVERBS_1.0"
    error ibv_query_gid "IBVERBS_1.0"
    error ibv_query_pkey "IBVERBS_1.0"
    error ibv_query_port "IBVERBS_1.0"
    error ibv_query_qp "IBVERBS_1.0"
    error ibv_query_srq "IBVERBS_1.0"
    null ibv_reg_mr "IBVERBS_1.0"
    error ibv_register_driver "IBVERBS_1.1"
    error ibv_resize_cq "IBVERBS_1.0"
}
