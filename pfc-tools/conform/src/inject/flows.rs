//! Assigns packets to QP pairs. The pairs are given, or learned from the packets.

use std::net::IpAddr;

use feroce_engine::device::Endpoint;
use feroce_wire::cm::CmMessage;
use feroce_wire::{Opcode, Packet, Psn, Qpn, Transport};

use super::connection::{Connection, SetUps, cm_mad};
use super::outcome::Known;
use super::trace::Side;

/// A QP pair in which one side posts requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flow {
    /// Addresses of requester and responder.
    pub addresses: [IpAddr; 2],
    /// QP numbers. That of the requester is unknown until a response was seen.
    pub qpns: [Option<u32>; 2],
    /// Starting PSN of the requester.
    pub first_psn: Psn,
    /// Number of PSNs that the requester has used.
    used: u32,
    /// What the set-up of the connection says.
    pub known: Known,
    /// The CM has ended the connection.
    is_closed: bool,
}

impl Flow {
    /// Creates the flow of two endpoints, of which the first posts the requests.
    pub fn between(ends: &[Endpoint; 2]) -> Self {
        Self {
            addresses: ends.each_ref().map(|end| end.gid.ip()),
            qpns: ends.each_ref().map(|end| Some(end.qpn.value())),
            first_psn: ends[0].psn,
            used: 0,
            known: Known { connection: Connection::default(), from_start: true },
            is_closed: false,
        }
    }
}

/// The flows to which events apply.
#[derive(Debug, Clone, Default)]
pub struct Flows {
    known: Vec<Flow>,
    /// Number of flows that may still be learned.
    room: usize,
    /// The connections that were set up while packets were learned.
    set_ups: SetUps,
}

impl Flows {
    /// Exactly the given flows.
    pub fn fixed(flows: Vec<Flow>) -> Self {
        Self { known: flows, ..Self::default() }
    }

    /// The first `count` flows whose requests are seen.
    pub fn learned(count: usize) -> Self {
        Self { room: count, ..Self::default() }
    }

    /// Returns the known flows.
    pub fn known(&self) -> &[Flow] {
        &self.known
    }

    /// Returns the QPs of the known flows and that of the CM, if no further flow may be learned and
    /// both ends of all are known.
    pub fn settled(&self) -> Option<Vec<u32>> {
        let qpns = self.known.iter().flat_map(|flow| flow.qpns);
        let qpns = qpns.chain([Some(Qpn::GSI.value())]);
        (self.room == 0).then(|| qpns.collect()).flatten()
    }

    /// Returns the message of the CM in a packet, if it is one, and the side that sends it.
    pub fn message(&mut self, packet: &Packet<'_>) -> Option<(CmMessage, Side)> {
        let message = cm_mad(packet)?.message;
        let (from, to) = (packet.ip.src(), packet.ip.dst());
        self.set_ups.observe(from, to, &message);
        if let CmMessage::Dreq(dreq) = &message {
            self.close(from, to, dreq.remote_qpn);
        }
        Some((message, self.set_ups.side(packet)))
    }

    /// The CM ends the connection of QP `qpn` at `to`.
    fn close(&mut self, from: IpAddr, to: IpAddr, qpn: Qpn) {
        for flow in &mut self.known {
            let has = |end: usize| {
                flow.qpns[end] == Some(qpn.value())
                    && [flow.addresses[end], flow.addresses[1 - end]] == [to, from]
            };
            flow.is_closed |= has(0) || has(1);
        }
    }

    /// Returns the flow of a packet and the packet's sender.
    pub fn find(&mut self, packet: &Packet<'_>) -> Option<(usize, Side)> {
        if !matches!(packet.info.transport, Transport::Rc | Transport::Xrc | Transport::Cnp) {
            return None;
        }
        let is_request = packet.info.is_request();
        let is_response = packet.info.is_response();
        let found = Side::ALL.into_iter().find_map(|from| {
            // A CNP may come from either side.
            let possible = match from {
                Side::Requester => !is_response,
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
        if packet.bth.dest_qp <= Qpn::GSI {
            return None; // Of no connection.
        }
        self.room = self.room.checked_sub(1)?;
        let set_up = self.set_ups.find(packet);
        self.known.push(Flow {
            addresses: [packet.ip.src(), packet.ip.dst()],
            qpns: [set_up.map(|known| known.qpns[0].value()), Some(packet.bth.dest_qp.value())],
            first_psn: set_up.map_or(packet.bth.psn, |known| known.first_psn),
            used: 0,
            known: Known {
                connection: set_up.map(|known| known.connection).unwrap_or_default(),
                from_start: set_up.is_some(),
            },
            is_closed: false,
        });
        Some((self.known.len() - 1, Side::Requester))
    }
}

impl Flow {
    /// Returns true if `packet` is a packet of this flow sent by `from`.
    fn carries(&self, packet: &Packet<'_>, from: Side) -> bool {
        let addresses = [packet.ip.src(), packet.ip.dst()];
        let (ends, to) = (self.addresses, from.peer().index());
        if self.is_closed || addresses != [ends[from.index()], ends[to]] {
            return false;
        }
        match self.qpns[to] {
            Some(qpn) => qpn == packet.bth.dest_qp.value(),
            // A CNP has no useful PSN: among flows with an unknown QP, the first one gets it.
            None if packet.bth.opcode == Opcode::CNP => true,
            // A READ uses PSNs beyond that of its request packet, so the window is wide.
            None => self.first_psn.distance_to(packet.bth.psn) < self.used + RESPONSES_AHEAD,
        }
    }
}

/// Maximum number of PSNs that the response to the newest request may use.
const RESPONSES_AHEAD: u32 = 1 << 13;
