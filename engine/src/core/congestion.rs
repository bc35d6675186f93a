//! Congestion control in the turn of a core: marks of received packets, CNPs out and in, and the
//! limits of each QP that sends.

use feroce_wire::{Ecn, PacketView, cnp, icrc};

use super::Core;
use super::peers::Peers;
use super::shared::CoreShared;
use super::slot::{Schedule, Slot};
use crate::congestion::{CongestionConfig, CoreCongestion, Receiver, Sender, Sent};
use crate::counters::{Counter, Counters};
use crate::pfc::PauseGate;
use crate::port::{Port, Priority};
use crate::qp::{ACK_INTERVAL, AnyQp, Env, Waits};
use crate::time::Instant;

/// A packet arrived for the QP in `place`, which has not handled it yet.
#[inline(never)]
pub(super) fn on_received(
    congestion: &mut CoreCongestion,
    place: &mut Slot,
    packet: &PacketView<'_>,
    counters: &Counters,
    schedule: &mut Schedule,
    now: Instant,
) {
    let Slot { qp, sender: Some(sender), .. } = place else { return };
    if !qp.accepts_sender_of(packet) {
        return; // The QP drops it: another host sent it.
    }
    let is_marked = packet.ip().ecn() == Ecn::Ce;
    if is_marked {
        sender.count_mark();
        counters.count(Counter::NpEcnMarkedRocePackets);
    }
    let before = congestion.cnps.next_event();
    congestion.cnps.on_packet(receiver(qp), sender, packet, is_marked, now);
    let next = congestion.cnps.next_event();
    if next != before {
        schedule.set_points_timer(next);
    }
}

fn receiver(qp: &AnyQp) -> Receiver<'_> {
    Receiver { qpn: qp.qpn(), peer: qp.peer() }
}

/// The CNP `packet` arrived for the QP in `place`.
#[cold]
pub(super) fn on_cnp(place: &mut Slot, packet: &PacketView<'_>, counters: &Counters, now: Instant) {
    let Slot { qp, sender, .. } = place;
    let is_handled = cnp::is_valid(&packet.bth(), packet.payload)
        && qp.accepts_addresses_of(packet)
        && sender.as_deref_mut().is_some_and(|sender| sender.on_cnp(now));
    counters.count(match is_handled {
        true => Counter::RpCnpHandled,
        false => Counter::RpCnpIgnored,
    });
}

/// Holds back data packets that exceed the pacer's budget, and all data packets if the pause gate
/// requires it. `is_loopback`: frames to the device itself use no link and are not limited.
/// `largest`: bytes of the QP's largest frame.
#[inline]
pub(super) fn hold_back(
    sender: &mut Option<Box<Sender>>,
    is_loopback: bool,
    gate: PauseGate,
    largest: u64,
    env: &mut Env<'_>,
) {
    if let Some(sender) = sender {
        env.waits = match is_loopback {
            true => Waits::default(),
            false => {
                let ready = sender.ready(largest, env.now);
                Waits { requests: !ready.requests, responses: !ready.responses }
            }
        };
    }
    if gate == PauseGate::HoldData {
        env.waits = Waits { requests: true, responses: true };
    }
}

impl Slot {
    /// Sets the limits for the packets that the QP sends now. Returns the bytes of its largest
    /// frame; 0 without congestion control.
    #[inline]
    pub(super) fn set_limits(
        &mut self,
        env: &mut Env<'_>,
        port: &dyn Port,
        schedule: &mut Schedule,
    ) -> u64 {
        let mut largest = 0;
        if let Some(sender) = &mut self.sender {
            largest = self.qp.largest_frame(port.attributes().frame_max);
            let limits = sender.limits(largest, self.qp.ack_timeout(), env.now);
            env.window = env.window.min(limits.window);
            env.ack_interval = limits.ack_interval.min(ACK_INTERVAL);
        }
        (env.window, env.ends_grant) = schedule.peers.limit(&mut self.share, env.window);
        env.responses = schedule.reads.limit(&self.read_share);
        largest
    }

    /// The QP sent a frame of `len` bytes; over the link unless `is_loopback`.
    #[inline]
    pub(super) fn on_sent(
        &mut self,
        sent: &Sent,
        len: usize,
        is_loopback: bool,
        peers: &mut Peers,
        now: Instant,
    ) {
        if is_loopback {
            return;
        }
        if let Some(sender) = &mut self.sender
            && !matches!(sent, Sent::Acknowledgement)
        {
            sender.on_sent(sent, len as u64, now);
        }
        if matches!(sent, Sent::Request(request) if request.follows_loss) {
            peers.on_loss(&self.share, now);
        }
    }

    /// Runs the congestion control timers of the QP.
    pub(super) fn expire_sender(
        &mut self,
        congestion: &mut Option<Box<CoreCongestion>>,
        now: Instant,
    ) {
        if let (Some(sender), Some(congestion)) = (&mut self.sender, congestion)
            && sender.expire(now)
        {
            congestion.cnps.on_interval_end(receiver(&self.qp), sender);
        }
    }
}

