//! The congestion control state of one sender: what an algorithm implements ([`CongestionControl`])
//! and what a sender holds ([`Controller`]).

use alloc::boxed::Box;
use core::fmt::Debug;

use crate::fraction::Fraction;
use crate::params::Params;
use crate::rate::Rate;
use crate::time::{Duration, Instant};

/// What an algorithm knows about its sender.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    /// The parameters of all algorithms.
    pub params: &'a Params,
    /// The rate of the sender's link.
    pub link_rate: Rate,
    /// The current time.
    pub now: Instant,
    /// What the sender knows about its path.
    pub path: Path,
}

/// A path without traffic. The simulated fabric knows it, the engine does not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Path {
    /// Number of switches from the sender to the receiver.
    pub hops: Option<u32>,
    /// Time from the start of a full data packet to the end of its acknowledgement.
    pub base_rtt: Option<Duration>,
}

impl Path {
    /// Nothing is known.
    pub const UNKNOWN: Self = Self { hops: None, base_rtt: None };
}

impl Setup<'_> {
    /// The highest rate of the sender: that of its link, or `max_rate` if that is lower.
    pub const fn highest_rate(&self) -> Rate {
        self.params.reaction.highest(self.link_rate)
    }
}

/// The signals that an algorithm needs. A sender reports no others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Needs {
    /// Congestion marks. With them, data packets are ECN-capable.
    pub marks: Marks,
    /// Acknowledgements with their round-trip times, and losses.
    pub acks: Acks,
    /// Each acknowledgement has the telemetry of the switches ([`Ack::hops`]). Only the simulated
    /// fabric has it.
    pub telemetry: bool,
}

/// How congestion marks reach an algorithm.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Marks {
    /// Not at all: data packets are not ECN-capable.
    None,
    /// As CNPs.
    Cnps,
    /// With each acknowledgement ([`Ack::is_marked`]). RoCEv2 has no such acknowledgements: in the
    /// engine, the marks come as CNPs.
    Echo,
}

/// Which data packets request an acknowledgement for congestion control.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Acks {
    /// None; acknowledgements and losses are not reported.
    None,
    /// As many as without congestion control.
    Usual,
    /// Every packet.
    Every,
}

impl Needs {
    /// No signals.
    pub const NONE: Self = Self { marks: Marks::None, acks: Acks::None, telemetry: false };
    /// CNPs only.
    pub const CNPS: Self = Self { marks: Marks::Cnps, ..Self::NONE };
    /// Acknowledgements and losses.
    pub const ACKS: Self = Self { acks: Acks::Usual, ..Self::NONE };
    /// An acknowledgement of every data packet, and losses.
    pub const EVERY_ACK: Self = Self { acks: Acks::Every, ..Self::NONE };
    /// An acknowledgement of every data packet, with its congestion mark, and losses.
    pub const ECHO: Self = Self { marks: Marks::Echo, ..Self::EVERY_ACK };
    /// An acknowledgement of every data packet, with telemetry, and losses.
    pub const TELEMETRY: Self = Self { telemetry: true, ..Self::EVERY_ACK };

    /// Returns true if marks must reach the sender.
    pub const fn has_marks(self) -> bool {
        !matches!(self.marks, Marks::None)
    }

    /// Returns true if acknowledgements and losses must be reported.
    pub const fn has_acks(self) -> bool {
        !matches!(self.acks, Acks::None)
    }

    /// Returns true if every data packet must request an acknowledgement.
    pub const fn has_every_ack(self) -> bool {
        matches!(self.acks, Acks::Every)
    }
}

/// An acknowledgement. Flags and telemetry are those of the data packet that caused it, the last of
/// the acknowledged packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ack<'a> {
    /// Time since this packet was sent.
    pub rtt: Duration,
    /// Bytes acknowledged for the first time.
    pub bytes: u64,
    /// The packet had a congestion mark. Always false in the engine: see [`Marks::Echo`].
    pub is_marked: bool,
    /// The packet was sent before. The engine measures no such packets.
    pub is_retransmission: bool,
    /// Telemetry of the switches on the packet's path, in their order. Empty without
    /// [`Needs::telemetry`].
    pub hops: &'a [Hop],
}

impl Ack<'_> {
    /// An acknowledgement of a packet without a mark that was sent once, without telemetry.
    pub const fn new(rtt: Duration, bytes: u64) -> Self {
        Self { rtt, bytes, is_marked: false, is_retransmission: false, hops: &[] }
    }

    /// When the packet was sent, for an acknowledgement that arrives at `now`.
    pub fn sent_at(&self, now: Instant) -> Instant {
        let nanos = u64::try_from(self.rtt.as_nanos()).unwrap_or(u64::MAX);
        Instant::from_nanos(now.as_nanos().saturating_sub(nanos))
    }
}

