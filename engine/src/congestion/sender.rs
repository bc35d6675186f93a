//! The congestion control state of one QP: its controller, and the pacer that limits its packets to
//! the controller's rate.

use feroce_congestion::{
    Ack, Control, Controller, Needs, NotificationPoint, Pacer, Path, Rate, Setup,
};
use feroce_wire::Psn;

use super::config::CongestionConfig;
use super::delay::RoundTrips;
use super::facts::Sent;
use crate::time::{Duration, Instant};

/// Longest time between two packets that request an acknowledgement, unless a quarter of the local
/// ACK timeout is shorter. At a low rate, the usual number of packets would take longer than the
/// timeout.
const ACK_AFTER: Duration = Duration::from_micros(500);

/// A CNP is taken this long after the last data packet: it reports a mark on a packet of the QP,
/// and comes within some round trips.
const CNP_TIME: Duration = Duration::from_millis(100);

/// The congestion control of one QP. Bytes are those of frames, from the Ethernet header to the
/// ICRC.
#[derive(Debug, Clone)]
pub struct Sender {
    controller: Controller,
    /// The choice that `controller` follows.
    control: Control,
    pacer: Pacer,
    /// While the QP waits for its pacer: when to try again. Otherwise [`Instant::FAR`].
    retry_at: Instant,
    needs: Needs,
    /// No data may be sent at any time.
    is_stopped: bool,
    /// The notification point of a connected QP, used if `cnp_scope` is `qp`.
    point: NotificationPoint,
    /// Present if the controller needs acknowledgements.
    measured: Option<Measured>,
    /// Rate and time between acknowledgements for which `ack_interval` was computed.
    ack_basis: (Rate, Duration),
    ack_interval: u32,
    /// When the QP sent its last data packet.
    sent_at: Option<Instant>,
    cnps_handled: u64,
    cnps_sent: u64,
    marked: u64,
}

/// Additional state of a controller that measures round trips.
#[derive(Debug, Clone)]
struct Measured {
    trips: RoundTrips,
    /// The pacer of READ responses, which the controller does not limit. It runs at the link rate.
    responses: Pacer,
    link_rate: Rate,
}

/// Which data packets the pacer allows now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ready {
    /// Requests, sent for the first time or again.
    pub requests: bool,
    /// READ responses and atomic acknowledgements.
    pub responses: bool,
}

/// Limits for the next packets of a QP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum of outstanding packets; `u32::MAX` if only the rate limits.
    pub window: u32,
    /// At most this many packets between two that request an acknowledgement.
    pub ack_interval: u32,
}

/// The rate of a QP for monitoring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateSnapshot {
    /// The rate.
    pub rate: Rate,
    /// The target rate, if the algorithm has one.
    pub target: Option<Rate>,
    /// Alpha in millionths, if the algorithm has one.
    pub alpha_ppm: Option<u32>,
    /// The QP waits for its pacer.
    pub waits: bool,
    /// Number of received CNPs that slowed the QP down.
    pub cnps_handled: u64,
    /// Number of CNPs sent for packets that the QP received.
    pub cnps_sent: u64,
    /// Number of received packets with a congestion mark.
    pub marked: u64,
}

impl Sender {
    /// A QP that has sent nothing, on a link of `link_rate`.
    pub fn new(config: &CongestionConfig, link_rate: Rate, now: Instant) -> Self {
        let setup = Setup { params: &config.params, link_rate, now, path: Path::UNKNOWN };
        Self::with(config.control.controller(&setup), config, link_rate, now)
    }

    /// A QP that has sent nothing, with the rate of `controller`.
    fn with(
        controller: Controller,
        config: &CongestionConfig,
        link_rate: Rate,
        now: Instant,
    ) -> Self {
        let needs = config.control.needs();
        let responses = Pacer::new(config.burst, now);
        let measured = Measured { trips: RoundTrips::default(), responses, link_rate };
        Self {
            controller,
            control: config.control,
            pacer: Pacer::new(config.burst, now),
            retry_at: Instant::FAR,
            needs,
            is_stopped: false,
            point: NotificationPoint::new(&config.params.notification),
            measured: needs.has_acks().then_some(measured),
            ack_basis: (Rate::ZERO, Duration::ZERO),
            ack_interval: u32::MAX,
            sent_at: None,
            cnps_handled: 0,
            cnps_sent: 0,
            marked: 0,
        }
    }

