//! From a work request to its packets: how many, which opcode, which part of the message.

use feroce_wire::{Opcode, Psn};

use super::Connection;
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

/// Whether `wqe` goes as a message per packet. The first packet of a WRITE is longer than the others by its RETH, and the packets of a
/// super-frame are of one length: so a message takes two super-frames at least, and shares none with the next. With an immediate the peer's
/// program learns how long the message was; UC drops a message of which a packet was lost; and end-to-end credits count messages.
pub fn is_split(wqe: &SendWqe, conn: &Connection) -> bool {
    let may_be = conn.split_writes && conn.service.is_reliable() && !conn.flow_control;
    may_be && wqe.psn_count > 1 && matches!(wqe.op, SendOp::Write(_))
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
        SendOp::Read(_) => return request(Opcode::RC_READ_REQUEST, index, mtu),
        SendOp::CompareSwap { .. } => return request(Opcode::RC_COMPARE_SWAP, index, mtu),
        SendOp::FetchAdd { .. } => return request(Opcode::RC_FETCH_ADD, index, mtu),
        SendOp::Flush { .. } => return request(Opcode::RC_FLUSH, index, mtu),
        SendOp::AtomicWrite(_) => {
            return Segment { len: 8, ..request(Opcode::RC_ATOMIC_WRITE, index, mtu) };
        }
        SendOp::Local(_) => unreachable!("a local request has no packets"),
    };
    let offset = u64::from(index) * mtu as u64;
    let left = usize::try_from(wqe.length - offset).unwrap_or(usize::MAX);
    let last = index + 1 == wqe.psn_count;
    let opcode = opcodes.at(wqe.split || index == 0, wqe.split || last);
    Segment { opcode, offset, len: left.min(mtu), last }
}

/// A request without payload; of a READ, the part from packet `index` on.
fn request(opcode: Opcode, index: u32, mtu: usize) -> Segment {
    Segment { opcode, offset: u64::from(index) * mtu as u64, len: 0, last: true }
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

    #[test]
    fn packets_of_a_split_write_are_messages() {
        let remote = RemoteAddr { addr: 0, rkey: Key::from_parts(1, 1) };
        let mut wqe = wqe(SendOp::Write(remote), 1024 + 256 + 1, 256);
        wqe.split = true;
        for index in 0..wqe.psn_count {
            let packet = segment(&wqe, wqe.first_psn.add(index), 256);
            let (opcode, ends) = (Opcode::RC_WRITE_ONLY, index == 5);
            let len = if ends { 1 } else { 256 };
            let expected = Segment { opcode, offset: u64::from(index) * 256, len, last: ends };
            assert_eq!(packet, expected);
        }
    }

    #[test]
    fn the_longest_message_takes_half_the_psn_space() {
        assert_eq!(psn_count(1 << 31, 256), 1 << 23);
        assert_eq!(psn_count(0, 256), 1);
    }

    #[test]
    fn a_read_can_be_asked_for_again_from_the_middle() {
        let remote = RemoteAddr { addr: 0, rkey: Key::from_parts(1, 1) };
        let wqe = wqe(SendOp::Read(remote), 10_000, 1024);
        assert_eq!(wqe.psn_count, 10);
        let again = segment(&wqe, Psn::new(1), 1024);
        assert_eq!((again.opcode, again.offset), (Opcode::RC_READ_REQUEST, 3 * 1024));
    }
}
