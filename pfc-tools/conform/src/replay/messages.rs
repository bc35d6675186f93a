//! Derives the messages of a lane from its request packets, which may be retransmitted and
//! reordered.

use std::collections::{BTreeMap, BTreeSet};

use feroce_engine::verbs::{RemoteAddr, SendOp};
use feroce_wire::{Operation, Packet, PathMtu, Position, Psn};

use super::lanes::{Captured, Lane, read_span};
use super::rig::Unplayable;

/// A PSN extended beyond 24 bits, relative to the first PSN of its lane.
pub type Place = i64;

/// Extends PSNs beyond 24 bits.
#[derive(Debug, Clone, Copy)]
pub struct Unwrap {
    last: Place,
    psn: Psn,
}

impl Unwrap {
    /// Starts with `first` at place 0.
    pub const fn new(first: Psn) -> Self {
        Self { last: 0, psn: first }
    }

    /// Returns the place of `psn` nearest to the previous one.
    pub fn place(&mut self, psn: Psn) -> Place {
        self.last += Place::from(psn.offset_from(self.psn));
        self.psn = psn;
        self.last
    }
}

/// The longest gap between messages that is filled, in packets.
pub const MAX_GAP: u32 = 4096;

/// A message: the work request that captured packets result from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Place of the first PSN.
    pub start: Place,
    /// Number of PSNs.
    pub psns: u32,
    /// Operation.
    pub op: SendOp,
    /// Payload; for a READ, zeros of the requested length.
    pub bytes: Vec<u8>,
    /// True if it requests a solicited event.
    pub solicited: bool,
    /// True if its last packet was captured.
    pub whole: bool,
    /// True if it only takes the place of packets that were not captured.
    pub is_filler: bool,
}

impl Message {
    /// Returns the place after its last one.
    pub fn end(&self) -> Place {
        self.start + Place::from(self.psns)
    }

    /// Adds a packet behind a gap in a WRITE, whose length is known.
    fn add_part(&mut self, place: Place, packet: &Packet<'_>, mtu: u32) {
        let is_part = packet.info.operation == Operation::Write
            && matches!(packet.info.position, Position::Middle | Position::Last);
        let SendOp::Write(remote) = self.op else { return };
        let Ok(step) = usize::try_from(place - self.start) else { return };
        let bytes = packet.payload.slices().concat();
        let at = step * mtu as usize;
        let Some(room) = self.bytes.get_mut(at..at + bytes.len()).filter(|_| is_part) else {
            return;
        };
        room.copy_from_slice(&bytes);
        if packet.info.position.ends_message() {
            self.whole = true;
            self.solicited = packet.bth.solicited;
            self.op = packet.ext.imm.map_or(self.op, |imm| SendOp::WriteImm(remote, imm.0));
        }
    }
}

/// The messages of a lane.
#[derive(Debug, Clone)]
pub struct Messages {
    /// Messages, in PSN order.
    pub list: Vec<Message>,
    /// PSN at place 0.
    pub first: Psn,
    /// Place of each request packet of the lane, in capture order.
    pub places: Vec<Place>,
    /// Bytes that READs and WRITEs announce, if they are too many: then there are no messages.
    excess: Option<u64>,
}

/// The most bytes that the READs and WRITEs of a lane may announce: lengths in packets are not
/// trusted, and a capture has at most 1 GiB.
const MOST_ANNOUNCED: u64 = 1 << 32;
/// The most bytes that READs may announce besides four times those in captured responses.
const MOST_UNANSWERED: u64 = 16 << 20;
/// The most bytes that WRITEs may announce besides four times those in captured packets: the
/// capture may end in a long WRITE.
const MOST_UNWRITTEN: u64 = 64 << 20;

