//! Packets ahead of the expected one, which the responder of selective repeat holds.
//!
//! They are executed when the missing packets have arrived, in the order of their PSNs, by the same
//! code as every other packet. Nothing is stored out of order, although the place of the bytes of a
//! WRITE is known: a program may wait for the last byte of a WRITE, and must then find all bytes
//! before it. The price is a second copy of the packets behind a gap.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use feroce_wire::{FlowHeader, PacketView, PathMtu, Psn, Sack};

use crate::qp::connection::MAX_HEADERS;

/// Upper limit of the bytes of a frame.
const MAX_FRAME: usize = FlowHeader::MAX_LEN + MAX_HEADERS + PathMtu::Mtu4096.bytes() as usize;

/// Memory for one packet: its frame.
struct Buffer {
    psn: Psn,
    len: usize,
    bytes: [u8; MAX_FRAME],
}

/// Memory for the packets that the QPs of a device hold.
pub struct AheadPool(ArrayQueue<Box<Buffer>>);

impl AheadPool {
    /// Memory for `count` packets.
    pub fn new(count: usize) -> Self {
        let free = ArrayQueue::new(count);
        for _ in 0..count {
            let buffer = Buffer { psn: Psn::new(0), len: 0, bytes: [0; MAX_FRAME] };
            let _ = free.push(Box::new(buffer)); // There is room for `count`.
        }
        Self(free)
    }
}

impl fmt::Debug for AheadPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AheadPool").field(&self.0.len()).finish()
    }
}

/// What became of a packet ahead of the expected one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ahead {
    /// It is held. `opens_gap`: the packet before it is missing, and was not known to be.
    Held { opens_gap: bool },
    /// It was held already.
    Known,
    /// It cannot be held.
    Dropped,
}

/// The packets that a QP holds, in the order of their PSNs.
pub(super) struct PacketsAhead {
    packets: VecDeque<Box<Buffer>>,
    pool: Arc<AheadPool>,
}

impl PacketsAhead {
    pub(super) fn new(pool: Arc<AheadPool>) -> Self {
        Self { packets: VecDeque::new(), pool }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Holds `packet`, which must be ahead of `expected`.
    pub(super) fn hold(&mut self, packet: &PacketView<'_>, expected: Psn) -> Ahead {
        let psn = packet.bth().psn;
        let at = self.packets.partition_point(|held| held.psn.is_before(psn));
        if self.packets.get(at).is_some_and(|held| held.psn == psn) {
            return Ahead::Known;
        }
        if expected.distance_to(psn) > Sack::SPAN || packet.len_to_icrc() > MAX_FRAME {
            return Ahead::Dropped;
        }
        // At most as many as are left for others: a QP whose peer died keeps what it holds.
        if self.packets.len() >= self.pool.0.len() {
            return Ahead::Dropped;
        }
        let Some(mut buffer) = self.pool.0.pop() else { return Ahead::Dropped };
        buffer.psn = psn;
        buffer.len = packet.copy_to(&mut buffer.bytes);
        let is_newest = at == self.packets.len();
        let follows = at > 0 && self.packets[at - 1].psn.next() == psn;
        self.packets.insert(at, buffer);
        Ahead::Held { opens_gap: is_newest && !follows }
    }

    /// Takes the packet with the PSN `expected`. Those before it were overtaken and are dropped.
    pub(super) fn take(&mut self, expected: Psn) -> Option<TakenPacket> {
        while self.packets.front()?.psn.is_before(expected) {
            let passed = self.packets.pop_front();
            passed.into_iter().for_each(|buffer| self.give_back(buffer));
        }
        if self.packets.front()?.psn != expected {
            return None;
        }
        self.packets.pop_front().map(TakenPacket)
    }

    /// Checks what holds between two calls of a QP that expects `expected`: the packets are behind
    /// a missing one, inside the map, and in the order of their PSNs.
    ///
    /// # Panics
    /// If something does not hold, in builds with debug assertions.
    pub(super) fn check_invariants(&self, expected: Psn) {
        let distances = self.packets.iter().map(|held| expected.distance_to(held.psn));
        debug_assert!(distances.clone().all(|distance| (1..=Sack::SPAN).contains(&distance)));
        debug_assert!(distances.is_sorted_by(|a, b| a < b), "{self:?}");
    }

    /// Returns the memory of a packet.
    pub(super) fn release(&mut self, packet: TakenPacket) {
        self.give_back(packet.0);
    }

    fn give_back(&self, buffer: Box<Buffer>) {
        let _ = self.pool.0.push(buffer); // There is room for all buffers.
    }

    /// Drops all packets.
    pub(super) fn clear(&mut self) {
        while let Some(buffer) = self.packets.pop_front() {
            self.give_back(buffer);
        }
    }

    /// The packets held, as seen from the missing packet `expected`.
    pub(super) fn sack(&self, expected: Psn) -> Sack {
        let mut sack = Sack::default();
        for held in &self.packets {
            let distance = expected.distance_to(held.psn);
            if (1..=Sack::SPAN).contains(&distance) {
                sack.insert(distance);
            }
        }
        sack
    }
}

impl Drop for PacketsAhead {
    fn drop(&mut self) {
        self.clear();
    }
}

impl fmt::Debug for PacketsAhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.packets.iter().map(|held| held.psn)).finish()
    }
}

