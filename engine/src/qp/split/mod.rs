//! Splitting: a long WRITE or READ is sent as several messages whose packets all have the same
//! length.
//!
//! Packets of one length can travel in one super-frame (UDP segmentation offload). A WRITE First is
//! longer than the other packets by its RETH, and READ responses First and Last by their AETH. A
//! whole message therefore takes at least two super-frames and shares none with the next message. A
//! split WRITE is one WRITE Only per packet; a split READ is one READ per two packets, of which
//! both carry an AETH. The request still completes once, and keeps its PSNs.
//!
//! The rest of `qp` uses three functions: the requester calls [`Splitter::splits`] when it starts a
//! request (the result is kept in [`SendWqe::split`]) and reads two limits from the [`Splitter`];
//! `segment` calls [`message_of`] for the message that a packet belongs to; the completer reports
//! completed requests to [`Splitter::completed`].

mod remote_ranges;

use std::ops::Range;

use remote_ranges::RemoteRanges;

use super::attributes::RD_ATOMIC;
use super::connection::Connection;
use super::env::ACK_INTERVAL;
use crate::verbs::{SendOp, SendWqe};

/// Response packets of each message of a split READ: First and Last, which both carry an AETH.
const READ_PACKETS: u32 = 2;

/// Initiator depth from which READs are split. With a lower depth, the short READs that may be
/// outstanding together cannot keep both ends busy.
const MIN_READ_DEPTH: u8 = 32;

/// Longest request in bytes that is split. A whole message wastes at most one super-frame, which is
/// little once the message fills more than two.
const MAX_SPLIT: u64 = 120 << 10;

/// Maximum number of packets from one acknowledgement request to the next if requests are split: a
/// few super-frames. An acknowledgement is a frame of its own and costs as much as a
/// super-frame.
const MAX_ACK_INTERVAL: u32 = 64;

/// The splitting of one QP's requests.
#[derive(Debug, Default)]
pub struct Splitter {
    /// Remote ranges that the peer has accepted; `None` if requests are not split.
    accepted: Option<Box<RemoteRanges>>,
}

impl Splitter {
    /// Allows or forbids splitting, and forgets the accepted ranges.
    pub fn set_enabled(&mut self, enabled: bool) {
        self.accepted = enabled.then(Box::default);
    }

    /// Returns true if requests may be split.
    #[inline]
    pub fn is_enabled(&self) -> bool {
        self.accepted.is_some()
    }

    /// Returns true if `wqe`, whose PSNs are assigned, is sent as several messages. `depth` is the
    /// initiator depth.
    ///
    /// These requests are never split: requests that the peer may reject, because a message that
    /// exceeds its region must store nothing; WRITEs with immediate data, because the peer's
    /// completion shows the length of the message; requests of UC, which drops a whole message if
    /// one packet is lost; requests with end-to-end credits, which count messages.
    #[inline]
    pub fn splits(&self, wqe: &SendWqe, conn: &Connection, depth: u8) -> bool {
        let accepted = self.accepted.as_ref();
        accepted.is_some_and(|accepted| Self::is_split(accepted, wqe, conn, depth))
    }

    fn is_split(accepted: &RemoteRanges, wqe: &SendWqe, conn: &Connection, depth: u8) -> bool {
        if !conn.service.is_reliable() || conn.flow_control || wqe.length > MAX_SPLIT {
            return false;
        }
        match wqe.op {
            SendOp::Write(remote) => {
                wqe.psn_count > 1 && accepted.writes.covers(remote, wqe.length)
            }
            SendOp::Read(remote) => {
                wqe.psn_count > READ_PACKETS
                    && depth >= MIN_READ_DEPTH
                    && accepted.reads.covers(remote, wqe.length)
            }
            _ => false,
        }
    }

    /// The peer has completed `wqe`: later requests to the same range may be split.
    #[inline]
    pub fn completed(&mut self, wqe: &SendWqe) {
        let Some(accepted) = &mut self.accepted else { return };
        match wqe.op {
            SendOp::Write(remote) => accepted.writes.record(remote, wqe.length),
            SendOp::Read(remote) => accepted.reads.record(remote, wqe.length),
            _ => {}
        }
    }

    /// Maximum number of packets from one acknowledgement request to the next. If
    /// requests are split, half of the packets or requests that may be outstanding, so that neither
    /// limit is reached before the acknowledgement arrives.
    #[inline]
    pub fn ack_interval(&self, outstanding: u32) -> u32 {
        match self.accepted {
            None => ACK_INTERVAL,
            Some(_) => (outstanding / 2).clamp(ACK_INTERVAL, MAX_ACK_INTERVAL),
        }
    }

    /// READs and atomics that may be outstanding at most while `wqe` is sent. The larger depth that
    /// is negotiated for split READs is too much for long, whole READs.
    #[inline]
    pub fn max_outstanding(&self, wqe: &SendWqe) -> u8 {
        let is_long = !wqe.split && wqe.psn_count > READ_PACKETS;
        if self.accepted.is_some() && is_long { RD_ATOMIC } else { u8::MAX }
    }
}

/// Packets of each message that `wqe` is sent as. The last message may have fewer.
pub fn packets_per_message(wqe: &SendWqe) -> u32 {
    match wqe.op {
        _ if !wqe.split => wqe.psn_count,
        SendOp::Read(_) => READ_PACKETS,
        _ => 1,
    }
}

/// Messages that `wqe` is sent as.
#[inline]
pub fn messages(wqe: &SendWqe) -> u32 {
    if wqe.split { wqe.psn_count.div_ceil(packets_per_message(wqe)) } else { 1 }
}

/// The message that packet number `index` of `wqe` belongs to, as a range of packet numbers.
/// Without splitting, all packets are one message.
#[inline]
pub fn message_of(wqe: &SendWqe, index: u32) -> Range<u32> {
    if !wqe.split {
        return 0..wqe.psn_count;
    }
    let packets = packets_per_message(wqe);
    let start = index - index % packets;
    start..(start + packets).min(wqe.psn_count)
}
