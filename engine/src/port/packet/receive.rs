//! Frames in: short ones from the ring, long ones by one call per burst, super-frames shown as the packets that
//! they carry.
//!
//! ```text
//!  buffer    control message | spare (8 + 4) | kernel's header (10) | frame ...
//!  packet of a super-frame    first: its headers and the start of its segment, put together in a scratch place
//!                             second: the rest of the segment, where the kernel put it
//! ```
//! The spare bytes make room for a VLAN tag, which the kernel tells beside the frame.

use std::io;
use std::mem::zeroed;
use std::ptr;
use std::sync::Arc;

use super::ring::{Entry, Place, Ring};
use super::socket::{Pages, Sockets};
use super::vnet::{self, Headers, Kind, VNET_LEN};
use crate::port::contract::{RX_BURST, RxFrame};

pub(super) const TAG: usize = feroce_wire::VlanTag::LEN;
/// Ethernet addresses, behind which a tag goes.
const ADDRESSES: usize = 12;
/// Bytes of a segment that are shown with its headers: more than all transport headers together, and a multiple
/// of four, so that most payload is cut between words.
const SEGMENT_START: usize = 60;
/// Bytes of a scratch place.
const SCRATCH: usize = 128;
/// Room for what the kernel tells beside a frame: a control message with `struct tpacket_auxdata`.
pub(super) const CONTROL: usize = 64;
/// Where the kernel's header goes in a buffer: so that what is behind the headers of IPv4 and UDP begins a cache line, as it does in the
/// kernel's pages, and is copied fastest.
const VNET: usize = CONTROL + 8 + TAG;
/// Where the frame goes.
const FRAME: usize = VNET + VNET_LEN;

/// Memory that one receiver's buffers may take: they stay in the cache.
const BUFFERS: usize = 256 << 10;

/// Bursts for which a mark waits for its frame, or a frame for its mark: what does not come at once was lost, as the
/// ring and the queue overflow each for itself.
const PATIENCE: u32 = 64;
/// Bursts without a frame after which the queue is looked into: frames whose marks were lost may be all that it has.
const LOOK_AGAIN: u32 = 1024;

/// The two places where frames lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Memory {
    Ring,
    Pages,
}

/// Some bytes.
#[derive(Debug, Clone, Copy)]
struct Part {
    memory: Memory,
    at: usize,
    len: usize,
}

/// A frame of the burst.
#[derive(Debug, Clone, Copy)]
struct Shown {
    first: Part,
    second: Part,
}

/// A super-frame of which some packets were not shown yet.
#[derive(Debug, Clone, Copy)]
struct Rest {
    frame: Part,
    headers: Headers,
    segment: usize,
    /// Number of the next packet.
    next: usize,
}

/// Where the kernel writes messages to.
#[derive(Debug)]
struct Vectors {
    /// The buffers. The messages point here.
    _parts: Vec<libc::iovec>,
    messages: Vec<libc::mmsghdr>,
}

// SAFETY: the addresses within are those of memory that belongs to the same receiver and does not move.
unsafe impl Send for Vectors {}

/// The receive side of one core.
#[derive(Debug)]
pub(super) struct Receiver {
    sockets: Arc<Sockets>,
    ring: Ring,
    /// Bursts for which a mark has waited for its frame, or a frame for its mark.
    waited: u32,
    /// Bursts without a frame.
    empty: u32,
    /// Marks were lost: the queue has frames that no mark tells of, until it was seen empty.
    unmarked: bool,
    /// A scratch place for each frame of a burst, then the buffers.
    pages: Pages,
    stride: usize,
    vectors: Vectors,
    /// Messages received, and how many of them were looked at.
    received: usize,
    looked_at: usize,
    /// Messages to be shown whatever the ring says.
    due: usize,
    rest: Option<Rest>,
    shown: Vec<Shown>,
    /// Of what is shown.
    bytes: u64,
    /// Frames that could not be taken though they had arrived.
    pub refused: u64,
}

