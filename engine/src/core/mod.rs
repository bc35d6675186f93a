//! A core: one thread's worth of the engine, with a port, queue pairs and timers of its own.
//!
//! A core is driven by [`Core::turn`]; whoever holds its token may call it. A turn takes the time once,
//! then: doorbells, timers, frames out, the port's doorbell, frames in, frames handed over by other cores,
//! frames that went out to the device itself.
//! Sending comes first so that a program that answers a message at once has its answer on the link ahead
//! of the acknowledgement of the message. Nothing in a turn blocks, locks or allocates.

mod congestion;
mod doorbell;
mod loopback;
mod multicast;
mod pause;
mod receive;
mod transmit;

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use congestion::Congestion;
pub use doorbell::Doorbell;
use feroce_wire::Qpn;
pub use loopback::Loopback;
pub use multicast::Member;
pub use pause::Askers;
use pause::Pfc;

use crate::congestion::{CongestionConfig, RateControl};
use crate::counters::Counters;
use crate::memory::MrTable;
use crate::memory::frame_ring::{FrameConsumer, FrameProducer};
use crate::pfc::PfcConfig;
use crate::port::Port;
use crate::qp::{AnyQp, Env, QpSnapshot, SrqTable};
use crate::time::Instant;
use crate::timer_wheel::TimerWheel;
use crate::verbs::{CqRing, EventQueue};

/// Packets one QP may send before the next one's turn.
const TRANSMIT_QUANTUM: usize = 16;

/// The same in bytes, if more packets of it make a longer super-frame and another QP waits.
const SUPER_FRAME_QUANTUM: usize = 60 << 10;

/// Packets sent in one turn at most, so that receiving is never far away: such that the last super-frame is not short, which at a path
/// MTU of 4096 has 15 packets, at 2048 31, and below about as many as this.
const TRANSMIT_BURST: usize = 60;

/// How QP numbers map to cores and slots: numbers `base ..` are dealt to the cores in turn. Number 1, the
/// general services QP, has a slot of its own on the first core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpnMap {
    /// First number.
    pub base: u32,
    /// Numbers in the slice.
    pub count: u32,
    /// Cores of the device.
    pub cores: u32,
}

impl QpnMap {
    /// Core and slot of `qpn`, if it is in the slice or is number 1.
    #[inline]
    pub fn locate(&self, qpn: Qpn) -> Option<(usize, u32)> {
        match qpn.value().checked_sub(self.base) {
            Some(index) if index < self.count => {
                Some(((index % self.cores) as usize, index / self.cores))
            }
            None if qpn == Qpn::GSI => Some((0, self.count.div_ceil(self.cores))),
            _ => None,
        }
    }

    /// Slots that each core needs.
    pub fn slots(&self) -> usize {
        self.count.div_ceil(self.cores) as usize + 1
    }
}

/// What a core needs of its device.
#[derive(Debug, Clone)]
pub struct CoreShared {
    /// Registered memory.
    pub memory: Arc<MrTable>,
    /// Asynchronous events.
    pub events: Arc<EventQueue>,
    /// This core's counters.
    pub counters: Arc<Counters>,
    /// QP numbers.
    pub qpns: QpnMap,
    /// Packets that a QP may have outstanding.
    pub window: u32,
    /// Shared receive queues of XRC domains.
    pub srqs: SrqTable,
    /// Congestion control, as the device was opened.
    pub congestion: CongestionConfig,
    /// Flow control, as the device was opened.
    pub pfc: PfcConfig,
    /// Which of the device's cores ask the neighbour to pause.
    pub askers: Arc<Askers>,
}

/// The rings that carry frames between this core and the others, by core number.
#[derive(Debug, Default)]
pub struct Handover {
    /// Frames from each other core.
    pub inbox: Vec<FrameConsumer>,
    /// Frames to each other core; `None` at this core's own number.
    pub outbox: Vec<Option<FrameProducer>>,
}

