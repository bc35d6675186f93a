//! The transmit side. Packets are written into slots, combined into super-frames where possible,
//! and sent with one system call per burst.
//!
//! A slot holds a packet, with room for the virtio_net_hdr before it. A message is one frame for
//! the kernel: a slot, or several slots whose bytes the kernel gathers. The first slot of a message
//! contributes its headers, the others only their segments.

use std::io;
use std::mem::zeroed;
use std::sync::Arc;

use super::socket::Sockets;
use super::vnet::{VNET_LEN, widen};
use crate::port::headers::Headers;
use crate::port::pages::Pages;

/// Bytes before a frame in its slot. The virtio_net_hdr ends where the frame begins.
const AHEAD: usize = 64;
/// Bytes of a cache line. The kernel copies fastest if source and destination have the same offset
/// in their cache lines.
const CACHE_LINE: usize = 64;
/// Messages per system call.
const BATCH: usize = 64;

/// One frame for the kernel.
#[derive(Debug, Clone, Copy)]
struct Message {
    /// First slot; the other slots follow it.
    slot: usize,
    slots: usize,
    /// Bytes of the frame.
    len: usize,
    /// Format of a super-frame; `None` for a single packet.
    segments: Option<Segments>,
    /// True if the last segment is shorter than the others, so that no segment can follow.
    closed: bool,
}

impl Message {
    /// Returns true if one more segment may follow, with at most `most` segments in all.
    fn is_open(&self, most: usize) -> bool {
        !self.closed && self.slots < most
    }

    /// Returns true if a further segment of `len` bytes fits.
    fn has_room_for(&self, len: usize, most: usize) -> bool {
        let fits = |Segments { headers, .. }: Segments| {
            self.len - headers.len() + len <= headers.segments_max()
        };
        self.is_open(most) && self.segments.is_none_or(fits)
    }
}

/// Properties common to all segments of a super-frame.
#[derive(Debug, Clone, Copy)]
struct Segments {
    headers: Headers,
    /// Bytes of each segment but the last.
    len: u16,
}

/// Descriptors of messages for the kernel.
#[derive(Debug)]
struct Vectors {
    parts: Vec<libc::iovec>,
    messages: Vec<libc::mmsghdr>,
}

// SAFETY: the addresses are used only during a call, which writes them first.
unsafe impl Send for Vectors {}

/// The transmit side of one core.
#[derive(Debug)]
pub(super) struct Transmitter {
    sockets: Arc<Sockets>,
    pages: Pages,
    frame_max: usize,
    stride: usize,
    slots: usize,
    /// Number of slots in use, counted from the first.
    used: usize,
    taken: bool,
    /// Offset in `pages` of the frame of each slot.
    frames: Vec<usize>,
    /// Bytes of the headers through UDP of the last super-frame; the next one probably has as many.
    headers: usize,
    queued: Vec<Message>,
    /// Number of queued messages that were sent.
    sent: usize,
    segments_max: usize,
    /// True if the kernel had no room for the rest of the queued messages.
    backlog: bool,
    /// True if the kernel took messages since the last call of [`Transmitter::moved`].
    moved: bool,
    vectors: Vectors,
    /// Packets that the kernel refused.
    pub dropped: u64,
}

impl Transmitter {
    pub fn new(
        sockets: Arc<Sockets>,
        slots: usize,
        frame_max: usize,
        segments_max: usize,
    ) -> io::Result<Self> {
        // An odd number of cache lines, so that slots do not all start in the same cache sets.
        let lines = (AHEAD + CACHE_LINE + frame_max).div_ceil(CACHE_LINE) | 1;
        let stride = lines * CACHE_LINE;
        Ok(Self {
            sockets,
            pages: Pages::map(slots * stride)?,
            frame_max,
            stride,
            slots,
            used: 0,
            taken: false,
            frames: vec![AHEAD; slots],
            headers: 0,
            queued: Vec::with_capacity(slots),
            sent: 0,
            segments_max,
            backlog: false,
            moved: false,
            vectors: Vectors {
                parts: Vec::with_capacity(slots),
                messages: Vec::with_capacity(BATCH),
            },
            dropped: 0,
        })
    }

    /// Number of slots that can be taken.
    pub fn room(&self) -> usize {
        self.slots - self.used
    }

