//! Functions that return an error number also set `errno` ("the value of errno" in the manual
//! pages): a table of all of them, with a call that fails. Without root, the tests that need a
//! device print a message and pass.
// Every block is a call as a C program makes it, with arguments that must be refused.
#![allow(clippy::undocumented_unsafe_blocks)]

mod interface;

use std::collections::BTreeSet;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use feroce_verbs_abi as abi;
use interface::{Fixture, errno, fixture, ops, set_errno, verbs, zeroed};

unsafe extern "C" {
    fn ibv_dealloc_dmah(dmah: *mut abi::ibv_dmah) -> c_int;
    fn ibv_query_port_speed(context: *mut abi::ibv_context, port: u32, speed: *mut u64) -> c_int;
    fn _ibv_query_comp_cntr_caps(
        context: *mut abi::ibv_context,
        caps: *mut abi::ibv_comp_cntr_caps,
        size: usize,
    ) -> c_int;
    fn ibv_destroy_comp_cntr(counter: *mut abi::ibv_comp_cntr) -> c_int;
    fn ibv_set_comp_cntr(counter: *mut abi::ibv_comp_cntr, value: u64) -> c_int;
    fn ibv_set_err_comp_cntr(counter: *mut abi::ibv_comp_cntr, value: u64) -> c_int;
    fn ibv_inc_comp_cntr(counter: *mut abi::ibv_comp_cntr, value: u64) -> c_int;
    fn ibv_inc_err_comp_cntr(counter: *mut abi::ibv_comp_cntr, value: u64) -> c_int;
    fn ibv_read_comp_cntr(counter: *mut abi::ibv_comp_cntr, value: *mut u64) -> c_int;
    fn ibv_read_err_comp_cntr(counter: *mut abi::ibv_comp_cntr, value: *mut u64) -> c_int;
    fn ibv_qp_attach_comp_cntr(
        qp: *mut abi::ibv_qp,
        counter: *mut abi::ibv_comp_cntr,
        attr: *mut abi::ibv_qp_attach_comp_cntr_attr,
    ) -> c_int;
}

