//! Results of a round: what each side did, rates and latencies.

use std::time::Instant;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// What one side sent in a round.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// Messages per QP.
    pub messages: Vec<u64>,
    /// Time from the first post to the last completion in nanoseconds.
    pub nanos: u64,
}

/// The result of a round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Message size in bytes.
    pub bytes: u32,
    /// Messages on all QPs, in both directions.
    pub iterations: u64,
    /// Time from the first post to the last completion at the client.
    pub seconds: f64,
    /// Payload in both directions.
    pub bits_per_second: f64,
    /// In both directions.
    pub messages_per_second: f64,
    /// Only for latency tests.
    pub latency: Option<LatencyRow>,
    /// Bytes compared at both ends; only with `--check`.
    pub checked_bytes: Option<u64>,
}

/// Latencies in microseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LatencyRow {
    /// True for half round trips.
    pub half_round_trip: bool,
    pub min: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p99_9: f64,
    pub max: f64,
    pub average: f64,
    pub stdev: f64,
}

#[allow(clippy::cast_precision_loss)] // Results have a few digits.
fn real(number: u64) -> f64 {
    number as f64
}

impl Row {
    /// The row of a round. A side without a time sent nothing and does not count.
    pub fn new(bytes: u32, own: &Done, peer: &Done) -> Self {
        let sides = [own, peer].into_iter().filter(|side| side.nanos > 0);
        let mut row = Self {
            bytes,
            iterations: 0,
            seconds: real(own.nanos) / 1e9,
            bits_per_second: 0.0,
            messages_per_second: 0.0,
            latency: None,
            checked_bytes: None,
        };
        for side in sides {
            let messages = side.messages.iter().sum::<u64>();
            let rate = real(messages) * 1e9 / real(side.nanos);
            row.iterations += messages;
            row.messages_per_second += rate;
            row.bits_per_second += rate * f64::from(bytes) * 8.0;
        }
        row
    }
}

impl LatencyRow {
    /// The row of a histogram of round trips.
    pub fn new(latencies: &Latencies, half_round_trip: bool) -> Self {
        let scale = if half_round_trip { 2000.0 } else { 1000.0 };
        let at = |percent| real(latencies.value_at_quantile(percent / 100.0)) / scale;
        Self {
            half_round_trip,
            min: real(latencies.min()) / scale,
            p50: at(50.0),
            p90: at(90.0),
            p99: at(99.0),
            p99_9: at(99.9),
            max: real(latencies.max()) / scale,
            average: latencies.mean() / scale,
            stdev: latencies.stdev() / scale,
        }
    }
}

/// Latencies in nanoseconds, to three digits.
pub type Latencies = Histogram<u64>;

/// An empty histogram: 1 ns to 100 s.
pub fn histogram() -> Latencies {
    Histogram::new_with_bounds(1, 100_000_000_000, 3).expect("sensible bounds")
}

/// Time since `started`, in nanoseconds.
pub fn nanos_since(started: Instant) -> u64 {
    u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_add_up_over_directions_and_idle_sides_do_not_count() {
        let own = Done { messages: vec![500, 500], nanos: 1_000_000_000 };
        let idle = Done { messages: vec![0, 0], nanos: 0 };
        let row = Row::new(1000, &own, &idle);
        assert_eq!((row.iterations, row.seconds), (1000, 1.0));
        assert!((row.bits_per_second - 8e6).abs() < 1.0);
        let peer = Done { messages: vec![1000], nanos: 500_000_000 };
        let row = Row::new(1000, &own, &peer);
        assert_eq!(row.iterations, 2000);
        assert!((row.messages_per_second - 3000.0).abs() < 1e-6);
    }

    #[test]
    fn half_round_trips_are_halves() {
        let mut latencies = histogram();
        for nanos in 1..=1000 {
            latencies.record(nanos * 1000).unwrap();
        }
        let row = LatencyRow::new(&latencies, true);
        assert!((row.min - 0.5).abs() < 0.01 && (row.p50 - 250.0).abs() < 1.0, "{row:?}");
        assert!((row.p99_9 - 499.5).abs() < 1.0 && (row.max - 500.0).abs() < 1.0, "{row:?}");
        let full = LatencyRow::new(&latencies, false);
        assert!((full.p99 - 990.0).abs() < 2.0, "{full:?}");
    }
}
