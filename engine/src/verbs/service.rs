//! Transport services: the capabilities of a QP of each service, and its opcode prefix.

use feroce_wire::{Opcode, Transport};

/// The transport service of a QP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Service {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection: SENDs and WRITEs to one peer, never acknowledged.
    Uc,
    /// Extended reliable connection, the sending end (XRC INI). Each request names a shared receive
    /// queue of the peer's XRC domain.
    XrcIni,
    /// Extended reliable connection, the receiving end (XRC TGT). It receives for all shared
    /// receive queues of its XRC domain.
    XrcTgt,
    /// Unreliable datagram: single-packet SENDs to any QP or to a multicast group.
    Ud,
}

impl Service {
    /// The transport service that the opcodes of its packets belong to.
    pub(crate) const fn transport(self) -> Transport {
        match self {
            Self::Rc => Transport::Rc,
            Self::Uc => Transport::Uc,
            Self::XrcIni | Self::XrcTgt => Transport::Xrc,
            Self::Ud => Transport::Ud,
        }
    }

    /// Returns true if requests are acknowledged, and retransmitted until they are.
    pub const fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::XrcIni | Self::XrcTgt)
    }

    /// Returns true if a QP of this service executes requests of its peer.
    pub const fn has_responder(self) -> bool {
        !matches!(self, Self::XrcIni)
    }

    /// Returns true if a QP of this service sends requests.
    pub const fn has_requester(self) -> bool {
        !matches!(self, Self::XrcTgt)
    }

    /// The opcode of this service for the same packet as `rc`, an opcode of the RC service. Only
    /// the transport bits differ.
    pub(crate) const fn opcode(self, rc: Opcode) -> Opcode {
        let transport = match self {
            Self::Rc => 0b000,
            Self::Uc => 0b001,
            Self::XrcIni | Self::XrcTgt => 0b101,
            Self::Ud => 0b011,
        };
        Opcode(transport << 5 | rc.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcodes_are_those_of_the_table() {
        for rc in Opcode::all().filter(|info| info.transport == Transport::Rc) {
            let (rc, name) = (rc.opcode, rc.name.trim_start_matches("RC "));
            assert_eq!(Service::Rc.opcode(rc), rc);
            for service in [Service::Uc, Service::Ud, Service::XrcIni, Service::XrcTgt] {
                let Some(info) = service.opcode(rc).info() else { continue };
                assert_eq!(info.transport, service.transport());
                assert!(info.name.ends_with(name), "{}", info.name);
            }
        }
        assert_eq!(Service::Uc.opcode(Opcode::RC_WRITE_LAST_IMM), Opcode::UC_WRITE_LAST_IMM);
        assert_eq!(Service::Ud.opcode(Opcode::RC_SEND_ONLY), Opcode::UD_SEND_ONLY);
    }
}
