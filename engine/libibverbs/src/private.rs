//! Symbols for rdma-core's provider libraries. perftest and UCX load libmlx5 and libefa, which do
//! not load without these symbols. The functions never run, because the providers find no device of
//! theirs. The exceptions are `ibv_query_gid_type` and `ibv_wr_opcode_str`, which programs call.
//!
//! A release that changes the interface to its providers has a version node of its own:
//! `IBVERBS_PRIVATE_34` (to release 56), `57` (57 and 58), `59` (59 to 63), `64` and `65`.

#![allow(non_upper_case_globals)] // one of the symbols is a variable

use std::ffi::{c_int, c_uint, c_void};

use crate::symver::versioned;

macro_rules! refused {
    ($( $name:ident )*) => {
        $( #[unsafe(no_mangle)] extern "C" fn $name() -> c_int { libc::EOPNOTSUPP } )*
    };
}

refused! {
    __verbs_log execute_ioctl ibv_cmd_advise_mr ibv_cmd_alloc_dm ibv_cmd_alloc_mw
    ibv_cmd_alloc_pd ibv_cmd_attach_mcast ibv_cmd_close_xrcd ibv_cmd_create_ah
    ibv_cmd_create_counters ibv_cmd_create_cq ibv_cmd_create_cq_ex ibv_cmd_create_cq_ex2
    ibv_cmd_create_flow ibv_cmd_create_flow_action_esp ibv_cmd_create_qp ibv_cmd_create_qp_ex2
    ibv_cmd_create_qp_ex ibv_cmd_create_rwq_ind_table ibv_cmd_create_srq ibv_cmd_create_srq_ex
    ibv_cmd_create_wq ibv_cmd_dealloc_mw ibv_cmd_dealloc_pd ibv_cmd_dereg_mr ibv_cmd_destroy_ah
    ibv_cmd_destroy_counters ibv_cmd_destroy_cq ibv_cmd_destroy_flow ibv_cmd_destroy_flow_action
    ibv_cmd_destroy_qp ibv_cmd_destroy_rwq_ind_table ibv_cmd_destroy_srq ibv_cmd_destroy_wq
    ibv_cmd_detach_mcast ibv_cmd_free_dm ibv_cmd_get_context ibv_cmd_modify_cq
    ibv_cmd_modify_flow_action_esp ibv_cmd_modify_qp ibv_cmd_modify_qp_ex ibv_cmd_modify_srq
    ibv_cmd_modify_wq ibv_cmd_open_qp ibv_cmd_open_xrcd ibv_cmd_poll_cq ibv_cmd_post_recv
    ibv_cmd_post_send ibv_cmd_post_srq_recv ibv_cmd_query_context ibv_cmd_query_device_any
    ibv_cmd_query_mr ibv_cmd_query_port ibv_cmd_query_qp ibv_cmd_query_srq ibv_cmd_read_counters
    ibv_cmd_reg_dm_mr ibv_cmd_reg_dmabuf_mr ibv_cmd_reg_mr ibv_cmd_req_notify_cq
    ibv_cmd_rereg_mr ibv_cmd_resize_cq ibv_read_ibdev_sysfs_file verbs_init_cq verbs_set_ops
    verbs_uninit_context
}

/// Provider libraries call this when they are loaded.
#[unsafe(no_mangle)]
extern "C" fn verbs_register_driver_34(_ops: *const c_void) {}

#[unsafe(no_mangle)]
extern "C" fn verbs_open_device(_device: *mut c_void, _private: *mut c_void) -> *mut c_void {
    crate::errno::fail(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
extern "C" fn _verbs_init_and_alloc_context(
    _device: *mut c_void,
    _cmd_fd: c_int,
    _size: usize,
    _offset: usize,
    _driver: u32,
) -> *mut c_void {
    crate::errno::fail(libc::EOPNOTSUPP)
}

/// Number of attributes of a command: none.
#[unsafe(no_mangle)]
extern "C" fn __ioctl_final_num_attrs(_attributes: c_uint, _link: *const c_void) -> c_uint {
    0
}

/// The one symbol that is a variable.
#[unsafe(no_mangle)]
static verbs_allow_disassociate_destroy: bool = false;

/// Stands for every function that nodes after `IBVERBS_PRIVATE_34` have and that never runs.
#[unsafe(no_mangle)]
extern "C" fn feroce_private_refused() -> c_int {
    libc::EOPNOTSUPP
}

/// Exports what one of the later nodes has: the symbols of node 57, and `$name` in addition.
macro_rules! node {
    ($node:literal $register:ident $( $name:ident )*) => {
        versioned! {
            verbs_register_driver_34 $node: $register;
            verbs_open_device $node: verbs_open_device;
            _verbs_init_and_alloc_context $node: _verbs_init_and_alloc_context;
            __ioctl_final_num_attrs $node: __ioctl_final_num_attrs;
            ibv_query_gid_type $node: ibv_query_gid_type;
            ibv_wr_opcode_str $node: ibv_wr_opcode_str;
            feroce_private_refused $node:
                __verbs_log execute_ioctl ibv_cmd_advise_mr ibv_cmd_alloc_dm
                ibv_cmd_alloc_mw ibv_cmd_alloc_pd ibv_cmd_attach_mcast ibv_cmd_close_xrcd
                ibv_cmd_create_ah ibv_cmd_create_counters ibv_cmd_create_cq
                ibv_cmd_create_cq_ex ibv_cmd_create_cq_ex2 ibv_cmd_create_flow
                ibv_cmd_create_flow_action_esp ibv_cmd_create_qp ibv_cmd_create_qp_ex
                ibv_cmd_create_qp_ex2 ibv_cmd_create_rwq_ind_table ibv_cmd_create_srq
                ibv_cmd_create_srq_ex ibv_cmd_create_wq ibv_cmd_dealloc_mw
                ibv_cmd_dealloc_pd ibv_cmd_dereg_mr ibv_cmd_destroy_ah
                ibv_cmd_destroy_counters ibv_cmd_destroy_cq ibv_cmd_destroy_flow
                ibv_cmd_destroy_flow_action ibv_cmd_destroy_qp ibv_cmd_destroy_rwq_ind_table
                ibv_cmd_destroy_srq ibv_cmd_destroy_wq ibv_cmd_detach_mcast ibv_cmd_free_dm
                ibv_cmd_get_context ibv_cmd_modify_cq ibv_cmd_modify_flow_action_esp
                ibv_cmd_modify_qp ibv_cmd_modify_qp_ex ibv_cmd_modify_srq ibv_cmd_modify_wq
                ibv_cmd_open_qp ibv_cmd_open_xrcd ibv_cmd_poll_cq ibv_cmd_post_recv
                ibv_cmd_post_send ibv_cmd_post_srq_recv ibv_cmd_query_context
                ibv_cmd_query_device_any ibv_cmd_query_mr ibv_cmd_query_port
                ibv_cmd_query_qp ibv_cmd_query_srq ibv_cmd_read_counters ibv_cmd_reg_dm_mr
                ibv_cmd_reg_dmabuf_mr ibv_cmd_reg_mr ibv_cmd_req_notify_cq ibv_cmd_rereg_mr
                ibv_cmd_resize_cq ibv_read_ibdev_sysfs_file verbs_init_cq verbs_set_ops
                verbs_uninit_context
                $( $name )*;
        }
        // A variable in each node.
        std::arch::global_asm!(concat!(
            ".pushsection .data.feroce_", $node, ", \"aw\"\n.globl feroce_", $node, "_allow\n",
            ".type feroce_", $node, "_allow, %object\n.size feroce_", $node, "_allow, 1\n",
            "feroce_", $node, "_allow: .byte 0\n.symver feroce_", $node,
            "_allow, verbs_allow_disassociate_destroy@", $node, "\n.popsection\n",
        ));
    };
}

node!("IBVERBS_PRIVATE_57" verbs_register_driver_57);
node! {
    "IBVERBS_PRIVATE_59" verbs_register_driver_59
    ibv_cmd_alloc_dmah ibv_cmd_export_dmabuf_fd ibv_cmd_free_dmah ibv_cmd_query_port_speed
    ibv_cmd_reg_mr_ex
}
node! {
    "IBVERBS_PRIVATE_64" verbs_register_driver_64
    ibv_cmd_alloc_dmah ibv_cmd_export_dmabuf_fd ibv_cmd_free_dmah ibv_cmd_query_port_speed
    ibv_cmd_reg_mr_ex ibv_dmabuf_heap_alloc ibv_dmabuf_heap_cc_shared_init
    ibv_dmabuf_heap_destroy ibv_dmabuf_heap_free
}
node! {
    "IBVERBS_PRIVATE_65" verbs_register_driver_65
    ibv_cmd_alloc_dmah ibv_cmd_create_comp_cntr ibv_cmd_destroy_comp_cntr
    ibv_cmd_export_dmabuf_fd ibv_cmd_free_dmah ibv_cmd_inc_comp_cntr
    ibv_cmd_inc_err_comp_cntr ibv_cmd_qp_attach_comp_cntr ibv_cmd_query_comp_cntr_caps
    ibv_cmd_query_port_speed ibv_cmd_read_comp_cntr ibv_cmd_read_err_comp_cntr
    ibv_cmd_reg_mr_ex ibv_cmd_set_comp_cntr ibv_cmd_set_err_comp_cntr ibv_dmabuf_heap_alloc
    ibv_dmabuf_heap_cc_shared_init ibv_dmabuf_heap_destroy ibv_dmabuf_heap_free
}
