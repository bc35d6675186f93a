//! Why the responder does not execute the expected packet.

use feroce_wire::{NakCode, PacketView};

use crate::memory::AccessError;
use crate::verbs::Status;

/// Why the responder does not execute the expected packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NakReason {
    /// No receive is posted: RNR NAK, the peer tries again.
    NoReceive,
    /// An error that ends the connection. `code`: the NAK code; `receive`: the status that the
    /// receive of the message completes with, if it has one.
    Fatal { code: NakCode, receive: Option<Status> },
    /// SEND WITH INVALIDATE of a key that it may not invalidate: an error of class J (IBTA volume
    /// 1, section 9.9.6.3). The receive of the message completes with this status and the
    /// connection ends, but the peer gets no NAK, and its retries end in an error.
    /// google/rdma-unit-test cites the clause and expects this of all RNICs, ConnectX among them,
    /// except irdma, which sends a NAK (remote access error). Linux rxe sends an ACK.
    Unreported(Status),
}

impl NakReason {
    /// Invalid request.
    pub const INVALID: Self = Self::Fatal { code: NakCode::InvalidRequest, receive: None };
    /// Remote access error.
    pub const ACCESS: Self = Self::Fatal { code: NakCode::RemoteAccess, receive: None };

    /// The memory of the WRITE `packet` cannot be accessed. The receive that its immediate data
    /// would consume fails, too.
    pub fn write_denied(packet: &PacketView<'_>) -> Self {
        let receive = packet.ext().imm().map(|_| Status::LocalAccess);
        Self::Fatal { code: NakCode::RemoteAccess, receive }
    }
}

/// Why a SEND WITH INVALIDATE may not invalidate its key does not matter. The status is that of
/// Linux rxe: verbs have none for this error.
pub fn not_invalidated(_: AccessError) -> NakReason {
    NakReason::Unreported(Status::RemoteInvalidRequest)
}

/// A remote access error, or an invalid request if the address is misaligned, which is not a matter
/// of rights.
impl From<AccessError> for NakReason {
    fn from(error: AccessError) -> Self {
        match error {
            AccessError::Misaligned => Self::INVALID,
            _ => Self::ACCESS,
        }
    }
}