impl Receiver {
    /// A receiver of frames up to `frame_max` bytes.
    pub fn new(sockets: Arc<Sockets>, rx_slots: usize, frame_max: usize) -> io::Result<Self> {
        // An odd number of cache lines, so that buffers do not all begin in the same sets.
        let stride = ((FRAME + frame_max).div_ceil(64) | 1) * 64;
        let count = (BUFFERS / stride).clamp(4, RX_BURST);
        let pages = Pages::map(RX_BURST * SCRATCH + count * stride)?;
        let buffer = |index: usize| RX_BURST * SCRATCH + index * stride;
        let part = |index: usize| libc::iovec {
            iov_base: pages.address(buffer(index) + VNET).cast(),
            iov_len: VNET_LEN + frame_max,
        };
        let mut parts: Vec<_> = (0..count).map(part).collect();
        let message = |(index, part): (usize, &mut libc::iovec)| {
            // SAFETY: `mmsghdr` is plain data for which all zeros is a value.
            let mut message: libc::mmsghdr = unsafe { zeroed() };
            message.msg_hdr.msg_iov = part;
            message.msg_hdr.msg_iovlen = 1;
            message.msg_hdr.msg_control = pages.address(buffer(index)).cast();
            message.msg_hdr.msg_controllen = CONTROL as _;
            message
        };
        let messages = parts.iter_mut().enumerate().map(message).collect();
        Ok(Self {
            ring: Ring::map(&sockets, rx_slots)?,
            sockets,
            waited: 0,
            empty: 0,
            unmarked: false,
            due: 0,
            bytes: 0,
            vectors: Vectors { _parts: parts, messages },
            pages,
            stride,
            received: 0,
            looked_at: 0,
            rest: None,
            shown: Vec::with_capacity(RX_BURST),
            refused: 0,
        })
    }

    /// Takes the next burst; how many frames it has, and their bytes.
    pub fn burst(&mut self) -> (usize, u64) {
        self.shown.clear();
        self.bytes = 0;
        self.ring.give_back();
        // Nothing is shown of the buffers, so they may be written anew if all was looked at.
        let mut may_receive = self.rest.is_none() && !self.has_messages();
        while self.shown.len() < RX_BURST && self.show_one(&mut may_receive) {}
        match self.shown.is_empty() {
            true => self.empty += 1,
            false => self.empty = 0,
        }
        if self.empty >= LOOK_AGAIN {
            (self.empty, self.unmarked) = (0, true);
        }
        (self.shown.len(), self.bytes)
    }

    /// Goes on with what is next; false if that has to wait for another burst.
    fn show_one(&mut self, may_receive: &mut bool) -> bool {
        if self.rest.is_some() {
            self.show_rest();
            return true;
        }
        if self.looked_at < self.due {
            self.look_at_next();
            return true;
        }
        match self.ring.peek() {
            Some(Entry::Short(place)) => {
                self.look_at_short(place);
                true
            }
            Some(Entry::Mark(mark)) if self.has_messages() => {
                self.ring.advance();
                self.waited = 0;
                match self.find(mark) {
                    // Those ahead of it have lost their marks, or come in another order than these.
                    Some(index) => self.due = index + 1,
                    // Of a frame that was lost, or was shown ahead of its mark.
                    None => self.unmarked = true,
                }
                true
            }
            Some(Entry::Mark(_)) => {
                if std::mem::take(may_receive) && self.receive() {
                    return true;
                }
                let lost = self.is_out_of_patience();
                if lost {
                    self.ring.advance();
                }
                lost
            }
            None if self.has_messages() => {
                // The kernel is about to write the mark, or had no room for it.
                if self.unmarked || self.is_out_of_patience() {
                    (self.due, self.unmarked) = (self.received, true);
                }
                self.looked_at < self.due
            }
            None if self.unmarked && std::mem::take(may_receive) => {
                self.unmarked = self.receive();
                self.unmarked
            }
            None => false,
        }
    }

    fn is_out_of_patience(&mut self) -> bool {
        self.waited = (self.waited + 1) % PATIENCE;
        self.waited == 0
    }

    /// Looks for frames that no mark tells of, ahead of a sleep; true if there are some.
    pub fn look_again(&mut self) -> bool {
        if !self.is_readable() && self.receive() {
            self.unmarked = true;
        }
        self.is_readable()
    }