    /// Changes the configuration at `now`. An algorithm that stays and takes other parameters keeps
    /// its rate; other controllers start over. The measurement of packets in flight and the tokens
    /// spent by responses are kept.
    pub fn set_config(&mut self, config: &CongestionConfig, link_rate: Rate, now: Instant) {
        self.advance(now);
        let mut controller = self.controller.clone();
        let setup = Setup { params: &config.params, link_rate, now, path: Path::UNKNOWN };
        config.control.replace(self.control, &mut controller, &setup);
        let mut new = Self::with(controller, config, link_rate, now);
        (new.cnps_handled, new.cnps_sent) = (self.cnps_handled, self.cnps_sent);
        (new.marked, new.pacer, new.sent_at) = (self.marked, self.pacer, self.sent_at);
        if let (Some(old), Some(new)) = (&mut self.measured, &mut new.measured) {
            old.responses.advance(old.link_rate, now);
            (new.trips, new.responses) = (old.trips, old.responses);
        }
        if self.retry_at != Instant::FAR {
            new.retry_at = now; // Try again at once with the new rate.
        }
        *self = new;
    }

    /// Advances rate and tokens to `now`. Tokens accumulate at the rate of each moment, even if a
    /// timer changed the rate since the last call.
    fn advance(&mut self, now: Instant) {
        let Self { controller, pacer, .. } = self;
        loop {
            let next = controller.next_event();
            if next > now {
                break;
            }
            pacer.advance(controller.rate(), next);
            controller.advance(next);
        }
        pacer.advance(controller.rate(), now);
        controller.advance(now);
    }

    /// Returns which packets with frames of up to `largest` bytes may be sent now. If some may not,
    /// sets the time to try again.
    #[inline(never)] // Keeps the path of QPs without a rate limit short.
    pub fn ready(&mut self, largest: u64, now: Instant) -> Ready {
        if self.is_stopped {
            return Ready { requests: false, responses: false };
        }
        self.advance(now);
        let requests = self.pacer.ready_at(largest, self.controller.rate());
        let mut responses = requests;
        if let Some(Measured { responses: pacer, link_rate, .. }) = &mut self.measured {
            pacer.advance(*link_rate, now);
            responses = pacer.ready_at(largest, *link_rate);
        }
        let first = [requests, responses].into_iter().filter(|&ready| ready > now).min();
        self.retry_at = first.map_or(Instant::FAR, |ready| ready.min(self.controller.next_event()));
        Ready { requests: requests <= now, responses: responses <= now }
    }

    /// Stops all data packets, or allows them again.
    pub fn set_stopped(&mut self, is_stopped: bool) {
        self.is_stopped = is_stopped;
    }

    /// The limits for the QP's next packets, whose largest frame has `largest` bytes. `timeout` is
    /// the local ACK timeout.
    #[inline(never)] // Keeps the path of QPs without a rate limit short.
    pub fn limits(&mut self, largest: u64, timeout: Option<Duration>, now: Instant) -> Limits {
        if !self.is_stopped {
            self.advance(now);
        }
        let rate = self.controller.rate();
        let basis = (rate, timeout.map_or(ACK_AFTER, |timeout| ACK_AFTER.min(timeout / 4)));
        if basis != self.ack_basis {
            let packets = rate.bytes_in(basis.1) / largest.max(1);
            let packets = u32::try_from(packets).unwrap_or(u32::MAX);
            (self.ack_basis, self.ack_interval) = (basis, packets.max(1));
        }
        match self.controller.window() {
            u64::MAX if self.needs.has_every_ack() => Limits { window: u32::MAX, ack_interval: 1 },
            u64::MAX => Limits { window: u32::MAX, ack_interval: self.ack_interval },
            window => {
                let packets = u32::try_from(window / largest.max(1)).unwrap_or(u32::MAX).max(1);
                // Every packet needs an acknowledgement: the window may shrink below the number
                // of packets in flight.
                Limits { window: packets, ack_interval: 1 }
            }
        }
    }

