//! Distribution of a quantity over time: an HDR histogram weighted by time. Mean and maximum are
//! exact.

use hdrhistogram::Histogram;

use crate::fabric::time::Time;

/// Significant decimal digits: 256 exact values, then 128 steps for each doubling.
const DIGITS: u8 = 2;
/// Largest value kept apart; larger ones count as this value.
const LARGEST: u64 = (1 << 46) - 1;

/// Time spent at each value. Values below 256 are exact, larger ones accurate to 1/128.
#[derive(Debug, Clone)]
pub struct TimeHistogram {
    /// Picoseconds at each value.
    weights: Histogram<u64>,
    total: u64,
    /// Sum of value times picoseconds.
    area: u128,
    max: u64,
}

impl Default for TimeHistogram {
    fn default() -> Self {
        let weights = Histogram::new_with_bounds(1, LARGEST, DIGITS).expect("valid bounds");
        Self { weights, total: 0, area: 0, max: 0 }
    }
}

impl TimeHistogram {
    /// Records that the quantity had `value` for `span`.
    #[inline]
    pub fn add(&mut self, value: u64, span: Time) {
        if span == Time::ZERO {
            return;
        }
        self.weights.saturating_record_n(value, span.0);
        self.total += span.0;
        self.area += u128::from(value) * u128::from(span.0);
        self.max = self.max.max(value);
    }

    /// Adds the records of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.weights.add(&other.weights).expect("equal bounds");
        self.total += other.total;
        self.area += other.area;
        self.max = self.max.max(other.max);
    }

    /// Returns true if nothing was recorded.
    pub const fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// The mean over time.
    #[allow(clippy::cast_precision_loss)]
    pub fn mean(&self) -> f64 {
        if self.total == 0 { 0.0 } else { self.area as f64 / self.total as f64 }
    }

    /// The standard deviation over time.
    #[allow(clippy::cast_precision_loss)]
    pub fn deviation(&self) -> f64 {
        if self.total == 0 {
            return 0.0;
        }
        let mean = self.mean();
        let square = |(value, weight): (u64, u64)| (value as f64 - mean).powi(2) * weight as f64;
        let sum: f64 = self.recorded().map(square).sum();
        (sum / self.total as f64).sqrt()
    }

    /// The largest value.
    pub const fn max(&self) -> u64 {
        self.max
    }

    /// The smallest value that the quantity did not exceed for `permille` of the time, rounded down
    /// to the histogram's resolution. In integers, unlike `Histogram::value_at_quantile`: results
    /// must not differ between machines.
    pub fn quantile(&self, permille: u64) -> u64 {
        let wanted = (u128::from(self.total) * u128::from(permille)).div_ceil(1000);
        let mut seen = 0;
        for (value, weight) in self.recorded() {
            seen += u128::from(weight);
            if seen >= wanted {
                return value;
            }
        }
        self.max
    }

    /// Lowest value and picoseconds of each bucket that is not empty, in order.
    fn recorded(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.weights.iter_recorded().map(|bucket| {
            let value = self.weights.lowest_equivalent(bucket.value_iterated_to());
            (value, bucket.count_at_value())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_and_mean_are_weighted_by_time() {
        let mut histogram = TimeHistogram::default();
        histogram.add(0, Time(900));
        histogram.add(100_000, Time(90));
        histogram.add(1_000_000, Time(10));
        assert_eq!(histogram.quantile(500), 0);
        assert_eq!(histogram.quantile(900), 0);
        let q95 = histogram.quantile(950);
        assert!((99_200..=100_000).contains(&q95), "{q95}");
        assert_eq!(histogram.max(), 1_000_000);
        assert!((histogram.mean() - 19_000.0).abs() < 1e-9);
    }

    #[test]
    fn a_bucket_is_found_by_its_value() {
        for value in (0..5000).chain([1 << 20, (1 << 30) + 12345]) {
            let mut histogram = TimeHistogram::default();
            histogram.add(value, Time(1));
            let bucket = histogram.quantile(1000);
            assert!(bucket <= value && value - bucket <= value / 128, "{value} -> {bucket}");
        }
    }
}
