//! What the neighbour is asked for as the receive ring fills and empties.

use feroce_congestion::Rate;

use super::{Thresholds, span};
use crate::time::{Duration, Instant};

/// What is asked of the neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// To pause for as long as a frame can say.
    Xoff,
    /// To go on.
    Xon,
}

impl Ask {
    /// What the frame says.
    pub const fn quanta(self) -> u16 {
        match self {
            Self::Xoff => u16::MAX,
            Self::Xon => 0,
        }
    }
}

/// Asks for a pause while the receive ring is full, and again before the pause is over.
#[derive(Debug, Clone)]
pub struct Backpressure {
    thresholds: Thresholds,
    /// How long a pause stays asked for: half of it.
    refresh: Duration,
    /// While the neighbour is paused: when to ask again.
    asks_at: Option<Instant>,
    /// How full the ring was when it was asked for.
    asked_fill: u8,
}

impl Backpressure {
    /// For a link of the rate `line`. Nothing was asked yet.
    pub fn new(thresholds: Thresholds, line: Rate) -> Self {
        Self {
            thresholds,
            refresh: span(Ask::Xoff.quanta(), line) / 2,
            asks_at: None,
            asked_fill: 0,
        }
    }

    /// What to ask for at `now`, with the ring full to `fill` per cent. Until [`Backpressure::asked`], it is still to be asked for.
    pub fn wants(&self, fill: u8, now: Instant) -> Option<Ask> {
        match self.asks_at {
            None => (fill >= self.thresholds.xoff).then_some(Ask::Xoff),
            Some(_) if fill <= self.thresholds.xon => Some(Ask::Xon),
            // The link may have lost the frame, or dropped it for want of room.
            Some(at) => (at <= now || fill > self.fills_on()).then_some(Ask::Xoff),
        }
    }

    /// Above this the ring fills on in spite of what was asked for.
    fn fills_on(&self) -> u8 {
        self.asked_fill.saturating_add(((100 - self.thresholds.xoff) / 4).max(1))
    }

    /// It was asked for at `now`, with the ring full to `fill` per cent.
    pub fn asked(&mut self, ask: Ask, fill: u8, now: Instant) {
        self.asks_at = (ask == Ask::Xoff).then(|| now + self.refresh);
        self.asked_fill = fill;
    }

    /// The neighbour went on for another reason: if it should pause, it is asked at once.
    pub fn forget(&mut self) {
        self.asks_at = self.asks_at.map(|_| Instant::ZERO);
    }

    /// Whether the neighbour is asked to pause.
    pub const fn is_asking(&self) -> bool {
        self.asks_at.is_some()
    }

    /// When it has to be asked again at the latest; [`Instant::FAR`] if not at all.
    pub fn next_ask(&self) -> Instant {
        self.asks_at.unwrap_or(Instant::FAR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asks_above_one_threshold_until_below_the_other() {
        let thresholds = Thresholds { xoff: 50, xon: 20 };
        // The longest pause is 33.55392 ms.
        let mut point = Backpressure::new(thresholds, Rate::from_gbps(1));
        let half = Duration::from_nanos(16_776_960);
        let mut now = Instant::from_nanos(5);
        assert_eq!(point.wants(49, now), None);
        assert_eq!(point.wants(50, now), Some(Ask::Xoff));
        assert_eq!(point.wants(50, now), Some(Ask::Xoff), "not asked yet");
        point.asked(Ask::Xoff, 50, now);
        assert_eq!((point.wants(62, now), point.next_ask()), (None, now + half));
        assert_eq!(point.wants(63, now), Some(Ask::Xoff), "it fills on: the frame was lost");
        point.asked(Ask::Xoff, 63, now);
        assert_eq!(point.wants(63, now), None);
        now += half;
        assert_eq!((point.wants(21, now), point.wants(20, now)), (Some(Ask::Xoff), Some(Ask::Xon)));
        point.asked(Ask::Xoff, 21, now);
        assert_eq!(point.wants(30, now), None);
        point.forget();
        assert_eq!(point.wants(30, now), Some(Ask::Xoff), "it was let go by somebody else");
        point.asked(Ask::Xon, 20, now);
        assert_eq!((point.wants(30, now), point.next_ask()), (None, Instant::FAR));
        point.forget();
        assert!(!point.is_asking());
    }
}