/// A QP on its core.
#[derive(Debug)]
struct Slot {
    qp: AnyQp,
    /// How fast it may send; `None` without congestion control.
    control: Option<Box<RateControl>>,
    /// The program has posted since the core last looked.
    posted: Arc<AtomicBool>,
    /// In the list of QPs that may have something to send.
    active: bool,
    /// It waits for the end of a pause.
    held: bool,
    /// The wheel fires at this time or before.
    armed: Instant,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Core {
    id: usize,
    port: Box<dyn Port>,
    shared: CoreShared,
    slots: Vec<Option<Box<Slot>>>,
    active: VecDeque<u32>,
    wheel: TimerWheel,
    doorbell: Arc<Doorbell>,
    handover: Handover,
    /// CQs that hold notifications back for a time.
    moderated: Vec<Weak<CqRing>>,
    loopback: Loopback,
    groups: multicast::Groups,
    /// `None` without congestion control.
    congestion: Option<Box<Congestion>>,
    /// `None` without flow control.
    pfc: Option<Box<Pfc>>,
    /// Next IPv4 identification; counts up, never 0, as a ConnectX does.
    ip_id: u16,
    /// When something was to be sent and the port had no room, for the first time since it last had some.
    full_since: Option<Instant>,
    port_failed: bool,
}

impl Core {
    /// Core number `id`, on `port`.
    pub fn new(
        id: usize,
        port: Box<dyn Port>,
        shared: CoreShared,
        doorbell: Arc<Doorbell>,
        handover: Handover,
        loopback: Loopback,
        now: Instant,
    ) -> Self {
        let count = shared.qpns.slots();
        let mut slots = Vec::new();
        slots.resize_with(count, || None);
        Self {
            id,
            congestion: Congestion::new(&shared.congestion, &*port, count),
            pfc: Pfc::new(id, &shared, &*port, count),
            port,
            slots,
            active: VecDeque::with_capacity(count),
            wheel: TimerWheel::new(count + 2, now), // A timer per slot, one for CNPs, one for pauses.
            shared,
            doorbell,
            handover,
            moderated: Vec::new(),
            loopback,
            groups: multicast::Groups::default(),
            ip_id: 1,
            full_since: None,
            port_failed: false,
        }
    }

    /// One turn at the time `now`. Returns how much was done: 0 means that the core was idle.
    pub fn turn(&mut self, now: Instant) -> usize {
        let mut done = self.answer_doorbells(now);
        done += self.expire_timers(now);
        done += self.transmit(now);
        let received = self.receive(now);
        self.ask_by_fill(received, now);
        done += received;
        done += self.receive_handed_over(now);
        done += self.receive_looped(now);
        self.tell_moderated(now);
        done
    }

    /// The time at which a turn has something to do although nothing comes in; `None` if never. Now, if
    /// there is something to send, but for CNPs that the port has no room for.
    pub fn next_deadline(&self, now: Instant) -> Option<Instant> {
        if !self.active.is_empty() {
            return Some(now);
        }
        let held_back = self.moderated.iter().filter_map(|cq| cq.upgrade()?.notification_due());
        let cnps = self.cnps_due().map(|due| due.max(now));
        held_back.chain(self.wheel.next_deadline_hint()).chain(cnps).min()
    }

    fn has_cnps(&self) -> bool {
        self.cnps_due().is_some()
    }

    fn cnps_due(&self) -> Option<Instant> {
        self.congestion.as_ref()?.cnps_due()
    }

    /// Something waits to be sent, and not only for the port.
    fn can_send(&self) -> bool {
        self.cnps_due() == Some(Instant::ZERO) || !self.active.is_empty()
    }

    /// The shared receive queues that requests of the XRC service may name.
    pub fn srqs(&mut self) -> &mut SrqTable {
        &mut self.shared.srqs
    }

    /// Sees to the notifications that `cq` holds back from now on.
    pub fn watch_moderated(&mut self, cq: &Arc<CqRing>) {
        let other = |known: &Weak<CqRing>| {
            known.strong_count() > 0 && !std::ptr::eq(known.as_ptr(), Arc::as_ptr(cq))
        };
        self.moderated.retain(other);
        self.moderated.push(Arc::downgrade(cq));
    }

    fn tell_moderated(&mut self, now: Instant) {
        for cq in self.moderated.iter().filter_map(Weak::upgrade) {
            cq.notify_if_due(now);
        }
    }

    /// Its port.
    pub fn port(&self) -> &dyn Port {
        &*self.port
    }

    /// Puts a QP into slot `slot`. `posted` is set when the program posts to it.
    ///
    /// # Panics
    /// If the slot is taken.
    pub fn insert(&mut self, slot: u32, qp: AnyQp, posted: Arc<AtomicBool>) {
        let place = &mut self.slots[slot as usize];
        assert!(place.is_none(), "slot taken");
        let control = self.congestion.as_ref().and_then(|congestion| congestion.control_for(&qp));
        *place = Some(Box::new(Slot {
            qp,
            control,
            posted,
            active: false,
            held: false,
            armed: Instant::FAR,
        }));
    }

    /// Takes the QP out of slot `slot`: from now on, nothing of it is touched.
    pub fn remove(&mut self, slot: u32, now: Instant) -> Option<AnyQp> {
        self.answer_doorbells(now); // So that none of this QP's stays in the queue.
        self.settle(slot, now);
        self.wheel.cancel(slot);
        self.active.retain(|&active| active != slot);
        if let Some(pfc) = &mut self.pfc {
            pfc.forget(slot);
        }
        self.slots[slot as usize].take().map(|slot| slot.qp)
    }

