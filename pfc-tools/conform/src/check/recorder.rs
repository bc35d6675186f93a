//! What a picture of a flow needs: some of its packets, evenly, and those next to findings.

use feroce_wire::{Opcode, Psn};

use crate::rules::PacketRef;

/// What a packet is in a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// A request, for the first time.
    Request,
    /// Again.
    Repeat,
    /// An answer that is none of the others.
    Answer,
    /// NAK of any kind.
    Nak,
    /// RNR NAK.
    Rnr,
    /// CNP.
    Cnp,
}

/// A packet.
#[derive(Debug, Clone, Copy)]
pub struct Point {
    /// Which.
    pub packet: PacketRef,
    /// When it was captured.
    pub at: u64,
    /// Its PSN.
    pub psn: Psn,
    /// Its opcode.
    pub opcode: Opcode,
    /// What it is.
    pub mark: Mark,
    /// Of an answer with an AETH: its syndrome.
    pub syndrome: Option<u8>,
    /// Bytes of payload.
    pub payload: u32,
}

/// Packets that were kept.
#[derive(Debug, Default)]
pub struct Recorder {
    points: Vec<Point>,
    /// One of so many is kept.
    every: u32,
    skipped: u32,
}

/// How many are kept of a flow; more, and every other one goes.
const MOST: usize = 8192;

impl Recorder {
    /// Keeps `point`, if it is its turn, or worth more than others.
    pub fn add(&mut self, point: Point) {
        self.skipped += 1;
        let is_rare = matches!(point.mark, Mark::Nak | Mark::Rnr | Mark::Cnp);
        if self.skipped < self.every && !is_rare {
            return;
        }
        self.skipped = 0;
        self.points.push(point);
        if self.points.len() == MOST {
            let mut index = 0_usize;
            self.points.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.every = self.every.max(1) * 2;
        }
    }

    /// What was kept, in order.
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// One of how many packets was kept.
    pub fn every(&self) -> u32 {
        self.every.max(1)
    }
}
