//! Time as an argument ([`Instant`]), and the clock that a core reads once per turn.

pub use feroce_congestion::time::{Duration, Instant};

/// The machine's monotonic clock, read once per turn of a core.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    origin: std::time::Instant,
}

impl Clock {
    /// A clock whose origin is now.
    #[allow(clippy::disallowed_methods)] // The one place that reads the machine's clock.
    pub fn start() -> Self {
        Self { origin: std::time::Instant::now() }
    }

    /// The time now.
    pub fn now(&self) -> Instant {
        let nanos = self.origin.elapsed().as_nanos();
        Instant::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}
