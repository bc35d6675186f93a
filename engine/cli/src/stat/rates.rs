//! Rates between two snapshots of a device.

use std::collections::BTreeMap;

use feroce_engine::device::stat::{CoreFigures, Snapshot};
use serde::Serialize;

/// Rates of a device. Bits count whole frames, Ethernet header included.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Rates {
    pub interface: String,
    pub seconds: f64,
    pub rx_bits_per_second: f64,
    pub rx_packets_per_second: f64,
    pub tx_bits_per_second: f64,
    pub tx_packets_per_second: f64,
    pub rx_dropped_per_second: f64,
    pub tx_dropped_per_second: f64,
    /// Rates of counters that changed.
    pub counters_per_second: BTreeMap<String, f64>,
}

/// Returns true if both snapshots are of the same open device.
pub fn is_same(before: &Snapshot, now: &Snapshot) -> bool {
    (&before.interface, before.pid) == (&now.interface, now.pid) && before.nanos < now.nanos
}

impl Rates {
    /// The rates from `before` to `now`, two snapshots of the same device.
    pub fn between(before: &Snapshot, now: &Snapshot) -> Self {
        let seconds = real(now.nanos.saturating_sub(before.nanos)) / 1e9;
        let rate = |before: u64, now: u64| real(now.wrapping_sub(before)) / seconds;
        let of = |figure: fn(&CoreFigures) -> u64| {
            let sum = |snapshot: &Snapshot| snapshot.cores.iter().map(figure).sum();
            rate(sum(before), sum(now))
        };
        let moved = now.counters.iter().filter_map(|(name, &value)| {
            let earlier = before.counters.get(name).copied().unwrap_or(0);
            (value != earlier).then(|| (name.clone(), rate(earlier, value)))
        });
        Self {
            interface: now.interface.clone(),
            seconds,
            rx_bits_per_second: of(|core| core.rx_bytes) * 8.0,
            rx_packets_per_second: of(|core| core.rx_frames),
            tx_bits_per_second: of(|core| core.tx_bytes) * 8.0,
            tx_packets_per_second: of(|core| core.tx_frames),
            rx_dropped_per_second: of(|core| core.rx_dropped),
            tx_dropped_per_second: of(|core| core.tx_dropped),
            counters_per_second: moved.collect(),
        }
    }
}

#[allow(clippy::cast_precision_loss)] // Rates have a few digits.
fn real(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::figures::samples::snapshot;

    #[test]
    fn rates_are_per_second_over_all_cores() {
        let (before, now) = (snapshot(1_000_000_000, 100, 3), snapshot(1_500_000_000, 200, 4));
        assert!(is_same(&before, &now) && !is_same(&now, &before));
        let rates = Rates::between(&before, &now);
        assert_eq!(rates.rx_packets_per_second, 400.0);
        assert_eq!(rates.rx_bits_per_second, 3_200_000.0);
        assert_eq!(rates.tx_bits_per_second, 0.0);
        assert_eq!(rates.counters_per_second, BTreeMap::from([("packet_seq_err".into(), 2.0)]));
    }
}