    /// Calls `act` on the QP in slot `slot`, and lets it send afterwards.
    pub fn with_qp<R>(
        &mut self,
        slot: u32,
        now: Instant,
        act: impl FnOnce(&mut AnyQp, &mut Env<'_>) -> R,
    ) -> Option<R> {
        let place = self.slots[slot as usize].as_deref_mut()?;
        let mut env = self.shared.env(now);
        let result = act(&mut place.qp, &mut env);
        place.care(slot, &mut self.active, &mut self.wheel);
        Some(result)
    }

    /// Appends where the QPs from slot `from` on stand, as many as `out` has room for without allocating.
    /// Returns the slot to go on with; `None` after the last.
    pub fn snapshots(&self, from: u32, out: &mut Vec<QpSnapshot>, now: Instant) -> Option<u32> {
        for (slot, place) in (from..).zip(self.slots.get(from as usize..)?) {
            let Some(place) = place else { continue };
            if out.len() == out.capacity() {
                return Some(slot);
            }
            out.push(place.snapshot(now));
        }
        None
    }

    /// Where the QP in slot `slot` stands.
    pub fn snapshot(&self, slot: u32, now: Instant) -> Option<QpSnapshot> {
        self.slots.get(slot as usize)?.as_deref().map(|place| place.snapshot(now))
    }

    /// Arms every source of wake-ups and appends their descriptors. False if something waits already.
    pub fn arm_wakeup(&mut self, fds: &mut Vec<RawFd>) -> bool {
        fds.push(self.doorbell.fd().as_raw_fd());
        let mut quiet = self.doorbell.arm() && !self.can_send();
        for inbox in &mut self.handover.inbox {
            quiet &= inbox.arm();
            fds.push(inbox.fd());
        }
        quiet && self.port.arm_wakeup(fds)
    }

    /// The same for frames alone.
    pub fn arm_port(&mut self, fds: &mut Vec<RawFd>) -> bool {
        !self.can_send() && self.port.arm_wakeup(fds)
    }

    /// Undoes [`Core::arm_port`].
    pub fn disarm_port(&mut self) {
        self.port.disarm_wakeup();
    }

    /// Undoes [`Core::arm_wakeup`].
    pub fn disarm_wakeup(&mut self) {
        self.doorbell.disarm();
        for inbox in &mut self.handover.inbox {
            inbox.disarm();
        }
        self.port.disarm_wakeup();
    }

    fn answer_doorbells(&mut self, now: Instant) -> usize {
        let mut done = 0;
        while let Some(slot) = self.doorbell.next() {
            done += 1;
            let Some(place) = self.slots[slot as usize].as_deref_mut() else { continue };
            place.posted.swap(false, Ordering::AcqRel); // Before looking: what comes later rings again.
            let mut env = self.shared.env(now);
            place.qp.handle_doorbell(&mut env);
            place.care(slot, &mut self.active, &mut self.wheel);
        }
        done
    }

    fn expire_timers(&mut self, now: Instant) -> usize {
        let mut done = 0;
        while let Some(slot) = self.wheel.pop_expired(now) {
            done += 1;
            let place = self.slots.get_mut(slot as usize).and_then(Option::as_deref_mut);
            let Some(place) = place else {
                match slot as usize == self.slots.len() {
                    true => self.expire_points(now),
                    false => self.expire_pauses(now),
                }
                continue;
            };
            place.armed = Instant::FAR;
            place.expire_control(&mut self.congestion, now);
            let mut env = self.shared.env(now);
            place.qp.handle_timeout(&mut env);
            place.care(slot, &mut self.active, &mut self.wheel);
        }
        done
    }
}

impl CoreShared {
    fn env(&self, now: Instant) -> Env<'_> {
        Env::new(now, &self.memory, &self.counters, &self.events, self.window, &self.srqs)
    }
}

impl Slot {
    fn snapshot(&self, now: Instant) -> QpSnapshot {
        let rate = self.control.as_ref().map(|control| control.snapshot(now));
        QpSnapshot { rate, ..self.qp.snapshot() }
    }

    /// After every call into the QP: it may have something to send and another deadline.
    #[inline]
    fn care(&mut self, slot: u32, active: &mut VecDeque<u32>, wheel: &mut TimerWheel) {
        if !self.active {
            self.active = true;
            active.push_back(slot);
        }
        self.rearm(slot, wheel);
    }

    /// Moves the wheel's deadline forward if the QP's is earlier. A later one is set when the wheel fires.
    #[inline]
    fn rearm(&mut self, slot: u32, wheel: &mut TimerWheel) {
        let mut deadline = self.qp.poll_timeout().unwrap_or(Instant::FAR);
        if let Some(control) = &self.control {
            deadline = deadline.min(control.next_wake());
        }
        if deadline < self.armed {
            wheel.set(slot, deadline);
            self.armed = deadline;
        }
    }
}