/// Returns the bytes that READs and WRITEs announce, if they are too many.
fn excess(lane: &Lane, frames: &[Captured]) -> Option<u64> {
    let (mut reads, mut writes, mut answered, mut written) = (0, 0, 0, 0);
    for packet in lane.requests.iter().chain(&lane.responses).map(|&at| frames[at].packet()) {
        let announced = u64::from(packet.ext.reth.map_or(0, |reth| reth.dma_len));
        match packet.info.operation {
            Operation::ReadRequest => reads += announced,
            Operation::ReadResponse => answered += packet.payload.len() as u64,
            _ => {
                writes += announced;
                written += packet.payload.len() as u64;
            }
        }
    }
    let is_too_much = reads > 4 * answered + MOST_UNANSWERED
        || writes > 4 * written + MOST_UNWRITTEN
        || reads + writes > MOST_ANNOUNCED;
    is_too_much.then_some(reads + writes)
}

impl Messages {
    /// Derives the messages of `lane`.
    pub fn of(lane: &Lane, frames: &[Captured]) -> Self {
        let first = frames[lane.requests[0]].packet().bth.psn;
        let mut unwrap = Unwrap::new(first);
        let packets = lane.requests.iter().map(|&index| frames[index].packet());
        let places: Vec<Place> = packets.map(|packet| unwrap.place(packet.bth.psn)).collect();
        let mut by_place: BTreeMap<Place, usize> = BTreeMap::new();
        for (&place, &index) in places.iter().zip(&lane.requests) {
            by_place.entry(place).or_insert(index);
        }
        let excess = excess(lane, frames);
        if excess.is_some() {
            return Self { list: Vec::new(), first, places, excess };
        }
        let mtu = lane.mtu.bytes();
        let mut list: Vec<Message> = Vec::new();
        let mut pending: Option<(Place, Vec<Packet<'_>>)> = None;
        for (&place, &index) in &by_place {
            let packet = frames[index].packet();
            if let Some(last) = list.last_mut().filter(|last| place < last.end()) {
                // A part of a READ that was retransmitted, or of a WRITE behind a gap.
                last.add_part(place, &packet, mtu);
                continue;
            }
            if packet.info.position.starts_message() {
                close(&mut list, pending.take(), mtu);
                pending = Some((place, Vec::new()));
            }
            let Some((start, parts)) = &mut pending else { continue };
            if place != *start + parts.len() as Place {
                close(&mut list, pending.take(), mtu);
                continue;
            }
            parts.push(packet);
            if packet.info.position.ends_message() {
                close(&mut list, pending.take(), mtu);
            }
        }
        close(&mut list, pending, mtu);
        Self { list, first, places, excess }
    }

    /// Checks that the messages can be made.
    ///
    /// # Errors
    /// If they announce too many bytes.
    pub fn check(&self) -> Result<(), Unplayable> {
        let why =
            |bytes| format!("READs and WRITEs of {bytes} bytes, which the capture does not have");
        self.excess.map_or(Ok(()), |bytes| Err(Unplayable(why(bytes))))
    }

    /// Fills gaps between messages with SENDs: UC repeats no packet, so a packet that is not
    /// captured appears nowhere.
    pub fn fill_gaps(&mut self, mtu: PathMtu) {
        let gaps = self.list.windows(2).filter_map(|pair| {
            let start = pair[0].end();
            let psns = u32::try_from(pair[1].start - start).ok()?;
            (1..=MAX_GAP).contains(&psns).then(|| Message {
                start,
                psns,
                op: SendOp::Send,
                bytes: vec![0; ((psns - 1) * mtu.bytes() + 1) as usize],
                solicited: false,
                whole: false,
                is_filler: true,
            })
        });
        let fillers: Vec<Message> = gaps.collect();
        self.list.extend(fillers);
        self.list.sort_by_key(|message| message.start);
    }

    /// Returns true if requests overtook each other before the capture point: a request appears for
    /// the first time after a later one, and the packets after it are not retransmitted.
    pub fn are_reordered(&self) -> bool {
        let mut seen = BTreeSet::new();
        let mut highest = Place::MIN;
        let mut late = 0;
        for (at, &place) in self.places.iter().enumerate() {
            let is_read = |message: &&Message| matches!(message.op, SendOp::Read(_));
            let read = self.at(place).filter(is_read).map(Message::end);
            let end = read.unwrap_or(place + 1);
            let follows = self.places.get(at + 1).is_none_or(|&next| next == end);
            late += usize::from(seen.insert(place) && place < highest && !follows);
            highest = highest.max(place);
        }
        late > self.places.len() / 100
    }

    /// Returns the message that contains the place.
    pub fn at(&self, place: Place) -> Option<&Message> {
        let after = self.list.partition_point(|message| message.start <= place);
        let message = &self.list[after.checked_sub(1)?];
        (place < message.end()).then_some(message)
    }

    /// Returns the PSN at `place`.
    pub fn psn(&self, place: Place) -> Psn {
        let steps = place.rem_euclid(1 << 24);
        self.first.add(u32::try_from(steps).expect("below 2^24"))
    }
}

/// Builds a message from its packets.
fn close(list: &mut Vec<Message>, packets: Option<(Place, Vec<Packet<'_>>)>, mtu: u32) {
    let Some((start, packets)) = packets else { return };
    let (Some(first), Some(last)) = (packets.first(), packets.last()) else { return };
    let whole = last.info.position.ends_message();
    let mut bytes: Vec<u8> =
        packets.iter().flat_map(|packet| packet.payload.slices()).flatten().copied().collect();
    let mut psns = u32::try_from(packets.len()).expect("packets of one message");
    let length = first.ext.reth.map_or(0, |reth| reth.dma_len as usize);
    match first.info.operation {
        Operation::ReadRequest => {
            psns = read_span(first, mtu);
            bytes = vec![0; length];
        }
        Operation::CompareSwap | Operation::FetchAdd => bytes = vec![0; 8],
        Operation::Write if !whole => {
            // New zeros cost no memory until they are written.
            let known = std::mem::replace(&mut bytes, vec![0; length]);
            let count = known.len().min(length);
            bytes[..count].copy_from_slice(&known[..count]);
        }
        _ if !whole => bytes.push(0), // The last captured packet is then not the last one.
        _ => {}
    }
    if !whole {
        psns = u32::try_from(bytes.len()).unwrap_or(u32::MAX).div_ceil(mtu);
    }
    if let Some(op) = operation(first, last) {
        list.push(Message {
            start,
            psns,
            op,
            bytes,
            solicited: last.bth.solicited,
            whole,
            is_filler: false,
        });
    }
}

/// Returns the operation of the work request that begins with `first` and ends with `last`.
fn operation(first: &Packet<'_>, last: &Packet<'_>) -> Option<SendOp> {
    let reth = first.ext.reth.map(|reth| RemoteAddr { addr: reth.va, rkey: reth.rkey });
    let immediate = last.ext.imm.map(|imm| imm.0);
    Some(match (first.info.operation, first.ext.atomic_eth) {
        (Operation::Send, _) => match (immediate, last.ext.ieth) {
            (Some(immediate), _) => SendOp::SendImm(immediate),
            (None, Some(ieth)) => SendOp::SendInvalidate(ieth.rkey),
            (None, None) => SendOp::Send,
        },
        (Operation::Write, _) => match immediate {
            Some(immediate) => SendOp::WriteImm(reth?, immediate),
            None => SendOp::Write(reth?),
        },
        (Operation::ReadRequest, _) => SendOp::Read(reth?),
        (Operation::AtomicWrite, _) => SendOp::AtomicWrite(reth?),
        (Operation::CompareSwap, Some(eth)) => SendOp::CompareSwap {
            remote: RemoteAddr { addr: eth.va, rkey: eth.rkey },
            compare: eth.compare,
            swap: eth.swap_or_add,
        },
        (Operation::FetchAdd, Some(eth)) => SendOp::FetchAdd {
            remote: RemoteAddr { addr: eth.va, rkey: eth.rkey },
            add: eth.swap_or_add,
        },
        _ => return None,
    })
}

/// Returns true if the packet, which begins or ends a message, consumes a receive.
pub fn takes_receive(packet: &Packet<'_>) -> bool {
    match packet.info.operation {
        Operation::Send => packet.info.position.starts_message(),
        Operation::Write => packet.ext.imm.is_some(),
        _ => false,
    }
}

/// Returns true for the first or only packet of a message.
pub fn starts(packet: &Packet<'_>) -> bool {
    matches!(packet.info.position, Position::First | Position::Only)
}
