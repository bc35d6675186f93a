//! What went by: every packet as its sender sent it, and what came of it.

use std::collections::BTreeMap;

use feroce_wire::{NakCode, Opcode, Operation, Packet, Psn, Syndrome};
use serde::Deserialize;

use super::script::What;

/// A side of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// It posts the requests.
    Requester,
    /// It answers.
    Responder,
}

impl Side {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Requester, Self::Responder];

    /// The other.
    pub const fn peer(self) -> Self {
        match self {
            Self::Requester => Self::Responder,
            Self::Responder => Self::Requester,
        }
    }

    /// Index of what exists for both.
    pub const fn index(self) -> usize {
        self as usize
    }
}

impl std::fmt::Display for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Requester => "requester",
            Self::Responder => "responder",
        })
    }
}

/// A packet as it was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    /// When, in nanoseconds.
    pub at: u64,
    /// QP pair, from 0.
    pub flow: usize,
    /// By whom.
    pub from: Side,
    /// The frame.
    pub bytes: Vec<u8>,
    /// Names of what was done to it.
    pub events: Vec<String>,
}

/// A packet as it arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrived {
    /// When, in nanoseconds.
    pub at: u64,
    /// Index of the sent one that it comes from.
    pub sent: usize,
    /// The frame, as it is now.
    pub bytes: Vec<u8>,
}

/// A recording. The number of a packet is its place among those sent, from 1: that in the capture, too.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Trace {
    /// As they were sent.
    pub sent: Vec<Sent>,
    /// As they arrived.
    pub arrived: Vec<Arrived>,
    /// First PSN of the requester of each flow.
    pub first_psns: BTreeMap<usize, u32>,
}

/// What happens at an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Move {
    /// It sends.
    Sends,
    /// Something arrives at it.
    Gets,
}

/// One thing that happened.
#[derive(Debug, Clone, Copy)]
pub struct Step<'a> {
    /// Number of the packet.
    pub number: usize,
    /// When, in nanoseconds.
    pub at: u64,
    /// What.
    pub what: Move,
    /// Who sent the packet, now or before.
    pub from: Side,
    /// The packet.
    pub packet: Packet<'a>,
    /// Whether its ICRC is right.
    pub intact: bool,
}

impl Trace {
    /// What happened to a flow, in order. Frames that are no packets any more are left out, as a receiver leaves them out.
    pub fn steps(&self, flow: usize) -> Vec<Step<'_>> {
        let step = |number, at, what, from, bytes| {
            let packet = Packet::parse(bytes, &[]).ok()?;
            Some(Step { number, at, what, from, packet, intact: packet.icrc_valid() })
        };
        let of_flow = |sent: &&Sent| sent.flow == flow;
        let sent = self.sent.iter().enumerate().filter(|(_, sent)| of_flow(sent));
        let sent = sent
            .filter_map(|(at, sent)| step(at + 1, sent.at, Move::Sends, sent.from, &sent.bytes));
        let arrived = self.arrived.iter().filter(|arrived| of_flow(&&self.sent[arrived.sent]));
        let arrived = arrived.filter_map(|arrived| {
            let from = self.sent[arrived.sent].from;
            step(arrived.sent + 1, arrived.at, Move::Gets, from, &arrived.bytes)
        });
        // What is sent at a time at which something arrives may be an answer to it: arrivals go first.
        let mut steps: Vec<_> = arrived.chain(sent).collect();
        steps.sort_by_key(|step| step.at);
        steps
    }

    /// How many flows there are.
    pub fn flows(&self) -> usize {
        self.first_psns.len()
    }

    /// Frames that arrived at `side` and are no packets, or whose ICRC is wrong.
    pub fn damaged_at(&self, side: Side) -> (u64, u64) {
        let mut counts = (0, 0);
        for arrived in &self.arrived {
            if self.sent[arrived.sent].from == side {
                continue;
            }
            match Packet::parse(&arrived.bytes, &[]) {
                Err(_) => counts.0 += 1,
                Ok(packet) if !packet.icrc_valid() => counts.1 += 1,
                Ok(_) => {}
            }
        }
        counts
    }
}

impl Step<'_> {
    /// True if `side` sends a packet in it.
    pub fn is_sent_by(&self, side: Side) -> bool {
        self.what == Move::Sends && self.from == side
    }

    /// True if a packet arrives at `side` in it, whole.
    pub fn reaches(&self, side: Side) -> bool {
        self.what == Move::Gets && self.from != side && self.intact
    }

    /// Its PSN.
    pub fn psn(&self) -> Psn {
        self.packet.bth.psn
    }

    /// PSNs that it takes: those of a READ's answer.
    pub fn span(&self, mtu: u32) -> u32 {
        match (self.packet.info.operation, self.packet.ext.reth) {
            (Operation::ReadRequest, Some(reth)) => reth.dma_len.div_ceil(mtu).max(1),
            _ => 1,
        }
    }

    /// The PSN of a NAK (PSN sequence error).
    pub fn sequence_nak(&self) -> Option<Psn> {
        let syndrome = self.packet.ext.aeth?.syndrome;
        (syndrome == Syndrome::Nak(NakCode::PsnSequence)).then_some(self.psn())
    }

    /// Whether it is what an event looks for.
    pub fn is(&self, what: What) -> bool {
        is(&self.packet, what)
    }
}

/// Whether a packet is what an event looks for.
pub fn is(packet: &Packet<'_>, what: What) -> bool {
    let naks = packet.ext.aeth.is_some_and(|aeth| !matches!(aeth.syndrome, Syndrome::Ack(_)));
    match what {
        What::Any => true,
        What::Request => packet.info.is_request(),
        What::ReadResponse => packet.info.operation == Operation::ReadResponse,
        What::AtomicResponse => packet.info.operation == Operation::AtomicAcknowledge,
        What::Ack => packet.bth.opcode == Opcode::RC_ACKNOWLEDGE && !naks,
        What::Nak => packet.bth.opcode == Opcode::RC_ACKNOWLEDGE && naks,
        What::Cnp => packet.bth.opcode == Opcode::CNP,
    }
}
