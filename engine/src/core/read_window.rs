//! The response packets of READs that the QPs of a core have outstanding, together.
//!
//! Responses to READs arrive in the receive ring of this core's port, however many QPs requested
//! them: 16 READs of 64 packets per QP fill a ring of a thousand packets with one QP. So all QPs of
//! a core share a *read window*. A QP sends a READ only if the window has room for its response
//! packets; otherwise the QP waits. QPs that wait are served in order, each with a grant of several
//! packets, so that short READs are requested in a row. Atomics and other requests with a response
//! packet of their own count as READs of one packet, and long READs as 128 packets
//! (`qp/segment.rs`): several peers can send long responses, and short READs do not wait for them.
//!
//! Lost responses make the window shorter, as other packets arrive in the same ring: see
//! [`loss_window`](super::loss_window). If it is shorter than a READ, the READ is sent while no
//! other is outstanding.
//!
//! As with the windows of peers, responses that never come must not stop other QPs: if QPs wait and
//! none of them is served for [`STALL`](super::peers::STALL), the window is emptied. What a QP has
//! outstanding counts again as soon as it changes.

use std::collections::VecDeque;

use super::loss_window::{LossWindow, WindowBounds};
use super::peers::GRANT;
use crate::time::Instant;

/// The shortest read window, in packets, unless the longest is shorter.
const SHORTEST: u32 = 64;

/// The read window of a core.
#[derive(Debug)]
pub(super) struct ReadWindow {
    window: LossWindow,
    /// Response packets outstanding, and those that were granted and not requested yet.
    used: u32,
    /// Slots of the QPs that wait, in order, and the response packets that each needs.
    waiting: VecDeque<(u32, u32)>,
    /// A QP that waited was served since the last look for stalls.
    has_granted: bool,
    /// How often the window was emptied.
    epoch: u32,
}

/// The part of a QP in the read window.
#[derive(Debug, Default)]
pub(super) struct ReadShare {
    /// Response packets outstanding.
    outstanding: u32,
    /// Response packets granted and not requested yet.
    granted: u32,
    /// The epoch of the window that both count in.
    epoch: u32,
    is_waiting: bool,
}

impl ReadShare {
    /// Returns true if the QP has a grant that it has not used.
    #[inline]
    pub(super) fn has_grant(&self) -> bool {
        self.granted > 0
    }

    /// The response packets that the QP has outstanding and those that it was granted.
    #[inline]
    pub(super) fn limit(&self) -> u32 {
        self.outstanding + self.granted
    }
}

impl ReadWindow {
    /// A window of at most `longest` packets.
    pub(super) fn new(longest: u32) -> Self {
        Self {
            window: LossWindow::new(WindowBounds { shortest: SHORTEST.min(longest), longest }),
            used: 0,
            waiting: VecDeque::new(),
            has_granted: false,
            epoch: 0,
        }
    }

    /// No QPs are left: the window has its full length again.
    pub(super) fn reset(&mut self) {
        (self.window, self.has_granted) = (LossWindow::new(self.window.bounds()), false);
    }

    /// Makes room for `qps` QPs that wait. Allocates, so only control calls may add QPs.
    pub(super) fn reserve(&mut self, qps: usize) {
        self.waiting.reserve(qps.saturating_sub(self.waiting.len()));
    }

    /// Packets of a grant to a QP that needs `packets`: several, but at most a quarter of the
    /// window unless the QP needs more.
    fn grant_for(&self, packets: u32) -> u32 {
        packets.max(GRANT.min(self.window.packets() / 4))
    }

    /// The response packets that a QP may have outstanding now. If other QPs wait, it gets no more
    /// than it was granted.
    #[inline]
    pub(super) fn limit(&self, share: &ReadShare) -> u32 {
        match self.waiting.is_empty() {
            true => share.limit() + self.window.packets().saturating_sub(self.used),
            false => share.limit(),
        }
    }

    fn fits(&self, packets: u32) -> bool {
        self.used == 0 || self.used.saturating_add(packets) <= self.window.packets()
    }