    /// Messages that were received and not looked at.
    fn has_messages(&self) -> bool {
        self.looked_at < self.received
    }

    /// Frame `index` of the burst.
    pub fn frame(&self, index: usize) -> RxFrame<'_> {
        let Shown { first, second } = self.shown[index];
        RxFrame { first: self.get(first), second: self.get(second) }
    }

    fn get(&self, Part { memory, at, len }: Part) -> &[u8] {
        match memory {
            Memory::Ring => self.ring.get(at, len),
            Memory::Pages => self.pages.get(at, len),
        }
    }

    /// How many of the ring's slots, in per cent, have frames that wait, or marks of such.
    pub fn rx_fill(&self) -> u8 {
        self.ring.fill()
    }

    /// Whether a burst would have frames.
    pub fn is_readable(&self) -> bool {
        self.rest.is_some() || self.has_messages() || self.ring.peek().is_some()
    }

    /// Shows a frame that is in the ring, or begins with it if it is a super-frame.
    fn look_at_short(&mut self, Place { at, len, tag, kind }: Place) {
        let frame = Part { memory: Memory::Ring, at, len };
        if !self.begin(frame, tag, kind) {
            self.ring.advance();
        }
    }

    /// Shows a frame, or begins with it if it is a super-frame: then it stays until the rest of it was shown.
    fn begin(&mut self, mut frame: Part, tag: Option<[u16; 2]>, kind: Option<Kind>) -> bool {
        let (Some(kind), true) = (kind, frame.len > ADDRESSES) else {
            self.refused += 1;
            return false;
        };
        if let Some(tag) = tag {
            frame = Part { at: frame.at - TAG, len: frame.len + TAG, ..frame };
            insert_tag(self.get_mut(frame.memory, frame.at, TAG + ADDRESSES), tag);
        }
        match kind {
            Kind::Plain => self.show(frame, Part { len: 0, ..frame }),
            Kind::Super(segment) => match Headers::find(self.get(frame)) {
                Some(headers) if headers.can_be_cut(frame.len, segment) => {
                    self.rest = Some(Rest { frame, headers, segment, next: 0 });
                    return true;
                }
                _ => self.refused += 1,
            },
        }
        false
    }

    fn get_mut(&mut self, memory: Memory, at: usize, len: usize) -> &mut [u8] {
        match memory {
            Memory::Ring => self.ring.get_mut(at, len),
            Memory::Pages => self.pages.get_mut(at, len),
        }
    }

    fn show(&mut self, first: Part, second: Part) {
        self.shown.push(Shown { first, second });
        self.bytes += (first.len + second.len) as u64;
    }

    /// The message that `mark` is the beginning of, of those that were not looked at.
    fn find(&self, mark: Place) -> Option<usize> {
        let beginning = self.ring.get(mark.at, mark.len);
        (self.looked_at..self.received)
            .find(|&index| self.pages.get(self.buffer(index) + FRAME, mark.len) == beginning)
    }

    fn buffer(&self, index: usize) -> usize {
        RX_BURST * SCRATCH + index * self.stride
    }

    /// Fills the buffers; false if nothing is there.
    fn receive(&mut self) -> bool {
        for message in &mut self.vectors.messages[..self.received] {
            message.msg_hdr.msg_controllen = CONTROL as _;
        }
        (self.received, self.looked_at, self.due) = (0, 0, 0);
        // SAFETY: the messages point at the buffers, of which nothing is shown.
        match unsafe { self.sockets.queue.receive(&mut self.vectors.messages) } {
            Ok(count) => self.received = count,
            // Nothing there; or the interface went down, which shows when something is sent.
            Err(_) => return false,
        }
        self.received > 0
    }

    /// Shows the next message, or begins with it if it is a super-frame.
    fn look_at_next(&mut self) {
        let buffer = self.buffer(self.looked_at);
        let message = &self.vectors.messages[self.looked_at];
        self.looked_at += 1;
        let len = usize::try_from(message.msg_len).expect("a frame").saturating_sub(VNET_LEN);
        // SAFETY: the kernel has filled this message, whose control message lies in the pages.
        let tag = unsafe { tag(&message.msg_hdr) };
        let whole = message.msg_hdr.msg_flags & libc::MSG_TRUNC == 0;
        let kind = vnet::kind(self.pages.get(buffer + VNET, VNET_LEN));
        let frame = Part { memory: Memory::Pages, at: buffer + FRAME, len };
        self.begin(frame, tag, kind.filter(|_| whole));
    }

    /// Shows the next packet of a super-frame.
    fn show_rest(&mut self) {
        let Some(Rest { frame, headers, segment, next }) = self.rest else { return };
        let at = headers.len() + next * segment;
        let bytes = segment.min(frame.len - at);
        let start = bytes.min(SEGMENT_START);
        let scratch = self.shown.len() * SCRATCH;
        let head = Part { len: headers.len(), ..frame };
        let front = Part { at: frame.at + at, len: start, ..frame };
        for (part, to) in [(head, scratch), (front, scratch + headers.len())] {
            match part.memory {
                Memory::Pages => self.pages.copy(part.at, to, part.len),
                Memory::Ring => {
                    let from = self.ring.get(part.at, part.len);
                    self.pages.get_mut(to, part.len).copy_from_slice(from);
                }
            }
        }
        let place = self.pages.get_mut(scratch, headers.len());
        let number = u16::try_from(next).expect("few segments");
        // Counted modulo 2^16, as the sender did.
        let identification = headers.identification(place).wrapping_add(number);
        headers.set(place, bytes, identification);
        let first = Part { memory: Memory::Pages, at: scratch, len: headers.len() + start };
        self.show(first, Part { at: front.at + start, len: bytes - start, ..frame });
        let more = at + bytes < frame.len;
        self.rest = more.then_some(Rest { frame, headers, segment, next: next + 1 });
        if !more && frame.memory == Memory::Ring {
            self.ring.advance();
        }
    }
}

