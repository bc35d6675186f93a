//! Flow control in a core: frames of paused priorities stay where they are, and the neighbour is paused while the port's receive ring is full.
//!
//! A QP whose priority is paused leaves the list of active QPs and waits in another one, so that it does not spin; the end of the pause,
//! by frame or by timer, brings it back. A pause that one core received is told to the others, each of which sends.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use feroce_wire::{FlowControl, FlowControlFrame, FlowSpec, pause};

use super::congestion::Congestion;
use super::{Core, CoreShared, Slot};
use crate::counters::Counter;
use crate::memory::frame_ring::FrameProducer;
use crate::pfc::{Ask, Backpressure, Pauses, PfcConfig};
use crate::port::{Port, Priority};
use crate::time::{Duration, Instant};
use crate::timer_wheel::TimerWheel;

/// Frames of flow control go ahead of everything, where the port has priorities.
const PRIORITY: Priority = Priority::new(7);

/// For how long each priority was paused.
const PAUSED: [Counter; 8] = [
    Counter::RxPaused0,
    Counter::RxPaused1,
    Counter::RxPaused2,
    Counter::RxPaused3,
    Counter::RxPaused4,
    Counter::RxPaused5,
    Counter::RxPaused6,
    Counter::RxPaused7,
];

/// How long a core sleeps at most that could not ask.
const RETRY: Duration = Duration::from_micros(50);

/// The cores of a device that ask their common neighbour to pause.
#[derive(Debug, Default)]
pub struct Askers {
    /// A bit for each core that asks.
    cores: AtomicU64,
    /// How often the neighbour was let go: who asks nevertheless has to ask again.
    let_go: AtomicU64,
}

/// The part of a core that only devices with flow control have.
#[derive(Debug)]
pub(super) struct Pfc {
    config: PfcConfig,
    pauses: Pauses,
    /// QPs that wait for the end of a pause.
    held: Vec<u32>,
    /// The QP that sends does so for the last time: its acknowledgements do not wait.
    settles: bool,
    /// Every core knows of every pause: one of them counts the time.
    counts_time: bool,
    backpressure: Option<Backpressure>,
    askers: Arc<Askers>,
    /// [`Askers::let_go`] as this core last saw it.
    let_go: u64,
    /// The wheel's timer, behind those of slots and points.
    timer: u32,
}

/// Where those are whom a pause makes wait.
pub(super) struct Waiting<'a> {
    pub slots: &'a mut [Option<Box<Slot>>],
    pub active: &'a mut VecDeque<u32>,
    pub wheel: &'a mut TimerWheel,
    pub congestion: &'a mut Option<Box<Congestion>>,
}

impl Waiting<'_> {
    /// A pause has ended: the QPs in the slots `held`, and CNPs, may send again; those whose priority still waits come back.
    fn release(&mut self, held: &mut Vec<u32>) {
        for slot in held.drain(..) {
            if let Some(place) = self.slots[slot as usize].as_deref_mut() {
                place.held = false;
                place.care(slot, self.active, self.wheel);
            }
        }
        if let Some(congestion) = self.congestion {
            congestion.resume_cnps();
        }
    }
}

/// What of a QP's frames a pause holds back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stays {
    Nothing,
    Data,
    All,
}

/// What waits of the QP in `slot`, whose next frame is of `flow`, or to the device itself: `is_own`. If all does, the end of the
/// pause brings the QP back.
#[inline]
pub(super) fn stays(
    pfc: &mut Option<Box<Pfc>>,
    is_own: bool,
    flow: &FlowSpec,
    slot: u32,
    is_held: &mut bool,
) -> Stays {
    match pfc {
        Some(pfc) if !is_own && pfc.holds(flow) => pfc.hold(slot, is_held),
        _ => Stays::Nothing,
    }
}

impl Pfc {
    /// For core `id` on `port` with so many slots; `None` if it is off.
    pub(super) fn new(
        id: usize,
        shared: &CoreShared,
        port: &dyn Port,
        slots: usize,
    ) -> Option<Box<Self>> {
        let config = shared.pfc;
        let line = config.line(port.attributes().link_rate).filter(|_| config.is_on())?;
        Some(Box::new(Self {
            config,
            pauses: Pauses::new(config.priorities, line),
            held: Vec::with_capacity(slots),
            settles: false,
            counts_time: id == 0,
            backpressure: config.thresholds.map(|thresholds| Backpressure::new(thresholds, line)),
            askers: Arc::clone(&shared.askers),
            let_go: 0,
            timer: u32::try_from(slots).expect("no more than QP numbers") + 1,
        }))
    }

    /// Transmit slots that data leave free: of one that is to ask for a pause.
    pub(super) fn kept_slots(&self) -> usize {
        usize::from(self.backpressure.is_some())
    }

    /// Whether frames of `flow` wait.
    #[inline]
    pub(super) fn holds(&self, flow: &FlowSpec) -> bool {
        self.pauses.holds(self.config.priority(flow))
    }

    fn hold(&mut self, slot: u32, is_held: &mut bool) -> Stays {
        if self.settles {
            return Stays::Data;
        }
        if !std::mem::replace(is_held, true) {
            self.held.push(slot);
        }
        Stays::All
    }

