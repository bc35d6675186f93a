//! Readable output of everything that happens in a scenario, for the replay of one seed.

use feroce_engine::time::Instant;
use feroce_wire::Packet;

use crate::wire::Seen;

/// Prints events if it is on.
#[derive(Debug)]
pub struct Trace {
    start: Option<Instant>,
}

impl Trace {
    /// Creates a trace that prints nothing.
    pub fn off() -> Self {
        Self { start: None }
    }

    /// Creates a trace that prints every event, with times since `start`.
    pub fn on(start: Instant) -> Self {
        Self { start: Some(start) }
    }

    /// Prints the event `what` at the time `now`.
    pub fn note(&mut self, now: Instant, what: impl FnOnce() -> String) {
        if let Some(start) = self.start {
            println!("{:>13.3} us  {}", micros(now, start), what());
        }
    }

    /// Prints a frame that was sent.
    pub fn frame(&mut self, seen: &Seen) {
        let Seen { at, from, bytes, faults } = seen;
        self.note(*at, || match Packet::parse(bytes, &[]) {
            Ok(packet) => format!("end {from} > {packet} {faults}"),
            Err(error) => format!("end {from} > {error} {faults}"),
        });
    }
}

#[allow(clippy::cast_precision_loss)] // For display only.
fn micros(at: Instant, start: Instant) -> f64 {
    at.saturating_since(start).as_nanos() as f64 / 1000.0
}
