//! Transport services: what a QP of each can do, and which opcodes its packets have.

use feroce_wire::{Opcode, Transport};

use crate::verbs::SendOp;

/// The transport service of a QP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Service {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection: SEND and WRITE to one peer, never acknowledged.
    Uc,
    /// Unreliable datagram: SEND of one packet to any QP or to a multicast group.
    Ud,
}

impl Service {
    /// The opcodes of its packets.
    pub const fn transport(self) -> Transport {
        match self {
            Self::Rc => Transport::Rc,
            Self::Uc => Transport::Uc,
            Self::Ud => Transport::Ud,
        }
    }

    /// What is sent is acknowledged, and sent again until it is.
    pub const fn is_reliable(self) -> bool {
        matches!(self, Self::Rc)
    }

    /// A send request goes out on a QP of this service.
    pub const fn sends(self, op: &SendOp) -> bool {
        match (self, op) {
            (Self::Rc, _) | (_, SendOp::Send | SendOp::SendImm(_)) => true,
            (Self::Uc, SendOp::Write(_) | SendOp::WriteImm(..)) => true,
            (Self::Uc | Self::Ud, _) => false,
        }
    }

    /// The opcode of this service that does what `rc`, one of the reliable connection, does.
    pub(super) const fn opcode(self, rc: Opcode) -> Opcode {
        let transport = match self {
            Self::Rc => 0b000,
            Self::Uc => 0b001,
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
            for service in [Service::Uc, Service::Ud] {
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
        // Reliable connection, unreliable connection, datagram.
        let rows = [
            (SendOp::Send, "yyy"),
            (SendOp::SendImm(0), "yyy"),
            (SendOp::SendInvalidate(Key(0)), "ynn"),
            (SendOp::Write(remote), "yyn"),
            (SendOp::WriteImm(remote, 0), "yyn"),
            (SendOp::Read(remote), "ynn"),
            (SendOp::FetchAdd { remote, add: 0 }, "ynn"),
            (SendOp::CompareSwap { remote, compare: 0, swap: 0 }, "ynn"),
        ];
        for (op, expected) in rows {
            let found = [Service::Rc, Service::Uc, Service::Ud]
                .map(|service| if service.sends(&op) { 'y' } else { 'n' });
            assert_eq!(found.iter().collect::<String>(), expected, "{op:?}");
        }
    }
}
