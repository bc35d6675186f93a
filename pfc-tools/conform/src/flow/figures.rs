//! The figures measured of a flow.

use serde::Serialize;

/// A summary of time measurements.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Times {
    /// Number of measurements.
    pub count: u64,
    /// Shortest time, in nanoseconds.
    pub min: u64,
    /// Longest time, in nanoseconds.
    pub max: u64,
    /// Sum of all times, in nanoseconds.
    pub sum: u64,
}

impl Times {
    /// Adds a measurement.
    pub fn add(&mut self, nanos: u64) {
        self.min = if self.count == 0 { nanos } else { self.min.min(nanos) };
        self.max = self.max.max(nanos);
        self.count += 1;
        self.sum = self.sum.saturating_add(nanos);
    }

    /// Returns the mean, in nanoseconds.
    pub const fn mean(&self) -> u64 {
        match self.count {
            0 => 0,
            count => self.sum / count,
        }
    }
}

/// The figures of a flow.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Figures {
    /// Request packets, retransmissions included.
    pub requests: u64,
    /// Response packets.
    pub responses: u64,
    /// Retransmitted request packets.
    pub retransmitted: u64,
    /// Completed messages of requests.
    pub messages: u64,
    /// Payload of requests without retransmissions, in bytes.
    pub request_bytes: u64,
    /// Payload of responses, in bytes.
    pub response_bytes: u64,
    /// NAKs (PSN sequence).
    pub naks: u64,
    /// RNR NAKs.
    pub rnr_naks: u64,
    /// Time of the first packet, in nanoseconds since 1970.
    pub first_at: u64,
    /// Time of the last packet.
    pub last_at: u64,
    /// From a request to the response that covers it.
    pub response_times: Times,
    /// From the packet that reveals a gap to the NAK.
    pub nak_generation: Times,
    /// From a NAK to the retransmission of the packet that it names.
    pub nak_reaction: Times,
    /// From a request to its retransmission without a NAK.
    pub timeouts: Times,
    /// From an RNR NAK to the next attempt.
    pub rnr_waits: Times,
    /// Time between CNPs.
    pub cnp_intervals: Times,
}

impl Figures {
    /// Counts a packet of the flow that was captured at `at`.
    pub fn seen(&mut self, at: u64) {
        if self.requests + self.responses == 0 {
            self.first_at = at;
        }
        self.last_at = self.last_at.max(at);
    }

    /// Returns the payload rate of requests and responses together, in bits per second. `None` if
    /// the flow has a single packet.
    #[allow(clippy::cast_precision_loss)] // A figure for display.
    pub fn rate(&self) -> Option<f64> {
        let nanos = self.last_at.checked_sub(self.first_at).filter(|&nanos| nanos > 0)?;
        Some((self.request_bytes + self.response_bytes) as f64 * 8e9 / nanos as f64)
    }
}

/// Formats a duration for display.
#[allow(clippy::cast_precision_loss)]
pub fn duration(nanos: u64) -> String {
    match nanos {
        0..1_000 => format!("{nanos} ns"),
        1_000..1_000_000 => format!("{:.1} us", nanos as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", nanos as f64 / 1e6),
        _ => format!("{:.2} s", nanos as f64 / 1e9),
    }
}
