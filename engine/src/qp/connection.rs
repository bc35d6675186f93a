//! What requester, completer and responder of a QP share.

use std::sync::Arc;

use feroce_wire::{Bth, Opcode, Pkey, Psn, Qpn};

use super::state::QpState;
use crate::memory::{Access, PdId, Scope};
use crate::verbs::{AttachedCounters, CqRing, Service};

/// Upper limit in bytes of BTH, extended headers, pad and ICRC of a packet.
pub const MAX_HEADERS: usize = 64;

/// What requester, completer and responder of a QP share.
#[derive(Debug)]
pub struct Connection {
    /// Transport service.
    pub service: Service,
    /// State of the QP.
    pub state: QpState,
    /// Number of the QP.
    pub qpn: Qpn,
    /// Number of the peer's QP.
    pub dest_qp: Qpn,
    /// Protection domain.
    pub pd: PdId,
    /// Partition key.
    pub pkey: Pkey,
    /// Rights that the peer has through this QP.
    pub access: Access,
    /// Path MTU in bytes.
    pub mtu: usize,
    /// True if end-to-end credits are used, because both sides agreed to.
    pub flow_control: bool,
    /// True if lost packets are repeated selectively, because both sides agreed to.
    pub selective_repeat: bool,
    /// True if every send request generates a completion, signaled or not.
    pub all_signaled: bool,
    /// Completion queue of send requests.
    pub send_cq: Arc<CqRing>,
    /// Completion queue of receives.
    pub recv_cq: Arc<CqRing>,
    /// Completion counters.
    pub counters: AttachedCounters,
}

impl Connection {
    /// The memory that the peer can reach through this QP.
    #[inline]
    pub fn peer_scope(&self) -> Scope {
        Scope { pd: self.pd, peer_of: Some(self.qpn) }
    }

    /// A BTH to the peer, without pad and without a request for an acknowledgement. `opcode` is an
    /// opcode of the RC service.
    #[inline]
    pub fn bth(&self, opcode: Opcode, psn: Psn) -> Bth {
        Bth {
            opcode: self.service.opcode(opcode),
            solicited: false,
            mig_req: true, // A ConnectX handles packets without it on a slow path.
            pad: 0,
            version: 0,
            pkey: self.pkey,
            fecn: false,
            becn: false,
            reserved6: 0,
            dest_qp: self.dest_qp,
            ack_req: false,
            reserved7: 0,
            psn,
        }
    }
}
