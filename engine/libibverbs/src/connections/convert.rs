//! Conversions between the endpoint's values and those of the interface between the libraries.

use std::ffi::{c_int, c_uint};
use std::net::SocketAddr;

use feroce_engine::cm::{CmConfig, EventKind, Parameters, Path, QpParameters, Status, Unresolved};
use feroce_wire::{Qkey, Qpn};

use crate::abi;
use crate::abi::connections::{CmParameters, CmPath, CmQp, stage};

pub(super) fn kind_of(kind: EventKind) -> c_uint {
    match kind {
        EventKind::AddrResolved => abi::RDMA_CM_EVENT_ADDR_RESOLVED,
        EventKind::AddrError => abi::RDMA_CM_EVENT_ADDR_ERROR,
        EventKind::RouteResolved => abi::RDMA_CM_EVENT_ROUTE_RESOLVED,
        EventKind::RouteError => abi::RDMA_CM_EVENT_ROUTE_ERROR,
        EventKind::ConnectRequest => abi::RDMA_CM_EVENT_CONNECT_REQUEST,
        EventKind::ConnectResponse => abi::RDMA_CM_EVENT_CONNECT_RESPONSE,
        EventKind::Unreachable => abi::RDMA_CM_EVENT_UNREACHABLE,
        EventKind::Rejected => abi::RDMA_CM_EVENT_REJECTED,
        EventKind::Established => abi::RDMA_CM_EVENT_ESTABLISHED,
        EventKind::Disconnected => abi::RDMA_CM_EVENT_DISCONNECTED,
        EventKind::DeviceRemoval => abi::RDMA_CM_EVENT_DEVICE_REMOVAL,
        EventKind::TimewaitExit => abi::RDMA_CM_EVENT_TIMEWAIT_EXIT,
    }
}

/// Returns the event status: negative error numbers for local errors, the peer's positive code for
/// rejections.
pub(super) fn status_of(status: Status) -> c_int {
    match status {
        Status::Success => 0,
        Status::Rejected(reason) => c_int::from(reason.0),
        Status::Sidr(status) => c_int::from(status.0),
        Status::TimedOut | Status::Unresolved(Unresolved::NoAnswer) => -libc::ETIMEDOUT,
        Status::Unresolved(Unresolved::NoDevice) => -libc::ENODEV,
        Status::Unresolved(Unresolved::NoRoute) => -libc::ENETUNREACH,
        Status::Unresolved(Unresolved::NotPossible) => -libc::EHOSTUNREACH,
    }
}

pub(super) fn parameters_of(from: &Parameters) -> CmParameters {
    CmParameters {
        qpn: from.qpn.value(),
        qkey: from.qkey.0,
        responder_resources: from.responder_resources,
        initiator_depth: from.initiator_depth,
        flow_control: from.flow_control.into(),
        retry_count: from.retry_count,
        rnr_retry_count: from.rnr_retry_count,
        srq: from.srq.into(),
    }
}

pub(super) fn parameters(from: &CmParameters) -> Parameters {
    Parameters {
        qpn: Qpn::masked(from.qpn),
        qkey: Qkey(from.qkey),
        responder_resources: from.responder_resources,
        initiator_depth: from.initiator_depth,
        flow_control: from.flow_control != 0,
        retry_count: from.retry_count,
        rnr_retry_count: from.rnr_retry_count,
        srq: from.srq != 0,
    }
}

/// Sets the scope id of a link-local IPv6 address that has none.
pub(super) fn with_scope(address: Option<SocketAddr>, scope: u32) -> Option<SocketAddr> {
    address.map(|mut address| {
        if let SocketAddr::V6(v6) = &mut address
            && v6.ip().is_unicast_link_local()
            && v6.scope_id() == 0
        {
            v6.set_scope_id(scope);
        }
        address
    })
}

pub(super) fn view_of_path(path: &Path, gid_index: u32) -> CmPath {
    CmPath {
        local: path.local.into(),
        remote: path.remote.into(),
        device: path.device.0,
        gid_index,
        mtu: path.mtu.code(),
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
        packet_lifetime: CmConfig::default().packet_lifetime,
    }
}

pub(super) fn qp_view(known: &QpParameters) -> CmQp {
    CmQp {
        stage: stage::KNOWN,
        remote_qpn: known.agreed.qpn.value(),
        rq_psn: known.rq_psn.value(),
        sq_psn: known.sq_psn.value(),
        responder_resources: known.agreed.responder_resources,
        initiator_depth: known.agreed.initiator_depth,
        retry_count: known.agreed.retry_count,
        rnr_retry_count: known.agreed.rnr_retry_count,
        ack_timeout: known.ack_timeout,
    }
}