/// What a switch wrote into a packet when its transmission began (INT, in-band telemetry).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hop {
    /// Bytes in the packet's queue behind the packet.
    pub queue: u64,
    /// Bytes that the port has sent before the packet.
    pub sent: u64,
    /// The time.
    pub at: Instant,
    /// Rate of the port's link.
    pub rate: Rate,
}

/// Figures of an algorithm for monitoring. An algorithm shows those that it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Figures {
    /// The rate that the sender returns to.
    pub target: Option<Rate>,
    /// The moving average of the congestion that the sender sees.
    pub alpha: Option<Fraction>,
}

/// A congestion control algorithm: a state machine over (event, now). After each event, the sender
/// reads its rate, its window and its timers; no call may change them without an event. Timers that
/// have ended run before any other event of the same time.
pub trait CongestionControl: Clone + Debug + Send + Sync + 'static {
    /// The rate at which the sender may send.
    fn rate(&self) -> Rate;

    /// Maximum of outstanding bytes. With a window below `u64::MAX`, every packet requests an
    /// acknowledgement.
    fn window(&self) -> u64 {
        u64::MAX
    }

    /// `bytes` were sent since the last call, of data packets with all their headers. Called when
    /// [`sent_limit`](Self::sent_limit) is reached, and before any other event.
    fn on_sent(&mut self, _bytes: u64, _now: Instant) {}

    /// Sent bytes after which [`on_sent`](Self::on_sent) must be called: 0 for each packet.
    fn sent_limit(&self) -> u64 {
        u64::MAX
    }

    /// An acknowledgement arrived. Needs [`Needs::acks`].
    fn on_ack(&mut self, _ack: &Ack<'_>, _now: Instant) {}

    /// A CNP arrived. Needs [`Needs::marks`].
    fn on_cnp(&mut self, _now: Instant) {}

    /// Packets were lost, as a NAK or a timeout showed. Needs [`Needs::acks`].
    fn on_loss(&mut self, _now: Instant) {}

    /// When the next timer ends; [`Instant::FAR`] if none runs.
    fn next_timer(&self) -> Instant {
        Instant::FAR
    }

    /// When a timer may change the rate or the window: [`next_timer`](Self::next_timer) unless some
    /// timers may run late.
    fn next_change(&self) -> Instant {
        self.next_timer()
    }

    /// Runs the timers that have ended by `now`. Events come late, so several periods may have
    /// ended; each must have the effect of its own time.
    fn on_timer(&mut self, _now: Instant) {}

    /// Takes other parameters without a new start. Returns false if the sender must start over.
    fn set_params(&mut self, _setup: &Setup<'_>) -> bool {
        false
    }

    /// Starts at `rate` instead of the highest rate. Returns false if the algorithm cannot.
    fn start_at(&mut self, _rate: Rate, _setup: &Setup<'_>) -> bool {
        false
    }

    /// The figures for monitoring.
    fn figures(&self) -> Figures {
        Figures::default()
    }
}

/// What a sender reads and counts for each packet. It is stored, so that no packet calls the
/// algorithm without an event: a virtual call per packet costs 30 instructions.
#[derive(Clone, Copy, Debug)]
struct Decision {
    rate: Rate,
    window: u64,
    next_timer: Instant,
    next_change: Instant,
    /// Sent bytes that the algorithm has not seen yet, and how many it may miss.
    sent: u64,
    sent_limit: u64,
}

impl Decision {
    #[inline]
    fn of(state: &impl CongestionControl) -> Self {
        Self {
            rate: state.rate(),
            window: state.window(),
            next_timer: state.next_timer(),
            next_change: state.next_change(),
            sent: 0,
            sent_limit: state.sent_limit(),
        }
    }

    /// Reports the sent bytes, then an event, to the algorithm.
    #[inline]
    fn event<T: CongestionControl, R>(
        &mut self,
        state: &mut T,
        now: Instant,
        event: impl FnOnce(&mut T) -> R,
    ) -> R {
        if self.sent > 0 {
            state.on_sent(self.sent, now);
        }
        let result = event(state);
        *self = Self::of(state);
        result
    }
}

