//! From a work request to its packets: how many, which opcode, which part of the message.

use feroce_wire::{Opcode, Psn};

use super::Connection;
use super::split::remote_ranges::Grounds;
use crate::verbs::{SendOp, SendWqe};

/// One packet of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Its opcode.
    pub opcode: Opcode,
    /// First byte of the message it is about.
    pub offset: u64,
    /// Payload bytes it carries.
    pub len: usize,
    /// Bytes of the message that its RETH is about, if it has one.
    pub span: u64,
    /// PSNs that it takes: those of its answer if it is a READ request.
    pub psn_count: u32,
    /// It ends the request.
    pub last: bool,
}

/// The opcodes of a message by position.
struct Opcodes {
    first: Opcode,
    middle: Opcode,
    last: Opcode,
    only: Opcode,
}

const fn row(first: Opcode, middle: Opcode, last: Opcode, only: Opcode) -> Opcodes {
    Opcodes { first, middle, last, only }
}

const SEND: Opcodes =
    row(Opcode::RC_SEND_FIRST, Opcode::RC_SEND_MIDDLE, Opcode::RC_SEND_LAST, Opcode::RC_SEND_ONLY);
const SEND_IMM: Opcodes =
    Opcodes { last: Opcode::RC_SEND_LAST_IMM, only: Opcode::RC_SEND_ONLY_IMM, ..SEND };
const SEND_INV: Opcodes =
    Opcodes { last: Opcode::RC_SEND_LAST_INV, only: Opcode::RC_SEND_ONLY_INV, ..SEND };
const WRITE: Opcodes = row(
    Opcode::RC_WRITE_FIRST,
    Opcode::RC_WRITE_MIDDLE,
    Opcode::RC_WRITE_LAST,
    Opcode::RC_WRITE_ONLY,
);
const WRITE_IMM: Opcodes =
    Opcodes { last: Opcode::RC_WRITE_LAST_IMM, only: Opcode::RC_WRITE_ONLY_IMM, ..WRITE };
const READ_RESPONSE: Opcodes = row(
    Opcode::RC_READ_RESPONSE_FIRST,
    Opcode::RC_READ_RESPONSE_MIDDLE,
    Opcode::RC_READ_RESPONSE_LAST,
    Opcode::RC_READ_RESPONSE_ONLY,
);

impl Opcodes {
    const fn at(&self, first: bool, last: bool) -> Opcode {
        match (first, last) {
            (true, true) => self.only,
            (true, false) => self.first,
            (false, false) => self.middle,
            (false, true) => self.last,
        }
    }
}

/// The opcode of a READ response packet.
pub const fn read_response_opcode(first: bool, last: bool) -> Opcode {
    READ_RESPONSE.at(first, last)
}

/// PSNs that `length` bytes take at a path MTU of `mtu`: one for an empty message.
pub fn psn_count(length: u64, mtu: usize) -> u32 {
    let packets = length.div_ceil(mtu as u64).max(1);
    u32::try_from(packets).expect("a message has at most 2^31 bytes")
}

/// PSNs that `wqe` takes.
pub fn wqe_psn_count(wqe: &SendWqe, mtu: usize) -> u32 {
    if wqe.op.is_atomic() { 1 } else { psn_count(wqe.length, mtu) }
}

/// Packets of the answer to a part of a split READ: First and Last, which are of one length as both carry an AETH.
const READ_PART: u32 = 2;
/// Initiator depth from which READs are split: what is asked for at a time must keep both ends busy.
const READ_PARTS_OUTSTANDING: u8 = 32;
/// Longest message that is split. A whole one takes a super-frame more than it fills, or part of one: of more than two that is little.
const SPLIT_MOST: u64 = 120 << 10;

/// Whether `wqe` goes as several messages whose packets are all of one length, as those of a super-frame are. A WRITE First is longer than
/// the others by its RETH, and READ responses First and Last by their AETH, so that a message takes two super-frames at least and shares none
/// with the next.
///
/// Stays whole: what the peer may refuse, since a message that leaves its region moves nothing; a WRITE with an immediate, which tells the
/// peer's program its length; everything of UC, which drops a message of which a packet was lost, and with end-to-end credits, which count
/// messages.
pub(super) fn is_split(
    wqe: &SendWqe,
    conn: &Connection,
    known: Option<&Grounds>,
    depth: u8,
) -> bool {
    let Some(known) = known else { return false };
    let may_be = conn.service.is_reliable() && !conn.flow_control && wqe.length <= SPLIT_MOST;
    may_be
        && match wqe.op {
            SendOp::Write(remote) => wqe.psn_count > 1 && known.writes.covers(remote, wqe.length),
            SendOp::Read(remote) => {
                let deep = depth >= READ_PARTS_OUTSTANDING;
                wqe.psn_count > READ_PART && deep && known.reads.covers(remote, wqe.length)
            }
            _ => false,
        }
}

