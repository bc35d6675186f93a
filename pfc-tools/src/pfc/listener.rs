//! Receives the flow control frames of an interface into a meter, with the kernel's receive
//! timestamps.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use feroce_engine::port::ethtool::Ethtool;
use feroce_engine::port::packet::Tap;
use feroce_engine::time::{Clock, wall_clock};
use feroce_wire::pause::inspect;

use super::meter::Meter;
use super::outcome::Failure;
use crate::fabric::time::{LinkRate, Time};

/// Receive buffer in the kernel in bytes. A frame takes some hundred bytes: enough for a third of a
/// second at a million frames per second.
const RX_BYTES: u32 = 1 << 28;
/// Bursts received before the time is checked again.
const BURSTS: usize = 64;

/// An interface and the statistics of its frames.
pub(super) struct Listener {
    tap: Tap,
    meter: Meter,
    clock: Clock,
    /// Longest processing delay of a frame since the last [`take_lag`](Self::take_lag).
    lag: Time,
}

impl Listener {
    /// Listens on an interface. The link rate is `rate`, or else the rate reported by the driver.
    pub fn open(interface: &str, rate: Option<LinkRate>) -> Result<Self, Failure> {
        let tap = Tap::open_flow_control(interface, RX_BYTES)?;
        let known = || Ethtool::open(interface).ok()?.rate().map(LinkRate::new);
        let meter = Meter::new(rate.or_else(known));
        Ok(Self { tap, meter, clock: Clock::start(), lag: Time::ZERO })
    }

    /// Time since the interface was opened.
    pub fn now(&self) -> Time {
        Time::from_instant(self.clock.now())
    }

    /// Statistics of the frames.
    pub const fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Frames dropped by the kernel because they arrived too fast.
    pub fn lost(&mut self) -> u64 {
        self.tap.drops()
    }

    /// The longest time since the last call that a frame waited to be processed.
    pub const fn take_lag(&mut self) -> Time {
        std::mem::replace(&mut self.lag, Time::ZERO)
    }

    /// Receives frames that have arrived, up to a limit. Returns true if none is left.
    pub fn take(&mut self) -> io::Result<bool> {
        for _ in 0..BURSTS {
            let count = self.tap.receive()?;
            if count == 0 {
                return Ok(true);
            }
            let (now, wall) = (self.now(), wall_clock());
            for index in 0..count {
                let frame = self.tap.frame(index);
                // Timestamps stay in order and not after the current time, even if the system clock
                // is set.
                let waited = frame.arrived.and_then(|at| wall.checked_sub(at)).unwrap_or_default();
                let at = (now - span(waited)).max(self.meter.now());
                self.lag = self.lag.max(now - at);
                if let Some(seen) = inspect(frame.bytes, frame.bytes.len()) {
                    self.meter.take(&seen, at);
                }
            }
        }
        Ok(false)
    }

    /// Receives the frames that have arrived by now and ends expired pauses.
    pub fn drain(&mut self) -> io::Result<()> {
        let now = self.now();
        // Frames still in the socket arrived before `now`.
        if self.take()? {
            self.meter.advance(now.max(self.meter.now()));
        }
        self.meter.end_expired();
        Ok(())
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.tap.as_raw_fd()
    }
}

fn span(duration: Duration) -> Time {
    Time::from_nanos(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}
