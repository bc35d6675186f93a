//! Congestion control in a core: marks of what arrives, CNPs out and in, and the rate of each QP.

use std::collections::VecDeque;

use feroce_congestion::Rate;
use feroce_congestion::params::CnpScope;
use feroce_wire::{Audience, Ecn, Operation, Packet, Qpn, cnp, icrc};

use super::pause::Stays;
use super::{Core, CoreShared, Slot};
use crate::congestion::{Cnp, CongestionConfig, Control, Points, RateControl};
use crate::counters::{Counter, Counters};
use crate::port::{Port, Priority};
use crate::qp::{AnyQp, Env, Waits};
use crate::time::{Duration, Instant};
use crate::timer_wheel::TimerWheel;

/// CNPs that wait for the next turn at most. More come only if as many QPs are told in one burst.
const CNPS: usize = 256;

/// After this time it is looked again whether a port has room for CNPs: one whose link is gone may never have.
const NO_ROOM: Duration = Duration::from_micros(50);

/// The part of a core that only devices with congestion control have.
#[derive(Debug)]
pub(super) struct Congestion {
    config: CongestionConfig,
    line: Rate,
    points: Points,
    /// The wheel's timer of `points`: the one behind those of the slots.
    timer: u32,
    /// To be sent, oldest first.
    cnps: VecDeque<Cnp>,
    /// Those that wait for the end of a pause, out of the way of others.
    paused_cnps: VecDeque<Cnp>,
    /// The port had no room for them: when to look again.
    no_room_until: Instant,
}

impl Congestion {
    /// For a core on `port` with so many slots; `None` if it is off.
    pub(super) fn new(
        config: &CongestionConfig,
        port: &dyn Port,
        slots: usize,
    ) -> Option<Box<Self>> {
        (config.control != Control::Off).then(|| {
            Box::new(Self {
                config: *config,
                line: config.line(port.attributes().link_rate),
                points: Points::new(&config.params.notification),
                timer: u32::try_from(slots).expect("no more than QP numbers"),
                cnps: VecDeque::with_capacity(2 * CNPS), // With those that come back from a pause.
                paused_cnps: VecDeque::with_capacity(CNPS),
                no_room_until: Instant::ZERO,
            })
        })
    }

    /// What `qp` gets, which has sent nothing.
    pub(super) fn control_for(&self, qp: &AnyQp) -> Option<Box<RateControl>> {
        let has_one = qp.qpn() != Qpn::GSI;
        has_one.then(|| Box::new(RateControl::new(&self.config, self.line, Instant::ZERO)))
    }

    /// When CNPs are to be sent, if there are any: in the past, if the port had room for some when last asked.
    pub(super) fn cnps_due(&self) -> Option<Instant> {
        (!self.cnps.is_empty()).then_some(self.no_room_until)
    }

    /// Pauses have ended: CNPs that waited for one are looked at again, ahead of those that came later.
    pub(super) fn resume_cnps(&mut self) {
        while let Some(cnp) = self.paused_cnps.pop_back() {
            self.cnps.push_front(cnp);
        }
    }

    /// A CNP waits for the end of a pause, and for all of its QP that follow: at once, they would cut its peer's rate as often.
    fn put_aside(&mut self, cnp: Cnp) {
        if !self.paused_cnps.iter().any(|other| other.is_for_same(&cnp)) {
            send(&mut self.paused_cnps, cnp);
        }
    }

    /// A CNP to the peer of a connected QP; `None` for others, and for those whose packets pass no switch.
    fn to_peer(&self, qp: &AnyQp) -> Option<Cnp> {
        let (flow, dest_qp, pkey) = qp.peer()?;
        let params = &self.config.params.notification;
        let passes_switches = flow.audience() == Audience::Host;
        passes_switches.then(|| Cnp::new(flow.spec(), dest_qp, pkey, params))
    }

