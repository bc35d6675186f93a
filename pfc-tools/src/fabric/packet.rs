//! Packets in a slab, and queues that link them.

use bitflags::bitflags;
use feroce_engine::memory::ahead::fetch_element;

use super::time::Time;

/// Index of a packet in the slab.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PacketId(u32);

impl PacketId {
    /// The index as a number.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// No packet.
const NONE: u32 = u32::MAX;

/// What a packet is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Payload of a flow.
    Data { psn: u32, sent: Time },
    /// Acknowledges all packets before `psn`. `sent` is the time at which the data packet was sent
    /// that caused it.
    Ack { psn: u32, sent: Time },
    /// Reports a gap: the receiver expects `psn`, and `arrived` has arrived.
    Nak { psn: u32, arrived: u32 },
    /// Congestion notification packet.
    Cnp,
    /// A frame of an external host; its content is stored outside the fabric.
    Frame,
    /// A PFC frame: of the priorities in `enabled`, those in `paused` stop for `quanta`, the others
    /// resume.
    Pfc { enabled: u8, paused: u8, quanta: u16 },
}

/// The kinds without their values.
const DATA: u8 = 0;
const ACK: u8 = 1;
const NAK: u8 = 2;
const CNP: u8 = 3;
const FRAME: u8 = 4;
const PFC: u8 = 5;

bitflags! {
    /// Properties of a packet.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Flags: u8 {
        /// May be marked.
        const ECN_CAPABLE = 1;
        /// Marked in the fabric. Of an acknowledgement: the data packet that caused it was.
        const MARKED = 1 << 1;
        /// The data packet was sent before. Of an acknowledgement: the one that caused it was.
        const RETRANSMITTED = 1 << 2;
        /// The switches on its path record telemetry for it.
        const TELEMETRY = 1 << 3;
        /// The sender requests an acknowledgement (AckReq bit of the BTH).
        const ACK_REQUESTED = 1 << 4;
        /// Bits were flipped; the ICRC is wrong.
        const CORRUPTED = 1 << 5;
        /// An acknowledgement or a NAK has those of the data packet that caused it.
        const ECHOED = Self::MARKED.bits() | Self::RETRANSMITTED.bits() | Self::TELEMETRY.bits();
    }
}

/// The properties of a packet that the fabric uses. Two packets fill a cache line: large networks
/// hold hundreds of thousands.
#[derive(Debug, Clone, Copy)]
#[repr(align(32))]
pub(crate) struct Packet {
    /// The values of the kind: see [`Self::new`].
    first: u32,
    second: u64,
    pub flow: u32,
    /// Destination host.
    pub to: u32,
    /// Flow hash for ECMP.
    pub entropy: u32,
    /// Buffer bytes: the frame with its FCS.
    pub size: u32,
    /// Ingress port at the switch that holds the packet.
    pub ingress: u16,
    /// The kind, and in the lowest three bits the priority.
    class: u8,
    pub flags: Flags,
}

const _: () = assert!(size_of::<Packet>() == 32);

impl Packet {
    /// A packet of `kind` for host `to`, without flags. `priority` is below 8.
    pub const fn new(kind: Kind, flow: u32, to: u32, size: u32, priority: u8) -> Self {
        let (tag, first, second) = match kind {
            Kind::Data { psn, sent } => (DATA, psn, sent.0),
            Kind::Ack { psn, sent } => (ACK, psn, sent.0),
            Kind::Nak { psn, arrived } => (NAK, psn, arrived as u64),
            Kind::Cnp => (CNP, 0, 0),
            Kind::Frame => (FRAME, 0, 0),
            Kind::Pfc { enabled, paused, quanta } => {
                (PFC, u32::from_le_bytes([enabled, paused, 0, 0]), quanta as u64)
            }
        };
        debug_assert!(priority < 8);
        let class = tag << 3 | priority;
        let flags = Flags::empty();
        Self { first, second, flow, to, entropy: 0, size, ingress: 0, class, flags }
    }

    /// What the packet is.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // `new` widened the values.
    pub const fn kind(&self) -> Kind {
        let (first, second) = (self.first, self.second);
        match self.class >> 3 {
            DATA => Kind::Data { psn: first, sent: Time(second) },
            ACK => Kind::Ack { psn: first, sent: Time(second) },
            NAK => Kind::Nak { psn: first, arrived: second as u32 },
            CNP => Kind::Cnp,
            FRAME => Kind::Frame,
            _ => {
                let [enabled, paused, ..] = first.to_le_bytes();
                Kind::Pfc { enabled, paused, quanta: second as u16 }
            }
        }
    }

    /// The priority.
    #[inline]
    pub const fn priority(&self) -> u8 {
        self.class & 7
    }

    /// Returns true if the packet has one of these flags.
    #[inline]
    pub const fn has(&self, flags: Flags) -> bool {
        self.flags.intersects(flags)
    }
}

/// All packets of a run.
#[derive(Debug)]
pub(crate) struct Packets {
    slab: Vec<Packet>,
    /// For each packet, the next one of its queue or of the free list. Apart from the packets, so
    /// that a queue grows without access to its last packet.
    next: Vec<u32>,
    free: u32,
    live: usize,
}

