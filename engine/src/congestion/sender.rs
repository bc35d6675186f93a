//! How fast a QP may send: its controller, and the pacer that keeps its packets to the rate.

use feroce_congestion::{Controller, NotificationPoint, Pacer, Rate};
use feroce_wire::{Bth, Packet};

use super::CongestionConfig;
use super::delay::Delays;
use crate::qp::{ACK_INTERVAL, Env, Waits};
use crate::time::{Duration, Instant};

/// Acknowledgements are asked for at least as often, and four times in a local ACK timeout: at a low rate,
/// [`ACK_INTERVAL`] packets take longer than that.
const ACK_AFTER: Duration = Duration::from_micros(500);

/// How fast a QP may send: its controller and its pacer. Bytes are those of frames, from the Ethernet header to the ICRC.
#[derive(Debug, Clone)]
pub struct RateControl {
    controller: Controller,
    pacer: Pacer,
    /// While the QP waits for its pacer: when to look again. Else [`Instant::FAR`].
    waits_until: Instant,
    /// No data go, whatever the time is.
    stopped: bool,
    /// Of a connected QP, if the scope is the QP.
    point: NotificationPoint,
    /// For controllers that go by the delay.
    by_delay: Option<ByDelay>,
    /// The rate, and the time between acknowledgements, for which `ack_interval` holds.
    ack_basis: (Rate, Duration),
    ack_interval: u32,
    cnps_handled: u64,
    cnps_sent: u64,
    marked: u64,
}

/// What controllers that go by the delay need besides.
#[derive(Debug, Clone)]
struct ByDelay {
    delays: Delays,
    /// For answers to READs, which they do not control: at the line's rate.
    answers: Pacer,
    line: Rate,
}

/// Where a QP's rate stands, for people who look on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateSnapshot {
    /// The rate.
    pub rate: Rate,
    /// DCQCN: the target rate.
    pub target: Option<Rate>,
    /// DCQCN: alpha, in millionths.
    pub alpha_ppm: Option<u32>,
    /// It waits for its pacer.
    pub waits: bool,
    /// CNPs that slowed it down.
    pub cnps_handled: u64,
    /// CNPs sent for what it received.
    pub cnps_sent: u64,
    /// Packets received that were marked.
    pub marked: u64,
}

impl RateControl {
    /// That of a QP that has sent nothing, on a line of `line`.
    pub fn new(config: &CongestionConfig, line: Rate, now: Instant) -> Self {
        let controller = config.controller(line, now);
        let goes_by_delay = matches!(controller, Controller::Timely(_) | Controller::Swift(_));
        let answers = Pacer::new(config.burst, now);
        let by_delay = ByDelay { delays: Delays::default(), answers, line };
        Self {
            controller,
            pacer: Pacer::new(config.burst, now),
            waits_until: Instant::FAR,
            stopped: false,
            point: NotificationPoint::new(&config.params.notification),
            by_delay: goes_by_delay.then_some(by_delay),
            ack_basis: (Rate::ZERO, Duration::ZERO),
            ack_interval: ACK_INTERVAL,
            cnps_handled: 0,
            cnps_sent: 0,
            marked: 0,
        }
    }

    /// Takes other parameters from `now` on. DCQCN keeps its rate, the others begin anew; what is known of packets that are under way
    /// and what answers have spent stays.
    pub fn set_config(&mut self, config: &CongestionConfig, line: Rate, now: Instant) {
        self.advance(now);
        let mut new = Self::new(config, line, now);
        if let (Controller::Dcqcn(old), Controller::Dcqcn(_)) = (&self.controller, &new.controller)
        {
            let mut point = *old;
            point.set_params(&config.params, line, now);
            new.controller = Controller::Dcqcn(point);
        }
        (new.cnps_handled, new.cnps_sent) = (self.cnps_handled, self.cnps_sent);
        (new.marked, new.pacer) = (self.marked, self.pacer);
        if let (Some(old), Some(new)) = (&mut self.by_delay, &mut new.by_delay) {
            old.answers.advance(old.line, now);
            (new.delays, new.answers) = (old.delays, old.answers);
        }
        if self.waits_until != Instant::FAR {
            new.waits_until = now; // It looks at its new rate at once.
        }
        *self = new;
    }

    /// Brings rate and tokens up to `now`: tokens come at the rate that was, also if it changed meanwhile.
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

    /// Whether packets whose frames have up to `largest` bytes must wait now. If so, it is noted when to look again.
    #[inline(never)] // Its callers are on the path of QPs that nothing limits, too.
    pub fn waits(&mut self, largest: u64, now: Instant) -> Waits {
        if self.stopped {
            return Waits { requests: true, answers: true };
        }
        self.advance(now);
        let requests = self.pacer.ready_at(largest, self.controller.rate());
        let mut answers = requests;
        if let Some(ByDelay { answers: pacer, line, .. }) = &mut self.by_delay {
            pacer.advance(*line, now);
            answers = pacer.ready_at(largest, *line);
        }
        let waits = Waits { requests: requests > now, answers: answers > now };
        let first = [requests, answers].into_iter().filter(|&ready| ready > now).min();
        self.waits_until =
            first.map_or(Instant::FAR, |ready| ready.min(self.controller.next_event()));
        waits
    }

    /// From now on no data go, or again.
    pub fn set_stopped(&mut self, stopped: bool) {
        self.stopped = stopped;
    }

