//! What a user may have of a daemon, over all of the user's programs.

use crate::time::{Duration, Instant};

/// The limits of a user. `None`: no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Programs attached at the same time.
    pub clients: u32,
    /// QP numbers, in slices of 256.
    pub qps: u32,
    /// Connections of RDMA CM of each program, half-open ones included.
    pub connections: u32,
    /// Ports of RDMA CM that each program has bound at the same time.
    pub services: u32,
    /// Packets per second.
    pub packets: Option<u64>,
    /// Bytes per second, Ethernet headers included.
    pub bytes: Option<u64>,
}

impl Default for Limits {
    /// 64 programs; as many QPs as one device offers four times; no rate.
    fn default() -> Self {
        Self {
            clients: 64,
            qps: 65_536,
            connections: 4096,
            services: 512,
            packets: None,
            bytes: None,
        }
    }
}

/// The rates of a user's programs together.
#[derive(Debug, Default)]
pub(super) struct Rate {
    packets: Option<Bucket>,
    bytes: Option<Bucket>,
}

impl Rate {
    /// The rates that `limits` allows.
    pub(super) fn new(limits: &Limits, now: Instant) -> Self {
        let bucket = |rate: Option<u64>| rate.map(|rate| Bucket::new(rate, now));
        Self { packets: bucket(limits.packets), bytes: bucket(limits.bytes) }
    }

    /// Returns true if nothing is owed.
    pub(super) fn is_paid(&self, now: Instant) -> bool {
        [&self.packets, &self.bytes].into_iter().flatten().all(|bucket| bucket.paid_at <= now)
    }

    /// Takes what a packet of `len` bytes needs. If it may not be sent now, returns when to ask
    /// again.
    pub(super) fn take(&mut self, len: usize, now: Instant) -> Result<(), Instant> {
        let (packets, bytes) = (&mut self.packets, &mut self.bytes);
        let wait = [packets.as_mut(), bytes.as_mut()].into_iter().flatten();
        let until = wait.filter_map(|bucket| bucket.empty_until(now)).max();
        if let Some(until) = until {
            return Err(until);
        }
        if let Some(packets) = packets {
            packets.owe(1, now);
        }
        if let Some(bytes) = bytes {
            bytes.owe(len as u64, now);
        }
        Ok(())
    }
}

/// A token bucket of [`BURST_TIME`]. A packet may pass while it has anything left, and leaves it in
/// debt then.
#[derive(Debug)]
struct Bucket {
    /// Units per second.
    rate: u64,
    /// When all that was taken is paid, at the rate.
    paid_at: Instant,
}

/// Time that a user may send ahead of the rate after a pause.
const BURST_TIME: Duration = Duration::from_millis(1);

impl Bucket {
    fn new(rate: u64, now: Instant) -> Self {
        Self { rate, paid_at: now }
    }

    /// When there is something left again; `None` if there is now.
    fn empty_until(&self, now: Instant) -> Option<Instant> {
        (self.paid_at.saturating_since(now) > BURST_TIME)
            .then(|| now + (self.paid_at.saturating_since(now) - BURST_TIME))
    }

    fn owe(&mut self, units: u64, now: Instant) {
        let nanos = u128::from(units) * 1_000_000_000 / u128::from(self.rate);
        let time = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX / 2));
        self.paid_at = self.paid_at.max(now) + time;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that pass within `span` if packets of `len` bytes always wait.
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
