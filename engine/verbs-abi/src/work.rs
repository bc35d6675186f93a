//! Work requests, completions and events.

use std::ffi::{c_int, c_uint, c_void};

use libc::size_t;

use super::{abi_structs, ibv_ah, ibv_mr, ibv_mw};

abi_structs! {
    struct ibv_sge [16] {
        addr: u64,
        length: u32,
        lkey: u32,
    }
    struct ibv_data_buf [16] {
        addr: *mut c_void,
        length: size_t,
    }
    struct ibv_recv_wr [32] {
        wr_id: u64,
        next: *mut ibv_recv_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
    }
    struct ibv_send_wr [128] {
        wr_id: u64,
        next: *mut ibv_send_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
        opcode: c_uint,
        send_flags: c_uint,
        imm_data: u32,
        wr: send_wr_target,
        qp_type: u64,
        bind_mw: send_wr_bind_mw,
    }
    struct ibv_mw_bind_info [32] {
        mr: *mut ibv_mr,
        addr: u64,
        length: u64,
        mw_access_flags: c_uint,
    }
    struct ibv_mw_bind [48] {
        wr_id: u64,
        send_flags: c_uint,
        bind_info: ibv_mw_bind_info,
    }
    struct ibv_wc [48] {
        wr_id: u64,
        status: c_uint,
        opcode: c_uint,
        vendor_err: u32,
        byte_len: u32,
        imm_data: u32,
        qp_num: u32,
        src_qp: u32,
        wc_flags: c_uint,
        pkey_index: u16,
        slid: u16,
        sl: u8,
        dlid_path_bits: u8,
    }
    struct ibv_async_event [16] {
        element: *mut c_void,
        event_type: c_uint,
    }
}

/// The second union of [`ibv_send_wr`]: the remote side.
#[repr(C)]
#[derive(Clone, Copy)]
pub union send_wr_target {
    pub rdma: send_wr_rdma,
    pub atomic: send_wr_atomic,
    pub ud: send_wr_ud,
}

/// `wr.rdma`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct send_wr_rdma {
    pub remote_addr: u64,
    pub rkey: u32,
}

/// `wr.atomic`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct send_wr_atomic {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}

/// `wr.ud`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct send_wr_ud {
    pub ah: *mut ibv_ah,
    pub remote_qpn: u32,
    pub remote_qkey: u32,
}

/// `bind_mw`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct send_wr_bind_mw {
    pub mw: *mut ibv_mw,
    pub rkey: u32,
    pub bind_info: ibv_mw_bind_info,
}

/// Members of unions that C names by a path: structure, path, offset.
#[cfg(test)]
pub(crate) const PATHS: &[(&str, &str, usize)] = {
    use std::mem::offset_of;
    const WR: usize = offset_of!(ibv_send_wr, wr);
    const BIND: usize = offset_of!(ibv_send_wr, bind_mw);
    &[
        ("ibv_send_wr", "wr.rdma.remote_addr", WR + offset_of!(send_wr_rdma, remote_addr)),
        ("ibv_send_wr", "wr.rdma.rkey", WR + offset_of!(send_wr_rdma, rkey)),
        ("ibv_send_wr", "wr.atomic.remote_addr", WR + offset_of!(send_wr_atomic, remote_addr)),
        ("ibv_send_wr", "wr.atomic.compare_add", WR + offset_of!(send_wr_atomic, compare_add)),
        ("ibv_send_wr", "wr.atomic.swap", WR + offset_of!(send_wr_atomic, swap)),
        ("ibv_send_wr", "wr.atomic.rkey", WR + offset_of!(send_wr_atomic, rkey)),
        ("ibv_send_wr", "wr.ud.ah", WR + offset_of!(send_wr_ud, ah)),
        ("ibv_send_wr", "wr.ud.remote_qpn", WR + offset_of!(send_wr_ud, remote_qpn)),
        ("ibv_send_wr", "wr.ud.remote_qkey", WR + offset_of!(send_wr_ud, remote_qkey)),
        ("ibv_send_wr", "qp_type.xrc.remote_srqn", offset_of!(ibv_send_wr, qp_type)),
        ("ibv_send_wr", "bind_mw.mw", BIND + offset_of!(send_wr_bind_mw, mw)),
        ("ibv_send_wr", "bind_mw.rkey", BIND + offset_of!(send_wr_bind_mw, rkey)),
        ("ibv_send_wr", "bind_mw.bind_info", BIND + offset_of!(send_wr_bind_mw, bind_info)),
        ("ibv_send_wr", "invalidate_rkey", offset_of!(ibv_send_wr, imm_data)),
        ("ibv_wc", "invalidated_rkey", offset_of!(ibv_wc, imm_data)),
        ("ibv_async_event", "element.cq", offset_of!(ibv_async_event, element)),
        ("ibv_async_event", "element.port_num", offset_of!(ibv_async_event, element)),
    ]
};

/// Declares constants under their names in C.
macro_rules! constants {
    ($type:ty: $( $name:ident = $value:expr, )*) => {
        $( #[doc = stringify!($name)] pub const $name: $type = $value; )*
    };
}
pub(crate) use constants;

constants! { c_uint:
    IBV_WR_RDMA_WRITE = 0,
    IBV_WR_RDMA_WRITE_WITH_IMM = 1,
    IBV_WR_SEND = 2,
    IBV_WR_SEND_WITH_IMM = 3,
    IBV_WR_RDMA_READ = 4,
    IBV_WR_ATOMIC_CMP_AND_SWP = 5,
    IBV_WR_ATOMIC_FETCH_AND_ADD = 6,
    IBV_WR_LOCAL_INV = 7,
    IBV_WR_BIND_MW = 8,
    IBV_WR_SEND_WITH_INV = 9,
    IBV_WR_ATOMIC_WRITE = 15,

    IBV_SEND_FENCE = 1,
    IBV_SEND_SIGNALED = 1 << 1,
    IBV_SEND_SOLICITED = 1 << 2,
    IBV_SEND_INLINE = 1 << 3,

    IBV_WC_GRH = 1,
    IBV_WC_WITH_IMM = 1 << 1,
    IBV_WC_WITH_INV = 1 << 3,

    IBV_EVENT_CQ_ERR = 0,
    IBV_EVENT_QP_FATAL = 1,
    IBV_EVENT_QP_REQ_ERR = 2,
    IBV_EVENT_QP_ACCESS_ERR = 3,
    IBV_EVENT_COMM_EST = 4,
    IBV_EVENT_SQ_DRAINED = 5,
    IBV_EVENT_DEVICE_FATAL = 8,
    IBV_EVENT_PORT_ACTIVE = 9,
    IBV_EVENT_PORT_ERR = 10,
    IBV_EVENT_SRQ_ERR = 14,
    IBV_EVENT_SRQ_LIMIT_REACHED = 15,
    IBV_EVENT_QP_LAST_WQE_REACHED = 16,
    IBV_EVENT_GID_CHANGE = 18,
    IBV_EVENT_WQ_FATAL = 19,
}
