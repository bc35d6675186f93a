//! Buffers that the program mapped with `riomap`, and the queue of their announcements to the peer.

use std::collections::VecDeque;

use super::protocol::Mapping;
use super::verbs::ibv_dereg_mr;
use crate::abi::ibv_mr;

/// A registered buffer.
#[derive(Debug)]
pub struct Buffer {
    /// The registration.
    pub mr: *mut ibv_mr,
    /// Address of the buffer.
    pub address: usize,
    /// Length in bytes.
    pub length: usize,
    /// Index of the entry in the peer's table; `None` for a buffer that only the local side uses.
    pub index: Option<u32>,
}

// SAFETY: the buffer is the only owner of the registration.
unsafe impl Send for Buffer {}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the buffer is the only owner of the registration.
        unsafe { ibv_dereg_mr(self.mr) };
    }
}

/// A buffer to announce to the peer.
#[derive(Debug, Clone, Copy)]
pub struct Announcement {
    /// Index of the entry in the peer's table.
    pub index: u32,
    /// Offset and memory of the buffer.
    pub mapping: Mapping,
}

/// The mapped buffers of a socket.
#[derive(Debug, Default)]
pub struct Mappings {
    /// All mapped buffers.
    pub buffers: Vec<Buffer>,
    /// Buffers to announce to the peer, oldest first.
    pub unannounced: VecDeque<Announcement>,
}

impl Mappings {
    /// Returns true if a buffer was not announced to the peer yet.
    pub fn has_unannounced(&self) -> bool {
        !self.unannounced.is_empty()
    }

    /// Takes the next buffer to announce.
    pub fn next_unannounced(&mut self) -> Option<Announcement> {
        self.unannounced.pop_front()
    }

    /// Unmaps all buffers.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns the lowest free index in the peer's table, which has `entries` entries.
    pub fn free_index(&self, entries: u16) -> Option<u32> {
        let used = |index| self.buffers.iter().any(|buffer| buffer.index == Some(index));
        (0..u32::from(entries)).find(|&index| !used(index))
    }
}
