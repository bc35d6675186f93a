//! The sender of a flow: the next packet, its time, and the recovery from a loss.

use feroce_congestion::{
    Ack, Controller, Duration, Fraction, Hop, Instant, Needs, Pacer, Params, Path, Rate, Setup,
};

use super::selective::Scoreboard;
use crate::fabric::config::{Control, FlowConfig, HostConfig, PacketConfig, Recovery};
use crate::fabric::packet::Flags;
use crate::fabric::time::{LinkRate, Time};

/// Whether a packet may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendDecision {
    /// Now.
    Send,
    /// Not before this time.
    Later(Instant),
}

/// Counters of a sender.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SenderCounts {
    /// Data packets sent, including retransmissions.
    pub packets: u64,
    /// Data packets retransmitted.
    pub retransmitted: u64,
    /// CNPs received.
    pub cnps: u64,
    /// NAKs received.
    pub naks: u64,
    /// Timeouts.
    pub timeouts: u64,
    /// 1 if the QP of an engine host has failed.
    pub failed: u64,
}

/// The sender of a flow. Packet numbers start at 0 and do not wrap. Fields used for every packet
/// come first.
#[derive(Debug, Clone)]
#[repr(C, align(64))]
pub(crate) struct Sender {
    /// Flow identifier that ECMP hashes.
    pub entropy: u32,
    /// Number of the next packet.
    next: u32,
    /// Number of the oldest unacknowledged packet.
    una: u32,
    /// One past the highest packet number ever sent.
    highest: u32,
    /// One past the last packet that may be sent: the end of the released messages.
    limit: u32,
    message_packets: u32,
    /// Number after the last packet of the message that `next` belongs to.
    message_end: u32,
    /// Buffer bytes of a full packet, and of a message's last packet.
    full: u32,
    last: u32,
    gap: u32,
    pub ecn_capable: bool,
    /// The signals that its controller needs.
    pub needs: Needs,
    armed: bool,
    /// True if the flow was stopped before it had sent everything.
    pub is_truncated: bool,
    recovery: Recovery,
    window: u64,
    timeout: Time,
    controller: Controller,
    pacer: Pacer,
    /// Time of the last acknowledgement that made progress, or of the first packet sent after an
    /// idle period.
    pub progress_at: Time,
    /// Time at which a packet last requested an acknowledgement.
    ack_requested_at: Time,
    pub counts: SenderCounts,
    /// With selective repeat: what has arrived, and what is lost.
    board: Scoreboard,
    /// Number of packets; [`u32::MAX`] for an endless flow.
    total: u32,
    burst: u32,
    control: Control,
    initial: Option<u64>,
    pub started: Option<Time>,
    pub ended: Option<Time>,
}

impl Sender {
    /// Bytes at the beginning that are used for every packet.
    pub const HOT: usize = std::mem::offset_of!(Self, counts.cnps);

    pub fn new(flow: &FlowConfig, host: &HostConfig, sizes: &PacketConfig, entropy: u32) -> Self {
        let message_packets = packets_of(flow.message, sizes.payload);
        let rest = flow.message - u64::from(message_packets - 1) * u64::from(sizes.payload);
        let rest = u32::try_from(rest).unwrap_or(sizes.payload);
        let total = flow
            .messages
            .and_then(|messages| messages.checked_mul(message_packets))
            .unwrap_or(u32::MAX);
        Self {
            entropy,
            ecn_capable: flow.control.is_ecn_capable(),
            needs: flow.control.needs(),
            next: 0,
            una: 0,
            highest: 0,
            total,
            limit: flow
                .released
                .map_or(total, |messages| messages.saturating_mul(message_packets).min(total)),
            message_packets,
            message_end: message_packets,
            full: sizes.payload + sizes.headers,
            last: rest + sizes.headers,
            gap: sizes.gap,
            window: host.window.unwrap_or(u64::MAX),
            recovery: host.recovery,
            board: Scoreboard::default(),
            timeout: host.timeout,
            armed: false,
            burst: host.burst,
            control: flow.control,
            initial: flow.initial_rate,
            controller: Controller::fixed(Rate::ZERO),
            pacer: Pacer::new(0, Instant::ZERO),
            progress_at: Time::ZERO,
            ack_requested_at: Time::ZERO,
            started: None,
            ended: None,
            is_truncated: false,
            counts: SenderCounts::default(),
        }
    }

    /// Starts sending on a link of `link_rate`.
    pub fn start(&mut self, link_rate: LinkRate, path: Path, params: &Params, now: Time) {
        let (rate, at) = (Rate::from_bps(link_rate.bits_per_second()), now.instant());
        let setup = Setup { params, link_rate: rate, now: at, path };
        self.controller = match self.control {
            Control::Fixed(fixed) => Controller::fixed(fixed.min(rate)),
            control => control.controller(&setup),
        };
        if let Some(initial) = self.initial {
            self.controller.start_at(Rate::from_bps(initial), &setup);
        }
        let packet = self.full + self.gap;
        self.pacer = Pacer::new(packet.saturating_mul(self.burst), at);
        self.started = Some(now);
        (self.progress_at, self.ack_requested_at) = (now, now);
    }

