//! Conversions between verbs attributes and the structures of the kernel's connection manager
//! interface.

use crate::abi::{ibv_ah_attr, ibv_global_route, ibv_qp_attr, ibv_qp_cap};
use crate::convert::{gid_from_halves, gid_to_halves};

/// `struct ib_uverbs_ah_attr` of the kernel's interface.
#[repr(C)]
#[derive(Clone, Copy)]
struct KernelAhAttr {
    dgid: [[u8; 8]; 2],
    flow_label: u32,
    sgid_index: u8,
    hop_limit: u8,
    traffic_class: u8,
    _reserved: u8,
    dlid: u16,
    sl: u8,
    src_path_bits: u8,
    static_rate: u8,
    is_global: u8,
    port_num: u8,
    _reserved_too: u8,
}

const _: () = assert!(size_of::<KernelAhAttr>() == 32);

/// `struct ib_uverbs_qp_attr`
#[repr(C)]
#[derive(Clone, Copy)]
struct KernelQpAttr {
    _mask: u32,
    qp_state: u32,
    cur_qp_state: u32,
    path_mtu: u32,
    path_mig_state: u32,
    qkey: u32,
    rq_psn: u32,
    sq_psn: u32,
    dest_qp_num: u32,
    qp_access_flags: u32,
    ah_attr: KernelAhAttr,
    alt_ah_attr: KernelAhAttr,
    cap: ibv_qp_cap,
    pkey_index: u16,
    alt_pkey_index: u16,
    en_sqd_async_notify: u8,
    sq_draining: u8,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    min_rnr_timer: u8,
    port_num: u8,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    alt_port_num: u8,
    alt_timeout: u8,
    _reserved: [u8; 5],
}

const _: () = assert!(size_of::<KernelQpAttr>() == 144);

/// `struct ib_user_path_rec`
#[repr(C)]
#[derive(Clone, Copy)]
struct KernelPathRec {
    dgid: [u8; 16],
    sgid: [u8; 16],
    dlid: u16,
    slid: u16,
    raw_traffic: u32,
    flow_label: u32,
    reversible: u32,
    mtu: u32,
    pkey: u16,
    hop_limit: u8,
    traffic_class: u8,
    numb_path: u8,
    sl: u8,
    mtu_selector: u8,
    rate_selector: u8,
    rate: u8,
    packet_life_time_selector: u8,
    packet_life_time: u8,
    preference: u8,
}

const _: () = assert!(size_of::<KernelPathRec>() == 64);

/// `struct ibv_sa_path_rec` of `sa.h`.
#[repr(C)]
#[derive(Clone, Copy)]
struct PathRec {
    /// `u64` halves: `union ibv_gid` has 8-byte alignment.
    dgid: [u64; 2],
    sgid: [u64; 2],
    dlid: u16,
    slid: u16,
    raw_traffic: i32,
    flow_label: u32,
    hop_limit: u8,
    traffic_class: u8,
    reversible: i32,
    numb_path: u8,
    pkey: u16,
    sl: u8,
    mtu_selector: u8,
    mtu: u8,
    rate_selector: u8,
    rate: u8,
    packet_life_time_selector: u8,
    packet_life_time: u8,
    preference: u8,
}

const _: () = assert!(size_of::<PathRec>() == 64);

fn ah_attr(from: &KernelAhAttr) -> ibv_ah_attr {
    let grh = ibv_global_route {
        dgid: from.dgid.map(u64::from_ne_bytes),
        flow_label: from.flow_label,
        sgid_index: from.sgid_index,
        hop_limit: from.hop_limit,
        traffic_class: from.traffic_class,
    };
    let KernelAhAttr { dlid, sl, src_path_bits, static_rate, is_global, port_num, .. } = *from;
    ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_copy_ah_attr_from_kern(to: *mut ibv_ah_attr, from: *mut KernelAhAttr) {
    // SAFETY: the program passes two valid structures.
    unsafe { to.write(ah_attr(&*from)) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_copy_qp_attr_from_kern(to: *mut ibv_qp_attr, from: *mut KernelQpAttr) {
    // SAFETY: the program passes two valid structures.
    let (from, old) = unsafe { (*from, to.read()) };
    let result = ibv_qp_attr {
        qp_state: from.qp_state,
        cur_qp_state: from.cur_qp_state,
        path_mtu: from.path_mtu,
        path_mig_state: from.path_mig_state,
        qkey: from.qkey,
        rq_psn: from.rq_psn,
        sq_psn: from.sq_psn,
        dest_qp_num: from.dest_qp_num,
        qp_access_flags: from.qp_access_flags,
        cap: from.cap,
        ah_attr: ah_attr(&from.ah_attr),
        alt_ah_attr: ah_attr(&from.alt_ah_attr),
        pkey_index: from.pkey_index,
        alt_pkey_index: from.alt_pkey_index,
        en_sqd_async_notify: from.en_sqd_async_notify,
        sq_draining: from.sq_draining,
        max_rd_atomic: from.max_rd_atomic,
        max_dest_rd_atomic: from.max_dest_rd_atomic,
        min_rnr_timer: from.min_rnr_timer,
        port_num: from.port_num,
        timeout: from.timeout,
        retry_cnt: from.retry_cnt,
        rnr_retry: from.rnr_retry,
        alt_port_num: from.alt_port_num,
        alt_timeout: from.alt_timeout,
        rate_limit: old.rate_limit, // not part of the kernel's structure
    };
    // SAFETY: the program passes a writable destination.
    unsafe { to.write(result) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_copy_path_rec_from_kern(to: *mut PathRec, from: *mut KernelPathRec) {
    // SAFETY: the program passes two valid structures.
    let from = unsafe { *from };
    let result = PathRec {
        dgid: gid_to_halves(from.dgid),
        sgid: gid_to_halves(from.sgid),
        dlid: from.dlid,
        slid: from.slid,
        raw_traffic: from.raw_traffic.cast_signed(),
        flow_label: from.flow_label,
        hop_limit: from.hop_limit,
        traffic_class: from.traffic_class,
        reversible: from.reversible.cast_signed(),
        numb_path: from.numb_path,
        pkey: from.pkey,
        sl: from.sl,
        mtu_selector: from.mtu_selector,
        mtu: u8::try_from(from.mtu).unwrap_or(0),
        rate_selector: from.rate_selector,
        rate: from.rate,
        packet_life_time_selector: from.packet_life_time_selector,
        packet_life_time: from.packet_life_time,
        preference: from.preference,
    };
    // SAFETY: the program passes a writable destination.
    unsafe { to.write(result) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_copy_path_rec_to_kern(to: *mut KernelPathRec, from: *mut PathRec) {
    // SAFETY: the program passes two valid structures.
    let from = unsafe { *from };
    let result = KernelPathRec {
        dgid: gid_from_halves(from.dgid).0,
        sgid: gid_from_halves(from.sgid).0,
        dlid: from.dlid,
        slid: from.slid,
        raw_traffic: from.raw_traffic.cast_unsigned(),
        flow_label: from.flow_label,
        reversible: from.reversible.cast_unsigned(),
        mtu: u32::from(from.mtu),
        pkey: from.pkey,
        hop_limit: from.hop_limit,
        traffic_class: from.traffic_class,
        numb_path: from.numb_path,
        sl: from.sl,
        mtu_selector: from.mtu_selector,
        rate_selector: from.rate_selector,
        rate: from.rate,
        packet_life_time_selector: from.packet_life_time_selector,
        packet_life_time: from.packet_life_time,
        preference: from.preference,
    };
    // SAFETY: the program passes a writable destination.
    unsafe { to.write(result) };
}
