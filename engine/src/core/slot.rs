//! The QPs of a core, and the schedule of the QPs that the core must call.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use feroce_wire::Qpn;

use super::loss_window::WindowBounds;
use super::peers::{self, PeerShare, Peers};
use super::read_window::{ReadShare, ReadWindow};
use super::shared::Windows;
use crate::congestion::{CoreCongestion, Sender};
use crate::qp::{AnyQp, Env, QpSnapshot, Transmit};
use crate::time::Instant;
use crate::timer_wheel::TimerWheel;

/// A QP on its core.
#[derive(Debug)]
pub(super) struct Slot {
    pub qp: AnyQp,
    /// Congestion control; `None` if it is off.
    pub sender: Option<Box<Sender>>,
    /// The program has posted since the core last handled the doorbell.
    pub posted: Arc<AtomicBool>,
    /// The QP is in the list of QPs that may have something to send.
    pub is_active: bool,
    /// The QP waits for the end of a pause.
    pub is_held: bool,
    /// The QP's part of the window of its peer.
    pub share: PeerShare,
    /// The QP's part of the core's read window.
    pub read_share: ReadShare,
    /// The timer of this slot fires at this time or earlier.
    pub armed: Instant,
}

/// The order of work of a core: QPs that may send, and timers.
#[derive(Debug)]
pub(super) struct Schedule {
    /// Slots of QPs that may have something to send, in the order in which they are served.
    pub active: VecDeque<u32>,
    /// One timer per slot, one for notification points, one for pauses, one for windows.
    pub wheel: TimerWheel,
    /// The peers, and the QPs that wait for the window of a peer.
    pub peers: Peers,
    /// The response packets of READs, and the QPs that wait for room for more.
    pub reads: ReadWindow,
    slots: u32,
}

/// A timer of a core that has fired.
pub(super) enum Expired {
    Slot(u32),
    NotificationPoints,
    Pauses,
    Windows,
}

impl Schedule {
    /// For `slots` slots, with nothing scheduled.
    pub(super) fn new(slots: usize, windows: Windows, now: Instant) -> Self {
        Self {
            active: VecDeque::with_capacity(slots),
            wheel: TimerWheel::new(slots + 3, now),
            peers: Peers::new(WindowBounds { shortest: windows.send, longest: windows.peer }),
            reads: ReadWindow::new(windows.read),
            slots: u32::try_from(slots).expect("no more than QP numbers"),
        }
    }

    /// Returns true if a QP may have something to send.
    #[inline]
    pub(super) fn can_send(&self) -> bool {
        !self.active.is_empty() || self.is_any_ready()
    }

    /// The next timer that is due at `now`.
    pub(super) fn pop_expired(&mut self, now: Instant) -> Option<Expired> {
        let timer = self.wheel.pop_expired(now)?;
        Some(match timer.checked_sub(self.slots) {
            None => Expired::Slot(timer),
            Some(0) => Expired::NotificationPoints,
            Some(1) => Expired::Pauses,
            Some(_) => Expired::Windows,
        })
    }

    /// Sets the timer of the notification points; [`Instant::FAR`] stops it.
    pub(super) fn set_points_timer(&mut self, at: Instant) {
        self.set_timer(self.slots, at);
    }

    /// Sets the timer of pauses; [`Instant::FAR`] stops it.
    pub(super) fn set_pause_timer(&mut self, at: Instant) {
        self.set_timer(self.slots + 1, at);
    }

    /// Returns true if a QP that waits for a window can be served.
    #[inline]
    pub(super) fn is_any_ready(&self) -> bool {
        self.peers.is_any_ready() || self.reads.is_ready()
    }

    /// Lets the QP in `slot` wait for the window of its peer.
    pub(super) fn wait_for_peer(&mut self, slot: u32, share: &mut PeerShare, now: Instant) {
        if self.peers.wait(slot, share) {
            self.watch_windows(now);
        }
    }

    /// Takes the response packets of the QP's next READ from the read window. Returns false if the
    /// QP must wait.
    fn take_responses(&mut self, slot: u32, share: &mut ReadShare, env: &mut Env<'_>) -> bool {
        let packets = std::mem::take(&mut env.lacking_responses);
        if self.reads.take(slot, share, packets) {
            env.responses = self.reads.limit(share);
            return true;
        }
        self.watch_windows(env.now);
        false
    }

    fn watch_windows(&mut self, now: Instant) {
        if self.wheel.deadline(self.slots + 2).is_none() {
            self.set_timer(self.slots + 2, now + peers::STALL);
        }
    }

    /// Handles the timer of the windows.
    pub(super) fn expire_windows(&mut self, now: Instant) {
        if self.peers.expire() | self.reads.expire() {
            self.set_timer(self.slots + 2, now + peers::STALL);
        }
    }