impl Packets {
    pub const fn new() -> Self {
        Self { slab: Vec::new(), next: Vec::new(), free: NONE, live: 0 }
    }

    /// Number of packets in the network.
    pub const fn live(&self) -> usize {
        self.live
    }

    #[inline]
    pub fn add(&mut self, packet: Packet) -> PacketId {
        self.live += 1;
        if self.free == NONE {
            let id = u32::try_from(self.slab.len()).expect("fewer than 2^32 packets at a time");
            self.slab.push(packet);
            self.next.push(NONE);
            return PacketId(id);
        }
        let id = self.free;
        self.free = self.next[id as usize];
        self.slab[id as usize] = packet;
        PacketId(id)
    }

    #[inline]
    pub fn remove(&mut self, id: PacketId) {
        self.live -= 1;
        self.next[id.0 as usize] = self.free;
        self.free = id.0;
    }

    /// Fetches a packet that is needed soon into the processor's cache.
    #[inline]
    pub fn prepare(&self, id: PacketId) {
        fetch_element(&self.slab, id.index(), size_of::<Packet>());
        fetch_element(&self.next, id.index(), size_of::<u32>());
    }

    #[inline]
    pub fn get(&self, id: PacketId) -> &Packet {
        &self.slab[id.0 as usize]
    }

    #[inline]
    pub fn get_mut(&mut self, id: PacketId) -> &mut Packet {
        &mut self.slab[id.0 as usize]
    }
}

/// A first-in first-out queue of packets, linked through the slab.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fifo {
    head: u32,
    tail: u32,
    bytes: u64,
}

impl Fifo {
    pub const EMPTY: Self = Self { head: NONE, tail: NONE, bytes: 0 };

    pub const fn is_empty(&self) -> bool {
        self.head == NONE
    }

    /// Total bytes of the queued packets.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The first packet.
    #[inline]
    pub fn front(&self) -> Option<PacketId> {
        (self.head != NONE).then_some(PacketId(self.head))
    }

    /// The packets in order.
    pub fn iter<'a>(&self, packets: &'a Packets) -> impl Iterator<Item = &'a Packet> + 'a {
        let mut next = self.head;
        std::iter::from_fn(move || {
            let packet = packets.slab.get(next as usize)?;
            next = packets.next[next as usize];
            Some(packet)
        })
    }

    #[inline]
    pub fn push(&mut self, id: PacketId, packets: &mut Packets) {
        packets.next[id.index()] = NONE;
        self.bytes += u64::from(packets.get(id).size);
        match self.tail {
            NONE => self.head = id.0,
            tail => packets.next[tail as usize] = id.0,
        }
        self.tail = id.0;
    }

    #[inline]
    pub fn pop(&mut self, packets: &mut Packets) -> Option<PacketId> {
        let id = self.front()?;
        let packet = packets.get(id);
        self.bytes -= u64::from(packet.size);
        self.head = packets.next[id.index()];
        match self.front() {
            None => self.tail = NONE,
            // The next transmission needs it: 3 to 4 % with 1,024 hosts.
            Some(front) => packets.prepare(front),
        }
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_keep_order_and_slab_slots_are_reused() {
        let (mut packets, mut queue) = (Packets::new(), Fifo::EMPTY);
        for round in 0..3 {
            for psn in 0..4 {
                let data = Packet::new(Kind::Data { psn, sent: Time::ZERO }, 0, 0, 100 + psn, 3);
                queue.push(packets.add(data), &mut packets);
            }
            assert_eq!((queue.bytes(), packets.live()), (406, 4), "round {round}");
            for psn in 0..4 {
                let id = queue.pop(&mut packets).unwrap();
                assert_eq!(packets.get(id).kind(), Kind::Data { psn, sent: Time::ZERO });
                packets.remove(id);
            }
            assert!(queue.is_empty() && queue.pop(&mut packets).is_none());
        }
        assert_eq!(packets.slab.len(), 4);
    }

    #[test]
    fn a_packet_keeps_its_kind_priority_and_flags() {
        let kinds = [
            Kind::Data { psn: u32::MAX, sent: Time(1) },
            Kind::Ack { psn: 1, sent: Time::FAR },
            Kind::Nak { psn: 2, arrived: u32::MAX },
            Kind::Cnp,
            Kind::Frame,
            Kind::Pfc { enabled: 0xf1, paused: 0x80, quanta: u16::MAX },
        ];
        for kind in kinds {
            for priority in 0..8 {
                let packet = Packet::new(kind, 7, 8, 9, priority);
                assert_eq!((packet.kind(), packet.priority()), (kind, priority));
                assert!(packet.flags.is_empty());
            }
        }
        let mut packet = Packet::new(Kind::Cnp, 7, 8, 9, 6);
        packet.flags.set(Flags::MARKED, true);
        assert!(packet.has(Flags::MARKED) && !packet.has(Flags::all() - Flags::MARKED));
        for flag in [Flags::MARKED, Flags::RETRANSMITTED, Flags::TELEMETRY] {
            assert!(Flags::ECHOED.contains(flag));
        }
    }
}
