//! When to request a pause from the neighbour, by the fill level of the receive ring.

use feroce_congestion::Rate;

use super::config::{Thresholds, pause_time};
use crate::time::{Duration, Instant};

/// A request to the neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PauseRequest {
    /// Pause for the longest time that a frame can express.
    Xoff,
    /// End the pause.
    Xon,
}

impl PauseRequest {
    /// Quanta in the frame.
    pub const fn quanta(self) -> u16 {
        match self {
            Self::Xoff => u16::MAX,
            Self::Xon => 0,
        }
    }
}

/// Requests a pause while the receive ring is full, and refreshes the request before the pause
/// ends.
#[derive(Debug, Clone)]
pub struct Backpressure {
    thresholds: Thresholds,
    /// Time until an XOFF is repeated: half of its pause.
    refresh: Duration,
    /// While the neighbour is paused: when to repeat the XOFF.
    refresh_at: Option<Instant>,
    /// Fill level of the ring at the last request.
    requested_fill: u8,
}

impl Backpressure {
    /// For a link of `link_rate`, with no request made.
    pub fn new(thresholds: Thresholds, link_rate: Rate) -> Self {
        Self {
            thresholds,
            refresh: pause_time(PauseRequest::Xoff.quanta(), link_rate) / 2,
            refresh_at: None,
            requested_fill: 0,
        }
    }

    /// The request that is due at `now`, with the ring `fill` per cent full. It stays due until
    /// [`Backpressure::on_requested`].
    pub fn due_request(&self, fill: u8, now: Instant) -> Option<PauseRequest> {
        match self.refresh_at {
            None => (fill >= self.thresholds.xoff).then_some(PauseRequest::Xoff),
            Some(_) if fill <= self.thresholds.xon => Some(PauseRequest::Xon),
            // If the ring fills further, the XOFF was lost on the link or dropped for lack of room.
            Some(at) => {
                (at <= now || fill > self.highest_paused_fill()).then_some(PauseRequest::Xoff)
            }
        }
    }

    /// The highest fill level expected after an XOFF: frames in flight still arrive.
    fn highest_paused_fill(&self) -> u8 {
        self.requested_fill.saturating_add(((100 - self.thresholds.xoff) / 4).max(1))
    }

    /// `request` was made at `now`, with the ring `fill` per cent full.
    pub fn on_requested(&mut self, request: PauseRequest, fill: u8, now: Instant) {
        self.refresh_at = (request == PauseRequest::Xoff).then(|| now + self.refresh);
        self.requested_fill = fill;
    }

    /// Another core ended the neighbour's pause. If this core needs the pause, its XOFF is due at
    /// once.
    pub fn on_released(&mut self) {
        self.refresh_at = self.refresh_at.map(|_| Instant::ZERO);
    }

    /// Returns true if the last request was an XOFF.
    pub const fn is_pausing(&self) -> bool {
        self.refresh_at.is_some()
    }

    /// Latest time of the next XOFF; [`Instant::FAR`] if none is needed.
    pub fn next_refresh(&self) -> Instant {
        self.refresh_at.unwrap_or(Instant::FAR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xoff_is_requested_above_one_threshold_and_xon_below_the_other() {
        let thresholds = Thresholds { xoff: 50, xon: 20 };
        // The longest pause is 33.55392 ms.
        let mut point = Backpressure::new(thresholds, Rate::from_gbps(1));
        let half = Duration::from_nanos(16_776_960);
        let mut now = Instant::from_nanos(5);
        assert_eq!(point.due_request(49, now), None);
        assert_eq!(point.due_request(50, now), Some(PauseRequest::Xoff));
        assert_eq!(point.due_request(50, now), Some(PauseRequest::Xoff), "not requested yet");
        point.on_requested(PauseRequest::Xoff, 50, now);
        assert_eq!((point.due_request(62, now), point.next_refresh()), (None, now + half));
        assert_eq!(
            point.due_request(63, now),
            Some(PauseRequest::Xoff),
            "the ring fills further: the frame was lost"
        );
        point.on_requested(PauseRequest::Xoff, 63, now);
        assert_eq!(point.due_request(63, now), None);
        now += half;
        assert_eq!(
            (point.due_request(21, now), point.due_request(20, now)),
            (Some(PauseRequest::Xoff), Some(PauseRequest::Xon))
        );
        point.on_requested(PauseRequest::Xoff, 21, now);
        assert_eq!(point.due_request(30, now), None);
        point.on_released();
        assert_eq!(
            point.due_request(30, now),
            Some(PauseRequest::Xoff),
            "another core ended the pause"
        );
        point.on_requested(PauseRequest::Xon, 20, now);
        assert_eq!((point.due_request(30, now), point.next_refresh()), (None, Instant::FAR));
        point.on_released();
        assert!(!point.is_pausing());
    }
}
