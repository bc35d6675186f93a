//! Frames that a core sends to its own device: a link never returns them, so they go through a ring back into
//! the parse path of received frames.
//!
//! A turn sends no more frames than the ring holds and takes all of them before it ends: nothing waits here
//! while the core sleeps.

use std::sync::Arc;

use super::{Core, TRANSMIT_BURST};
use crate::memory::arena::Arena;
use crate::memory::frame_ring::{FrameConsumer, FrameProducer, FrameRingError, frame_ring};
use crate::port::{Priority, RX_BURST, RxFrame};
use crate::time::Instant;

/// Frames in the ring: those of a turn, and those of the one before, which are given back with the next burst.
const SLOTS: usize = (2 * TRANSMIT_BURST).next_power_of_two();

const _: () = assert!(TRANSMIT_BURST <= RX_BURST, "one burst takes what a turn has sent");

/// The ring from a core to itself.
#[derive(Debug)]
pub struct Loopback {
    tx: FrameProducer,
    rx: FrameConsumer,
}

impl Loopback {
    /// A ring in `arena` for frames of up to `frame_max` bytes.
    ///
    /// # Errors
    /// What memory or eventfd lacked.
    pub fn new(arena: &Arc<Arena>, frame_max: usize) -> Result<Self, FrameRingError> {
        let (tx, rx) = frame_ring(arena, SLOTS, frame_max)?;
        Ok(Self { tx, rx })
    }

    /// Room for a frame, to be committed.
    #[inline]
    pub(super) fn slot(&mut self) -> Option<&mut [u8]> {
        self.tx.slot()
    }

    /// Queues the first `len` bytes of the slot taken last.
    #[inline]
    pub(super) fn commit(&mut self, len: usize, priority: Priority) {
        self.tx.commit(len, priority);
    }

    /// Queues a copy of `frame`; false without room.
    pub(super) fn copy(&mut self, frame: &[u8]) -> bool {
        let Some(slot) = self.tx.slot().filter(|slot| slot.len() >= frame.len()) else {
            return false;
        };
        slot[..frame.len()].copy_from_slice(frame);
        self.tx.commit(frame.len(), Priority::default());
        true
    }

    /// Shows what was queued to the receiving end.
    #[inline]
    pub(super) fn publish(&mut self) {
        self.tx.publish();
    }
}

impl Core {
    /// Takes the frames that this turn sent to the device itself.
    pub(super) fn receive_looped(&mut self, now: Instant) -> usize {
        let count = self.loopback.rx.burst();
        if count == 0 {
            return 0;
        }
        let (mut tables, loopback, outbox) = self.looped_tables();
        for index in 0..count {
            let (first, _) = loopback.rx.frame(index);
            tables.take(RxFrame { first, second: &[] }, true, outbox, now);
        }
        self.publish_handed_over();
        count
    }
}
