//! Time as an argument ([`Instant`]), and the clock that a core reads once per turn.

pub use feroce_congestion::time::{Duration, Instant};
use nix::time::{ClockId, clock_gettime};

/// The machine's monotonic clock, read once per turn of a core.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    /// The machine's time at the clock's start, in nanoseconds.
    origin: u64,
}

impl Clock {
    /// A clock whose origin is now.
    pub fn start() -> Self {
        Self { origin: machine_nanos() }
    }

    /// The time now.
    #[inline]
    pub fn now(&self) -> Instant {
        Instant::from_nanos(machine_nanos().saturating_sub(self.origin))
    }
}

/// Returns the time since 1970 by the clock that the kernel's timestamps use.
#[allow(clippy::disallowed_methods)] // The one place that reads this clock.
pub fn wall_clock() -> std::time::Duration {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.unwrap_or_default()
}

/// Returns the nanoseconds of the machine's monotonic clock, which only this function reads.
/// [`std::time::Instant`] keeps seconds and nanoseconds apart, so a difference takes more
/// instructions.
#[allow(clippy::disallowed_methods)] // The one place that reads the clock.
#[inline]
fn machine_nanos() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("every Linux has this clock");
    now.tv_sec().cast_unsigned() * 1_000_000_000 + now.tv_nsec().cast_unsigned()
}