    /// Takes the frame that asks for `control`, if there is one. Who waited for a pause that has ended may send again.
    pub(super) fn take(
        &mut self,
        control: Option<FlowControl>,
        mut waiting: Waiting<'_>,
        shared: &CoreShared,
        now: Instant,
    ) {
        let has_ended = match control {
            Some(control) => self.pauses.take(control, now),
            None => self.pauses.advance(now),
        };
        if has_ended {
            waiting.release(&mut self.held);
        }
        self.count_time(shared);
        self.arm(waiting.wheel, now);
    }

    /// The QP in `slot` is gone.
    pub(super) fn forget(&mut self, slot: u32) {
        self.held.retain(|&held| held != slot);
    }

    /// Sets the wheel's timer. What is due to be asked, this turn asks, or a later one if the port has no room now.
    fn arm(&self, wheel: &mut TimerWheel, now: Instant) {
        let ask = match self.backpressure.as_ref().map_or(Instant::FAR, Backpressure::next_ask) {
            due if due <= now => now + RETRY,
            later => later,
        };
        match self.pauses.next_end().min(ask) {
            Instant::FAR => wheel.cancel(self.timer),
            next => wheel.set(self.timer, next),
        }
    }

    /// Tells the counters for how long priorities were paused.
    fn count_time(&self, shared: &CoreShared) {
        if self.counts_time {
            for (counter, paused) in PAUSED.into_iter().zip(self.pauses.paused()) {
                let micros = u64::try_from(paused.as_micros()).unwrap_or(u64::MAX);
                shared.counters.add(counter, micros - shared.counters.get(counter));
            }
        }
    }

    /// The frame that asks for `ask`, as `port` sends it.
    fn frame(&self, ask: Ask, port: &dyn Port) -> [u8; pause::FRAME_LEN] {
        let enabled = self.config.priorities.bits();
        let span = |p: usize| if enabled >> p & 1 == 1 { ask.quanta() } else { 0 };
        let control = FlowControl::Pfc { enabled, quanta: [0, 1, 2, 3, 4, 5, 6, 7].map(span) };
        FlowControlFrame { src: port.attributes().mac, control }.to_bytes()
    }
}

impl Core {
    /// From now on acknowledgements of the QP that sends do not wait, or again.
    pub(super) fn set_settling(&mut self, settles: bool) {
        if let Some(pfc) = &mut self.pfc {
            pfc.settles = settles;
        }
    }

    /// The wheel's timer of flow control has fired.
    #[cold]
    pub(super) fn expire_pauses(&mut self, now: Instant) {
        let Self { pfc: Some(pfc), shared, slots, active, wheel, congestion, .. } = self else {
            return;
        };
        pfc.take(None, Waiting { slots, active, wheel, congestion }, shared, now);
    }

    /// Asks the neighbour to pause or to go on, by how full the port's ring is behind the `received` frames that were just taken.
    #[inline]
    pub(super) fn ask_by_fill(&mut self, received: usize, now: Instant) {
        if let Some(pfc) = &self.pfc
            && let Some(backpressure) = &pfc.backpressure
            && (received > 0 || backpressure.is_asking())
        {
            self.look_at_fill(now);
        }
    }

    fn look_at_fill(&mut self, now: Instant) {
        let Self { id, pfc: Some(pfc), port, shared, handover, .. } = self else { return };
        let Some(fill) = port.rx_fill() else { return };
        // Frames for QPs of other cores leave the port's ring at once: what waits for those cores counts, too.
        let handed_over = handover.outbox.iter_mut().flatten().map(FrameProducer::fill).max();
        let fill = fill.max(handed_over.unwrap_or(0));
        let let_go = pfc.askers.let_go.load(Ordering::Acquire);
        let Some(backpressure) = &mut pfc.backpressure else { return };
        if let_go != pfc.let_go {
            pfc.let_go = let_go;
            backpressure.forget();
        }
        let Some(ask) = backpressure.wants(fill, now) else { return };
        let own = 1_u64 << *id;
        // The last one lets go for all.
        let is_due =
            ask == Ask::Xoff || pfc.askers.cores.fetch_and(!own, Ordering::AcqRel) & !own == 0;
        if is_due {
            let bytes = pfc.frame(ask, &**port);
            let Some(frame) = port.tx_slot() else { return }; // The next turn tries again.
            if ask == Ask::Xoff {
                pfc.askers.cores.fetch_or(own, Ordering::AcqRel);
            }
            frame[..bytes.len()].copy_from_slice(&bytes);
            port.tx_commit(bytes.len(), PRIORITY);
            shared.counters.count(Counter::TxPause);
            self.flush(1);
        }
        let Self { pfc: Some(pfc), wheel, .. } = self else { return };
        if ask == Ask::Xon && is_due {
            pfc.let_go = pfc.askers.let_go.fetch_add(1, Ordering::AcqRel) + 1;
        }
        if let Some(backpressure) = &mut pfc.backpressure {
            backpressure.asked(ask, fill, now);
        }
        pfc.arm(wheel, now);
    }
}
