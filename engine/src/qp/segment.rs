//! From a work request to its packets: how many there are, and the opcode and the part of the
//! message of each.

use feroce_wire::{Opcode, Psn};

use super::split;
use crate::verbs::SendWqe;
use crate::verbs::operation::RequestPackets;

/// One packet of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Opcode, of the RC service.
    pub opcode: Opcode,
    /// Offset in bytes, in the data of the request, of the first byte that the packet carries or
    /// requests.
    pub offset: u64,
    /// Payload bytes.
    pub len: usize,
    /// Bytes that the RETH names, if the packet has one.
    pub span: u64,
    /// PSNs that the packet uses. A READ request uses one for each of its response packets.
    pub psn_count: u32,
    /// True if it is the first packet of a message.
    pub starts_message: bool,
    /// True if it is the last packet of the request.
    pub last: bool,
}

/// PSNs that a message of `length` bytes uses at a path MTU of `mtu`; an empty message uses one.
#[inline]
pub fn psn_count(length: u64, mtu: usize) -> u32 {
    if length <= mtu as u64 {
        return 1; // Without a division.
    }
    let packets = length.div_ceil(mtu as u64);
    u32::try_from(packets).expect("a message has at most 2^31 bytes")
}

/// The packet of `wqe` with the PSN `psn`.
#[inline]
pub fn segment(wqe: &SendWqe, psn: Psn, mtu: usize) -> Segment {
    match &wqe.info().packets {
        RequestPackets::Message(opcodes) if wqe.psn_count == 1 => whole(opcodes.only, wqe.length),
        packets => part(packets, wqe, psn, mtu),
    }
}

/// The packet of a request with one packet, of `length` bytes.
#[inline(always)] // Most fields are constants.
pub fn whole(opcode: Opcode, length: u64) -> Segment {
    Segment {
        opcode,
        offset: 0,
        len: usize::try_from(length).expect("it fits a packet"),
        span: length,
        psn_count: 1,
        starts_message: true,
        last: true,
    }
}

/// [`segment`] of a request with several packets, or without payload.
#[inline(never)]
fn part(packets: &RequestPackets, wqe: &SendWqe, psn: Psn, mtu: usize) -> Segment {
    let index = wqe.first_psn.distance_to(psn);
    debug_assert!(index < wqe.psn_count);
    match packets {
        RequestPackets::Message(opcodes) => {
            let message = split::message_of(wqe, index);
            let offset = offset_of(index, mtu);
            let left = usize::try_from(wqe.length - offset).unwrap_or(usize::MAX);
            let (first, last) = (index == message.start, index + 1 == message.end);
            Segment {
                opcode: opcodes.at(first, last),
                offset,
                len: left.min(mtu),
                span: offset_of(message.end, mtu).min(wqe.length) - offset_of(message.start, mtu),
                psn_count: 1,
                starts_message: first,
                last: index + 1 == wqe.psn_count,
            }
        }
        RequestPackets::Bare(opcode) => bare_request(*opcode, wqe, index, mtu),
        RequestPackets::Whole(opcode) => {
            let len = usize::try_from(wqe.length).expect("it fits a packet");
            Segment { len, ..bare_request(*opcode, wqe, index, mtu) }
        }
        RequestPackets::Local => unreachable!("a local request has no packets"),
    }
}

/// A request without payload, whose response has the PSNs from packet `index` to the end of the
/// message. A READ that is repeated from the middle requests the rest of its data.
fn bare_request(opcode: Opcode, wqe: &SendWqe, index: u32, mtu: usize) -> Segment {
    let message = split::message_of(wqe, index);
    let offset = offset_of(index, mtu);
    Segment {
        opcode,
        offset,
        len: 0,
        span: offset_of(message.end, mtu).min(wqe.length) - offset,
        psn_count: message.end - index,
        starts_message: true,
        last: message.end == wqe.psn_count,
    }
}

/// A READ request for the first `packets` response packets of `whole`, a longer one.
pub fn shortened(whole: Segment, packets: u32, mtu: usize) -> Segment {
    let span = offset_of(packets, mtu).min(whole.span);
    Segment { span, psn_count: packets, ..whole }
}

/// Offset of packet number `index`, in bytes.
#[inline]
fn offset_of(index: u32, mtu: usize) -> u64 {
    u64::from(index) * mtu as u64
}

/// Returns true if a response to `wqe`, a READ, ends with packet number `index`.
pub fn ends_response(wqe: &SendWqe, index: u32) -> bool {
    index + 1 == split::message_of(wqe, index).end
}

/// Responses to `wqe` (a READ or atomic) whose last PSN lies in the range `from .. to`, end
/// excluded.
pub fn responses_ended(wqe: &SendWqe, from: Psn, to: Psn) -> u32 {
    let packets = split::packets_per_message(wqe);
    // Counted from the end of the request, which is at most half the PSN space ahead of either PSN.
    let end = wqe.end_psn();
    let ended = |psn: Psn| match psn.is_before(end) {
        true => wqe.psn_count.saturating_sub(psn.distance_to(end)) / packets,
        false => wqe.psn_count.div_ceil(packets),
    };
    ended(to).saturating_sub(ended(from))
}

