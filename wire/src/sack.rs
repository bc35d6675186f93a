//! Selective acknowledgement: which packets have arrived behind a missing one. It is not part of
//! the specification. Two ends that have agreed on selective repeat send it as the payload of a NAK
//! with the code *PSN sequence error*.
//!
//! ```text
//! BTH (PSN: the expected packet, which is missing) | AETH (NAK) | bit map, 8 to 64 bytes
//! ```
//! Bit *n* of the map, counted from the most significant bit of the first byte, is the packet with
//! the PSN *n* + 1 after the expected one. The map ends with the last packet that has arrived,
//! rounded up to 8 bytes.

use crate::Payload;

/// Packets that a [`Sack`] may name.
const BITS: u32 = 512;

const WORDS: usize = BITS as usize / 64;

/// The packets that have arrived behind a missing one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sack {
    words: [u64; WORDS],
}

impl Sack {
    /// Distance in PSNs from the missing packet to the last one that a map may name.
    pub const SPAN: u32 = BITS;

    /// The longest map, in bytes.
    pub const MAX_LEN: usize = WORDS * 8;

    /// The packet `distance` PSNs after the missing one has arrived.
    ///
    /// # Panics
    /// If `distance` is not in 1 to [`SPAN`](Self::SPAN).
    pub fn insert(&mut self, distance: u32) {
        let (word, bit) = place(distance).expect("a distance within the span");
        self.words[word] |= bit;
    }

    /// Returns true if the packet `distance` PSNs after the missing one has arrived.
    #[inline]
    #[must_use]
    pub fn contains(&self, distance: u32) -> bool {
        place(distance).is_some_and(|(word, bit)| self.words[word] & bit != 0)
    }

    /// Adds the packets that `other` has.
    pub fn merge(&mut self, other: &Self) {
        self.words.iter_mut().zip(other.words).for_each(|(word, more)| *word |= more);
    }

    /// Distance of the last packet that has arrived; 0 if there is none.
    #[must_use]
    pub fn last(&self) -> u32 {
        let word = self.words.iter().rposition(|&word| word != 0);
        word.map_or(0, |at| 64 * (index(at) + 1) - self.words[at].trailing_zeros())
    }

    /// Number of packets at the distance `from` or more that have arrived.
    #[must_use]
    pub fn count_from(&self, from: u32) -> u32 {
        let Some((first, bit)) = place(from.max(1)) else { return 0 };
        let rest = self.words[first + 1..].iter().map(|word| word.count_ones()).sum::<u32>();
        rest + (self.words[first] & (bit | (bit - 1))).count_ones()
    }

    /// Writes the map to the front of `out`. Returns its length, which is 0 if nothing has arrived.
    ///
    /// # Panics
    /// If `out` is shorter than the map; [`MAX_LEN`](Self::MAX_LEN) is enough.
    pub fn write(&self, out: &mut [u8]) -> usize {
        let len = self.last().div_ceil(64) as usize * 8;
        for (bytes, word) in out[..len].chunks_exact_mut(8).zip(self.words) {
            bytes.copy_from_slice(&word.to_be_bytes());
        }
        len
    }

    /// Reads the payload of a NAK. Returns `None` if it has no map: it is empty, longer than
    /// [`MAX_LEN`](Self::MAX_LEN), or no multiple of 8 bytes.
    #[must_use]
    pub fn parse(payload: Payload<'_>) -> Option<Self> {
        let len = payload.len();
        if len == 0 || len > Self::MAX_LEN || !len.is_multiple_of(8) {
            return None;
        }
        let mut bytes = [0; Self::MAX_LEN];
        payload.copy_to(&mut bytes);
        let mut words = [0; WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = bytes.iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
        }
        Some(Self { words })
    }
}

/// Word and bit of a distance from the missing packet.
#[inline]
fn place(distance: u32) -> Option<(usize, u64)> {
    let bit = distance.checked_sub(1).filter(|&bit| bit < BITS)?;
    Some(((bit / 64) as usize, 1 << (63 - bit % 64)))
}

fn index(word: usize) -> u32 {
    u32::try_from(word).expect("few words")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sack(distances: &[u32]) -> Sack {
        let mut sack = Sack::default();
        distances.iter().for_each(|&distance| sack.insert(distance));
        sack
    }

    fn read(bytes: &[u8]) -> Option<Sack> {
        let (first, second) = bytes.split_at(bytes.len() / 3);
        Sack::parse(Payload { first, second })
    }

    #[test]
    fn the_bytes_of_a_map() {
        let mut out = [0xee; 64];
        assert_eq!(sack(&[]).write(&mut out), 0);
        assert_eq!(sack(&[1, 3, 64]).write(&mut out), 8);
        assert_eq!(out[..9], [0b1010_0000, 0, 0, 0, 0, 0, 0, 1, 0xee]);
        assert_eq!(sack(&[2, 65]).write(&mut out), 16);
        assert_eq!(out[..16], [0x40, 0, 0, 0, 0, 0, 0, 0, 0x80, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn a_map_is_read_as_it_was_written() {
        for distances in [&[1][..], &[512], &[1, 63, 64, 65, 128, 129, 511]] {
            let (written, mut out) = (sack(distances), [0; Sack::MAX_LEN]);
            let len = written.write(&mut out);
            assert_eq!(read(&out[..len]), Some(written));
            assert_eq!(written.last(), *distances.last().unwrap());
            for distance in 0..=600 {
                assert_eq!(written.contains(distance), distances.contains(&distance), "{distance}");
                let count = distances.iter().filter(|&&other| other >= distance).count();
                assert_eq!(written.count_from(distance) as usize, count, "{distance}");
            }
        }
    }

    #[test]
    fn maps_are_merged() {
        let mut merged = sack(&[1, 70]);
        merged.merge(&sack(&[2, 70, 500]));
        assert_eq!(merged, sack(&[1, 2, 70, 500]));
    }

    #[test]
    fn a_payload_that_is_no_map_is_refused() {
        for len in [0, 1, 7, 9, 63, 65, 72] {
            assert_eq!(read(&[0xff; 72][..len]), None, "{len}");
        }
    }
}
