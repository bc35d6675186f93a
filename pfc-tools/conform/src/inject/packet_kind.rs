//! The packets of a side that an event of a script selects.

use feroce_wire::cm::CmMessage;
use feroce_wire::{Opcode, Operation, Packet, Syndrome};
use serde::Deserialize;

/// A kind of packet, the `what` of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PacketKind {
    /// All packets.
    #[default]
    Any,
    /// Requests.
    Request,
    /// READ responses.
    ReadResponse,
    /// Atomic acknowledgements.
    AtomicResponse,
    /// ACKs without data.
    Ack,
    /// NAKs of any kind, including RNR NAKs.
    Nak,
    /// Congestion notification packets.
    Cnp,
    /// CM: REQ.
    CmReq,
    /// CM: REP.
    CmRep,
    /// CM: RTU.
    CmRtu,
    /// CM: REJ.
    CmRej,
    /// CM: DREQ.
    CmDreq,
    /// CM: DREP.
    CmDrep,
}

impl PacketKind {
    /// Returns true if `packet` is of this kind.
    pub fn matches(self, packet: &Packet<'_>) -> bool {
        let is_acknowledge = packet.bth.opcode == Opcode::RC_ACKNOWLEDGE;
        let is_nak = packet.ext.aeth.is_some_and(|aeth| !matches!(aeth.syndrome, Syndrome::Ack(_)));
        match self {
            Self::Any => true,
            Self::Request => packet.info.is_request(),
            Self::ReadResponse => packet.info.operation == Operation::ReadResponse,
            Self::AtomicResponse => packet.info.operation == Operation::AtomicAcknowledge,
            Self::Ack => is_acknowledge && !is_nak,
            Self::Nak => is_acknowledge && is_nak,
            Self::Cnp => packet.bth.opcode == Opcode::CNP,
            // They belong to no connection.
            Self::CmReq | Self::CmRep | Self::CmRtu | Self::CmRej | Self::CmDreq | Self::CmDrep => {
                false
            }
        }
    }

    /// Returns true if these are messages of the CM.
    pub const fn is_cm(self) -> bool {
        matches!(
            self,
            Self::CmReq | Self::CmRep | Self::CmRtu | Self::CmRej | Self::CmDreq | Self::CmDrep
        )
    }

    /// Returns true if `message` is of this kind.
    pub const fn matches_message(self, message: &CmMessage) -> bool {
        matches!(
            (self, message),
            (Self::CmReq, CmMessage::Req(_))
                | (Self::CmRep, CmMessage::Rep(_))
                | (Self::CmRtu, CmMessage::Rtu(_))
                | (Self::CmRej, CmMessage::Rej(_))
                | (Self::CmDreq, CmMessage::Dreq(_))
                | (Self::CmDrep, CmMessage::Drep(_))
        )
    }
}
