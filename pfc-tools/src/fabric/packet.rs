//! What travels: packets in a slab, and queues that link them.

use super::time::Time;

/// A packet's place in the slab.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PacketId(u32);

impl PacketId {
    /// The number of the place.
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
    Data { psn: u32 },
    /// Everything before `psn` has arrived.
    Ack { psn: u32 },
    /// A gap: `psn` is what the receiver waits for.
    Nak { psn: u32 },
    /// Congestion notification.
    Cnp,
    /// A real frame: what is in it is known outside.
    Frame,
    /// A PFC frame: of the priorities in `enabled` those in `paused` stop for `quanta`, the others go.
    Pfc { enabled: u8, paused: u8, quanta: u16 },
}

/// A packet, as far as the fabric cares.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))] // Never in two lines of the processor's cache.
pub(crate) struct Packet {
    pub kind: Kind,
    pub flow: u32,
    /// The host that it goes to.
    pub to: u32,
    /// What ECMP sees of its addresses and ports.
    pub entropy: u32,
    /// Bytes in buffers: the frame with its FCS.
    pub size: u32,
    /// When data was sent; an answer carries it back.
    pub sent: Time,
    pub priority: u8,
    /// It may be marked instead of dropped.
    pub ecn_capable: bool,
    /// It was marked on its way.
    pub marked: bool,
    /// Its sender waits for an acknowledgement (BTH's A bit).
    pub ack_requested: bool,
    /// Bits flipped on its way: the ICRC will tell.
    pub corrupted: bool,
    /// The port through which the switch that holds it got it.
    pub ingress: u16,
    next: u32,
}

impl Packet {
    /// A packet of `kind` for host `to`, unmarked.
    pub const fn new(kind: Kind, flow: u32, to: u32, size: u32, priority: u8) -> Self {
        Self {
            kind,
            flow,
            to,
            entropy: 0,
            size,
            sent: Time::ZERO,
            priority,
            ecn_capable: false,
            marked: false,
            ack_requested: false,
            corrupted: false,
            ingress: 0,
            next: NONE,
        }
    }
}

/// All packets of a run.
#[derive(Debug)]
pub(crate) struct Packets {
    slab: Vec<Packet>,
    free: u32,
    live: usize,
}

impl Packets {
    pub const fn new() -> Self {
        Self { slab: Vec::new(), free: NONE, live: 0 }
    }

    /// How many there are now.
    pub const fn live(&self) -> usize {
        self.live
    }

    #[inline]
    pub fn add(&mut self, packet: Packet) -> PacketId {
        self.live += 1;
        if self.free == NONE {
            let id = u32::try_from(self.slab.len()).expect("fewer than 2^32 packets at a time");
            self.slab.push(packet);
            return PacketId(id);
        }
        let id = self.free;
        let place = &mut self.slab[id as usize];
        self.free = place.next;
        *place = packet;
        PacketId(id)
    }

    #[inline]
    pub fn remove(&mut self, id: PacketId) {
        self.live -= 1;
        self.slab[id.0 as usize].next = self.free;
        self.free = id.0;
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

    /// Bytes of all packets in it.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The packet that is next.
    #[inline]
    pub fn front(&self) -> Option<PacketId> {
        (self.head != NONE).then_some(PacketId(self.head))
    }

    /// The packets in it, in order.
    pub fn iter<'a>(&self, packets: &'a Packets) -> impl Iterator<Item = &'a Packet> + 'a {
        let mut next = self.head;
        std::iter::from_fn(move || {
            let packet = packets.slab.get(next as usize)?;
            next = packet.next;
            Some(packet)
        })
    }

    #[inline]
    pub fn push(&mut self, id: PacketId, packets: &mut Packets) {
        let packet = packets.get_mut(id);
        packet.next = NONE;
        self.bytes += u64::from(packet.size);
        match self.tail {
            NONE => self.head = id.0,
            tail => packets.slab[tail as usize].next = id.0,
        }
        self.tail = id.0;
    }

    #[inline]
    pub fn pop(&mut self, packets: &mut Packets) -> Option<PacketId> {
        let id = self.front()?;
        let packet = packets.get(id);
        self.bytes -= u64::from(packet.size);
        self.head = packet.next;
        if self.head == NONE {
            self.tail = NONE;
        }
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_keep_order_and_bytes_and_places_are_used_again() {
        let (mut packets, mut queue) = (Packets::new(), Fifo::EMPTY);
        for round in 0..3 {
            for psn in 0..4 {
                let data = Packet::new(Kind::Data { psn }, 0, 0, 100 + psn, 3);
                queue.push(packets.add(data), &mut packets);
            }
            assert_eq!((queue.bytes(), packets.live()), (406, 4), "round {round}");
            for psn in 0..4 {
                let id = queue.pop(&mut packets).unwrap();
                assert_eq!(packets.get(id).kind, Kind::Data { psn });
                packets.remove(id);
            }
            assert!(queue.is_empty() && queue.pop(&mut packets).is_none());
        }
        assert_eq!(packets.slab.len(), 4);
    }
}
