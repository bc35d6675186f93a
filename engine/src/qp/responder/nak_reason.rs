//! Why the responder does not execute the expected packet.

use feroce_wire::NakCode;

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
}

impl NakReason {
    /// Invalid request.
    pub const INVALID: Self = Self::Fatal { code: NakCode::InvalidRequest, receive: None };
    /// Remote access error.
    pub const ACCESS: Self = Self::Fatal { code: NakCode::RemoteAccess, receive: None };
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