/// A function that returns an error number, and a call that fails.
type Row = (&'static str, fn(&Fixture) -> c_int);

/// An address that is not that of an object.
fn no<T>() -> *mut T {
    std::ptr::without_provenance_mut(64)
}

const EXPORTED: &[Row] = unsafe {
    &[
        ("_ibv_query_comp_cntr_caps", |_| _ibv_query_comp_cntr_caps(no(), &mut zeroed(), 16)),
        ("_ibv_query_gid_ex", |fixture| {
            verbs::_ibv_query_gid_ex(fixture.context, 9, 0, &mut zeroed(), 0, 32)
        }),
        ("ibv_attach_mcast", |_| verbs::ibv_attach_mcast(no(), &[255; 16], 0)),
        ("ibv_close_device", |_| verbs::ibv_close_device(no())),
        ("ibv_dealloc_dmah", |_| ibv_dealloc_dmah(no())),
        ("ibv_dealloc_pd", |fixture| verbs::ibv_dealloc_pd(fixture.cq.cast())),
        ("ibv_dereg_mr", |_| verbs::ibv_dereg_mr(no())),
        ("ibv_destroy_ah", |_| verbs::ibv_destroy_ah(no())),
        ("ibv_destroy_comp_channel", |_| verbs::ibv_destroy_comp_channel(no())),
        ("ibv_destroy_comp_cntr", |_| ibv_destroy_comp_cntr(no())),
        ("ibv_destroy_cq", |_| verbs::ibv_destroy_cq(no())),
        ("ibv_destroy_qp", |_| verbs::ibv_destroy_qp(no())),
        ("ibv_destroy_srq", |_| verbs::ibv_destroy_srq(no())),
        ("ibv_detach_mcast", |_| verbs::ibv_detach_mcast(no(), &[255; 16], 0)),
        ("ibv_inc_comp_cntr", |_| ibv_inc_comp_cntr(no(), 1)),
        ("ibv_inc_err_comp_cntr", |_| ibv_inc_err_comp_cntr(no(), 1)),
        ("ibv_modify_qp", |_| verbs::ibv_modify_qp(no(), &mut zeroed(), 1)),
        ("ibv_modify_srq", |_| verbs::ibv_modify_srq(no(), &mut zeroed(), 2)),
        ("ibv_qp_attach_comp_cntr", |_| ibv_qp_attach_comp_cntr(no(), no(), &mut zeroed())),
        ("ibv_query_device", |_| verbs::ibv_query_device(no(), &mut zeroed())),
        ("ibv_query_ece", |_| verbs::ibv_query_ece(no(), &mut zeroed())),
        ("ibv_query_port", |fixture| verbs::ibv_query_port(fixture.context, 9, &mut zeroed())),
        ("ibv_query_port_speed", |fixture| ibv_query_port_speed(fixture.context, 9, &mut 0)),
        ("ibv_query_qp", |_| verbs::ibv_query_qp(no(), &mut zeroed(), 1, &mut zeroed())),
        ("ibv_query_srq", |_| verbs::ibv_query_srq(no(), &mut zeroed())),
        ("ibv_read_comp_cntr", |_| ibv_read_comp_cntr(no(), &mut 0)),
        ("ibv_read_err_comp_cntr", |_| ibv_read_err_comp_cntr(no(), &mut 0)),
        ("ibv_resize_cq", |fixture| verbs::ibv_resize_cq(fixture.cq, -1)),
        ("ibv_resolve_eth_l2_from_gid", |fixture| {
            let (mut mac, mut vlan) = ([0; 6], 0);
            let attr = &mut zeroed();
            verbs::ibv_resolve_eth_l2_from_gid(fixture.context, attr, &mut mac, &mut vlan)
        }),
        ("ibv_set_comp_cntr", |_| ibv_set_comp_cntr(no(), 1)),
        ("ibv_set_ece", |_| verbs::ibv_set_ece(no(), &mut zeroed())),
        ("ibv_set_err_comp_cntr", |_| ibv_set_err_comp_cntr(no(), 1)),
    ]
};

/// Functions behind the inline functions of `verbs.h`.
const INLINE: &[Row] = unsafe {
    &[
        ("ibv_advise_mr", |fixture| {
            ops(fixture.context).advise_mr.unwrap()(fixture.pd, 99, 0, null_mut(), 0)
        }),
        ("ibv_close_xrcd", |fixture| ops(fixture.context).close_xrcd.unwrap()(no())),
        ("ibv_dealloc_mw", |fixture| (*fixture.context).ops.dealloc_mw.unwrap()(no())),
        ("ibv_dealloc_td", |fixture| ops(fixture.context).dealloc_td.unwrap()(no())),
        ("ibv_free_dm", |fixture| ops(fixture.context).free_dm.unwrap()(no())),
        ("ibv_get_srq_num", |fixture| ops(fixture.context).get_srq_num.unwrap()(no(), &mut 0)),
        ("ibv_memcpy_to_dm", |_| interface::memcpy_to_dm()(no(), 0, null_mut::<c_void>(), 0)),
        ("ibv_modify_cq", |fixture| {
            let mut attr: abi::ibv_modify_cq_attr = zeroed();
            attr.attr_mask = 1 << 9;
            ops(fixture.context).modify_cq.unwrap()(fixture.cq, &mut attr)
        }),
        ("ibv_query_device_ex", |fixture| {
            let query = ops(fixture.context).query_device_ex.unwrap();
            query(fixture.context, (&raw const ONE).cast(), &mut zeroed(), 400)
        }),
        ("ibv_query_port", |fixture| {
            ops(fixture.context).query_port.unwrap()(fixture.context, 9, &mut zeroed(), 48)
        }),
        ("ibv_query_rt_values_ex", |fixture| {
            let mut values: abi::ibv_values_ex = zeroed();
            values.comp_mask = 1 << 9;
            ops(fixture.context).query_rt_values.unwrap()(fixture.context, &mut values)
        }),
        ("ibv_req_notify_cq", |fixture| {
            let cq = fixture.create_cq();
            (*cq).handle ^= 1;
            let code = (*fixture.context).ops.req_notify_cq.unwrap()(cq, 0);
            let error = errno();
            (*cq).handle ^= 1;
            verbs::ibv_destroy_cq(cq);
            set_errno(error);
            code
        }),
    ]
};

/// A `comp_mask` that is not known.
static ONE: u32 = 1;

/// Exported functions that return something else: an object, a count, text, or -1 with `errno`;
/// and those that cannot fail.
const OTHERS: &str = "
    _ibv_query_gid_table ibv_ack_async_event ibv_ack_cq_events ibv_alloc_buf ibv_alloc_dmah
    ibv_alloc_pd ibv_copy_ah_attr_from_kern ibv_copy_path_rec_from_kern ibv_copy_path_rec_to_kern
    ibv_copy_qp_attr_from_kern ibv_create_ah ibv_create_ah_from_wc ibv_create_comp_channel
    ibv_create_comp_cntr ibv_create_cq ibv_create_qp ibv_create_srq ibv_dm_export_dmabuf_fd
    ibv_dofork_range ibv_dontfork_range ibv_event_type_str ibv_export_buf_dmabuf_fd ibv_fork_init
    ibv_free_buf ibv_free_device_list ibv_get_async_event ibv_get_cq_event ibv_get_device_guid
    ibv_get_device_index ibv_get_device_list ibv_get_device_name ibv_get_pkey_index
    ibv_get_sysfs_path ibv_import_device ibv_import_dm ibv_import_mr ibv_import_pd
    ibv_init_ah_from_wc ibv_is_fork_initialized ibv_node_type_str ibv_open_device
    ibv_port_state_str ibv_qp_to_qp_ex ibv_query_gid ibv_query_pkey ibv_query_qp_data_in_order
    ibv_rate_to_mbps ibv_rate_to_mult ibv_read_sysfs_file ibv_reg_buf_mr ibv_reg_dmabuf_mr
    ibv_reg_mr ibv_reg_mr_ex ibv_reg_mr_iova ibv_reg_mr_iova2 ibv_register_driver ibv_rereg_mr
    ibv_unimport_dm ibv_unimport_mr ibv_unimport_pd ibv_wc_status_str mbps_to_ibv_rate
    mult_to_ibv_rate
";

#[test]
fn every_function_that_returns_an_error_number_sets_errno() {
    let Some(fixture) = fixture() else { return };
    for (name, call) in EXPORTED.iter().chain(INLINE) {
        set_errno(0);
        let code = call(fixture);
        assert!(code > 0 && code == errno(), "{name}: {code}, errno {}", errno());
    }
}

#[test]
fn the_tables_have_every_exported_function() {
    let of_44 = include_str!("../symbols-44.txt").lines().filter_map(|line| {
        let (name, node) = line.split_once(' ')?.1.split_once('@')?;
        (!line.starts_with('#') && !node.contains("PRIVATE")).then_some(name)
    });
    let later = include_str!("../symbols-after-44.txt").lines().filter_map(|line| {
        let [_, node, name] = line.split(' ').collect::<Vec<_>>().try_into().ok()?;
        node.starts_with("IBVERBS_1").then_some(name)
    });
    let exported: BTreeSet<&str> = of_44.chain(later).collect();
    let others = OTHERS.split_whitespace();
    let known: BTreeSet<&str> = EXPORTED.iter().map(|(name, _)| *name).chain(others).collect();
    let differences: Vec<_> = exported.symmetric_difference(&known).collect();
    assert_eq!(differences, Vec::<&&str>::new());
    assert_eq!(EXPORTED.len() + OTHERS.split_whitespace().count(), known.len(), "named twice");
}
