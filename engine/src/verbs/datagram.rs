//! The form that a send request of a UD QP has in its send queue.

use feroce_wire::{FlowHeader, Ipv6Header, Qkey, Qpn};

use super::completion::Status;
use super::work_request::SendWqe;

/// Length in bytes of the global routing header (GRH) in front of a received datagram. A receive
/// needs room for it.
pub const GRH_LEN: usize = Ipv6Header::LEN;

/// A send request of a UD QP in its send queue. It holds a copy of the packet headers, so that the
/// address handle can be destroyed as soon as the request is posted.
#[derive(Debug, Clone, Copy)]
pub struct DatagramWqe {
    /// The request.
    pub send: SendWqe,
    /// Headers of its packet.
    pub flow: FlowHeader,
    /// The destination QP.
    pub remote_qpn: Qpn,
    /// The Q_Key to send. A controlled Q_Key (top bit set) means the Q_Key of the sending QP.
    pub qkey: Qkey,
    /// The error that the request completes with, because its address handle does not fit it.
    pub error: Option<Status>,
}