/// Whether `wqe` is asked for by requests for no more than a part.
pub fn asks_for_parts(wqe: &SendWqe) -> bool {
    wqe.split || wqe.psn_count <= READ_PART
}

/// The packet of `wqe` with the PSN `psn`.
#[inline]
pub fn segment(wqe: &SendWqe, psn: Psn, mtu: usize) -> Segment {
    let index = wqe.first_psn.distance_to(psn);
    debug_assert!(index < wqe.psn_count);
    let opcodes = match wqe.op {
        SendOp::Send => &SEND,
        SendOp::SendImm(_) => &SEND_IMM,
        SendOp::SendInvalidate(_) => &SEND_INV,
        SendOp::Write(_) => &WRITE,
        SendOp::WriteImm(..) => &WRITE_IMM,
        SendOp::Read(_) => return read_request(wqe, index, mtu),
        SendOp::CompareSwap { .. } => return request(Opcode::RC_COMPARE_SWAP, wqe),
        SendOp::FetchAdd { .. } => return request(Opcode::RC_FETCH_ADD, wqe),
        SendOp::Flush { .. } => return request(Opcode::RC_FLUSH, wqe),
        SendOp::AtomicWrite(_) => {
            return Segment { len: 8, ..request(Opcode::RC_ATOMIC_WRITE, wqe) };
        }
        SendOp::Local(_) => unreachable!("a local request has no packets"),
    };
    let offset = u64::from(index) * mtu as u64;
    let left = usize::try_from(wqe.length - offset).unwrap_or(usize::MAX);
    let (len, last) = (left.min(mtu), index + 1 == wqe.psn_count);
    let opcode = opcodes.at(wqe.split || index == 0, wqe.split || last);
    let span = if wqe.split { len as u64 } else { wqe.length };
    Segment { opcode, offset, len, span, psn_count: 1, last }
}

/// A request without payload.
fn request(opcode: Opcode, wqe: &SendWqe) -> Segment {
    Segment { opcode, offset: 0, len: 0, span: wqe.length, psn_count: wqe.psn_count, last: true }
}

/// Asks for what a READ lacks from packet `index` on: for all of it, or for the rest of a part.
fn read_request(wqe: &SendWqe, index: u32, mtu: usize) -> Segment {
    let end = match wqe.split {
        true => (index / READ_PART + 1) * READ_PART,
        false => wqe.psn_count,
    };
    let (end, mtu) = (end.min(wqe.psn_count), mtu as u64);
    let (offset, psn_count) = (u64::from(index) * mtu, end - index);
    let span = (u64::from(psn_count) * mtu).min(wqe.length - offset);
    let (opcode, last) = (Opcode::RC_READ_REQUEST, end == wqe.psn_count);
    Segment { opcode, offset, len: 0, span, psn_count, last }
}

/// Whether the answer to a READ, or to a part of it, ends with the packet at `index` of `wqe`.
pub fn ends_answer(wqe: &SendWqe, index: u32) -> bool {
    let end = index + 1;
    end == wqe.psn_count || wqe.split && end.is_multiple_of(READ_PART)
}