impl Core {
    /// Time at which queued CNPs are to be sent; `None` without queued CNPs.
    pub(super) fn cnps_due(&self) -> Option<Instant> {
        self.congestion.as_ref()?.cnps.due()
    }

    /// Sends the queued CNPs, before all other frames. Returns how many were sent.
    pub(super) fn send_cnps(&mut self, now: Instant) -> usize {
        let Self { congestion, pfc, port, shared, ip_id, .. } = self;
        let Some(congestion) = congestion else { return 0 };
        let cnps = &mut congestion.cnps;
        let priority = Priority::new(cnps.priority());
        let mut sent = 0;
        while let Some(cnp) = cnps.front() {
            if pfc.as_ref().is_some_and(|pfc| pfc.is_paused(cnp.flow.spec())) {
                cnps.set_aside();
                continue;
            }
            if port.tx_room() == 0 {
                break;
            }
            // The source port of a CNP is 0, where the port can send from it.
            let flow = match port.attributes().source_ports.first() {
                Some(&source_port) => cnp.flow.with_source_port(source_port),
                None => cnp.flow,
            };
            let id = port.tx_identification(cnp::LEN + icrc::LEN, false).unwrap_or(*ip_id);
            let Some(frame) = port.tx_slot() else { break };
            let frame_len = cnp::seal(&flow, frame, cnp.dest_qp, cnp.pkey, id);
            *ip_id = ip_id.checked_add(1).unwrap_or(1);
            port.tx_commit(frame_len, priority);
            shared.count_sent(1, cnp::LEN + icrc::LEN);
            shared.counters.count(Counter::NpCnpSent);
            cnps.pop();
            sent += 1;
        }
        cnps.set_retry(now);
        sent
    }

    /// The timer of the shared notification points has fired.
    #[cold]
    pub(super) fn expire_points(&mut self, now: Instant) {
        let Self { congestion: Some(congestion), slots, shared, schedule, .. } = self else {
            return;
        };
        congestion.cnps.expire(now, |local_qp| {
            let slot = shared.qpns.locate(local_qp).map(|(_, slot)| slot as usize);
            if let Some(Some(place)) = slot.and_then(|slot| slots.get_mut(slot))
                && place.qp.qpn() == local_qp
                && let Some(sender) = &mut place.sender
            {
                sender.count_cnp();
            }
        });
        schedule.set_points_timer(congestion.cnps.next_event());
    }

    /// Changes the congestion control of this core's QPs at `now`. The change may not turn
    /// congestion control off or on.
    pub fn set_congestion(&mut self, config: &CongestionConfig, now: Instant) {
        let Self { congestion: Some(congestion), slots, schedule, .. } = self else { return };
        let link_rate = self.port.attributes().link_rate;
        let places = slots.iter_mut().flatten();
        let senders = places.filter_map(|place| place.sender.as_deref_mut());
        congestion.set_config(config, link_rate, senders, now);
        for (slot, place) in (0..).zip(slots) {
            if let Some(place) = place.as_deref_mut().filter(|place| place.sender.is_some()) {
                place.reschedule(slot, schedule);
            }
        }
    }

    /// The QP in `slot` stops: its last packets are not paced. Acknowledgements and datagrams are
    /// sent; other data are not sent at all. Therefore the rate does not depend on the time of the
    /// control call.
    pub(super) fn stop_pacing(&mut self, slot: u32) -> Option<Box<Sender>> {
        let place = self.slots[slot as usize].as_deref_mut()?;
        match place.qp {
            AnyQp::Datagram(_) => place.sender.take(),
            AnyQp::Connected(_) => {
                place.sender.as_deref_mut()?.set_stopped(true);
                None
            }
        }
    }

    /// Undoes [`Core::stop_pacing`]: the QP may continue, since the control call can still fail.
    pub(super) fn resume_pacing(&mut self, slot: u32, unpaced: Option<Box<Sender>>) {
        let Some(place) = self.slots[slot as usize].as_deref_mut() else { return };
        match (unpaced, place.sender.as_deref_mut()) {
            (Some(sender), _) => place.sender = Some(sender),
            (None, Some(sender)) => sender.set_stopped(false),
            (None, None) => {}
        }
    }

    /// The QP in `slot` was reset: drops the measurements of its congestion control for the path.
    pub fn reset_congestion(&mut self, slot: u32) {
        let Some(place) = self.slots[slot as usize].as_deref_mut() else { return };
        place.reset_congestion(self.congestion.as_deref());
    }
}

impl CoreShared {
    /// Counts sent packets, which have `bytes` from the BTHs to the ICRCs.
    #[inline]
    pub(super) fn count_sent(&self, packets: usize, bytes: usize) {
        self.counters.add(Counter::PortXmitPackets, packets as u64);
        self.counters.add(Counter::PortXmitData, bytes as u64);
    }
}
