//! The seeded random numbers of a scenario. All randomness of a scenario comes from here.

use std::time::Duration;

use rand_xoshiro::Xoshiro256StarStar;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// A seeded random number generator.
#[derive(Debug, Clone)]
pub struct Random(Xoshiro256StarStar);

impl Random {
    /// Creates a generator with `seed`.
    pub fn new(seed: u64) -> Self {
        Self(Xoshiro256StarStar::seed_from_u64(seed))
    }

    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a number below `limit`.
    ///
    /// # Panics
    /// If `limit` is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.bits() % limit
    }

    /// Returns a number from `low` to `high`, both included.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        let span = (high - low) as u64 + 1;
        low + usize::try_from(self.below(span)).expect("below a usize")
    }

    /// Returns true with a probability of `chance` percent.
    pub fn percent(&mut self, chance: u32) -> bool {
        self.below(100) < u64::from(chance)
    }

    /// Returns one element of `from`.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.between(0, from.len() - 1)]
    }

    /// Returns one value of `table`, with a probability in proportion to its weight.
    pub fn weighted<T: Copy>(&mut self, table: &[(u32, T)]) -> T {
        let total: u32 = table.iter().map(|(weight, _)| weight).sum();
        let mut at = self.below(u64::from(total));
        for &(weight, value) in table {
            match at.checked_sub(u64::from(weight)) {
                Some(rest) => at = rest,
                None => return value,
            }
        }
        unreachable!("the number is below the sum of the weights")
    }

    /// Returns a duration from zero to `most`.
    pub fn time(&mut self, most: Duration) -> Duration {
        let most = u64::try_from(most.as_nanos()).expect("short");
        Duration::from_nanos(self.below(most + 1))
    }

    /// Fills `out` with random bytes.
    pub fn fill(&mut self, out: &mut [u8]) {
        for chunk in out.chunks_mut(8) {
            let bytes = self.bits().to_le_bytes();
            chunk.copy_from_slice(&bytes[..chunk.len()]);
        }
    }

    /// Returns `len` random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.fill(&mut out);
        out
    }
}
