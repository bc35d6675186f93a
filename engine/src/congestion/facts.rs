//! What a QP reports to its congestion control about the packets it sends.

use feroce_wire::Psn;

/// A packet that a QP wrote for transmission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// An acknowledgement without data. It is not paced.
    Acknowledgement,
    /// A READ response or an atomic acknowledgement.
    Response,
    /// A request packet.
    Request(SentRequest),
}

/// A request packet that a QP wrote for transmission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SentRequest {
    /// PSN of the packet.
    pub psn: Psn,
    /// A packet of a SEND or WRITE. The others (READ, atomic, FLUSH, ATOMIC WRITE) get a response
    /// whose time depends on the responder.
    pub carries_data: bool,
    /// The packet requests an acknowledgement.
    pub ack_requested: bool,
    /// The packet was sent before.
    pub is_retransmit: bool,
    /// The packet is the first one that is sent again after a loss.
    pub follows_loss: bool,
}

impl SentRequest {
    /// A packet of an unreliable datagram: sent once, never acknowledged.
    pub const fn datagram(psn: Psn) -> Self {
        Self {
            psn,
            carries_data: true,
            ack_requested: false,
            is_retransmit: false,
            follows_loss: false,
        }
    }
}