    /// The QP sent a frame of `bytes`.
    #[inline(never)] // Keeps the path of QPs without a rate limit short.
    pub fn on_sent(&mut self, sent: &Sent, bytes: u64, now: Instant) {
        if *sent == Sent::Acknowledgement {
            return;
        }
        self.sent_at = Some(now);
        let rate = self.controller.rate();
        match (sent, &mut self.measured) {
            (Sent::Response, Some(measured)) => {
                measured.responses.spend(bytes, measured.link_rate, now);
                return;
            }
            (Sent::Request(request), Some(measured)) => {
                measured.trips.on_sent(request, bytes, now);
                if request.follows_loss {
                    self.controller.on_loss(now);
                }
            }
            _ => {}
        }
        self.pacer.spend(bytes, rate, now);
        self.controller.on_sent(bytes, now);
    }

    /// The peer acknowledged all packets up to `psn`.
    pub fn on_acked(&mut self, psn: Psn, now: Instant) {
        if let Some(measured) = &mut self.measured
            && let Some(trip) = measured.trips.on_acked(psn, now)
        {
            self.advance(now);
            self.controller.on_ack(&Ack::new(trip.time, trip.bytes), now);
        }
    }

    /// A CNP arrived from the peer. Returns false if the controller ignores CNPs, or if no packet
    /// of the QP can have caused it.
    pub fn on_cnp(&mut self, now: Instant) -> bool {
        let may_be_marked = self.sent_at.is_some_and(|at| now.saturating_since(at) <= CNP_TIME);
        if !self.needs.has_marks() || !may_be_marked {
            return false;
        }
        self.advance(now);
        self.controller.on_cnp(now);
        self.cnps_handled += 1;
        true
    }

    /// A packet arrived; `marked`: its mark counts for the notification point. Returns true if the
    /// QP's own notification point sends a CNP now.
    pub fn on_received(&mut self, marked: bool, now: Instant) -> bool {
        self.point.on_packet(marked, now)
    }

    /// Counts a received packet with a congestion mark.
    pub fn count_mark(&mut self) {
        self.marked += 1;
    }

    /// Counts a CNP sent for a packet that this QP received.
    pub fn count_cnp(&mut self) {
        self.cnps_sent += 1;
    }

    /// Runs the timers that are due. Returns true if the QP's own notification point sends a CNP
    /// now.
    pub fn expire(&mut self, now: Instant) -> bool {
        if self.retry_at <= now {
            self.retry_at = Instant::FAR; // The core lets the QP try again.
        }
        self.point.next_event() <= now && self.point.advance(now)
    }

    /// Next time to call [`Sender::expire`]; [`Instant::FAR`] if an event must happen first.
    pub fn next_event(&self) -> Instant {
        self.retry_at.min(self.point.next_event())
    }

    /// The state at `now` for monitoring.
    pub fn snapshot(&self, now: Instant) -> RateSnapshot {
        let mut state = self.clone();
        state.advance(now);
        let figures = state.controller.figures();
        let ppm = |units: u64| u32::try_from(units).unwrap_or(u32::MAX);
        RateSnapshot {
            rate: state.controller.rate(),
            target: figures.target,
            alpha_ppm: figures.alpha.map(|alpha| ppm(alpha.of_u64(1_000_000))),
            waits: self.retry_at != Instant::FAR,
            cnps_handled: self.cnps_handled,
            cnps_sent: self.cnps_sent,
            marked: self.marked,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_parameters_keep_the_tokens_that_responses_have_spent() {
        let config =
            CongestionConfig { control: Control::TIMELY, burst: 4096, ..Default::default() };
        let (link_rate, now) = (Rate::from_gbps(1), Instant::from_nanos(1000));
        let mut sender = Sender::new(&config, link_rate, now);
        sender.on_sent(&Sent::Response, 64 << 10, now);
        assert_eq!(sender.ready(1000, now), Ready { requests: true, responses: false });
        sender.set_config(&config, link_rate, now);
        assert_eq!(sender.ready(1000, now), Ready { requests: true, responses: false });
    }
}