    /// Takes the response packets of a READ for the QP in slot `slot`. Returns false if there is no
    /// room now: the QP waits.
    pub(super) fn take(&mut self, slot: u32, share: &mut ReadShare, packets: u32) -> bool {
        if share.is_waiting {
            return false;
        }
        if self.waiting.is_empty() && self.fits(packets) {
            self.grant(share, packets);
            return true;
        }
        self.has_granted |= self.waiting.is_empty(); // The time of a stall starts now.
        self.waiting.push_back((slot, packets));
        share.is_waiting = true;
        false
    }

    fn grant(&mut self, share: &mut ReadShare, packets: u32) {
        self.release(share);
        share.granted += packets;
        self.hold(share);
    }

    /// No longer counts what the QP has.
    fn release(&mut self, share: &ReadShare) {
        if share.epoch == self.epoch {
            self.used -= share.limit();
        }
    }

    /// Counts what the QP has.
    fn hold(&mut self, share: &mut ReadShare) {
        share.epoch = self.epoch;
        self.used += share.limit();
    }

    /// Counts the response packets that the QP has outstanding now, of which none was granted
    /// before.
    #[inline]
    pub(super) fn count(&mut self, share: &mut ReadShare, outstanding: u32) {
        if share.outstanding != outstanding {
            self.release(share);
            share.outstanding = outstanding;
            self.hold(share);
        }
    }

    /// The QP has sent READs within its limit, and has `outstanding` response packets outstanding
    /// now. If it `keeps_grant`, it keeps the rest of what it was granted.
    #[inline]
    pub(super) fn on_sent(&mut self, share: &mut ReadShare, outstanding: u32, keeps_grant: bool) {
        if share.granted == 0 && share.outstanding == outstanding {
            return;
        }
        let requested = outstanding.saturating_sub(share.outstanding);
        self.release(share);
        share.granted = if keeps_grant { share.granted.saturating_sub(requested) } else { 0 };
        share.outstanding = outstanding;
        self.hold(share);
        self.window.on_sent(requested);
    }

    /// Responses were lost.
    #[cold]
    pub(super) fn on_loss(&mut self, now: Instant) {
        self.window.on_loss(now);
    }