    /// What the rate means for the QP's next packets, of which the largest makes a frame of `largest` bytes. `timeout`
    /// is the local ACK timeout.
    #[inline(never)] // Its callers are on the path of QPs that nothing limits, too.
    pub fn limit(&mut self, env: &mut Env<'_>, largest: u64, timeout: Option<Duration>) {
        if !self.stopped {
            self.advance(env.now);
        }
        let rate = self.controller.rate();
        let basis = (rate, timeout.map_or(ACK_AFTER, |timeout| ACK_AFTER.min(timeout / 4)));
        if basis != self.ack_basis {
            let packets = rate.bytes_in(basis.1) / largest.max(1);
            let packets = u32::try_from(packets).unwrap_or(ACK_INTERVAL);
            (self.ack_basis, self.ack_interval) = (basis, packets.clamp(1, ACK_INTERVAL));
        }
        env.ack_interval = self.ack_interval;
        let window = self.controller.window();
        if window != u64::MAX {
            let packets = u32::try_from(window / largest.max(1)).unwrap_or(u32::MAX).max(1);
            // Who goes by windows must hear of every packet: a window may shrink below what was sent.
            (env.window, env.ack_interval) = (env.window.min(packets), 1);
        }
    }

    /// A frame of `bytes` with data went out; its transport headers are at the front of `transport`.
    #[inline(never)] // Its callers are on the path of QPs that nothing limits, too.
    pub fn on_sent(&mut self, transport: &[u8], bytes: u64, now: Instant) {
        let rate = self.controller.rate();
        if let Some(by_delay) = &mut self.by_delay
            && let Ok(bth) = Bth::parse(transport)
        {
            if bth.opcode.is_response() {
                by_delay.answers.spend(bytes, by_delay.line, now);
                return;
            }
            if by_delay.delays.on_sent(&bth, bytes, now) {
                self.controller.on_loss(now);
            }
        }
        self.pacer.spend(bytes, rate, now);
        self.controller.on_sent(bytes, now);
    }

    /// A packet came from the peer.
    pub fn on_packet(&mut self, packet: &Packet<'_>, now: Instant) {
        if let Some(by_delay) = &mut self.by_delay
            && let Some(trip) = by_delay.delays.on_packet(packet, now)
        {
            self.advance(now);
            self.controller.on_ack(trip.time, trip.bytes, now);
        }
    }

    /// A CNP came from the peer. False if this control does not heed any.
    pub fn on_cnp(&mut self, now: Instant) -> bool {
        if !matches!(self.controller, Controller::Dcqcn(_)) {
            return false;
        }
        self.advance(now);
        self.controller.on_cnp(now);
        self.cnps_handled += 1;
        true
    }

    /// A packet that counts as data came, `marked` or not: whether the QP's own point sends a CNP now.
    pub fn notes(&mut self, marked: bool, now: Instant) -> bool {
        self.point.on_packet(marked, now)
    }

    /// A packet came that was marked.
    pub fn count_mark(&mut self) {
        self.marked += 1;
    }

    /// A CNP is sent for a packet that this QP received.
    pub fn count_cnp(&mut self) {
        self.cnps_sent += 1;
    }

    /// Does what is due at `now`; whether the QP's own point sends a CNP.
    pub fn expire(&mut self, now: Instant) -> bool {
        if self.waits_until <= now {
            self.waits_until = Instant::FAR; // The core lets it try again.
        }
        self.point.next_event() <= now && self.point.advance(now)
    }

    /// When to call [`RateControl::expire`]; [`Instant::FAR`] if something must come first.
    pub fn next_wake(&self) -> Instant {
        self.waits_until.min(self.point.next_event())
    }

    /// Where it stands at `now`.
    pub fn snapshot(&self, now: Instant) -> RateSnapshot {
        let mut state = self.clone();
        state.advance(now);
        let point = match &state.controller {
            Controller::Dcqcn(point) => Some(point),
            _ => None,
        };
        let ppm = |units: u64| u32::try_from(units).unwrap_or(u32::MAX);
        RateSnapshot {
            rate: state.controller.rate(),
            target: point.map(|point| point.target()),
            alpha_ppm: point.map(|point| ppm(point.alpha().of_u64(1_000_000))),
            waits: self.waits_until != Instant::FAR,
            cnps_handled: self.cnps_handled,
            cnps_sent: self.cnps_sent,
            marked: self.marked,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::congestion::Control;
    use feroce_wire::{ExtHeaders, Opcode, write_transport};

    #[test]
    fn other_parameters_forget_nothing_that_answers_have_spent() {
        let config =
            CongestionConfig { control: Control::Timely, burst: 4096, ..Default::default() };
        let (line, now) = (Rate::from_gbps(1), Instant::from_nanos(1000));
        let mut control = RateControl::new(&config, line, now);
        let mut transport = [0; Bth::LEN];
        let bth = Bth { opcode: Opcode::RC_READ_RESPONSE_MIDDLE, ..Bth::default() };
        write_transport(&mut transport, &bth, &ExtHeaders::default());
        control.on_sent(&transport, 64 << 10, now);
        assert_eq!(control.waits(1000, now), Waits { requests: false, answers: true });
        control.set_config(&config, line, now);
        assert_eq!(control.waits(1000, now), Waits { requests: false, answers: true });
    }
}