/// How many answers to `wqe`, a READ or atomic, end with packets behind the PSN `from` and up to `to`, both one past a packet.
pub fn answers_ended(wqe: &SendWqe, from: Psn, to: Psn) -> u32 {
    let part = if wqe.split { READ_PART } else { wqe.psn_count };
    // From its end, which is at most half the PSN space ahead of either.
    let end = wqe.end_psn();
    let ended = |psn: Psn| match psn.is_before(end) {
        true => wqe.psn_count.saturating_sub(psn.distance_to(end)) / part,
        false => wqe.psn_count.div_ceil(part),
    };
    ended(to).saturating_sub(ended(from))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::{RemoteAddr, SendFlags};
    use feroce_wire::{Key, PathMtu};

    fn wqe(op: SendOp, length: u64, mtu: usize) -> SendWqe {
        let mut wqe = SendWqe {
            wr_id: 0,
            op,
            length,
            flags: SendFlags::NONE,
            num_sge: 1,
            inline: false,
            first_psn: Psn::new(0xff_fffe),
            psn_count: 0,
            split: false,
            srqn: 0,
            ssn: 0,
        };
        wqe.psn_count = wqe_psn_count(&wqe, mtu);
        wqe
    }

    #[test]
    fn packets_tile_the_message_at_every_mtu_and_edge() {
        for mtu in PathMtu::ALL.map(|mtu| mtu.bytes() as usize) {
            for length in [0, 1, mtu - 1, mtu, mtu + 1, 2 * mtu, 3 * mtu + 7] {
                let wqe = wqe(SendOp::Send, length as u64, mtu);
                let packets: Vec<Segment> = (0..wqe.psn_count)
                    .map(|index| segment(&wqe, wqe.first_psn.add(index), mtu))
                    .collect();
                assert_eq!(packets.iter().map(|p| p.len).sum::<usize>(), length);
                let (last, before) = packets.split_last().unwrap();
                assert!(last.last && before.iter().all(|p| p.len == mtu && !p.last));
                let infos: Vec<_> = packets.iter().map(|p| p.opcode.info().unwrap()).collect();
                assert!(infos[0].position.starts_message());
                assert!(infos[infos.len() - 1].position.ends_message());
                for (packet, info) in packets.iter().zip(&infos) {
                    assert!(info.payload.allows(packet.len, mtu), "{packet:?}");
                }
            }
        }
    }

    fn remote() -> RemoteAddr {
        RemoteAddr { addr: 0, rkey: Key::from_parts(1, 1) }
    }

    #[test]
    fn packets_of_a_split_write_are_messages() {
        let mut wqe = wqe(SendOp::Write(remote()), 1024 + 256 + 1, 256);
        wqe.split = true;
        for index in 0..wqe.psn_count {
            let packet = segment(&wqe, wqe.first_psn.add(index), 256);
            let (opcode, last) = (Opcode::RC_WRITE_ONLY, index == 5);
            let len = if last { 1 } else { 256 };
            let (offset, span) = (u64::from(index) * 256, len as u64);
            assert_eq!(packet, Segment { opcode, offset, len, span, psn_count: 1, last });
        }
    }

    /// Of five packets, three answers: of two, two and one.
    #[test]
    fn parts_of_a_split_read_tile_it_from_wherever_it_is_asked_for() {
        let mut wqe = wqe(SendOp::Read(remote()), 4 * 256 + 9, 256);
        wqe.split = true;
        let parts =
            [(2, 512, false), (1, 256, false), (2, 512, false), (1, 256, false), (1, 9, true)];
        for (index, (psn_count, span, last)) in (0..).zip(parts) {
            let offset = u64::from(index) * 256;
            let opcode = Opcode::RC_READ_REQUEST;
            let expected = Segment { opcode, offset, len: 0, span, psn_count, last };
            assert_eq!(segment(&wqe, wqe.first_psn.add(index), 256), expected);
        }
        let ends: Vec<_> = (0..5).filter(|&index| ends_answer(&wqe, index)).collect();
        assert_eq!(ends, [1, 3, 4]);
    }

    #[test]
    fn answers_are_counted_where_they_end() {
        let mut read = wqe(SendOp::Read(remote()), 4 * 256 + 9, 256);
        let count = |wqe: &SendWqe, from: u32, to: u32| {
            let psn = |packets: u32| wqe.first_psn.prev().add(packets);
            answers_ended(wqe, psn(from), psn(to))
        };
        // Packets are counted from one ahead of the first.
        for (from, to, split, whole) in [
            (0, 9, 3, 1),
            (1, 2, 0, 0),
            (1, 3, 1, 0),
            (2, 3, 1, 0),
            (3, 4, 0, 0),
            (3, 6, 2, 1),
            (6, 9, 0, 0),
        ] {
            read.split = false;
            assert_eq!(count(&read, from, to), whole, "{from}..{to}");
            read.split = true;
            assert_eq!(count(&read, from, to), split, "{from}..{to} in parts");
        }
        // The longest takes half the PSN space.
        let longest = wqe(SendOp::Read(remote()), 1 << 31, 256);
        assert_eq!((count(&longest, 1, 1 << 23), count(&longest, 1, (1 << 23) + 1)), (0, 1));
        let add = wqe(SendOp::FetchAdd { remote: remote(), add: 1 }, 8, 256);
        assert_eq!((count(&add, 1, 2), count(&add, 2, 3)), (1, 0));
    }

    #[test]
    fn the_longest_message_takes_half_the_psn_space() {
        assert_eq!(psn_count(1 << 31, 256), 1 << 23);
        assert_eq!(psn_count(0, 256), 1);
    }

    #[test]
    fn a_read_can_be_asked_for_again_from_the_middle() {
        let wqe = wqe(SendOp::Read(remote()), 10_000, 1024);
        assert_eq!(wqe.psn_count, 10);
        let again = segment(&wqe, Psn::new(1), 1024);
        assert_eq!((again.opcode, again.offset), (Opcode::RC_READ_REQUEST, 3 * 1024));
    }
}
