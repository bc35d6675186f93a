//! Frames of flow control that arrive at an interface, taken into a meter at the times at which the kernel got them.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use feroce_engine::port::ethtool::Ethtool;
use feroce_engine::port::packet::Tap;
use feroce_engine::time::Clock;
use feroce_wire::pause::inspect;

use super::cli::Failure;
use super::meter::Meter;
use crate::fabric::time::{LineRate, Time};

/// Bytes that the kernel may keep, some hundreds for each frame: a third of a second of a million a second.
const RX_BYTES: u32 = 1 << 28;
/// Bursts that are taken before the time is looked at again.
const BURSTS: usize = 64;

/// An interface, and what its frames do.
pub(super) struct Listener {
    tap: Tap,
    meter: Meter,
    clock: Clock,
    behind: Time,
}

impl Listener {
    /// Listens at an interface, whose link has this rate, or else the one that its driver says.
    pub fn open(interface: &str, rate: Option<LineRate>) -> Result<Self, Failure> {
        let tap = Tap::open_flow_control(interface, RX_BYTES)?;
        let known = || Ethtool::open(interface).ok()?.rate().map(LineRate::new);
        let meter = Meter::new(rate.or_else(known));
        Ok(Self { tap, meter, clock: Clock::start(), behind: Time::ZERO })
    }

    /// The time since it was opened.
    pub fn now(&self) -> Time {
        Time::from_instant(self.clock.now())
    }

    /// What the frames do.
    pub const fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Frames that the kernel dropped, since they came too fast.
    pub fn lost(&mut self) -> u64 {
        self.tap.drops()
    }

    /// The longest that a frame has waited to be looked at, since the last call.
    pub const fn take_behind(&mut self) -> Time {
        let behind = self.behind;
        self.behind = Time::ZERO;
        behind
    }

    /// Takes what has arrived, a while of it at most; whether nothing is left.
    pub fn take(&mut self) -> io::Result<bool> {
        for _ in 0..BURSTS {
            let count = self.tap.receive()?;
            if count == 0 {
                return Ok(true);
            }
            let (now, wall) = (self.now(), wall_clock());
            for index in 0..count {
                let frame = self.tap.frame(index);
                // However the machine's clock is set meanwhile: a frame comes behind the one before, and ahead of now.
                let waited = frame.arrived.and_then(|at| wall.checked_sub(at)).unwrap_or_default();
                let at = (now - span(waited)).max(self.meter.now());
                self.behind = self.behind.max(now - at);
                if let Some(seen) = inspect(frame.bytes, frame.bytes.len()) {
                    self.meter.take(&seen, at);
                }
            }
        }
        Ok(false)
    }

    /// Takes what has arrived by now, and ends the pauses whose time is over.
    pub fn settle(&mut self) -> io::Result<()> {
        let now = self.now();
        // What still waits has come ahead of now.
        if self.take()? {
            self.meter.advance(now.max(self.meter.now()));
        }
        self.meter.settle();
        Ok(())
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.tap.as_raw_fd()
    }
}

#[allow(clippy::disallowed_methods)] // The kernel's times are those of this clock.
fn wall_clock() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn span(duration: Duration) -> Time {
    Time::from_nanos(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}