/// A packet that was held, and is now the expected one.
pub(super) struct TakenPacket(Box<Buffer>);

impl TakenPacket {
    pub(super) fn packet(&self) -> PacketView<'_> {
        let frame = &self.0.bytes[..self.0.len];
        PacketView::parse(frame, &[]).expect("the frame of a packet")
    }
}

#[cfg(test)]
mod tests {
    use feroce_wire::{Bth, ExtHeaders, FlowSpec, IpAddresses, MacAddr, Opcode, write_transport};

    use super::*;

    /// A SEND packet of four bytes, each the low byte of its PSN.
    fn frame(psn: u32) -> Vec<u8> {
        let addresses = IpAddresses::V4 { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into() };
        let flow = FlowHeader::new(&FlowSpec::new(MacAddr([2; 6]), MacAddr([4; 6]), addresses));
        let mut frame = vec![0; 128];
        let bth = Bth { opcode: Opcode::RC_SEND_ONLY, psn: Psn::new(psn), ..Bth::default() };
        let len = write_transport(&mut frame[flow.len()..], &bth, &ExtHeaders::default());
        frame[flow.len() + len..][..4].fill(psn.to_be_bytes()[3]);
        let len = flow.seal(&mut frame, len + 4, 1);
        frame.truncate(len);
        frame
    }

    fn hold(ahead: &mut PacketsAhead, psn: u32, expected: u32) -> Ahead {
        let frame = frame(psn);
        ahead.hold(&PacketView::parse(&frame, &[]).unwrap(), Psn::new(expected))
    }

    const GAP: Ahead = Ahead::Held { opens_gap: true };
    const NO_GAP: Ahead = Ahead::Held { opens_gap: false };

    #[test]
    fn packets_are_taken_in_the_order_of_their_psns() {
        let pool = Arc::new(AheadPool::new(9));
        let mut ahead = PacketsAhead::new(Arc::clone(&pool));
        let held = [3, 1, 0xff_ffff, 3, 2].map(|psn| hold(&mut ahead, psn, 0xff_fffe));
        assert_eq!(held, [GAP, NO_GAP, NO_GAP, Ahead::Known, NO_GAP]);
        let sack = ahead.sack(Psn::new(0xff_fffe));
        assert!([1, 3, 4, 5].iter().all(|&distance| sack.contains(distance)));
        assert_eq!((sack.last(), sack.count_from(0)), (5, 4));

        assert!(ahead.take(Psn::new(0xff_fffe)).is_none());
        let taken = ahead.take(Psn::new(0xff_ffff)).unwrap();
        assert_eq!(taken.packet().payload.first, [0xff; 4]);
        ahead.release(taken);
        let taken = ahead.take(Psn::new(2)).unwrap();
        assert_eq!(taken.packet().bth().psn, Psn::new(2), "1 was passed");
        ahead.release(taken);
        assert_eq!(pool.0.len(), 8);
        drop(ahead);
        assert_eq!(pool.0.len(), 9, "all memory is back");
    }

    #[test]
    fn what_has_no_room_is_dropped() {
        let pool = Arc::new(AheadPool::new(4));
        let mut ahead = PacketsAhead::new(Arc::clone(&pool));
        assert_eq!(hold(&mut ahead, 513, 0), Ahead::Dropped, "beyond the map");
        let held = [510, 511, 512].map(|psn| hold(&mut ahead, psn, 0));
        assert_eq!(held, [GAP, NO_GAP, Ahead::Dropped], "half is left for others");
        let mut other = PacketsAhead::new(pool);
        assert_eq!([1, 2].map(|psn| hold(&mut other, psn, 0)), [GAP, Ahead::Dropped]);
        drop(ahead);
        assert_eq!(hold(&mut other, 2, 0), NO_GAP);
    }
}