    /// Takes over the rate of `previous`, the previous flow on the same QP.
    pub fn continue_from(&mut self, previous: &Self) {
        self.controller.clone_from(&previous.controller);
        self.pacer = previous.pacer;
    }

    /// The lost packet to send again.
    #[inline]
    fn lost(&self) -> Option<u32> {
        match self.recovery {
            Recovery::SelectiveRepeat => self.board.lost(),
            Recovery::GoBackN | Recovery::GoBack0 => None,
        }
    }

    /// Number of the next packet.
    pub fn next_psn(&self) -> u32 {
        self.lost().unwrap_or(self.next)
    }

    /// Buffer bytes of the next packet.
    #[inline]
    pub fn next_size(&self) -> u32 {
        let is_last = match self.lost() {
            None => self.next + 1 == self.message_end,
            Some(psn) => (psn + 1).is_multiple_of(self.message_packets),
        };
        if is_last { self.last } else { self.full }
    }

    /// Makes packet `psn` the next one.
    fn set_next(&mut self, psn: u32) {
        if psn != self.next {
            self.next = psn;
            let messages = psn / self.message_packets + 1;
            self.message_end = messages.saturating_mul(self.message_packets);
        }
    }

    /// Returns true if the next packet was sent before.
    pub fn sends_again(&self) -> bool {
        self.lost().is_some() || self.next < self.highest
    }

    /// Returns true if packets are unacknowledged.
    pub const fn is_outstanding(&self) -> bool {
        self.una != self.next
    }

    /// Returns true if there is a packet to send and the window has room for it.
    #[inline]
    fn may_send(&self) -> bool {
        let outstanding = u64::from(self.next - self.una) * u64::from(self.full);
        let window = self.window.min(self.controller.window());
        self.lost().is_some()
            || self.next < self.limit
                && (outstanding == 0 || outstanding.saturating_add(u64::from(self.full)) <= window)
    }

    /// Runs expired timers and returns whether the next packet may be sent.
    pub fn poll(&mut self, now: Instant) -> SendDecision {
        if !self.may_send() {
            return SendDecision::Later(Instant::FAR);
        }
        self.run_timers(now);
        match self.pacer.is_ready(self.next_cost(), self.controller.rate(), now) {
            true => SendDecision::Send,
            false => SendDecision::Later(self.ready_at().min(self.controller.next_event())),
        }
    }

    /// Time at which this sender must be checked next.
    #[inline]
    pub fn next_check(&mut self, now: Instant) -> Instant {
        if !self.may_send() {
            return Instant::FAR;
        }
        self.run_timers(now);
        let ready = self.ready_at();
        if ready <= now { ready } else { ready.min(self.controller.next_event()) }
    }

    /// Advances the pacer and the controller to `now` if the rate may have changed.
    #[inline]
    fn run_timers(&mut self, now: Instant) {
        if self.controller.next_event() <= now {
            self.before_change(now);
        }
    }

    /// Bytes of the next packet on the link.
    #[inline]
    fn next_cost(&self) -> u64 {
        (self.next_size() + self.gap) as u64
    }

    #[inline]
    fn ready_at(&self) -> Instant {
        self.pacer.ready_at(self.next_cost(), self.controller.rate())
    }

    /// Accounts for the transmission of the next packet at `now`. Returns true if the packet
    /// requests an acknowledgement: it is the last packet, or it fills the window, or the
    /// controller needs every acknowledgement, or at this rate the timer would expire before one
    /// arrives.
    #[inline]
    pub fn on_sent(&mut self, now: Time) -> bool {
        let (bytes, at) = (self.next_cost(), now.instant());
        self.pacer.spend(bytes, self.controller.rate(), at);
        self.controller.on_sent(bytes, at);
        self.counts.packets += 1;
        if self.lost().is_some() {
            self.board.on_resent();
            self.counts.retransmitted += 1;
            self.ack_requested_at = now;
            return true;
        }
        self.counts.retransmitted += u64::from(self.next < self.highest);
        self.next += 1;
        if self.next == self.message_end {
            self.message_end = self.message_end.saturating_add(self.message_packets);
        }
        self.highest = self.highest.max(self.next);
        let is_late = now >= self.progress_at.max(self.ack_requested_at) + Time(self.timeout.0 / 4);
        let requests_ack = self.needs.has_every_ack()
            || self.next == self.limit
            || (self.window != u64::MAX && !self.may_send())
            || (is_late && self.timeout > Time::ZERO);
        if requests_ack {
            self.ack_requested_at = now;
        }
        requests_ack
    }