    /// Makes the read window shorter if the QP of `env` has lost responses.
    #[inline]
    pub(super) fn on_lost_responses(&mut self, env: &Env<'_>) {
        if env.lost_responses {
            self.reads.on_loss(env.now);
        }
    }

    fn set_timer(&mut self, timer: u32, at: Instant) {
        match at {
            Instant::FAR => self.wheel.cancel(timer),
            at => self.wheel.set(timer, at),
        }
    }

    /// Makes the QP in `slot` the next one to send.
    #[cold]
    pub(super) fn move_to_front(&mut self, slot: u32) {
        if let Some(at) = self.active.iter().rposition(|&other| other == slot) {
            self.active.remove(at);
            self.active.push_front(slot);
        }
    }

    /// The slot becomes empty.
    pub(super) fn remove(&mut self, slot: u32) {
        self.wheel.cancel(slot);
        self.active.retain(|&active| active != slot);
    }
}

impl Slot {
    /// A slot for `qp`, which has sent nothing. `posted` is set when the program posts to the QP.
    pub(super) fn new(
        qp: AnyQp,
        posted: Arc<AtomicBool>,
        congestion: Option<&CoreCongestion>,
    ) -> Self {
        let (is_active, is_held) = (false, false);
        let (share, read_share) = (PeerShare::default(), ReadShare::default());
        let (sender, armed) = (None, Instant::FAR);
        let mut slot = Self { qp, sender, posted, is_active, is_held, share, read_share, armed };
        slot.reset_congestion(congestion);
        slot
    }

    /// Starts congestion control over, as for a QP that has sent nothing. QP 1 has none.
    pub(super) fn reset_congestion(&mut self, congestion: Option<&CoreCongestion>) {
        let congestion = congestion.filter(|_| self.qp.qpn() != Qpn::GSI);
        self.sender = congestion.map(|congestion| Box::new(congestion.sender()));
    }

    /// The state of the QP for monitoring.
    pub(super) fn snapshot(&self, now: Instant) -> QpSnapshot {
        let rate = self.sender.as_ref().map(|sender| sender.snapshot(now));
        QpSnapshot { rate, ..self.qp.snapshot() }
    }

    /// Writes the QP's next packet, from the BTH on, to the front of `transport`. A READ first
    /// takes its response packets from the read window.
    #[inline]
    pub(super) fn next_packet(
        &mut self,
        slot: u32,
        env: &mut Env<'_>,
        transport: &mut [u8],
        schedule: &mut Schedule,
    ) -> Option<Transmit> {
        loop {
            let packet = self.qp.poll_transmit(env, transport);
            if env.lacking_responses == 0 {
                return packet;
            }
            // Also if the packet is one of the responder's: the READ is sent after it.
            let has_taken = schedule.take_responses(slot, &mut self.read_share, env);
            if packet.is_some() || !has_taken {
                return packet;
            }
        }
    }

    /// The QP has sent within the limits of `env`, and stays active if it has `more`. If the window
    /// of its peer holds it back, it waits for a grant.
    #[inline]
    pub(super) fn end_quantum(
        &mut self,
        slot: u32,
        more: bool,
        env: &Env<'_>,
        schedule: &mut Schedule,
    ) {
        schedule.peers.on_sent(&mut self.share, self.qp.outstanding(), more);
        let keeps_grant = more && self.read_share.has_grant() && self.qp.can_request_responses();
        let responses = self.qp.responses_outstanding();
        schedule.reads.on_sent(&mut self.read_share, responses, keeps_grant);
        if env.ends_grant && !more && self.qp.is_held_by(env.window) {
            schedule.wait_for_peer(slot, &mut self.share, env.now);
        }
        self.rearm(slot, schedule);
    }

    /// Must follow the calls into the QP: it may have something to send and another deadline.
    #[inline]
    pub(super) fn reschedule(&mut self, slot: u32, schedule: &mut Schedule) {
        schedule.peers.count(&mut self.share, self.qp.outstanding());
        schedule.reads.count(&mut self.read_share, self.qp.responses_outstanding());
        if !self.is_active {
            self.is_active = true;
            schedule.active.push_back(slot);
        }
        self.rearm(slot, schedule);
    }

    /// Moves the timer of the slot forward if the QP's deadline is earlier. A later deadline is set
    /// when the timer fires.
    #[inline]
    pub(super) fn rearm(&mut self, slot: u32, schedule: &mut Schedule) {
        let mut deadline = self.qp.poll_timeout().unwrap_or(Instant::FAR);
        if let Some(sender) = &self.sender {
            deadline = deadline.min(sender.next_event());
        }
        if deadline < self.armed {
            schedule.wheel.set(slot, deadline);
            self.armed = deadline;
        }
    }
}
