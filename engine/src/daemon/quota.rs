//! The rate limiter of a user at a daemon, for all programs of the user together.

use crate::port::daemon::limits::Limits;
use crate::time::{Duration, Instant};

/// The rate limiter of a user's programs together.
#[derive(Debug, Default)]
pub(super) struct Rate {
    packets: Option<Bucket>,
    bytes: Option<Bucket>,
}

impl Rate {
    /// A limiter for the rates in `limits`.
    pub(super) fn new(limits: &Limits, now: Instant) -> Self {
        let bucket = |rate: Option<u64>| rate.map(|rate| Bucket::new(rate, now));
        Self { packets: bucket(limits.packets), bytes: bucket(limits.bytes) }
    }

    /// Returns true if all buckets are full.
    pub(super) fn is_full(&self, now: Instant) -> bool {
        [&self.packets, &self.bytes].into_iter().flatten().all(|bucket| bucket.full_at <= now)
    }

    /// Takes the tokens for a packet of `len` bytes. If the packet may not be sent now, takes none
    /// and returns the time at which to try again.
    pub(super) fn take(&mut self, len: usize, now: Instant) -> Result<(), Instant> {
        let (packets, bytes) = (&mut self.packets, &mut self.bytes);
        let wait = [packets.as_mut(), bytes.as_mut()].into_iter().flatten();
        let until = wait.filter_map(|bucket| bucket.empty_until(now)).max();
        if let Some(until) = until {
            return Err(until);
        }
        if let Some(packets) = packets {
            packets.spend(1, now);
        }
        if let Some(bytes) = bytes {
            bytes.spend(len as u64, now);
        }
        Ok(())
    }
}

/// A token bucket that holds the tokens of [`BURST_TIME`]. A packet may pass while the bucket is
/// not empty, even if the packet needs more tokens than are left: the bucket is then in debt.
#[derive(Debug)]
struct Bucket {
    /// Tokens per second.
    rate: u64,
    /// When the bucket is full again if no more tokens are taken.
    full_at: Instant,
}

/// Size of a bucket: the time for which a user may send ahead of the rate after a pause.
const BURST_TIME: Duration = Duration::from_millis(1);

impl Bucket {
    fn new(rate: u64, now: Instant) -> Self {
        Self { rate, full_at: now }
    }

    /// When the bucket has a token again; `None` if it has one now.
    fn empty_until(&self, now: Instant) -> Option<Instant> {
        (self.full_at.saturating_since(now) > BURST_TIME)
            .then(|| now + (self.full_at.saturating_since(now) - BURST_TIME))
    }

    fn spend(&mut self, tokens: u64, now: Instant) {
        let nanos = u128::from(tokens) * 1_000_000_000 / u128::from(self.rate);
        let time = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX / 2));
        self.full_at = self.full_at.max(now) + time;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that pass within `span` if packets of `len` bytes are always ready.
    fn passed(rate: &mut Rate, len: usize, span: Duration) -> usize {
        let (mut now, end) = (Instant::ZERO, Instant::ZERO + span);
        let mut sent = 0;
        while now < end {
            match rate.take(len, now) {
                Ok(()) => sent += len,
                Err(until) => now = until,
            }
        }
        sent
    }

    #[test]
    fn the_rate_is_kept_for_any_packet_size() {
        let bytes = Limits { bytes: Some(1_000_000), ..Limits::default() };
        for len in [64, 1500, 4200] {
            let mut rate = Rate::new(&bytes, Instant::ZERO);
            let sent = passed(&mut rate, len, Duration::from_secs(10));
            assert!((9_990_000..10_010_000).contains(&sent), "{sent} bytes of {len}");
        }
        let packets = Limits { packets: Some(100), ..bytes };
        let mut rate = Rate::new(&packets, Instant::ZERO);
        let sent = passed(&mut rate, 64, Duration::from_secs(10));
        assert!((64_000..64_200).contains(&sent), "{sent} bytes at 100 packets per second");
        let mut free = Rate::new(&Limits::default(), Instant::ZERO);
        assert_eq!((0..100).filter(|_| free.take(9000, Instant::ZERO).is_ok()).count(), 100);
    }
}
