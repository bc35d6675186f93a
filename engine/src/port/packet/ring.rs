//! The receive ring: the kernel fills it in order of arrival, and it is read without a system call.
//!
//! The ring holds short frames completely. Of a long frame it holds only the beginning, as a
//! *placeholder* in the order of arrival; the complete frame waits in the queue of the other
//! socket. So a polling core makes no system call until a long frame has arrived, and the kernel
//! copies long frames on the receiving core instead of the sender's core.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::socket::{SLOT, Sockets};
use super::vnet::{self, Kind, VNET_LEN};
use crate::port::pages::Pages;

/// Longest short frame in bytes: a super-frame of 27 READ requests fits, too.
pub(super) const SHORT: usize = 944;
/// Bytes that the kernel writes before a frame in its slot.
const IN_FRONT: usize = 76;
const _: () = assert!(IN_FRONT + SHORT <= SLOT);
/// Bytes of a placeholder: Ethernet, IPv6, UDP and BTH, enough to distinguish frames.
pub(super) const PLACEHOLDER: usize = 80;

/// The next entry of the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entry {
    /// A complete frame or super-frame.
    Short(Place),
    /// The beginning of a frame whose complete form is in the queue.
    Placeholder(Place),
}

/// Position and properties of a frame in the ring's pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub at: usize,
    pub len: usize,
    /// EtherType and value of the VLAN tag that the kernel stripped.
    pub tag: Option<[u16; 2]>,
    /// Kind of frame according to its virtio_net_hdr; `None` for kinds that the port does not take.
    pub kind: Option<Kind>,
}

/// The ring of one core.
#[derive(Debug)]
pub(super) struct Ring {
    pages: Pages,
    slots: usize,
    /// The next slot to read.
    next: usize,
    /// Slots that were read and not yet returned to the kernel.
    held: usize,
    _sockets: Arc<Sockets>,
}

/// `struct tpacket2_hdr`, at the start of a slot, as 32-bit words.
mod header {
    pub const STATUS: usize = 0;
    pub const LEN: usize = 1;
    pub const SNAPLEN: usize = 2;
    /// Two 16-bit halves: offsets of the Ethernet and the IP header.
    pub const OFFSETS: usize = 3;
    /// Two 16-bit halves: VLAN tag and its EtherType.
    pub const TAG: usize = 6;
}

impl Ring {
    pub fn map(sockets: &Arc<Sockets>, slots: usize) -> io::Result<Self> {
        let pages = sockets.ring.map(slots * SLOT)?;
        Ok(Self { pages, slots, next: 0, held: 0, _sockets: Arc::clone(sockets) })
    }

    /// The next entry, if there is one.
    pub fn peek(&self) -> Option<Entry> {
        let start = self.next * SLOT;
        // The status must be read before the rest of the slot.
        let status = self.word(self.next, header::STATUS).load(Ordering::Acquire);
        if status & libc::TP_STATUS_USER == 0 || self.held == self.slots {
            return None;
        }
        let word = |index| self.word(self.next, index).load(Ordering::Relaxed);
        let halves = |index| {
            let [a, b, c, d] = word(index).to_ne_bytes();
            [u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d])]
        };
        let [len, whole] = [word(header::SNAPLEN), word(header::LEN)];
        let size = |len: u32| usize::try_from(len).expect("a frame is short");
        let [ethernet, _ip] = halves(header::OFFSETS);
        let [tag, kind] = halves(header::TAG);
        let has = |flag| status & flag != 0;
        let known = if has(libc::TP_STATUS_VLAN_TPID_VALID) { kind } else { 0x8100 };
        let tag = has(libc::TP_STATUS_VLAN_VALID).then_some([known, tag]);
        let at = start + usize::from(ethernet);
        let kind = vnet::kind(self.pages.get(at - VNET_LEN, VNET_LEN));
        let place = Place { at, len: size(len), tag, kind };
        Some(if len == whole { Entry::Short(place) } else { Entry::Placeholder(place) })
    }

    /// Percentage of the slots not held by the reader that the kernel has filled.
    pub fn fill(&self) -> u8 {
        let is_filled = |index: usize| {
            let slot = (self.next + index) % self.slots;
            let status = self.word(slot, header::STATUS).load(Ordering::Relaxed);
            status & libc::TP_STATUS_USER != 0
        };
        // The kernel fills slots in order, so a binary search finds the first empty one.
        let (mut filled, mut unknown) = (0, self.slots - self.held);
        while unknown > 0 {
            let half = unknown / 2;
            match is_filled(filled + half) {
                true => (filled, unknown) = (filled + half + 1, unknown - half - 1),
                false => unknown = half,
            }
        }
        match self.slots - self.held {
            0 => 100,
            slots => u8::try_from(filled * 100 / slots).expect("at most 100"),
        }
    }

    /// Moves to the next entry.
    pub fn advance(&mut self) {
        self.next = (self.next + 1) % self.slots;
        self.held += 1;
    }

    /// Returns the slots that were read to the kernel.
    pub fn give_back(&mut self) {
        let first = self.next + self.slots - self.held;
        for index in 0..self.held {
            let slot = (first + index) % self.slots;
            // The status must be written after all reads of the slot.
            self.word(slot, header::STATUS).store(libc::TP_STATUS_KERNEL, Ordering::Release);
        }
        self.held = 0;
    }

    /// Bytes of a slot that was not returned to the kernel.
    pub fn get(&self, at: usize, len: usize) -> &[u8] {
        self.pages.get(at, len)
    }

    /// As [`Self::get`], for writing.
    pub fn get_mut(&mut self, at: usize, len: usize) -> &mut [u8] {
        self.pages.get_mut(at, len)
    }

    fn word(&self, slot: usize, index: usize) -> &AtomicU32 {
        self.pages.word(slot * SLOT + 4 * index)
    }
}
