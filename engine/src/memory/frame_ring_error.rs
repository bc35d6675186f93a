//! Why a ring of frames cannot be made.

use std::io;

use thiserror::Error;

use super::arena::ArenaError;

/// Why a ring could not be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum FrameRingError {
    /// The number of slots is not a power of two up to 2^20, or a slot is empty or above 1 MiB.
    #[error(
        "a frame ring cannot have {slots} slots of {slot_bytes} bytes: the number of slots must be \
         a power of two up to 2^20, and a slot must have 1 B to 1 MiB"
    )]
    Shape {
        /// Slots requested.
        slots: usize,
        /// Bytes per slot requested.
        slot_bytes: usize,
    },
    /// The arena has no memory for the ring.
    #[error(transparent)]
    Memory(#[from] ArenaError),
    /// The system has no eventfd left.
    #[error("no eventfd for a frame ring: {}", io::Error::from_raw_os_error(*.errno))]
    Eventfd {
        /// Error number of the system.
        errno: i32,
    },
}
