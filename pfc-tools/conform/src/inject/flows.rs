//! Whose packet is it? QP pairs, told by those who made them or learned from what goes by.

use std::net::IpAddr;

use feroce_engine::device::Endpoint;
use feroce_wire::{Opcode, Packet, Psn};

use super::trace::Side;

/// A QP pair of which one side posts requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flow {
    /// Addresses of requester and responder.
    pub addresses: [IpAddr; 2],
    /// Their QPs; that of the requester is not known until an answer went by.
    pub qpns: [Option<u32>; 2],
    /// First PSN of the requester.
    pub first_psn: Psn,
    /// PSNs from there on that it has used.
    used: u32,
}

impl Flow {
    /// Between two endpoints, of which the first posts the requests.
    pub fn between(ends: &[Endpoint; 2]) -> Self {
        Self {
            addresses: ends.each_ref().map(|end| end.gid.ip()),
            qpns: ends.each_ref().map(|end| Some(end.qpn.value())),
            first_psn: ends[0].psn,
            used: 0,
        }
    }
}

/// All flows that count.
#[derive(Debug, Clone, Default)]
pub struct Flows {
    known: Vec<Flow>,
    /// So many may be learned.
    room: usize,
}

impl Flows {
    /// These and no others.
    pub fn told(flows: Vec<Flow>) -> Self {
        Self { known: flows, room: 0 }
    }

    /// The first `count` whose requests go by.
    pub fn learned(count: usize) -> Self {
        Self { known: Vec::new(), room: count }
    }

    /// Those that are known.
    pub fn known(&self) -> &[Flow] {
        &self.known
    }

    /// Which flow a packet belongs to, and who has sent it.
    pub fn find(&mut self, packet: &Packet<'_>) -> Option<(usize, Side)> {
        let is_request = packet.info.is_request();
        let is_answer = packet.info.is_response();
        let found = Side::ALL.into_iter().find_map(|from| {
            // A CNP may come from either side.
            let possible = match from {
                Side::Requester => !is_answer,
                Side::Responder => !is_request,
            };
            let fits = |flow: &Flow| possible && flow.carries(packet, from);
            Some((self.known.iter().position(fits)?, from))
        });
        let found = found.or_else(|| if is_request { self.learn(packet) } else { None });
        if let Some((flow, Side::Requester)) = found
            && is_request
        {
            let flow = &mut self.known[flow];
            flow.used = flow.used.max(flow.first_psn.distance_to(packet.bth.psn) + 1);
        }
        if let Some((flow, Side::Responder)) = found
            && packet.bth.opcode != Opcode::CNP
        {
            self.known[flow].qpns[0] = Some(packet.bth.dest_qp.value());
        }
        found
    }

    fn learn(&mut self, packet: &Packet<'_>) -> Option<(usize, Side)> {
        self.room = self.room.checked_sub(1)?;
        self.known.push(Flow {
            addresses: [packet.ip.src(), packet.ip.dst()],
            qpns: [None, Some(packet.bth.dest_qp.value())],
            first_psn: packet.bth.psn,
            used: 0,
        });
        Some((self.known.len() - 1, Side::Requester))
    }
}

impl Flow {
    /// Whether `from` sends `packet` in it.
    fn carries(&self, packet: &Packet<'_>, from: Side) -> bool {
        let addresses = [packet.ip.src(), packet.ip.dst()];
        let (way, to) = (self.addresses, from.peer().index());
        if addresses != [way[from.index()], way[to]] {
            return false;
        }
        match self.qpns[to] {
            Some(qpn) => qpn == packet.bth.dest_qp.value(),
            // A CNP names no PSN: of several flows that are not known yet, the first has it.
            None if packet.bth.opcode == Opcode::CNP => true,
            // READs use PSNs ahead of the newest request's: so the window is wide.
            None => self.first_psn.distance_to(packet.bth.psn) < self.used + ANSWERS_AHEAD,
        }
    }
}

/// PSNs that the answer to the newest request may take.
const ANSWERS_AHEAD: u32 = 1 << 13;