    /// Returns true if the kernel took messages since the last call. Slots are free again only when
    /// the kernel has taken all messages.
    pub fn moved(&mut self) -> bool {
        std::mem::take(&mut self.moved)
    }

    /// The next slot to write.
    pub fn slot(&mut self) -> Option<&mut [u8]> {
        self.taken = self.used < self.slots;
        self.taken.then(|| {
            let at = self.used * self.stride + AHEAD + self.alignment();
            self.frames[self.used] = at;
            self.pages.get_mut(at, self.frame_max)
        })
    }

    /// Offset of the next frame in its slot that gives its segment the same offset in the cache
    /// line as in the kernel's pages. These pages begin with the first byte after the headers of
    /// the super-frame that the frame probably becomes a segment of.
    fn alignment(&self) -> usize {
        let last = self.queued[self.sent..].last();
        let ahead = last.map_or(0, |last| match last.segments {
            Some(segments) if last.has_room_for(segments.len.into(), self.segments_max) => {
                last.len - segments.headers.len()
            }
            Some(_) => 0,
            None => last.len.saturating_sub(self.headers),
        });
        ahead.wrapping_sub(self.headers) % CACHE_LINE
    }

    /// Queues the slot taken last as a frame of its own.
    pub fn commit(&mut self, len: usize) {
        self.take(len);
        let slot = self.used - 1;
        let message = Message { slot, slots: 1, len, segments: None, closed: false };
        self.queued.push(message);
    }

    /// Queues the slot taken last, as a further segment of the last frame if possible.
    pub fn join(&mut self, len: usize) {
        match self.grown(len) {
            Some(grown) => {
                self.take(len);
                *self.queued.last_mut().expect("it was there before it grew") = grown;
            }
            None => self.commit(len),
        }
    }

    fn take(&mut self, len: usize) {
        assert!(std::mem::take(&mut self.taken), "commit without a slot");
        assert!(len <= self.frame_max, "commit of {len} bytes in a slot of {}", self.frame_max);
        self.used += 1;
    }

    /// The last queued message with the slot taken last as a further segment; `None` if it cannot
    /// be a segment of this message.
    fn grown(&mut self, len: usize) -> Option<Message> {
        let mut last =
            *self.queued[self.sent..].last().filter(|last| last.is_open(self.segments_max))?;
        let segments = match last.segments {
            Some(segments) => segments,
            None => {
                let first = self.pages.get(self.frames[last.slot], last.len);
                let headers = Headers::find(first)?;
                self.headers = headers.len();
                Segments { headers, len: u16::try_from(last.len - headers.len()).ok()? }
            }
        };
        last.segments = Some(segments);
        let frame = self.pages.get(self.frames[self.used], len);
        if Headers::find(frame) != Some(segments.headers) {
            return None;
        }
        let (added, longest) = (len - segments.headers.len(), usize::from(segments.len));
        let fits = (1..=longest).contains(&added) && last.has_room_for(added, self.segments_max);
        fits.then_some(Message {
            slots: last.slots + 1,
            len: last.len + added,
            closed: added < longest,
            ..last
        })
    }

