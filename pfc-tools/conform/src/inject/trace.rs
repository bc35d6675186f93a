//! A recording of the packets: each as its sender sent it, and as it arrived.

use std::collections::BTreeMap;

use feroce_wire::{NakCode, Operation, Packet, Pkey, Psn, Syndrome};
use serde::Deserialize;

/// A side of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// The side that posts the requests.
    Requester,
    /// The side that responds.
    Responder,
}

impl Side {
    /// Both sides.
    pub const ALL: [Self; 2] = [Self::Requester, Self::Responder];

    /// Returns the other side.
    pub const fn peer(self) -> Self {
        match self {
            Self::Requester => Self::Responder,
            Self::Responder => Self::Requester,
        }
    }

    /// Returns the index of the side in arrays.
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
    /// Time, in nanoseconds.
    pub at: u64,
    /// QP pair, from 0.
    pub flow: usize,
    /// Sender.
    pub from: Side,
    /// The frame.
    pub bytes: Vec<u8>,
    /// Names of the actions applied to it.
    pub events: Vec<String>,
}

/// A packet as it arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrived {
    /// Time, in nanoseconds.
    pub at: u64,
    /// Index of the sent packet.
    pub sent: usize,
    /// The frame as it arrived.
    pub bytes: Vec<u8>,
}

/// A recording. Packets are numbered in the order of sending, from 1, as in the capture.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Trace {
    /// Packets as sent.
    pub sent: Vec<Sent>,
    /// Packets as they arrived.
    pub arrived: Vec<Arrived>,
    /// Starting PSN of the requester of each flow.
    pub first_psns: BTreeMap<usize, u32>,
}

/// The kind of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StepKind {
    /// An endpoint sends a packet.
    Sent,
    /// A packet arrives at an endpoint.
    Arrived,
}

/// A packet that is sent or arrives.
#[derive(Debug, Clone, Copy)]
pub struct Step<'a> {
    /// Number of the packet.
    pub number: usize,
    /// Time, in nanoseconds.
    pub at: u64,
    /// Sent or arrived.
    pub kind: StepKind,
    /// Sender of the packet.
    pub from: Side,
    /// The packet.
    pub packet: Packet<'a>,
    /// True if the ICRC is valid and the receiver has no other reason to drop the packet.
    pub intact: bool,
}

impl Trace {
    /// Returns the steps of a flow, in order. Frames that can no longer be parsed are left out, as
    /// a receiver drops them.
    pub fn steps(&self, flow: usize) -> Vec<Step<'_>> {
        let step = |number: usize, at, kind, from, bytes| {
            let packet = Packet::parse(bytes, &[]).ok()?;
            // The receiver takes only packets of its QP and partition.
            let sent = &Packet::parse(&self.sent[number - 1].bytes, &[]).ok()?.bth;
            let is_for_qp = packet.bth.version == 0
                && packet.bth.dest_qp == sent.dest_qp
                && are_in_one_partition(packet.bth.pkey, sent.pkey);
            let intact = packet.icrc_valid() && is_for_qp;
            Some(Step { number, at, kind, from, packet, intact })
        };
        let of_flow = |sent: &&Sent| sent.flow == flow;
        let sent = self.sent.iter().enumerate().filter(|(_, sent)| of_flow(sent));
        let sent = sent
            .filter_map(|(at, sent)| step(at + 1, sent.at, StepKind::Sent, sent.from, &sent.bytes));
        let arrived = self.arrived.iter().filter(|arrived| of_flow(&&self.sent[arrived.sent]));
        let arrived = arrived.filter_map(|arrived| {
            let from = self.sent[arrived.sent].from;
            step(arrived.sent + 1, arrived.at, StepKind::Arrived, from, &arrived.bytes)
        });
        // A packet sent at the time of an arrival may be the response to it, so arrivals come
        // first.
        let mut steps: Vec<_> = arrived.chain(sent).collect();
        steps.sort_by_key(|step| step.at);
        steps
    }

    /// Returns the number of flows.
    pub fn flows(&self) -> usize {
        self.first_psns.len()
    }

    /// Returns the numbers of frames that arrived at `side` unparsable, and with a wrong ICRC.
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

/// Returns true if members with these P_Keys may talk: one of them must be a full member (IBTA
/// 10.9.3).
fn are_in_one_partition(Pkey(one): Pkey, Pkey(other): Pkey) -> bool {
    (one ^ other) & 0x7fff == 0 && (one | other) & 0x8000 != 0
}

impl Step<'_> {
    /// Returns true if `side` sends the packet in this step.
    pub fn is_sent_by(&self, side: Side) -> bool {
        self.kind == StepKind::Sent && self.from == side
    }

    /// Returns true if the packet arrives undamaged at `side` in this step.
    pub fn reaches(&self, side: Side) -> bool {
        self.kind == StepKind::Arrived && self.from != side && self.intact
    }

    /// Returns the PSN.
    pub fn psn(&self) -> Psn {
        self.packet.bth.psn
    }

    /// Returns the number of PSNs that the packet uses; for a READ, that of its responses.
    pub fn span(&self, mtu: u32) -> u32 {
        match (self.packet.info.operation, self.packet.ext.reth) {
            (Operation::ReadRequest, Some(reth)) => reth.dma_len.div_ceil(mtu).max(1),
            _ => 1,
        }
    }

    /// Returns the PSN if the packet is a NAK (PSN sequence error).
    pub fn sequence_nak(&self) -> Option<Psn> {
        let syndrome = self.packet.ext.aeth?.syndrome;
        (syndrome == Syndrome::Nak(NakCode::PsnSequence)).then_some(self.psn())
    }
}
