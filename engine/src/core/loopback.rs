//! Frames that a core sends to its own device. A link never returns them, so they go through a ring
//! back into the parse path of received frames.
//!
//! A turn sends no more frames than the ring holds, and receives all of them before it ends. A QP
//! that stops between two turns sends, too; whoever stops it wakes the helper.

use std::sync::Arc;

use super::super_frame::TRANSMIT_BURST;
use crate::memory::arena::Arena;
use crate::memory::frame_ring::{FrameConsumer, FrameProducer, FrameRingError, frame_ring};
use crate::port::{Priority, RX_BURST};

/// Frames in the ring: those of a turn, and those of the turn before, whose slots are returned with
/// the next burst.
const SLOTS: usize = (2 * TRANSMIT_BURST).next_power_of_two();

const _: () =
    assert!(TRANSMIT_BURST <= RX_BURST, "one burst receives everything that a turn sends");

/// The ring from a core to itself.
#[derive(Debug)]
pub struct Loopback {
    tx: FrameProducer,
    rx: FrameConsumer,
    /// True if frames may be in the ring that no burst has taken.
    has_frames: bool,
}

impl Loopback {
    /// A ring in `arena` for frames of up to `frame_max` bytes.
    ///
    /// # Errors
    /// Not enough memory, or no free descriptor for the eventfd.
    pub fn new(arena: &Arc<Arena>, frame_max: usize) -> Result<Self, FrameRingError> {
        let (tx, rx) = frame_ring(arena, SLOTS, frame_max)?;
        Ok(Self { tx, rx, has_frames: false })
    }

    /// A free slot for a frame, to be committed; `None` without room.
    #[inline]
    pub(super) fn slot(&mut self) -> Option<&mut [u8]> {
        self.tx.slot()
    }

    /// Queues the first `len` bytes of the slot taken last.
    #[inline]
    pub(super) fn commit(&mut self, len: usize, priority: Priority) {
        self.tx.commit(len, priority, false);
        self.has_frames = true;
    }

    /// Returns true if frames may be in the ring that no burst has taken.
    pub(super) fn has_frames(&self) -> bool {
        self.has_frames
    }

    /// Queues a copy of `frame`. Returns false without room.
    pub(super) fn copy(&mut self, frame: &[u8]) -> bool {
        let Some(slot) = self.tx.slot().filter(|slot| slot.len() >= frame.len()) else {
            return false;
        };
        slot[..frame.len()].copy_from_slice(frame);
        self.commit(frame.len(), Priority::default());
        true
    }

    /// Makes the queued frames visible to the receiving end.
    #[inline]
    pub(super) fn publish(&mut self) {
        self.tx.publish();
    }

    /// Starts to receive a burst. Returns the number of its frames.
    #[inline]
    pub(super) fn burst(&mut self) -> usize {
        let count = self.rx.burst();
        self.has_frames = count == RX_BURST;
        count
    }

    /// Frame `index` of the burst.
    #[inline]
    pub(super) fn frame(&self, index: usize) -> &[u8] {
        self.rx.frame(index).0
    }
}
