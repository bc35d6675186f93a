//! Choice of memory keys.
//!
//! A key is a 24-bit index and an 8-bit variant. Slot numbers of the table are dense. The index is
//! the slot number after a keyed permutation of the 24-bit numbers, so one key reveals nothing
//! about the next, and the variant is random. With `m` live regions a guessed key is valid with
//! probability `m / 2^32`. A wrong guess moves the guesser's QP to the error state; on UC, where a
//! wrong key gets no response, 256 of them do. (Keys in steps of 0x100, as Linux rxe uses, are easy
//! to guess.)

use std::sync::atomic::{AtomicU64, Ordering};

/// Bits in each half of the Feistel network over 24 bits.
const HALF_BITS: u32 = 12;
const HALF_MASK: u32 = (1 << HALF_BITS) - 1;

/// Key indices in `KeySpace::known`.
const KNOWN: usize = 1024;
/// An entry of `KeySpace::known` that no key index matches.
const NONE: u64 = u64::MAX;

/// A keyed permutation of the 24-bit numbers.
#[derive(Debug)]
pub struct KeySpace {
    /// Round keys of a four-round Feistel network, or `None` for the identity.
    rounds: Option<[u32; 4]>,
    /// Slots of the key indices that were given out last, as `index << 32 | slot`, at the index
    /// modulo [`KNOWN`]: every packet looks up keys, and the network costs 45 instructions.
    known: Box<[AtomicU64; KNOWN]>,
}

impl KeySpace {
    /// Returns the permutation selected by `secret`, which must come from a good random source.
    pub fn keyed(secret: u128) -> Self {
        let mut rounds = [0; 4];
        for (i, round) in rounds.iter_mut().enumerate() {
            let word = (secret >> (32 * i)) & u128::from(u32::MAX);
            *round = u32::try_from(word).unwrap_or(0);
        }
        Self { rounds: Some(rounds), ..Self::identity() }
    }

    /// Returns the identity: replays of captures need given keys.
    pub fn identity() -> Self {
        Self { rounds: None, known: Box::new([const { AtomicU64::new(NONE) }; KNOWN]) }
    }

    /// Returns the 24-bit key index of slot `slot`.
    pub fn index_of(&self, slot: u32) -> u32 {
        let Some(rounds) = self.rounds else { return slot };
        let (mut left, mut right) = (slot >> HALF_BITS & HALF_MASK, slot & HALF_MASK);
        for round in rounds {
            (left, right) = (right, left ^ mix(right, round));
        }
        let index = left << HALF_BITS | right;
        let known = u64::from(index) << 32 | u64::from(slot);
        self.known[index as usize % KNOWN].store(known, Ordering::Relaxed);
        index
    }

    /// Returns the slot of key index `index`.
    #[inline]
    pub fn slot_of(&self, index: u32) -> u32 {
        let known = self.known[index as usize % KNOWN].load(Ordering::Relaxed);
        match known >> 32 == u64::from(index) {
            #[allow(clippy::cast_possible_truncation)] // the lower half
            true => known as u32,
            false => self.compute_slot_of(index),
        }
    }

    fn compute_slot_of(&self, index: u32) -> u32 {
        let Some(rounds) = self.rounds else { return index };
        let (mut left, mut right) = (index >> HALF_BITS & HALF_MASK, index & HALF_MASK);
        for round in rounds.iter().rev() {
            (left, right) = (right ^ mix(left, *round), left);
        }
        left << HALF_BITS | right
    }
}

/// Round function: mixes a half and the round key into 12 bits.
fn mix(half: u32, round: u32) -> u32 {
    let x = (half ^ round).wrapping_mul(0x9e37_79b1);
    let x = (x ^ x >> 15 ^ round.rotate_left(11)).wrapping_mul(0x85eb_ca6b);
    x >> (32 - HALF_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_permutation_is_one_to_one_and_inverts() {
        let space = KeySpace::keyed(0x0123_4567_89ab_cdef_0f1e_2d3c_4b5a_6978);
        let mut seen = vec![false; 1 << 24];
        for slot in 0..1 << 24 {
            let index = space.index_of(slot);
            assert!(!std::mem::replace(&mut seen[index as usize], true));
            assert_eq!(space.compute_slot_of(index), slot);
        }
    }

    #[test]
    fn a_slot_is_found_whether_it_is_known_or_not() {
        let space = KeySpace::keyed(0x0123_4567_89ab_cdef_0f1e_2d3c_4b5a_6978);
        let indices: Vec<u32> = (0..4096).map(|slot| space.index_of(slot)).collect();
        for (slot, &index) in (0..).zip(&indices) {
            assert_eq!(space.slot_of(index), slot);
        }
        let unused = (0..1 << 24).step_by(4099);
        assert!(unused.clone().all(|index| space.slot_of(index) == space.compute_slot_of(index)));
    }

    #[test]
    fn neighbouring_slots_do_not_get_neighbouring_indices() {
        let space = KeySpace::keyed(0xfeed_0000_1111_2222_3333_4444_5555_6666);
        let close = (0..4096u32)
            .filter(|&slot| space.index_of(slot).abs_diff(space.index_of(slot + 1)) < 256)
            .count();
        assert!(close < 10, "{close} of 4096 neighbours stay close");
    }

    #[test]
    fn identity_is_the_identity() {
        assert_eq!(KeySpace::identity().index_of(77), 77);
        assert_eq!(KeySpace::identity().slot_of(77), 77);
        assert_eq!(KeySpace::identity().slot_of(0xff_ffff), 0xff_ffff);
    }
}
