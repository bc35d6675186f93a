//! The packets of a side that an event of a script selects.

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
        }
    }
}
