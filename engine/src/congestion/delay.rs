//! Round-trip times of a QP: the time from a request packet to its acknowledgement.

use feroce_wire::Psn;

use super::facts::SentRequest;
use crate::time::{Duration, Instant};

/// Measures one round trip at a time. A packet that was sent twice is not measured.
#[derive(Debug, Clone, Copy, Default)]
pub struct RoundTrips {
    /// The packet being measured.
    probe: Option<Probe>,
    /// Bytes of SENDs and WRITEs sent for the first time.
    sent: u64,
    /// The part of `sent` that measured round trips have reported as acknowledged.
    acknowledged: u64,
}

#[derive(Debug, Clone, Copy)]
struct Probe {
    psn: Psn,
    at: Instant,
    /// Bytes sent up to and including this packet.
    sent: u64,
}

/// A measured round trip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundTrip {
    /// Its duration.
    pub time: Duration,
    /// Bytes acknowledged since the previous measurement.
    pub bytes: u64,
}

impl RoundTrips {
    /// A request packet was sent in a frame of `bytes`. A retransmission cancels the measurement:
    /// an acknowledgement could belong to either transmission.
    pub fn on_sent(&mut self, request: &SentRequest, bytes: u64, now: Instant) {
        if request.is_retransmit {
            self.probe = None;
        } else if request.carries_data {
            self.sent += bytes;
            if request.ack_requested && self.probe.is_none() {
                self.probe = Some(Probe { psn: request.psn, at: now, sent: self.sent });
            }
        }
    }

    /// The peer acknowledged all packets up to `psn`. Returns the round trip that this ends, if
    /// any. The response to a READ or atomic after the probe ends it, too: the responder may send
    /// no separate acknowledgement.
    pub fn on_acked(&mut self, psn: Psn, now: Instant) -> Option<RoundTrip> {
        let probe = self.probe.take_if(|probe| !psn.is_before(probe.psn))?;
        let bytes = probe.sent - self.acknowledged;
        self.acknowledged = probe.sent;
        Some(RoundTrip { time: now.saturating_since(probe.at), bytes })
    }
}
