//! The receive side. Short frames come from the ring without a system call, long frames with one
//! system call per burst. A super-frame is shown as the packets that it carries.
//!
//! ```text
//!  buffer    control message | spare (8 + 4) | virtio_net_hdr (10) | frame ...
//!  packet of a super-frame    first: its headers and the start of its segment, in a scratch buffer
//!                             second: the rest of the segment, where the kernel wrote it
//! ```
//! The spare bytes make room for a VLAN tag, which the kernel reports in the control message.

use std::io;
use std::mem::zeroed;
use std::sync::Arc;

use super::ring::{Entry, Place, Ring};
use super::socket::Sockets;
use super::vnet::{self, Kind, VNET_LEN};
use crate::port::contract::{RX_BURST, RxFrame};
use crate::port::headers::Headers;
use crate::port::pages::Pages;
use crate::port::socket::control_message;

pub(super) const TAG: usize = feroce_wire::VlanTag::LEN;
/// Bytes of the Ethernet addresses; a VLAN tag follows them.
const ADDRESSES: usize = 12;
/// Bytes of a segment that are shown with its headers. More than all transport headers together,
/// and a multiple of four, so that most payload is split between words.
const SEGMENT_START: usize = 60;
/// Bytes of a scratch buffer.
const SCRATCH: usize = 128;
/// Bytes for the control message of a frame, which holds a `struct tpacket_auxdata`.
pub(super) const CONTROL: usize = 64;
/// Offset of the virtio_net_hdr in a buffer. With this offset the bytes after the IPv4 and UDP
/// headers begin a cache line, as they do in the kernel's pages; then the kernel copies fastest.
const VNET: usize = CONTROL + 8 + TAG;
/// Offset of the frame in a buffer.
const FRAME: usize = VNET + VNET_LEN;

/// Bytes that one call receives, so that they stay in the cache, unless frames become longer.
const CACHED: usize = 256 << 10;
/// Frames that one call receives at least.
const LEAST_FRAMES: usize = 4;
/// Maximum bytes of the buffers of one receiver. The kernel touches of a buffer what a frame needs.
const BUFFERS: usize = 1 << 20;

/// Bursts for which a placeholder waits for its frame, or a frame for its placeholder, before the
/// missing one counts as lost. Ring and queue overflow independently.
const PAIR_WAIT_MAX: u32 = 64;
/// Empty bursts after which the queue is read without a placeholder. The queue may hold only frames
/// whose placeholders were lost.
const EMPTY_BURSTS_MAX: u32 = 1024;

/// The memory that holds a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Memory {
    Ring,
    Pages,
}

/// A range of bytes.
#[derive(Debug, Clone, Copy)]
struct Part {
    memory: Memory,
    at: usize,
    len: usize,
}

/// A frame of the present burst.
#[derive(Debug, Clone, Copy)]
struct Shown {
    first: Part,
    second: Part,
}

/// A super-frame with packets that were not shown yet.
#[derive(Debug, Clone, Copy)]
struct Rest {
    frame: Part,
    headers: Headers,
    segment: usize,
    /// Index of the next packet.
    next: usize,
}

/// Descriptors of the buffers into which the kernel writes messages.
#[derive(Debug)]
struct Vectors {
    /// The buffers; the messages point to these entries.
    _parts: Vec<libc::iovec>,
    messages: Vec<libc::mmsghdr>,
}

// SAFETY: the addresses point to memory that belongs to the same receiver and does not move.
unsafe impl Send for Vectors {}

/// The receive side of one core.
#[derive(Debug)]
pub(super) struct Receiver {
    sockets: Arc<Sockets>,
    ring: Ring,
    /// Bursts for which a placeholder has waited for its frame, or a frame for its placeholder,
    /// modulo [`PAIR_WAIT_MAX`].
    waited: u32,
    /// Consecutive bursts without a frame.
    empty: u32,
    /// True if placeholders were lost, so that the queue may hold frames without one. Becomes false
    /// when the queue is empty.
    reads_unannounced: bool,
    /// True after a burst as long as one can be. The ring may have been full, and then the queue
    /// may hold frames whose placeholders were lost.
    is_unchecked: bool,
    /// One scratch buffer for each frame of a burst, then the receive buffers.
    pages: Pages,
    stride: usize,
    vectors: Vectors,
    /// Frames that the next call receives at most. Single frames are shorter than the buffers,
    /// which hold super-frames: a call receives more of them.
    most: usize,
    /// Messages received from the queue, and how many of them were processed.
    received: usize,
    processed: usize,
    /// Messages before this index are shown although their placeholders have not been read.
    due: usize,
    rest: Option<Rest>,
    shown: Vec<Shown>,
    /// Bytes of the present burst.
    bytes: u64,
    /// Frames that arrived in a form that this port cannot take.
    pub refused: u64,
}

