//! Pacing by an exact token bucket. Tokens are counted in 10^-9 bits: at any rate in bit/s, a whole
//! number of tokens arrives per nanosecond. Therefore nothing is rounded and the long-run rate is
//! exact, however often it changes.

use crate::rate::Rate;
use crate::time::Instant;

/// Tokens per byte. A token is 10^-9 bits.
const PER_BYTE: i64 = 8_000_000_000;

/// A token bucket, initially full.
#[derive(Clone, Copy, Debug)]
pub struct Pacer {
    /// Tokens in the bucket, at most `burst`; negative after a packet larger than the burst.
    level: i64,
    /// Tokens of the last nanosecond that did not fit: less than one nanosecond's tokens. They are
    /// added in the next nanosecond. Otherwise each packet as large as the bucket would lose part
    /// of a nanosecond.
    carry: u64,
    burst: i64,
    /// Time up to which tokens have been counted.
    counted: Instant,
}

impl Pacer {
    /// The largest burst: 256 MiB.
    pub const MAX_BURST: u32 = 256 << 20;

    /// A bucket of `burst` bytes, at most [`MAX_BURST`](Self::MAX_BURST). To keep its rate, a
    /// sender that is called late needs a bucket for one packet plus the tokens of that delay.
    pub fn new(burst: u32, now: Instant) -> Self {
        let burst = i64::from(burst.min(Self::MAX_BURST)) * PER_BYTE;
        Self { level: burst, carry: 0, burst, counted: now }
    }

    /// Size of the bucket in bytes.
    pub fn burst(&self) -> u64 {
        whole_bytes(self.burst)
    }

    /// Bytes that may be sent at `now`. `rate` is the rate since the last call.
    #[inline]
    pub fn available(&mut self, rate: Rate, now: Instant) -> u64 {
        self.advance(rate, now);
        whole_bytes(self.level)
    }

    /// Time at which `bytes` may be sent, if the rate is `rate` since the last call: the bucket
    /// then holds that many bytes, or is full if `bytes` exceeds its size. At rate 0:
    /// [`Instant::FAR`].
    #[inline]
    pub fn ready_at(&self, bytes: u64, rate: Rate) -> Instant {
        let missing = cost(bytes).min(self.burst) - self.level;
        if missing <= 0 {
            return self.counted;
        }
        let missing = missing.unsigned_abs().saturating_sub(self.carry).max(1);
        match rate.as_bps() {
            0 => Instant::FAR,
            per_nano => after(self.counted, missing.div_ceil(per_nano)),
        }
    }

    /// Returns true if [`ready_at`](Self::ready_at) is at or before `now`. Cheaper: needs no
    /// division.
    #[inline]
    pub fn is_ready(&self, bytes: u64, rate: Rate, now: Instant) -> bool {
        let missing = cost(bytes).min(self.burst) - self.level;
        if missing <= 0 {
            return self.counted <= now;
        }
        let missing = missing.unsigned_abs().saturating_sub(self.carry).max(1);
        let nanos = now.as_nanos().saturating_sub(self.counted.as_nanos());
        rate.as_bps().saturating_mul(nanos) >= missing
    }

    /// Takes the tokens for `bytes`, which are sent at `now`. `rate` is the rate since the last
    /// call. The level becomes negative if the bucket holds fewer tokens.
    #[inline]
    pub fn spend(&mut self, bytes: u64, rate: Rate, now: Instant) {
        self.advance(rate, now);
        self.level = self.level.saturating_sub(cost(bytes));
    }

    /// Counts tokens up to `now`. Must be called before the rate changes, with the old rate.
    #[inline]
    pub fn advance(&mut self, rate: Rate, now: Instant) {
        let nanos = now.as_nanos().saturating_sub(self.counted.as_nanos());
        if nanos == 0 {
            return;
        }
        self.counted = now;
        let room = (self.burst - self.level).unsigned_abs();
        let gained = rate.as_bps().saturating_mul(nanos).saturating_add(self.carry);
        match i64::try_from(gained) {
            Ok(fits) if gained <= room => (self.level, self.carry) = (self.level + fits, 0),
            _ => {
                self.level = self.burst;
                self.carry = (gained - room).min(rate.as_bps().saturating_sub(1));
            }
        }
    }
}

/// Same as adding a `Duration`, without its 128-bit arithmetic.
const fn after(time: Instant, nanos: u64) -> Instant {
    Instant::from_nanos(time.as_nanos().saturating_add(nanos))
}

fn cost(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX).saturating_mul(PER_BYTE)
}

fn whole_bytes(level: i64) -> u64 {
    (level.max(0) / PER_BYTE).unsigned_abs()
}