    /// Sends the committed frames.
    ///
    /// # Errors
    /// The interface is down or gone, and the frames are lost. Or the kernel refuses one frame.
    pub fn flush(&mut self) -> io::Result<()> {
        let mut failed = Ok(());
        let mut link_failed = false;
        self.backlog = false;
        while self.sent < self.queued.len() {
            let error = match self.send_batch() {
                Ok(count) => {
                    self.sent += count;
                    self.moved = true;
                    continue;
                }
                Err(error) => error,
            };
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EAGAIN) => {
                    self.backlog = true;
                    return failed;
                }
                // The first error may be an old one that a link left when it went down.
                Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => {
                    if std::mem::replace(&mut link_failed, true) {
                        self.give_up(self.queued.len() - self.sent);
                        failed = Err(error);
                    }
                }
                // The queue of the interface, or the other end of a veth, has no room for this
                // frame.
                Some(libc::ENOBUFS) => self.give_up(1),
                Some(libc::EINVAL) if self.queued[self.sent].segments.is_some() => self.cut_all(),
                // The MTU is smaller now, or the kernel refuses this frame for another reason.
                _ => {
                    self.give_up(1);
                    failed = Err(error);
                }
            }
        }
        self.queued.clear();
        (self.sent, self.used, self.taken) = (0, 0, false);
        failed
    }

    /// Splits the waiting super-frames into packets and stops making super-frames: the kernel takes
    /// none (`SuperFrames::On`).
    fn cut_all(&mut self) {
        tracing::warn!("the kernel takes no super-frames: every packet is sent alone");
        self.segments_max = 1;
        let Self { pages, queued, frames, .. } = self;
        let mut messages = Vec::with_capacity(self.slots);
        for message in &queued[self.sent..] {
            let Some(Segments { headers, len }) = message.segments else {
                messages.push(*message);
                continue;
            };
            let mut left = message.len - headers.len();
            let slots = frames.iter().enumerate().skip(message.slot).take(message.slots);
            for (slot, &at) in slots {
                let bytes = left.min(usize::from(len));
                left -= bytes;
                if slot == message.slot {
                    let frame = pages.get_mut(at, headers.len());
                    headers.set(frame, bytes, headers.identification(frame));
                }
                let len = headers.len() + bytes;
                messages.push(Message { slot, slots: 1, len, segments: None, closed: false });
            }
        }
        (self.queued, self.sent) = (messages, 0);
    }

    /// Counts the next `count` messages as lost.
    fn give_up(&mut self, count: usize) {
        let lost = &self.queued[self.sent..self.sent + count];
        self.dropped += lost.iter().map(|message| message.slots as u64).sum::<u64>();
        self.sent += count;
    }

    /// Retries the frames that the kernel did not accept at the last flush.
    pub fn resume(&mut self) {
        if self.has_backlog() {
            // A lasting error is reported by the next flush.
            let _reported_later = self.flush();
        }
    }

    /// Returns true if messages wait for room in the kernel.
    pub fn has_backlog(&self) -> bool {
        self.backlog
    }

    fn send_batch(&mut self) -> io::Result<usize> {
        let Self { pages, queued, vectors, frames, .. } = self;
        let batch = &queued[self.sent..];
        let batch = &batch[..batch.len().min(BATCH)];
        vectors.parts.clear();
        vectors.messages.clear();
        for message in batch {
            let frames = &frames[message.slot..message.slot + message.slots];
            prepare(pages, message, frames[0]);
            let first = vectors.parts.len();
            push_parts(pages, message, frames, &mut vectors.parts);
            // SAFETY: `mmsghdr` is plain data for which all zeros is a valid value.
            let mut entry: libc::mmsghdr = unsafe { zeroed() };
            // The vector never grows beyond its initial capacity, so its entries do not move.
            entry.msg_hdr.msg_iov = vectors.parts[first..].as_mut_ptr();
            entry.msg_hdr.msg_iovlen = message.slots as _;
            vectors.messages.push(entry);
        }
        // SAFETY: each message points to parts in `vectors`, and the parts to bytes of `pages`.
        unsafe { self.sockets.queue.send(&mut vectors.messages) }
    }
}

/// Completes the headers of `message` and writes its virtio_net_hdr. Its first frame begins at
/// `at`.
fn prepare(pages: &mut Pages, message: &Message, at: usize) {
    let vnet = match message.segments {
        None => [0; VNET_LEN],
        Some(Segments { headers, len }) => {
            let frame = pages.get_mut(at, headers.len());
            widen(headers, frame, message.len - headers.len(), len)
        }
    };
    pages.get_mut(at - VNET_LEN, VNET_LEN).copy_from_slice(&vnet);
}

/// Appends the addresses of the bytes of `message`, whose frames begin at `frames`.
fn push_parts(pages: &Pages, message: &Message, frames: &[usize], parts: &mut Vec<libc::iovec>) {
    let mut push = |at: usize, len: usize| {
        let bytes = pages.get(at, len);
        parts
            .push(libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() });
    };
    let (headers, segment) = match message.segments {
        None => (0, message.len),
        Some(Segments { headers, len }) => (headers.len(), usize::from(len)),
    };
    let mut left = message.len - headers;
    for (index, &at) in frames.iter().enumerate() {
        let len = left.min(segment);
        match index {
            0 => push(at - VNET_LEN, VNET_LEN + headers + len),
            _ => push(at + headers, len),
        }
        left -= len;
    }
    debug_assert_eq!(left, 0, "every byte is in a slot");
}