    /// Handles an acknowledgement of all packets before `psn` that has these flags. `sent` and
    /// `hops` are the time and the telemetry of the data packet that caused it. Returns true if
    /// everything is acknowledged.
    pub fn on_ack(&mut self, psn: u32, sent: Time, flags: Flags, hops: &[Hop], now: Time) -> bool {
        if psn > self.una {
            let bytes = u64::from(psn - self.una) * u64::from(self.full);
            self.una = psn;
            if self.recovery == Recovery::SelectiveRepeat {
                self.board.acknowledge(psn);
            }
            self.set_next(self.next.max(psn));
            self.progress_at = now;
            let rtt = Duration::from_nanos((now - sent).0.div_ceil(1000));
            let is_marked = flags.contains(Flags::MARKED);
            let is_retransmission = flags.contains(Flags::RETRANSMITTED);
            let ack = Ack { rtt, bytes, is_marked, is_retransmission, hops };
            self.before_change(now.instant());
            self.controller.on_ack(&ack, now.instant());
        }
        self.una == self.total
    }

    /// Handles a NAK: the receiver expects `psn`, and `arrived` has arrived.
    pub fn on_nak(&mut self, psn: u32, arrived: u32, now: Time) {
        self.counts.naks += 1;
        if self.recovery == Recovery::SelectiveRepeat {
            return self.on_selective_nak(psn, arrived, now);
        }
        if psn < self.una && self.recovery == Recovery::GoBackN || psn > self.highest {
            return;
        }
        self.una = psn;
        self.set_next(psn);
        self.progress_at = now;
        self.before_change(now.instant());
        self.controller.on_loss(now.instant());
    }

    fn on_selective_nak(&mut self, psn: u32, arrived: u32, now: Time) {
        if psn > self.una {
            self.una = psn;
            self.board.acknowledge(psn);
            self.progress_at = now;
        }
        if arrived > self.una && self.board.on_nak(arrived, self.next) {
            self.before_change(now.instant());
            self.controller.on_loss(now.instant());
        }
    }

    pub fn on_cnp(&mut self, now: Instant) {
        self.counts.cnps += 1;
        self.before_change(now);
        self.controller.on_cnp(now);
    }

    /// Advances the pacer, then the controller, to `now`. To be called before the rate changes.
    fn before_change(&mut self, now: Instant) {
        self.pacer.advance(self.controller.rate(), now);
        self.controller.advance(now);
    }

    /// Returns when the retransmission timer must expire, if it is not armed yet.
    pub fn arm(&mut self, now: Time) -> Option<Time> {
        let arms = !self.armed && self.timeout > Time::ZERO;
        self.armed |= arms;
        arms.then(|| now + self.timeout)
    }

    /// Handles the expired timer. Returns when it must expire next.
    pub fn on_timer(&mut self, now: Time) -> Option<Time> {
        self.armed = false;
        if !self.is_outstanding() || self.ended.is_some() {
            return None;
        }
        let due = self.progress_at + self.timeout;
        if due <= now {
            self.counts.timeouts += 1;
            match self.recovery {
                Recovery::SelectiveRepeat => self.board.recover(self.next),
                Recovery::GoBackN => self.set_next(self.una),
                Recovery::GoBack0 => {
                    self.una -= self.una % self.message_packets;
                    self.set_next(self.una);
                }
            }
            self.progress_at = now;
            self.before_change(now.instant());
            self.controller.on_loss(now.instant());
        }
        self.armed = true;
        Some(self.progress_at + self.timeout)
    }

    /// Stops the flow after at most one more packet, which requests an acknowledgement of all
    /// others; the last packet of the released messages already did. Returns true if nothing is
    /// unacknowledged.
    pub fn stop(&mut self) -> bool {
        let more = u32::from(self.una < self.highest && self.highest < self.limit);
        self.is_truncated = self.highest + more < self.total;
        self.total = self.total.min(self.highest + more);
        self.limit = self.limit.min(self.total);
        self.una == self.total
    }

    /// Allows one more message to be sent.
    pub fn release_message(&mut self) {
        self.limit = self.limit.saturating_add(self.message_packets).min(self.total);
    }

    /// The current rate.
    pub fn rate(&mut self, now: Instant) -> Rate {
        self.run_timers(now);
        self.controller.rate()
    }

    /// The algorithm's alpha, if it has one.
    pub fn alpha(&self) -> Option<Fraction> {
        self.controller.figures().alpha
    }
}

/// Number of packets of a message of `bytes`.
pub(crate) fn packets_of(bytes: u64, payload: u32) -> u32 {
    let packets = bytes.div_ceil(u64::from(payload)).max(1);
    u32::try_from(packets).unwrap_or(u32::MAX)
}
