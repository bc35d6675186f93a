//! The structures and constants of `rdma_cma.h`: identifiers, events and their parameters.

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::{sockaddr, sockaddr_storage, socklen_t};

use super::work::constants;
use super::{
    abi_structs, ibv_ah_attr, ibv_comp_channel, ibv_context, ibv_cq, ibv_pd, ibv_qp, ibv_srq,
};

abi_structs! {
    struct ibv_sa_path_rec [64] {
        dgid: [u64; 2],
        sgid: [u64; 2],
        dlid: u16,
        slid: u16,
        raw_traffic: c_int,
        flow_label: u32,
        hop_limit: u8,
        traffic_class: u8,
        reversible: c_int,
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
    struct rdma_ib_addr [40] {
        sgid: [u64; 2],
        dgid: [u64; 2],
        pkey: u16,
    }
    struct rdma_addr [296] {
        src_storage: sockaddr_storage,
        dst_storage: sockaddr_storage,
        addr: rdma_ib_addr,
    }
    struct rdma_route [312] {
        addr: rdma_addr,
        path_rec: *mut ibv_sa_path_rec,
        num_paths: c_int,
    }
    struct rdma_event_channel [4] {
        fd: c_int,
    }
    struct rdma_cm_id [416] {
        verbs: *mut ibv_context,
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        qp: *mut ibv_qp,
        route: rdma_route,
        ps: c_uint,
        port_num: u8,
        event: *mut rdma_cm_event,
        send_cq_channel: *mut ibv_comp_channel,
        send_cq: *mut ibv_cq,
        recv_cq_channel: *mut ibv_comp_channel,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        pd: *mut ibv_pd,
        qp_type: c_uint,
    }
    struct rdma_conn_param [24] {
        private_data: *const c_void,
        private_data_len: u8,
        responder_resources: u8,
        initiator_depth: u8,
        flow_control: u8,
        retry_count: u8,
        rnr_retry_count: u8,
        srq: u8,
        qp_num: u32,
    }
    struct rdma_ud_param [56] {
        private_data: *const c_void,
        private_data_len: u8,
        ah_attr: ibv_ah_attr,
        qp_num: u32,
        qkey: u32,
    }
    struct rdma_cm_event [80] {
        id: *mut rdma_cm_id,
        listen_id: *mut rdma_cm_id,
        event: c_uint,
        status: c_int,
        param: cm_event_param,
    }
    struct rdma_addrinfo [96] {
        ai_flags: c_int,
        ai_family: c_int,
        ai_qp_type: c_int,
        ai_port_space: c_int,
        ai_src_len: socklen_t,
        ai_dst_len: socklen_t,
        ai_src_addr: *mut sockaddr,
        ai_dst_addr: *mut sockaddr,
        ai_src_canonname: *mut c_char,
        ai_dst_canonname: *mut c_char,
        ai_route_len: usize,
        ai_route: *mut c_void,
        ai_connect_len: usize,
        ai_connect: *mut c_void,
        ai_next: *mut rdma_addrinfo,
    }
    struct rdma_cm_join_mc_attr_ex [16] {
        comp_mask: u32,
        join_flags: u32,
        addr: *mut sockaddr,
    }
}

/// The union in [`rdma_cm_event`]: parameters of UD or of connected services.
#[repr(C)]
#[derive(Clone, Copy)]
pub union cm_event_param {
    pub conn: rdma_conn_param,
    pub ud: rdma_ud_param,
    /// The number of an event that the program wrote.
    pub arg: u64,
}

/// Members of unions that C names by a path: structure, path, offset.
#[cfg(test)]
pub(crate) const CMA_PATHS: &[(&str, &str, usize)] = {
    use std::mem::offset_of;
    const ADDR: usize = offset_of!(rdma_cm_id, route);
    const PARAM: usize = offset_of!(rdma_cm_event, param);
    &[
        ("rdma_cm_id", "route.addr.src_addr", ADDR),
        ("rdma_cm_id", "route.addr.dst_sin6", ADDR + offset_of!(rdma_addr, dst_storage)),
        ("rdma_cm_id", "route.addr.addr.ibaddr.pkey", ADDR + offset_of!(rdma_addr, addr) + 32),
        ("rdma_cm_event", "param.conn.qp_num", PARAM + offset_of!(rdma_conn_param, qp_num)),
        ("rdma_cm_event", "param.ud.ah_attr", PARAM + offset_of!(rdma_ud_param, ah_attr)),
        ("rdma_cm_event", "param.ud.qkey", PARAM + offset_of!(rdma_ud_param, qkey)),
    ]
};

constants! { c_uint:
    RDMA_CM_EVENT_ADDR_RESOLVED = 0,
    RDMA_CM_EVENT_ADDR_ERROR = 1,
    RDMA_CM_EVENT_ROUTE_RESOLVED = 2,
    RDMA_CM_EVENT_ROUTE_ERROR = 3,
    RDMA_CM_EVENT_CONNECT_REQUEST = 4,
    RDMA_CM_EVENT_CONNECT_RESPONSE = 5,
    RDMA_CM_EVENT_CONNECT_ERROR = 6,
    RDMA_CM_EVENT_UNREACHABLE = 7,
    RDMA_CM_EVENT_REJECTED = 8,
    RDMA_CM_EVENT_ESTABLISHED = 9,
    RDMA_CM_EVENT_DISCONNECTED = 10,
    RDMA_CM_EVENT_DEVICE_REMOVAL = 11,
    RDMA_CM_EVENT_MULTICAST_JOIN = 12,
    RDMA_CM_EVENT_MULTICAST_ERROR = 13,
    RDMA_CM_EVENT_ADDR_CHANGE = 14,
    RDMA_CM_EVENT_TIMEWAIT_EXIT = 15,
    RDMA_CM_EVENT_ADDRINFO_RESOLVED = 16,
    RDMA_CM_EVENT_USER = 18,

    RDMA_PS_IPOIB = 0x0002,
    RDMA_PS_TCP = 0x0106,
    RDMA_PS_UDP = 0x0111,
    RDMA_PS_IB = 0x013f,

    RDMA_CM_JOIN_MC_ATTR_ADDRESS = 1,
    RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS = 1 << 1,
    RDMA_CM_JOIN_MC_ATTR_RESERVED = 1 << 2,
    RDMA_MC_JOIN_FLAG_FULLMEMBER = 0,
    RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER = 1,
    RDMA_MC_JOIN_FLAG_RESERVED = 2,
}

constants! { c_int:
    RAI_PASSIVE = 1,
    RAI_NUMERICHOST = 2,
    RAI_NOROUTE = 4,
    RAI_FAMILY = 8,
    RAI_SA = 16,

    RDMA_OPTION_ID = 0,
    RDMA_OPTION_IB = 1,
    RDMA_OPTION_ID_TOS = 0,
    RDMA_OPTION_ID_REUSEADDR = 1,
    RDMA_OPTION_ID_AFONLY = 2,
    RDMA_OPTION_ID_ACK_TIMEOUT = 3,
    RDMA_OPTION_IB_PATH = 1,
}

constants! { u8:
    RDMA_MAX_RESP_RES = 0xff,
    RDMA_MAX_INIT_DEPTH = 0xff,
}

constants! { u32:
    RDMA_UDP_QKEY = 0x0123_4567,
}
