//! Readable output of everything that happens in a scenario, for the replay of one seed.

use feroce_conform::capture_file::Frame;
use feroce_engine::time::Instant;
use feroce_wire::Packet;

use crate::wire::Seen;

/// Prints events and keeps frames if it is on.
#[derive(Debug)]
pub struct Trace {
    is_on: bool,
    start: Instant,
    frames: Vec<Frame>,
}

impl Trace {
    /// Creates a trace that prints nothing.
    pub fn off() -> Self {
        Self { is_on: false, start: Instant::ZERO, frames: Vec::new() }
    }

    /// Creates a trace that prints every event.
    pub fn on() -> Self {
        Self { is_on: true, ..Self::off() }
    }

    /// Prints times since `start` from now on.
    pub(super) fn begin(&mut self, start: Instant) {
        self.start = start;
    }

    /// Prints the event `what` at the time `now`.
    pub fn note(&mut self, now: Instant, what: impl FnOnce() -> String) {
        if self.is_on {
            println!("{:>13.3} us  {}", micros(now, self.start), what());
        }
    }

    /// Prints a frame that was sent.
    pub fn frame(&mut self, seen: &Seen) {
        if !self.is_on {
            return;
        }
        let Seen { at, from, bytes, faults } = seen;
        self.note(*at, || match Packet::parse(bytes, &[]) {
            Ok(packet) => format!("end {from} > {packet} {faults}"),
            Err(error) => format!("end {from} > {error} {faults}"),
        });
        let at = at.saturating_since(self.start);
        self.frames.push(Frame { at, bytes: bytes.clone() });
    }

    /// Returns the frames that were sent, with times since the start.
    pub fn into_frames(self) -> Vec<Frame> {
        self.frames
    }
}

#[allow(clippy::cast_precision_loss)] // For display only.
fn micros(at: Instant, start: Instant) -> f64 {
    at.saturating_since(start).as_nanos() as f64 / 1000.0
}
