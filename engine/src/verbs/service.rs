//! Transport services: what a QP of each can do, and which opcodes its packets have.

use feroce_wire::{Opcode, Transport};

use super::work_request::SendOp;

/// The transport service of a QP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Service {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection: SEND and WRITE to one peer, never acknowledged.
    Uc,
    /// Extended reliable connection, the end that sends: each request names a shared receive queue of the peer's
    /// XRC domain.
    XrcIni,
    /// Extended reliable connection, the end that receives, for all queues of its XRC domain.
    XrcTgt,
    /// Unreliable datagram: SEND of one packet to any QP or to a multicast group.
    Ud,
}

impl Service {
    /// The opcodes of its packets.
    pub const fn transport(self) -> Transport {
        match self {
            Self::Rc => Transport::Rc,
            Self::Uc => Transport::Uc,
            Self::XrcIni | Self::XrcTgt => Transport::Xrc,
            Self::Ud => Transport::Ud,
        }
    }

    /// What is sent is acknowledged, and sent again until it is.
    pub const fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::XrcIni | Self::XrcTgt)
    }

    /// Takes requests of the peer.
    pub const fn takes_requests(self) -> bool {
        !matches!(self, Self::XrcIni)
    }

    /// Sends requests of its own.
    pub const fn makes_requests(self) -> bool {
        !matches!(self, Self::XrcTgt)
    }

    /// A send request goes out on a QP of this service.
    pub const fn sends(self, op: &SendOp) -> bool {
        match (self, op) {
            // There are no such opcodes, and no requests.
            (Self::XrcIni, SendOp::AtomicWrite(_) | SendOp::Flush { .. }) | (Self::XrcTgt, _) => {
                false
            }
            (Self::Rc | Self::XrcIni, _) | (_, SendOp::Send | SendOp::SendImm(_)) => true,
            (Self::Uc, SendOp::Write(_) | SendOp::WriteImm(..) | SendOp::Local(_)) => true,
            (Self::Uc | Self::Ud, _) => false,
        }
    }

    /// The opcode of this service that does what `rc`, one of the reliable connection, does.
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
    use crate::verbs::RemoteAddr;
    use feroce_wire::Key;

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

    #[test]
    fn operations_of_each_service() {
        let remote = RemoteAddr { addr: 0, rkey: Key(0) };
        // Reliable connection, unreliable connection, datagram, extended: the two ends.
        let rows = [
            (SendOp::Send, "yyyyn"),
            (SendOp::SendImm(0), "yyyyn"),
            (SendOp::SendInvalidate(Key(0)), "ynnyn"),
            (SendOp::Write(remote), "yynyn"),
            (SendOp::WriteImm(remote, 0), "yynyn"),
            (SendOp::Read(remote), "ynnyn"),
            (SendOp::AtomicWrite(remote), "ynnnn"),
            (SendOp::Local(crate::verbs::LocalOp::Invalidate(Key(0))), "yynyn"),
            (SendOp::FetchAdd { remote, add: 0 }, "ynnyn"),
            (SendOp::CompareSwap { remote, compare: 0, swap: 0 }, "ynnyn"),
        ];
        for (op, expected) in rows {
            let found = [Service::Rc, Service::Uc, Service::Ud, Service::XrcIni, Service::XrcTgt]
                .map(|service| if service.sends(&op) { 'y' } else { 'n' });
            assert_eq!(found.iter().collect::<String>(), expected, "{op:?}");
        }
    }
}
