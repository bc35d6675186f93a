//! The word that guards the other fields of a slot in the table of memory regions.
//!
//! It holds the slot's key, whether the key is valid, and a generation that counts changes. Whoever
//! changes the fields first claims the word, which invalidates the key, and then publishes it. A
//! reader reads the word, the fields, and the word again; if it has changed, the reader discards
//! the fields, which may be of different entries (a sequence lock).

use feroce_wire::Key;

use crate::sync::{AtomicU64, Ordering, fence};

/// Flag above the 32 bits of the key: the key is valid.
const VALID: u64 = 1 << 32;
/// A thread is changing the slot.
const BUSY: u64 = 1 << 33;
/// Increment of the generation, which occupies the remaining bits and wraps.
const GENERATION: u64 = 1 << 34;

/// The value of the word: key, [`VALID`], [`BUSY`], generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct State(u64);

/// A state that no slot has: a valid key of a slot that is being changed.
pub(super) const NO_STATE: State = State(VALID | BUSY);

impl State {
    /// Returns true if `key` is valid.
    #[inline]
    pub(super) const fn is_of(self, key: Key) -> bool {
        self.0 & (GENERATION - 1) == VALID | key.value() as u64
    }

    /// The key, valid or not.
    #[allow(clippy::cast_possible_truncation)] // the lower half
    pub(super) const fn key(self) -> Key {
        Key(self.0 as u32)
    }

    /// Returns true if a thread is changing the slot.
    pub(super) const fn is_busy(self) -> bool {
        self.0 & BUSY != 0
    }

    /// Returns true if the key is valid.
    pub(super) const fn is_valid(self) -> bool {
        self.0 & VALID != 0
    }
}

/// See the [module](self). A view, because the table's memory comes as zeros from the kernel.
#[derive(Debug, Clone, Copy)]
pub(super) struct KeyWord<'a>(pub &'a AtomicU64);

impl KeyWord<'_> {
    /// Invalidates the key and gives the caller the exclusive right to change the slot. Returns the
    /// previous state, or `None` if another thread is changing the slot.
    pub(super) fn claim(self) -> Option<State> {
        let before = State(self.0.load(Ordering::Relaxed));
        self.claim_from(before).then_some(before)
    }

    /// As [`Self::claim`]; false also if the state is no longer `before`, so that what the caller
    /// has read since [`Self::begin`] returned `before` still holds.
    pub(super) fn claim_from(self, before: State) -> bool {
        let claimed = before.0 & !VALID | BUSY;
        let is_claimed = !before.is_busy()
            && self
                .0
                .compare_exchange(before.0, claimed, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        fence(Ordering::Release); // Later stores to the slot are not visible before the claim.
        is_claimed
    }

    /// As [`Self::claim`], once no other thread is changing the slot: cores do so, and soon finish.
    pub(super) fn wait_and_claim(self) -> State {
        loop {
            match self.claim() {
                Some(before) => return before,
                None => std::hint::spin_loop(),
            }
        }
    }

    /// Ends a change that [`Self::claim`] started with the state `before`: stores the key and its
    /// validity.
    pub(super) fn publish(self, before: State, key: Key, is_valid: bool) {
        let generation = (before.0 & !(GENERATION - 1)).wrapping_add(GENERATION);
        let valid = if is_valid { VALID } else { 0 };
        self.0.store(generation | valid | u64::from(key.value()), Ordering::Release);
    }

    /// The state before the fields are read.
    #[inline]
    pub(super) fn begin(self) -> State {
        State(self.0.load(Ordering::Acquire))
    }

    /// Returns true if the fields that were read after [`Self::begin`] are those of `state`.
    #[inline]
    pub(super) fn is_still(self, state: State) -> bool {
        fence(Ordering::Acquire);
        State(self.0.load(Ordering::Relaxed)) == state
    }
}