impl Receiver {
    /// Creates a receiver for frames of up to `frame_max` bytes.
    pub fn new(sockets: Arc<Sockets>, rx_slots: usize, frame_max: usize) -> io::Result<Self> {
        // An odd number of cache lines, so that buffers do not all start in the same cache sets.
        let stride = ((FRAME + frame_max).div_ceil(64) | 1) * 64;
        let count = (BUFFERS / stride).clamp(LEAST_FRAMES, RX_BURST);
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
            reads_unannounced: false,
            is_unchecked: false,
            due: 0,
            bytes: 0,
            vectors: Vectors { _parts: parts, messages },
            pages,
            stride,
            most: LEAST_FRAMES,
            received: 0,
            processed: 0,
            rest: None,
            shown: Vec::with_capacity(RX_BURST),
            refused: 0,
        })
    }

    /// Takes the next burst. Returns the number of its frames and of their bytes.
    pub fn burst(&mut self) -> (usize, u64) {
        self.shown.clear();
        self.bytes = 0;
        self.ring.give_back();
        if self.empty >= EMPTY_BURSTS_MAX {
            (self.empty, self.reads_unannounced) = (0, true);
        }
        // No frame in the buffers is shown any more, so they may be overwritten once all messages
        // were processed.
        let mut may_receive = self.rest.is_none() && !self.has_messages();
        while self.shown.len() < RX_BURST && self.show_one(&mut may_receive) {}
        self.is_unchecked |= self.shown.len() == RX_BURST;
        match self.shown.is_empty() {
            true => self.empty += 1,
            false => self.empty = 0,
        }
        (self.shown.len(), self.bytes)
    }

    /// Processes the next frame or placeholder. Returns false if nothing more can be processed in
    /// this burst.
    fn show_one(&mut self, may_receive: &mut bool) -> bool {
        if self.rest.is_some() {
            self.show_rest();
            return true;
        }
        if self.processed < self.due {
            self.process_message();
            return true;
        }
        match self.ring.peek() {
            Some(Entry::Short(place)) => {
                self.process_short(place);
                true
            }
            Some(Entry::Placeholder(placeholder)) if self.has_messages() => {
                self.ring.advance();
                self.waited = 0;
                match self.find(placeholder) {
                    // Placeholders of earlier messages were lost, or arrive in a different order.
                    Some(index) => self.due = index + 1,
                    // The frame of this placeholder was lost, or was shown before its placeholder.
                    None => self.reads_unannounced = true,
                }
                true
            }
            Some(Entry::Placeholder(_)) => {
                if std::mem::take(may_receive) && self.receive() {
                    return true;
                }
                let lost = self.has_waited_enough();
                if lost {
                    self.ring.advance();
                }
                lost
            }
            None if self.has_messages() => {
                // The kernel will write the placeholder soon, or had no room for it.
                if self.reads_unannounced || self.has_waited_enough() {
                    (self.due, self.reads_unannounced) = (self.received, true);
                }
                self.processed < self.due
            }
            None if self.reads_unannounced && std::mem::take(may_receive) => {
                self.reads_unannounced = self.receive();
                self.reads_unannounced
            }
            None => false,
        }
    }

    /// Counts a burst of waiting. Returns true if the wait has lasted [`PAIR_WAIT_MAX`] bursts.
    fn has_waited_enough(&mut self) -> bool {
        self.waited = (self.waited + 1) % PAIR_WAIT_MAX;
        self.waited == 0
    }

    /// Returns true if there may be frames that the descriptor of the ring does not announce.
    pub fn is_unfinished(&self) -> bool {
        self.is_readable() || self.reads_unannounced || self.is_unchecked
    }

    /// Reads the queue for frames without a placeholder before the core sleeps. Returns true if the
    /// next burst has frames.
    pub fn recheck_queue(&mut self) -> bool {
        self.is_unchecked = false;
        if !self.is_readable() {
            self.reads_unannounced = self.receive();
        }
        self.is_readable()
    }

    /// Returns true if some received messages were not processed.
    fn has_messages(&self) -> bool {
        self.processed < self.received
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

    /// Percentage of the ring's slots that hold waiting frames or their placeholders.
    pub fn rx_fill(&self) -> u8 {
        self.ring.fill()
    }

    /// Returns true if a burst would have frames.
    pub fn is_readable(&self) -> bool {
        self.rest.is_some() || self.has_messages() || self.ring.peek().is_some()
    }

    /// Shows a frame that is in the ring, or starts to show its packets if it is a super-frame.
    fn process_short(&mut self, Place { at, len, tag, kind }: Place) {
        let frame = Part { memory: Memory::Ring, at, len };
        if !self.begin(frame, tag, kind) {
            self.ring.advance();
        }
    }

    /// Shows a frame. For a super-frame, only prepares to show its packets and returns true; its
    /// memory stays in use until all packets were shown.
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

    /// The first unprocessed message that begins with the bytes of `placeholder`.
    fn find(&self, placeholder: Place) -> Option<usize> {
        let beginning = self.ring.get(placeholder.at, placeholder.len);
        (self.processed..self.received)
            .find(|&index| self.pages.get(self.buffer(index) + FRAME, placeholder.len) == beginning)
    }

    fn buffer(&self, index: usize) -> usize {
        RX_BURST * SCRATCH + index * self.stride
    }

    /// Receives messages from the queue into the buffers. Returns false if there are none.
    fn receive(&mut self) -> bool {
        for message in &mut self.vectors.messages[..self.received] {
            message.msg_hdr.msg_controllen = CONTROL as _;
        }
        (self.received, self.processed, self.due) = (0, 0, 0);
        let messages = &mut self.vectors.messages;
        // SAFETY: the messages point to the buffers, and no frame in a buffer is shown.
        match unsafe { self.sockets.queue.receive(&mut messages[..self.most]) } {
            Ok(count) => self.received = count,
            // The queue is empty, or the interface is down; the next send reports the latter.
            Err(_) => return false,
        }
        let lengths = messages[..self.received].iter().map(|message| message.msg_len as usize);
        let Some(longest) = lengths.max() else { return false };
        self.most = (CACHED / longest.max(1)).clamp(LEAST_FRAMES, messages.len());
        true
    }

    /// Shows the next message, or starts to show its packets if it is a super-frame.
    fn process_message(&mut self) {
        let buffer = self.buffer(self.processed);
        let message = &self.vectors.messages[self.processed];
        self.processed += 1;
        let len = usize::try_from(message.msg_len).expect("a frame").saturating_sub(VNET_LEN);
        // SAFETY: the kernel filled this message, and its control message is in the pages.
        let tag = unsafe { tag(&message.msg_hdr) };
        let whole = message.msg_hdr.msg_flags & libc::MSG_TRUNC == 0;
        let kind = vnet::kind(self.pages.get(buffer + VNET, VNET_LEN));
        let frame = Part { memory: Memory::Pages, at: buffer + FRAME, len };
        self.begin(frame, tag, kind.filter(|_| whole));
    }

    /// Shows the next packet of the super-frame in `rest`.
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
        // Counts modulo 2^16, as the sender does.
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

/// Inserts a VLAN tag: moves the Ethernet addresses from after the room for a tag to the front, and
/// writes the tag after them.
pub(super) fn insert_tag(bytes: &mut [u8], [kind, tag]: [u16; 2]) {
    bytes.copy_within(TAG.., 0);
    bytes[ADDRESSES..ADDRESSES + 2].copy_from_slice(&kind.to_be_bytes());
    bytes[ADDRESSES + 2..].copy_from_slice(&tag.to_be_bytes());
}

/// EtherType and value of the VLAN tag that the kernel stripped.
///
/// # Safety
/// The kernel filled the header, and the memory that the header points to is still valid.
pub(super) unsafe fn tag(header: &libc::msghdr) -> Option<[u16; 2]> {
    let kind = (libc::SOL_PACKET, libc::PACKET_AUXDATA);
    // SAFETY: the caller guarantees the header; a message of this type holds this structure.
    let auxiliary = unsafe { control_message::<libc::tpacket_auxdata>(header, kind) }?;
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
