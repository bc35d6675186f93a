//! Datagrams: how a send request of a UD QP lies in its queue.

use feroce_wire::{FlowHeader, Ipv6Header, Qkey, Qpn};

use super::SendWqe;

/// Bytes in front of a received datagram: the global routing header. A receive must have room for them.
pub const GRH_LEN: usize = Ipv6Header::LEN;

/// A send request of a UD QP in its queue. It holds the headers themselves, so that the address handle may go
/// as soon as the request is posted.
#[derive(Debug, Clone, Copy)]
pub struct DatagramWqe {
    /// What to send.
    pub send: SendWqe,
    /// Headers of its packet.
    pub flow: FlowHeader,
    /// The QP it is for.
    pub remote_qpn: Qpn,
    /// The key to send with; a controlled one stands for the QP's own.
    pub qkey: Qkey,
}
