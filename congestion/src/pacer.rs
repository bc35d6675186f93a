//! Pacing by a token bucket that loses nothing: tokens are counted in 10^-9 bits, of which a whole number comes with each
//! nanosecond at any rate. So the long-run rate is exact, whatever the rate is and however it changes.

use crate::rate::Rate;
use crate::time::Instant;

/// 10^-9 bits.
const PER_BYTE: i64 = 8_000_000_000;

/// A token bucket. It begins full.
#[derive(Clone, Copy, Debug)]
pub struct Pacer {
    /// Tokens, at most those of the burst; below 0 after a packet larger than the burst.
    level: i64,
    /// What came in the last nanosecond and did not fit: less than one nanosecond's tokens. It counts with the next
    /// nanosecond, so that packets as large as the bucket do not lose a part of a nanosecond each.
    carry: u64,
    burst: i64,
    /// Up to when tokens have been counted.
    counted: Instant,
}

impl Pacer {
    /// The largest burst: 256 MiB.
    pub const MAX_BURST: u32 = 256 << 20;

    /// A bucket of `burst` bytes, at most [`MAX_BURST`](Self::MAX_BURST). A sender that comes late by some time needs a
    /// bucket that holds what comes in this time, beside its packet, to keep its rate.
    pub fn new(burst: u32, now: Instant) -> Self {
        let burst = i64::from(burst.min(Self::MAX_BURST)) * PER_BYTE;
        Self { level: burst, carry: 0, burst, counted: now }
    }

    /// The bucket in bytes.
    pub fn burst(&self) -> u64 {
        whole_bytes(self.burst)
    }

    /// Bytes that may be sent at `now`; the rate has been `rate` since the last call.
    #[inline]
    pub fn available(&mut self, rate: Rate, now: Instant) -> u64 {
        self.advance(rate, now);
        whole_bytes(self.level)
    }

    /// When `bytes` may be sent, if the rate is `rate` from the last call on: once they are in the bucket. What is
    /// larger than the bucket goes when it is full. [`Instant::FAR`] at rate 0.
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

    /// Whether [`ready_at`](Self::ready_at) has come by `now`. Cheaper than to ask when: without a division.
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

    /// `bytes` are sent at `now`; the rate has been `rate` since the last call. What was not in the bucket is owed.
    #[inline]
    pub fn spend(&mut self, bytes: u64, rate: Rate, now: Instant) {
        self.advance(rate, now);
        self.level = self.level.saturating_sub(cost(bytes));
    }

    /// Counts tokens up to `now`: call it when the rate changes, with the rate until then.
    #[inline]
    pub fn advance(&mut self, rate: Rate, now: Instant) {
        let nanos = now.as_nanos().saturating_sub(self.counted.as_nanos());
        if nanos == 0 {
            return;
        }
        self.counted = now;
        let room = (self.burst - self.level).unsigned_abs();
        let came = rate.as_bps().saturating_mul(nanos).saturating_add(self.carry);
        match i64::try_from(came) {
            Ok(fits) if came <= room => (self.level, self.carry) = (self.level + fits, 0),
            _ => {
                self.level = self.burst;
                self.carry = (came - room).min(rate.as_bps().saturating_sub(1));
            }
        }
    }
}

/// As with a `Duration`, whose nanoseconds are 128 bits wide.
const fn after(time: Instant, nanos: u64) -> Instant {
    Instant::from_nanos(time.as_nanos().saturating_add(nanos))
}

fn cost(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX).saturating_mul(PER_BYTE)
}

fn whole_bytes(level: i64) -> u64 {
    (level.max(0) / PER_BYTE).unsigned_abs()
}