/// A READ that is not split counts as at most this number of response packets. No window bounds
/// the responses to a single READ: the peer sends them all. So a long READ takes a part of the read
/// window, and leaves the rest to others.
pub const LONG_READ: u32 = 128;

/// The number that `packets` response packets of `wqe`, a READ or atomic, count as: at most
/// [`LONG_READ`] unless it is split.
#[inline]
pub fn counted_responses(wqe: &SendWqe, packets: u32) -> u32 {
    if wqe.split { packets } else { packets.min(LONG_READ) }
}

/// The response packets of `wqe` from `psn` to its end, as [`counted_responses`] counts them.
#[inline]
pub fn responses_left(wqe: &SendWqe, psn: Psn) -> u32 {
    counted_responses(wqe, psn.distance_to(wqe.end_psn()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::{RemoteAddr, SendFlags, SendOp};
    use feroce_wire::{Key, PathMtu};

    fn wqe(op: SendOp, length: u64, mtu: usize) -> SendWqe {
        let first_psn = Psn::new(0xff_fffe);
        let wqe = SendWqe::new(0, op, length, SendFlags::NONE);
        let mut wqe = SendWqe { num_sge: 1, first_psn, ..wqe };
        wqe.psn_count = psn_count(wqe.length, mtu);
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
    fn each_packet_of_a_split_write_is_a_message() {
        let mut wqe = wqe(SendOp::Write(remote()), 1024 + 256 + 1, 256);
        wqe.split = true;
        for index in 0..wqe.psn_count {
            let packet = segment(&wqe, wqe.first_psn.add(index), 256);
            let (opcode, last) = (Opcode::RC_WRITE_ONLY, index == 5);
            let len = if last { 1 } else { 256 };
            let (offset, span) = (u64::from(index) * 256, len as u64);
            let expected =
                Segment { opcode, offset, len, span, psn_count: 1, starts_message: true, last };
            assert_eq!(packet, expected);
        }
    }

    /// Five response packets belong to three READs, of two, two and one packet.
    #[test]
    fn a_split_read_is_tiled_from_every_packet_that_it_is_repeated_from() {
        let mut wqe = wqe(SendOp::Read(remote()), 4 * 256 + 9, 256);
        wqe.split = true;
        let requests =
            [(2, 512, false), (1, 256, false), (2, 512, false), (1, 256, false), (1, 9, true)];
        for (index, (psn_count, span, last)) in (0..).zip(requests) {
            let offset = u64::from(index) * 256;
            let opcode = Opcode::RC_READ_REQUEST;
            let expected =
                Segment { opcode, offset, len: 0, span, psn_count, starts_message: true, last };
            assert_eq!(segment(&wqe, wqe.first_psn.add(index), 256), expected);
        }
        let ends: Vec<_> = (0..5).filter(|&index| ends_response(&wqe, index)).collect();
        assert_eq!(ends, [1, 3, 4]);
    }

    #[test]
    fn responses_are_counted_by_their_last_packet() {
        let mut read = wqe(SendOp::Read(remote()), 4 * 256 + 9, 256);
        let count = |wqe: &SendWqe, from: u32, to: u32| {
            let psn = |packets: u32| wqe.first_psn.prev().add(packets);
            responses_ended(wqe, psn(from), psn(to))
        };
        // Packet 1 is the first one.
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
            assert_eq!(count(&read, from, to), split, "{from}..{to} split");
        }
        // The longest message takes half the PSN space.
        let longest = wqe(SendOp::Read(remote()), 1 << 31, 256);
        assert_eq!((count(&longest, 1, 1 << 23), count(&longest, 1, (1 << 23) + 1)), (0, 1));
        let add = wqe(SendOp::FetchAdd { remote: remote(), add: 1 }, 8, 256);
        assert_eq!((count(&add, 1, 2), count(&add, 2, 3)), (1, 0));
    }

    #[test]
    fn a_long_read_counts_as_some_packets_until_fewer_are_left() {
        let mut read = wqe(SendOp::Read(remote()), 256 * 1000, 256);
        let left = |wqe: &SendWqe, done: u32| responses_left(wqe, wqe.first_psn.add(done));
        let counts = [0, 872, 873, 999, 1000].map(|done| left(&read, done));
        assert_eq!(counts, [128, 128, 127, 1, 0]);
        read.split = true;
        assert_eq!(left(&read, 0), 1000, "its parts are requested one by one");
    }

    #[test]
    fn the_longest_message_takes_half_the_psn_space() {
        assert_eq!(psn_count(1 << 31, 256), 1 << 23);
        assert_eq!(psn_count(0, 256), 1);
    }

    #[test]
    fn a_read_can_be_repeated_from_the_middle() {
        let wqe = wqe(SendOp::Read(remote()), 10_000, 1024);
        assert_eq!(wqe.psn_count, 10);
        let again = segment(&wqe, Psn::new(1), 1024);
        assert_eq!((again.opcode, again.offset), (Opcode::RC_READ_REQUEST, 3 * 1024));
    }
}