/// [`CongestionControl`] as an object: one call per event, which also stores the decision.
trait Object: Debug + Send + Sync {
    fn cloned(&self) -> Box<dyn Object>;
    fn on_sent(&mut self, now: Instant, decision: &mut Decision);
    fn on_ack(&mut self, ack: &Ack<'_>, now: Instant, decision: &mut Decision);
    fn on_cnp(&mut self, now: Instant, decision: &mut Decision);
    fn on_loss(&mut self, now: Instant, decision: &mut Decision);
    fn on_timer(&mut self, now: Instant, decision: &mut Decision);
    fn set_params(&mut self, setup: &Setup<'_>, decision: &mut Decision) -> bool;
    fn start_at(&mut self, rate: Rate, setup: &Setup<'_>, decision: &mut Decision) -> bool;
    fn figures(&self) -> Figures;
}

impl<T: CongestionControl> Object for T {
    fn cloned(&self) -> Box<dyn Object> {
        Box::new(self.clone())
    }

    fn on_sent(&mut self, now: Instant, decision: &mut Decision) {
        decision.event(self, now, |_| ());
    }

    fn on_ack(&mut self, ack: &Ack<'_>, now: Instant, decision: &mut Decision) {
        decision.event(self, now, |state| CongestionControl::on_ack(state, ack, now));
    }

    fn on_cnp(&mut self, now: Instant, decision: &mut Decision) {
        decision.event(self, now, |state| CongestionControl::on_cnp(state, now));
    }

    fn on_loss(&mut self, now: Instant, decision: &mut Decision) {
        decision.event(self, now, |state| CongestionControl::on_loss(state, now));
    }

    fn on_timer(&mut self, now: Instant, decision: &mut Decision) {
        decision.event(self, now, |state| CongestionControl::on_timer(state, now));
    }

    fn set_params(&mut self, setup: &Setup<'_>, decision: &mut Decision) -> bool {
        decision.event(self, setup.now, |state| CongestionControl::set_params(state, setup))
    }

    fn start_at(&mut self, rate: Rate, setup: &Setup<'_>, decision: &mut Decision) -> bool {
        decision.event(self, setup.now, |state| CongestionControl::start_at(state, rate, setup))
    }

    fn figures(&self) -> Figures {
        CongestionControl::figures(self)
    }
}

/// The congestion control of one sender. The sender reports events; the controller returns a rate
/// and a window. The algorithm's state is allocated once, when the sender is created.
#[derive(Debug)]
pub struct Controller {
    decision: Decision,
    /// `None` for a fixed rate.
    state: Option<Box<dyn Object>>,
}

impl Clone for Controller {
    fn clone(&self) -> Self {
        Self { decision: self.decision, state: self.state.as_ref().map(|state| state.cloned()) }
    }
}

impl Controller {
    /// A controller that runs an algorithm.
    pub fn new(state: impl CongestionControl) -> Self {
        Self { decision: Decision::of(&state), state: Some(Box::new(state)) }
    }

    /// A fixed rate, which no event changes.
    pub const fn fixed(rate: Rate) -> Self {
        let decision = Decision {
            rate,
            window: u64::MAX,
            next_timer: Instant::FAR,
            next_change: Instant::FAR,
            sent: 0,
            sent_limit: u64::MAX,
        };
        Self { decision, state: None }
    }

    /// Takes other parameters without a new start. Returns false if the sender must start over.
    pub fn set_params(&mut self, setup: &Setup<'_>) -> bool {
        let Self { decision, state } = self;
        state.as_mut().is_some_and(|state| state.set_params(setup, decision))
    }

    /// Starts at `rate` instead of the highest rate. Returns false if the algorithm cannot.
    pub fn start_at(&mut self, rate: Rate, setup: &Setup<'_>) -> bool {
        let Self { decision, state } = self;
        state.as_mut().is_some_and(|state| state.start_at(rate, setup, decision))
    }

    /// The algorithm's figures for monitoring.
    pub fn figures(&self) -> Figures {
        self.state.as_ref().map(|state| state.figures()).unwrap_or_default()
    }

    /// `bytes` were sent.
    #[inline]
    pub fn on_sent(&mut self, bytes: u64, now: Instant) {
        self.advance(now);
        let sent = self.decision.sent.saturating_add(bytes);
        self.decision.sent = sent;
        if sent >= self.decision.sent_limit
            && let Self { decision, state: Some(state) } = self
        {
            state.on_sent(now, decision);
        }
    }

    /// An acknowledgement arrived.
    pub fn on_ack(&mut self, ack: &Ack<'_>, now: Instant) {
        self.advance(now);
        if let Self { decision, state: Some(state) } = self {
            state.on_ack(ack, now, decision);
        }
    }

    /// A CNP arrived.
    pub fn on_cnp(&mut self, now: Instant) {
        self.advance(now);
        if let Self { decision, state: Some(state) } = self {
            state.on_cnp(now, decision);
        }
    }

    /// Packets were lost, as a NAK or a timeout showed.
    pub fn on_loss(&mut self, now: Instant) {
        self.advance(now);
        if let Self { decision, state: Some(state) } = self {
            state.on_loss(now, decision);
        }
    }

    /// Runs the timers that are due.
    #[inline]
    pub fn advance(&mut self, now: Instant) {
        if now >= self.decision.next_timer
            && let Self { decision, state: Some(state) } = self
        {
            state.on_timer(now, decision);
        }
    }

    /// Next time at which a timer may change the rate; [`Instant::FAR`] if no timer will.
    #[inline]
    pub const fn next_event(&self) -> Instant {
        self.decision.next_change
    }

    /// The rate at the time of the last event or [`advance`](Self::advance).
    #[inline]
    pub const fn rate(&self) -> Rate {
        self.decision.rate
    }

    /// Maximum of outstanding bytes; `u64::MAX` for controllers that limit only the rate.
    #[inline]
    pub const fn window(&self) -> u64 {
        self.decision.window
    }
}
