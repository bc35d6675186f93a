//! What is measured of a flow.

use serde::Serialize;

/// Times, summed up.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Times {
    /// How many.
    pub count: u64,
    /// Shortest, in nanoseconds.
    pub min: u64,
    /// Longest.
    pub max: u64,
    /// All together.
    pub sum: u64,
}

impl Times {
    /// One more.
    pub fn add(&mut self, nanos: u64) {
        self.min = if self.count == 0 { nanos } else { self.min.min(nanos) };
        self.max = self.max.max(nanos);
        self.count += 1;
        self.sum = self.sum.saturating_add(nanos);
    }

    /// Their mean, in nanoseconds.
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
    /// Request packets.
    pub requests: u64,
    /// Answers.
    pub answers: u64,
    /// Request packets that were sent again.
    pub repeated: u64,
    /// Messages that requests have ended.
    pub messages: u64,
    /// Payload of requests, in bytes, what was sent again left out.
    pub request_bytes: u64,
    /// Payload of answers, in bytes.
    pub answer_bytes: u64,
    /// NAKs (PSN sequence).
    pub naks: u64,
    /// RNR NAKs.
    pub rnr_naks: u64,
    /// First packet, in nanoseconds since 1970.
    pub first_at: u64,
    /// Last packet.
    pub last_at: u64,
    /// From a request to the answer that covers it.
    pub answer_times: Times,
    /// From the packet that shows a gap to the NAK.
    pub nak_generation: Times,
    /// From a NAK to the packet that it asks for.
    pub nak_reaction: Times,
    /// From a request to its repetition without a NAK.
    pub timeouts: Times,
    /// From an RNR NAK to the next try.
    pub rnr_waits: Times,
    /// Between CNPs.
    pub cnp_intervals: Times,
}

impl Figures {
    /// A packet of the flow was captured at `at`.
    pub fn seen(&mut self, at: u64) {
        if self.requests + self.answers == 0 {
            self.first_at = at;
        }
        self.last_at = self.last_at.max(at);
    }

    /// Payload of requests and answers per second, in bits. `None` of a single packet.
    #[allow(clippy::cast_precision_loss)] // For people.
    pub fn rate(&self) -> Option<f64> {
        let nanos = self.last_at.checked_sub(self.first_at).filter(|&nanos| nanos > 0)?;
        Some((self.request_bytes + self.answer_bytes) as f64 * 8e9 / nanos as f64)
    }
}

/// A time for people.
#[allow(clippy::cast_precision_loss)]
pub fn duration(nanos: u64) -> String {
    match nanos {
        0..1_000 => format!("{nanos} ns"),
        1_000..1_000_000 => format!("{:.1} us", nanos as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", nanos as f64 / 1e6),
        _ => format!("{:.2} s", nanos as f64 / 1e9),
    }
}