    /// A packet came for the QP in `place`.
    #[inline(never)]
    pub(super) fn note(
        &mut self,
        place: &mut Slot,
        packet: &Packet<'_>,
        counters: &Counters,
        wheel: &mut TimerWheel,
        now: Instant,
    ) {
        let Slot { qp, control: Some(control), .. } = place else { return };
        if !qp.accepts_sender_of(packet) {
            return; // From somebody else: the QP drops it.
        }
        control.on_packet(packet, now);
        let is_marked = packet.ip.ecn() == Ecn::Ce;
        if is_marked {
            control.count_mark();
            counters.count(Counter::NpEcnMarkedRocePackets);
        }
        // An acknowledgement would be as short at a lower rate, and a group has many senders and no flow.
        let asks = is_marked
            && packet.info.operation != Operation::Acknowledge
            && packet.bth.dest_qp != Qpn::MULTICAST;
        let params = &self.config.params.notification;
        let is_own = params.cnp_scope == CnpScope::Qp && qp.peer().is_some();
        let due = match is_own {
            true if control.notes(asks, now) => self.to_peer(qp),
            false if asks => {
                let cnp = self.to_peer(qp).or_else(|| Cnp::to_sender(packet, params));
                let cnp = cnp.filter(|cnp| self.points.on_mark(packet, qp.qpn(), *cnp, now));
                self.arm(wheel);
                cnp
            }
            _ => None,
        };
        if let Some(cnp) = due {
            control.count_cnp();
            send(&mut self.cnps, cnp);
        }
    }
}

/// Queues a CNP. One that finds no place is as lost as one that a switch drops.
fn send(cnps: &mut VecDeque<Cnp>, cnp: Cnp) {
    if cnps.len() < CNPS {
        cnps.push_back(cnp);
    }
}

/// The CNP `packet` came for the QP in `place`.
#[cold]
pub(super) fn take_cnp(place: &mut Slot, packet: &Packet<'_>, counters: &Counters, now: Instant) {
    let Slot { qp, control, .. } = place;
    let is_heeded = cnp::is_valid(packet)
        && qp.accepts_addresses_of(packet)
        && control.as_deref_mut().is_some_and(|control| control.on_cnp(now));
    counters.count(match is_heeded {
        true => Counter::RpCnpHandled,
        false => Counter::RpCnpIgnored,
    });
}

/// What the pacer does not let go waits, and the data of a pause. Frames to the device itself, `is_own`, pass no link.
#[inline]
pub(super) fn hold_back(
    control: &mut Option<Box<RateControl>>,
    is_own: bool,
    stays: Stays,
    largest: u64,
    env: &mut Env<'_>,
) {
    if let Some(control) = control {
        env.waits = match is_own {
            true => Waits::default(),
            false => control.waits(largest, env.now),
        };
    }
    if stays == Stays::Data {
        env.waits = Waits { requests: true, answers: true };
    }
}

/// The data packet `frame` went out; `header` bytes of it are in front of the BTH.
#[inline]
pub(super) fn count_sent(
    control: &mut Option<Box<RateControl>>,
    frame: &[u8],
    header: usize,
    now: Instant,
) {
    if let Some(control) = control {
        control.on_sent(&frame[header..], frame.len() as u64, now);
    }
}

impl Slot {
    /// What its rate means for the packets that it sends now. Returns the bytes of the longest frame; 0 if nothing
    /// limits its rate.
    #[inline]
    pub(super) fn limit(&mut self, env: &mut Env<'_>, port: &dyn Port) -> u64 {
        let Some(control) = &mut self.control else { return 0 };
        let largest = self.qp.largest_frame(port.attributes().frame_max);
        control.limit(env, largest, self.qp.ack_timeout());
        largest
    }

    /// What is due at `now` besides the timers of the QP itself.
    pub(super) fn expire_control(
        &mut self,
        congestion: &mut Option<Box<Congestion>>,
        now: Instant,
    ) {
        if let (Some(control), Some(congestion)) = (&mut self.control, congestion)
            && control.expire(now)
            && let Some(cnp) = congestion.to_peer(&self.qp)
        {
            control.count_cnp();
            send(&mut congestion.cnps, cnp);
        }
    }
}