/// Moves the Ethernet addresses, which are behind room for a tag, to the front, and puts the tag behind them.
pub(super) fn insert_tag(bytes: &mut [u8], [kind, tag]: [u16; 2]) {
    bytes.copy_within(TAG.., 0);
    bytes[ADDRESSES..ADDRESSES + 2].copy_from_slice(&kind.to_be_bytes());
    bytes[ADDRESSES + 2..].copy_from_slice(&tag.to_be_bytes());
}

/// EtherType of the VLAN tag that the kernel took off, and the tag.
///
/// # Safety
/// The header is as the kernel left it, and what it points at is still there.
pub(super) unsafe fn tag(header: &libc::msghdr) -> Option<[u16; 2]> {
    let kind = (libc::SOL_PACKET, libc::PACKET_AUXDATA);
    // SAFETY: as the caller promises; such a message holds that structure.
    let auxiliary = unsafe { told::<libc::tpacket_auxdata>(header, kind) }?;
    let has = |flag| auxiliary.tp_status & flag != 0;
    if !has(libc::TP_STATUS_VLAN_VALID) {
        return None;
    }
    let kind = match has(libc::TP_STATUS_VLAN_TPID_VALID) {
        true => auxiliary.tp_vlan_tpid,
        false => 0x8100,
    };
    Some([kind, auxiliary.tp_vlan_tci])
}

/// What the kernel tells beside a frame in a control message of this level and type.
///
/// # Safety
/// The header is as the kernel left it, what it points at is still there, and messages of this type hold a `T`.
pub(super) unsafe fn told<T: Copy>(
    header: &libc::msghdr,
    kind: (libc::c_int, libc::c_int),
) -> Option<T> {
    // SAFETY: as the caller promises; the kernel writes whole control messages.
    unsafe {
        let mut control = libc::CMSG_FIRSTHDR(header);
        while let Some(head) = control.as_ref() {
            if (head.cmsg_level, head.cmsg_type) == kind {
                return Some(ptr::read_unaligned(libc::CMSG_DATA(control).cast()));
            }
            control = libc::CMSG_NXTHDR(header, control);
        }
    }
    None
}
