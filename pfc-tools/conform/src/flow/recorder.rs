//! Records the packets that the diagrams of a flow show: an even sample, and all NAKs and CNPs.

use feroce_wire::{Opcode, Psn};

use crate::rules::PacketRef;

/// The kind of a recorded packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PointKind {
    /// A request, sent for the first time.
    Request,
    /// A retransmitted request.
    Retransmission,
    /// A response of none of the other kinds.
    Response,
    /// A NAK other than an RNR NAK.
    Nak,
    /// An RNR NAK.
    Rnr,
    /// A CNP.
    Cnp,
}

/// A recorded packet.
#[derive(Debug, Clone, Copy)]
pub struct Point {
    /// The packet.
    pub packet: PacketRef,
    /// Time of capture, in nanoseconds since 1970.
    pub at: u64,
    /// PSN.
    pub psn: Psn,
    /// Opcode.
    pub opcode: Opcode,
    /// Kind.
    pub kind: PointKind,
    /// AETH syndrome, for a response that has an AETH.
    pub syndrome: Option<u8>,
    /// Payload length, in bytes.
    pub payload: u32,
}

/// The recorded packets of a flow.
#[derive(Debug, Default)]
pub struct Recorder {
    points: Vec<Point>,
    /// One of this many packets is recorded.
    every: u32,
    skipped: u32,
}

/// Maximum number of packets recorded of a flow. When this number is reached, every second packet
/// is dropped, and the sampling rate is halved.
const MAX_PACKETS: usize = 8192;

impl Recorder {
    /// Records `point` if it is due by the sampling rate or of a rare kind.
    pub fn add(&mut self, point: Point) {
        self.skipped += 1;
        let is_rare = matches!(point.kind, PointKind::Nak | PointKind::Rnr | PointKind::Cnp);
        if self.skipped < self.every && !is_rare {
            return;
        }
        self.skipped = 0;
        self.points.push(point);
        if self.points.len() == MAX_PACKETS {
            let mut index = 0_usize;
            self.points.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.every = self.every.max(1) * 2;
        }
    }

    /// Returns the recorded packets, in order.
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// Returns the sampling rate: one of this many packets was recorded.
    pub fn every(&self) -> u32 {
        self.every.max(1)
    }
}