impl Core {
    /// Sends the CNPs that wait, ahead of everything else.
    pub(super) fn send_cnps(&mut self, now: Instant) -> usize {
        let Self { congestion, pfc, port, shared, ip_id, .. } = self;
        let Some(congestion) = congestion else { return 0 };
        let priority = Priority::new(congestion.config.params.notification.cnp_priority);
        let mut sent = 0;
        while let Some(cnp) = congestion.cnps.front() {
            if pfc.as_ref().is_some_and(|pfc| pfc.holds(cnp.flow.spec())) {
                let cnp = *cnp;
                congestion.cnps.pop_front();
                congestion.put_aside(cnp);
                continue;
            }
            let frame = if port.tx_room() > 0 { port.tx_slot() } else { None };
            let Some(frame) = frame else { break };
            let frame_len = cnp::seal(&cnp.flow, frame, cnp.dest_qp, cnp.pkey, *ip_id);
            *ip_id = ip_id.checked_add(1).unwrap_or(1);
            port.tx_commit(frame_len, priority);
            shared.count_sent(cnp::LEN + icrc::LEN);
            shared.counters.count(Counter::NpCnpSent);
            congestion.cnps.pop_front();
            sent += 1;
        }
        congestion.no_room_until = match congestion.cnps.is_empty() {
            true => Instant::ZERO,
            false => now + NO_ROOM,
        };
        sent
    }

    /// The wheel's timer of the points that no QP has has fired.
    #[cold]
    pub(super) fn expire_points(&mut self, now: Instant) {
        let Self { congestion: Some(congestion), slots, shared, wheel, .. } = self else { return };
        let Congestion { points, cnps, .. } = &mut **congestion;
        points.expire(now, |cnp, own| {
            let slot = shared.qpns.locate(own).map(|(_, slot)| slot as usize);
            if let Some(Some(place)) = slot.and_then(|slot| slots.get_mut(slot))
                && let Some(control) = &mut place.control
            {
                control.count_cnp();
            }
            send(cnps, cnp);
        });
        congestion.arm(wheel);
    }

    /// From now on the rates of this core's QPs follow `config`, which may not turn congestion control off or on.
    pub fn set_congestion(&mut self, config: &CongestionConfig, now: Instant) {
        let Self { congestion: Some(congestion), slots, active, wheel, .. } = self else { return };
        congestion.config = *config;
        congestion.line = config.line(self.port.attributes().link_rate);
        congestion.points.set_params(&config.params.notification);
        for (slot, place) in (0..).zip(slots) {
            if let Some(place) = place
                && let Some(control) = &mut place.control
            {
                control.set_config(config, congestion.line, now);
                place.care(slot, active, wheel);
            }
        }
    }

    /// The QP in `slot` stops: what it still sends does not wait for its rate. Acknowledgements and datagrams go, other
    /// data do not go at all. Nothing of the rate depends on the time of the control call.
    pub(super) fn stop_pacing(&mut self, slot: u32) -> Option<Box<RateControl>> {
        let place = self.slots[slot as usize].as_deref_mut()?;
        match place.qp {
            AnyQp::Datagram(_) => place.control.take(),
            AnyQp::Connected(_) => {
                place.control.as_deref_mut()?.set_stopped(true);
                None
            }
        }
    }

    /// Undoes [`Core::stop_pacing`]: whether the QP stops is not yet known.
    pub(super) fn resume_pacing(&mut self, slot: u32, unpaced: Option<Box<RateControl>>) {
        let Some(place) = self.slots[slot as usize].as_deref_mut() else { return };
        match (unpaced, place.control.as_deref_mut()) {
            (Some(control), _) => place.control = Some(control),
            (None, Some(control)) => control.set_stopped(false),
            (None, None) => {}
        }
    }

    /// The QP in `slot` was reset: what it learnt of the way to its peer is forgotten.
    pub fn forget_rate(&mut self, slot: u32) {
        let Some(congestion) = &self.congestion else { return };
        if let Some(place) = self.slots[slot as usize].as_deref_mut() {
            place.control = congestion.control_for(&place.qp);
        }
    }
}

impl Congestion {
    /// Sets the wheel's timer of the points.
    fn arm(&self, wheel: &mut TimerWheel) {
        match self.points.next_event() {
            Instant::FAR => wheel.cancel(self.timer),
            next => wheel.set(self.timer, next),
        }
    }
}

impl CoreShared {
    /// Counts a packet of `bytes` from the BTH to the ICRC.
    #[inline]
    pub(super) fn count_sent(&self, bytes: usize) {
        self.counters.count(Counter::PortXmitPackets);
        self.counters.add(Counter::PortXmitData, bytes as u64);
    }
}
