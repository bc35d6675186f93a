//! A window in packets that losses make shorter, and that grows again while nothing is lost.

use crate::time::{Duration, Instant};

/// Losses within this time are one event: a ring that overflows loses packets of many QPs.
const LOSS_EVENT: Duration = Duration::from_millis(1);

/// The bounds of a window, in packets.
#[derive(Debug, Clone, Copy)]
pub struct WindowBounds {
    /// The shortest window.
    pub shortest: u32,
    /// The longest window, and the first.
    pub longest: u32,
}

/// A loss halves the window, and each window of packets without a loss makes it an eighth longer.
#[derive(Debug)]
pub(super) struct LossWindow {
    bounds: WindowBounds,
    packets: u32,
    /// Packets sent since the window became shorter or longer.
    sent: u32,
    /// The last loss that made the window shorter.
    reduced_at: Option<Instant>,
}

impl LossWindow {
    /// The longest window.
    pub(super) fn new(bounds: WindowBounds) -> Self {
        Self { bounds, packets: bounds.longest, sent: 0, reduced_at: None }
    }

    /// The bounds.
    pub(super) fn bounds(&self) -> WindowBounds {
        self.bounds
    }

    /// The window, in packets.
    #[inline]
    pub(super) fn packets(&self) -> u32 {
        self.packets
    }

    /// `count` packets of the window were used.
    #[inline]
    pub(super) fn on_sent(&mut self, count: u32) {
        self.sent += count;
        if self.sent >= self.packets {
            self.sent = 0;
            self.packets = (self.packets + self.packets / 8).min(self.bounds.longest);
        }
    }

    /// A packet was lost.
    #[cold]
    pub(super) fn on_loss(&mut self, now: Instant) {
        let last = self.reduced_at.map(|last| now.saturating_since(last));
        if last.is_none_or(|ago| ago >= LOSS_EVENT) {
            self.reduce();
            (self.reduced_at, self.sent) = (Some(now), 0);
        }
    }

    /// Halves the window.
    pub(super) fn reduce(&mut self) {
        self.packets = (self.packets / 2).max(self.bounds.shortest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::ZERO + Duration::from_micros(micros)
    }

    #[test]
    fn a_loss_halves_the_window_once_per_event_and_it_grows_again() {
        let mut window = LossWindow::new(WindowBounds { shortest: 64, longest: 256 });
        assert_eq!(window.packets(), 256);
        window.on_loss(at(5000));
        window.on_loss(at(5999));
        assert_eq!(window.packets(), 128);
        window.on_loss(at(6000));
        window.on_loss(at(9000));
        assert_eq!(window.packets(), 64, "never below the shortest");
        window.on_sent(63);
        assert_eq!(window.packets(), 64, "not yet a window of packets");
        let grown = [1, 72, 81].map(|count| {
            window.on_sent(count);
            window.packets()
        });
        assert_eq!(grown, [72, 81, 91]);
        for _ in 0..20 {
            window.on_sent(256);
        }
        assert_eq!(window.packets(), 256, "never above the longest");
    }
}
