//! Helpers shared by the tests.
#![allow(dead_code)] // Each test uses its own part.

pub mod bottleneck;

use feroce_congestion::{Duration, Instant};

/// A point in time, in microseconds.
pub fn us(micros: u64) -> Instant {
    Instant::ZERO + Duration::from_micros(micros)
}

/// A point in time, in nanoseconds.
pub fn ns(nanos: u64) -> Instant {
    Instant::from_nanos(nanos)
}