    /// Returns true if a QP that waits can be served.
    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        self.waiting.front().is_some_and(|&(_, packets)| self.fits(self.grant_for(packets)))
    }

    /// The QP that waits and is served next: its slot, and the packets to [`ReadWindow::serve`] it
    /// with.
    pub(super) fn next_waiting(&mut self) -> Option<(u32, u32)> {
        if !self.is_ready() {
            return None;
        }
        self.has_granted = true;
        let (slot, packets) = self.waiting.pop_front()?;
        Some((slot, self.grant_for(packets)))
    }

    /// Serves a QP that waited.
    pub(super) fn serve(&mut self, share: &mut ReadShare, packets: u32) {
        share.is_waiting = false;
        self.grant(share, packets);
    }

    /// Looks for stalls; call it every [`STALL`](super::peers::STALL) while it returns true: QPs
    /// wait.
    pub(super) fn expire(&mut self) -> bool {
        if self.waiting.is_empty() {
            return false;
        }
        if !std::mem::take(&mut self.has_granted) {
            (self.used, self.epoch) = (0, self.epoch.wrapping_add(1));
        }
        true
    }

    /// The QP in slot `slot` sends no more.
    pub(super) fn leave(&mut self, slot: u32, share: &mut ReadShare) {
        let share = std::mem::take(share);
        self.release(&share);
        if share.is_waiting {
            self.waiting.retain(|&(other, _)| other != slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A quarter of the window.
    const GRANT: u32 = 25;

    /// Takes `packets` for the QP in slot `slot` and sends the READ if there is room. Returns true
    /// if there is.
    fn send(window: &mut ReadWindow, slot: u32, share: &mut ReadShare, packets: u32) -> bool {
        let has_room = window.take(slot, share, packets);
        if has_room {
            let limit = share.limit();
            window.on_sent(share, limit, false);
        }
        has_room
    }

    #[test]
    fn reads_of_all_qps_fit_the_window_and_qps_that_wait_are_served_in_order() {
        let mut window = ReadWindow::new(100);
        let mut shares: [ReadShare; 3] = Default::default();
        let [first, second, third] = &mut shares;
        assert!(send(&mut window, 0, first, 40));
        assert!(send(&mut window, 0, first, 60));
        assert!(!send(&mut window, 1, second, 50));
        assert!(!send(&mut window, 2, third, 10));
        window.count(first, 60);
        assert!(!window.is_ready(), "the first that waits needs more");
        assert!(!send(&mut window, 0, first, 1), "it would overtake those that wait");
        window.count(first, 40);
        assert_eq!(window.next_waiting(), Some((1, 50)));
        window.serve(second, 50);
        assert_eq!(window.next_waiting(), None, "granted packets are not free");
        assert_eq!((second.limit(), window.limit(second)), (50, 50));
        window.on_sent(second, 0, false);
        assert_eq!(window.next_waiting(), Some((2, GRANT)), "the second had nothing to send");
    }

    #[test]
    fn a_qp_that_can_send_more_keeps_the_rest_of_its_grant() {
        let mut window = ReadWindow::new(100);
        let mut share = ReadShare::default();
        assert!(window.take(0, &mut share, 30));
        window.on_sent(&mut share, 0, true);
        assert_eq!(share.limit(), 30);
        window.on_sent(&mut share, 30, true);
        assert_eq!((share.limit(), window.used), (30, 30));
    }

    #[test]
    fn a_read_longer_than_the_window_is_sent_alone() {
        let mut window = ReadWindow::new(100);
        let mut shares: [ReadShare; 2] = Default::default();
        let [long, short] = &mut shares;
        assert!(send(&mut window, 0, long, 5000));
        assert!(!send(&mut window, 1, short, 1));
        window.count(long, 99);
        assert_eq!(window.next_waiting(), None);
        window.count(long, 75);
        assert_eq!(window.next_waiting(), Some((1, GRANT)));
    }

    #[test]
    fn responses_that_never_come_do_not_stop_other_qps() {
        let mut window = ReadWindow::new(100);
        let mut shares: [ReadShare; 3] = Default::default();
        let [dead, second, third] = &mut shares;
        assert!(!window.expire(), "nobody waits");
        assert!(send(&mut window, 0, dead, 100));
        assert!(!send(&mut window, 1, second, 60));
        assert!(window.expire());
        assert_eq!(window.next_waiting(), None, "not a whole interval yet");
        assert!(window.expire());
        assert_eq!(window.next_waiting(), Some((1, 60)));
        window.serve(second, 60);
        window.on_sent(second, 60, false);
        assert!(!window.expire());
        // A response after all: what is left counts again.
        window.count(dead, 30);
        assert_eq!(window.used, 90);
        assert!(!send(&mut window, 2, third, 20));
        window.leave(0, dead);
        assert_eq!((window.used, window.next_waiting()), (60, Some((2, GRANT))));
    }

    #[test]
    fn a_qp_that_goes_no_longer_waits() {
        let mut window = ReadWindow::new(100);
        let mut shares: [ReadShare; 3] = Default::default();
        let [first, second, third] = &mut shares;
        assert!(send(&mut window, 0, first, 100));
        assert!(!send(&mut window, 1, second, 10));
        assert!(!send(&mut window, 2, third, 30));
        window.leave(1, second);
        window.leave(0, first);
        assert_eq!((window.next_waiting(), window.next_waiting()), (Some((2, 30)), None));
    }

    #[test]
    fn losses_are_forgotten_with_the_last_qp() {
        let mut window = ReadWindow::new(100);
        let mut share = ReadShare::default();
        window.on_loss(Instant::ZERO);
        assert_eq!(window.limit(&share), 64);
        window.leave(0, &mut share);
        window.reset();
        assert_eq!(window.limit(&share), 100);
    }
}
