//! The context and its function tables, which the inline functions of `verbs.h` use.

use std::ffi::{c_int, c_uint, c_void};

use libc::{pthread_mutex_t, size_t};

use super::{
    abi_structs, ibv_alloc_dm_attr, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_device,
    ibv_device_attr_ex, ibv_dm, ibv_modify_cq_attr, ibv_mr, ibv_mw, ibv_mw_bind,
    ibv_parent_domain_init_attr, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_init_attr_ex,
    ibv_qp_open_attr, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_srq, ibv_srq_init_attr_ex, ibv_td,
    ibv_td_init_attr, ibv_values_ex, ibv_wc, ibv_xrcd, ibv_xrcd_init_attr,
};

/// A function that is not implemented: the inline function of `verbs.h` then returns EOPNOTSUPP.
pub type Empty = Option<unsafe extern "C" fn()>;

abi_structs! {
    struct ibv_context_ops [256] {
        _compat_query_device: Empty,
        _compat_query_port: Empty,
        _compat_alloc_pd: Empty,
        _compat_dealloc_pd: Empty,
        _compat_reg_mr: Empty,
        _compat_rereg_mr: Empty,
        _compat_dereg_mr: Empty,
        alloc_mw: Option<unsafe extern "C" fn(*mut ibv_pd, c_uint) -> *mut ibv_mw>,
        bind_mw: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_mw, *mut ibv_mw_bind) -> c_int>,
        dealloc_mw: Option<unsafe extern "C" fn(*mut ibv_mw) -> c_int>,
        _compat_create_cq: Empty,
        poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>,
        req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
        _compat_cq_event: Empty,
        _compat_resize_cq: Empty,
        _compat_destroy_cq: Empty,
        _compat_create_srq: Empty,
        _compat_modify_srq: Empty,
        _compat_query_srq: Empty,
        _compat_destroy_srq: Empty,
        post_srq_recv: Option<
            unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
        >,
        _compat_create_qp: Empty,
        _compat_query_qp: Empty,
        _compat_modify_qp: Empty,
        _compat_destroy_qp: Empty,
        post_send: Option<
            unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int,
        >,
        post_recv: Option<
            unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
        >,
        _compat_create_ah: Empty,
        _compat_destroy_ah: Empty,
        _compat_attach_mcast: Empty,
        _compat_detach_mcast: Empty,
        _compat_async_event: Empty,
    }
    struct ibv_context [328] {
        device: *mut ibv_device,
        ops: ibv_context_ops,
        cmd_fd: c_int,
        async_fd: c_int,
        num_comp_vectors: c_int,
        mutex: pthread_mutex_t,
        abi_compat: *mut c_void,
    }
    // Later releases add fields at the front: the first six were added after release 44. Programs
    // count back from `context` and check `sz` before they read a field.
    struct verbs_context [696] {
        later: [Empty; 6],
        query_port: Option<
            unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, size_t) -> c_int,
        >,
        advise_mr: Option<
            unsafe extern "C" fn(*mut ibv_pd, c_uint, u32, *mut ibv_sge, u32) -> c_int,
        >,
        alloc_null_mr: Option<unsafe extern "C" fn(*mut ibv_pd) -> *mut ibv_mr>,
        read_counters: Empty,
        attach_counters_point_flow: Empty,
        create_counters: Empty,
        destroy_counters: Empty,
        reg_dm_mr: Option<
            unsafe extern "C" fn(*mut ibv_pd, *mut ibv_dm, u64, size_t, c_uint) -> *mut ibv_mr,
        >,
        alloc_dm: Option<
            unsafe extern "C" fn(*mut ibv_context, *mut ibv_alloc_dm_attr) -> *mut ibv_dm,
        >,
        free_dm: Option<unsafe extern "C" fn(*mut ibv_dm) -> c_int>,
        modify_flow_action_esp: Empty,
        destroy_flow_action: Empty,
        create_flow_action_esp: Empty,
        modify_qp_rate_limit: Empty,
        alloc_parent_domain: Option<
            unsafe extern "C" fn(*mut ibv_context, *mut ibv_parent_domain_init_attr) -> *mut ibv_pd,
        >,
        dealloc_td: Option<unsafe extern "C" fn(*mut ibv_td) -> c_int>,
        alloc_td: Option<
            unsafe extern "C" fn(*mut ibv_context, *mut ibv_td_init_attr) -> *mut ibv_td,
        >,
        modify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, *mut ibv_modify_cq_attr) -> c_int>,
        post_srq_ops: Empty,
        destroy_rwq_ind_table: Empty,
        create_rwq_ind_table: Empty,
        destroy_wq: Empty,
        modify_wq: Empty,
        create_wq: Empty,
        query_rt_values: Option<
            unsafe extern "C" fn(*mut ibv_context, *mut ibv_values_ex) -> c_int,
        >,
        create_cq_ex: Option<
            unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex,
        >,
        r#priv: *mut c_void,
        query_device_ex: Option<
            unsafe extern "C" fn(
                *mut ibv_context,
                *const c_void,
                *mut ibv_device_attr_ex,
                size_t,
            ) -> c_int,
        >,
        ibv_destroy_flow: Empty,
        ABI_placeholder2: Empty,
        ibv_create_flow: Empty,
        ABI_placeholder1: Empty,
        open_qp: Option<
            unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_open_attr) -> *mut ibv_qp,
        >,
        create_qp_ex: Option<
            unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp,
        >,
        get_srq_num: Option<unsafe extern "C" fn(*mut ibv_srq, *mut u32) -> c_int>,
        create_srq_ex: Option<
            unsafe extern "C" fn(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq,
        >,
        open_xrcd: Option<
            unsafe extern "C" fn(*mut ibv_context, *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd,
        >,
        close_xrcd: Option<unsafe extern "C" fn(*mut ibv_xrcd) -> c_int>,
        _ABI_placeholder3: u64,
        sz: size_t,
        context: ibv_context,
    }
}

/// `abi_compat` of a context with a `verbs_context` around it.
pub const EXTENDED: usize = usize::MAX;
