//! Rules for the frames on the wire, independent of what programs see: the window limits
//! outstanding packets, acknowledgements never go back, NAKs are not repeated endlessly, and frames
//! have the IP version that the connection has now. The model checks programs, these rules check
//! packets.

use feroce_wire::{IpHeader, NakCode, Operation, Packet, Psn, Qpn, Sack, Syndrome};

use super::check::Check;
use crate::wire::Seen;

/// A reliable connection, RC or XRC.
#[derive(Debug, Clone, Copy)]
pub(super) struct Connection {
    /// QP numbers by end.
    pub qpns: [Qpn; 2],
    /// Starting PSNs by end.
    pub psns: [Psn; 2],
    /// Path MTU in bytes.
    pub mtu: u32,
    /// Maximum number of outstanding SEND and WRITE packets of a QP.
    pub window: u32,
    /// A responder may also report a gap when it is asked.
    pub selective_repeat: bool,
    /// IPv6 instead of IPv4.
    pub v6: bool,
}

/// One direction of a connection: the requests of one end and the responses of the other.
#[derive(Debug, Clone, Copy)]
struct Direction {
    /// Destination QP of the requests.
    request_qp: Qpn,
    /// Destination QP of the responses.
    response_qp: Qpn,
    /// One past the highest PSN sent.
    sent: Psn,
    /// One past the highest PSN acknowledged, whether or not the acknowledgement arrived.
    acknowledged: Psn,
    /// One past the last PSN of the last READ or atomic.
    responses: Psn,
    /// PSN and map of the last NAK (PSN sequence error), and how often it was sent.
    gap: Option<(Psn, Option<Sack>, u32)>,
    /// Packets that requested an acknowledgement.
    asked: u32,
    /// MSN of the last response, and PSN of the last ACK.
    msn: u32,
    ack: Option<Psn>,
    /// Largest distance of a packet from the oldest unacknowledged one.
    window: u32,
    mtu: u32,
    selective_repeat: bool,
    v6: bool,
}

/// The rules and the state that they need. See the [module](self).
#[derive(Debug, Default)]
pub(super) struct WireRules {
    directions: Vec<[Direction; 2]>,
}

impl WireRules {
    /// Adds the rules of a connection. They replace those of an earlier connection of its QPs.
    pub fn add(&mut self, connection: &Connection) {
        let qpns = connection.qpns;
        self.directions.retain(|[first, _]| [first.response_qp, first.request_qp] != qpns);
        self.directions.push([0, 1].map(|end| Direction::new(connection, end)));
    }

    /// From now on, the frames of the connection of `qpns` have addresses of this IP version.
    pub fn migrate(&mut self, qpns: [Qpn; 2], v6: bool) {
        for directions in &mut self.directions {
            if [directions[0].response_qp, directions[0].request_qp] == qpns {
                directions.iter_mut().for_each(|direction| direction.v6 = v6);
            }
        }
    }

    /// Checks a frame that was sent.
    pub fn check(&mut self, seen: &Seen) -> Check {
        let packet = Packet::parse(&seen.bytes, &[]).map_err(|error| format!("sent: {error}"))?;
        let (from, is_request) = (seen.from, packet.info.is_request());
        // Responses belong to the direction of the other end.
        let end = if is_request { from } else { 1 - from };
        let to = packet.bth.dest_qp;
        let mut directions = self.directions.iter_mut().map(|pair| &mut pair[end]);
        let direction = directions.find(|direction| {
            if is_request { direction.request_qp == to } else { direction.response_qp == to }
        });
        let direction = direction.ok_or_else(|| format!("sent to an unknown QP: {packet}"))?;
        let result = match is_request {
            _ if matches!(packet.ip, IpHeader::V6(_)) != direction.v6 => {
                Err("frames have the addresses of the connection")
            }
            true => direction.request(&packet),
            false => direction.response(&packet),
        };
        result.map_err(|rule| format!("end {from} broke a wire rule, {rule}: {packet}"))
    }
}

impl Direction {
    /// The direction of the requests of `end`.
    fn new(connection: &Connection, end: usize) -> Self {
        let Connection { qpns, psns, mtu, window, selective_repeat, v6 } = *connection;
        Self {
            request_qp: qpns[1 - end],
            response_qp: qpns[end],
            sent: psns[end],
            acknowledged: psns[end],
            responses: psns[end],
            gap: None,
            asked: 0,
            msn: 0,
            ack: None,
            // Packets that have arrived behind a gap do not count; a map ends after its span.
            window: if selective_repeat { window.max(Sack::SPAN) } else { window },
            mtu,
            selective_repeat,
            v6,
        }
    }

    fn request(&mut self, packet: &Packet<'_>) -> Result<(), &'static str> {
        let psn = packet.bth.psn;
        self.asked += u32::from(packet.bth.ack_req);
        if !psn.at_or_before(self.sent) {
            return Err("PSNs must be consecutive");
        }
        let count = match (packet.info.operation, packet.ext.reth) {
            (Operation::ReadRequest, Some(reth)) => reth.dma_len.div_ceil(self.mtu).max(1),
            _ => 1,
        };
        let base = later(self.acknowledged, self.responses);
        let limited = matches!(packet.info.operation, Operation::Send | Operation::Write);
        if limited && !psn.is_before(base) && base.distance_to(psn) >= self.window {
            return Err("the window limits outstanding packets");
        }
        let end = psn.add(count);
        self.sent = later(self.sent, end);
        if !limited {
            self.responses = later(self.responses, end);
        }
        Ok(())
    }

    fn response(&mut self, packet: &Packet<'_>) -> Result<(), &'static str> {
        let psn = packet.bth.psn;
        let Some(aeth) = packet.ext.aeth else { return Ok(()) };
        if aeth.msn.value() < self.msn {
            return Err("the MSN never goes back");
        }
        self.msn = aeth.msn.value();
        let is_ack = packet.info.operation == Operation::Acknowledge;
        let acknowledged = match aeth.syndrome {
            Syndrome::Ack(_) if is_ack => {
                if self.ack.is_some_and(|before| psn.is_before(before)) {
                    return Err("an ACK never goes back");
                }
                self.ack = Some(psn);
                psn.next()
            }
            Syndrome::Ack(_) => psn.next(),
            Syndrome::Nak(NakCode::PsnSequence) => {
                // A NAK that waits behind a burst may report a later gap than the one it was
                // created for, so the same PSN may be reported twice. With selective repeat, a
                // NAK with a new map, or one for each copy of a packet that asks, may follow.
                let map = Sack::parse(packet.payload);
                let same = self.gap.filter(|(at, before, _)| (*at, *before) == (psn, map));
                let times = same.map_or(1, |(.., times)| times + 1);
                let answers = if self.selective_repeat { 2 * self.asked } else { 0 };
                if times > 2 + answers {
                    return Err("a gap is reported too often");
                }
                self.gap = Some((psn, map, times));
                psn
            }
            _ => psn,
        };
        self.acknowledged = later(self.acknowledged, acknowledged);
        Ok(())
    }
}

fn later(a: Psn, b: Psn) -> Psn {
    if a.is_before(b) { b } else { a }
}
