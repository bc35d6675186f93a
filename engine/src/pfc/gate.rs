//! Flow control of one core: the pause gate of its QPs, and the pause requests to the neighbour.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use feroce_wire::{FlowControl, FlowControlFrame, FlowSpec, MacAddr, pause};

use super::backpressure::{Backpressure, PauseRequest};
use super::config::PfcConfig;
use super::pauses::Pauses;
use crate::time::{Duration, Instant};

/// Longest sleep of a core whose pause request is due but could not be sent.
const RETRY: Duration = Duration::from_micros(50);

/// The cores of a device that request a pause from their common neighbour.
#[derive(Debug, Default)]
pub struct XoffRequesters {
    /// One bit per core that requests a pause.
    cores: AtomicU64,
    /// Number of XON frames sent. After each, a core that still needs the pause must request it
    /// again.
    releases: AtomicU64,
}

/// What a pause holds back of a QP's packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PauseGate {
    /// Nothing.
    Pass,
    /// Packets with data. Acknowledgements pass.
    HoldData,
    /// All packets.
    HoldAll,
}

/// The flow control state of a core.
#[derive(Debug)]
pub struct CorePfc {
    config: PfcConfig,
    core: usize,
    pauses: Pauses,
    /// Slots of QPs that wait for the end of a pause.
    held: Vec<u32>,
    /// The core sends the last packets of a QP that stops: its acknowledgements pass the gate.
    is_draining: bool,
    backpressure: Option<Backpressure>,
    requesters: Arc<XoffRequesters>,
    /// [`XoffRequesters::releases`] as this core saw it last.
    releases_seen: u64,
}

impl CorePfc {
    /// For core number `core` of a device with `slots` slots per core, on a link of `link_rate`
    /// bit/s. `None` if flow control is off.
    pub fn new(
        core: usize,
        config: PfcConfig,
        requesters: &Arc<XoffRequesters>,
        link_rate: Option<u64>,
        slots: usize,
    ) -> Option<Self> {
        let link_rate = config.link_rate(link_rate).filter(|_| config.is_on())?;
        Some(Self {
            config,
            core,
            pauses: Pauses::new(config.priorities, link_rate),
            held: Vec::with_capacity(slots),
            is_draining: false,
            backpressure: config.thresholds.map(|limits| Backpressure::new(limits, link_rate)),
            requesters: Arc::clone(requesters),
            releases_seen: 0,
        })
    }

    /// Transmit slots that data must leave free: one for a pause request.
    pub fn reserved_slots(&self) -> usize {
        usize::from(self.backpressure.is_some())
    }

    /// Returns true if the priority of `flow` is paused.
    #[inline]
    pub fn is_paused(&self, flow: &FlowSpec) -> bool {
        self.pauses.is_paused(self.config.priority(flow))
    }

    /// The gate for the packets of the QP in `slot`, whose next packet belongs to `flow`. If the
    /// gate holds all packets, the QP is added to the held QPs and `is_held` is set.
    #[inline]
    pub fn gate(&mut self, flow: &FlowSpec, slot: u32, is_held: &mut bool) -> PauseGate {
        if !self.is_paused(flow) {
            return PauseGate::Pass;
        }
        if self.is_draining {
            return PauseGate::HoldData;
        }
        if !std::mem::replace(is_held, true) {
            self.held.push(slot);
        }
        PauseGate::HoldAll
    }

    /// From now on the core sends the last packets of a QP that stops, or no longer does.
    pub fn set_draining(&mut self, is_draining: bool) {
        self.is_draining = is_draining;
    }

    /// Applies a received pause frame. Returns true if a pause has ended.
    pub fn on_frame(&mut self, control: FlowControl, now: Instant) -> bool {
        self.pauses.on_frame(control, now)
    }

    /// Ends the pauses that are over at `now`. Returns true if there were any.
    pub fn advance(&mut self, now: Instant) -> bool {
        self.pauses.advance(now)
    }

    /// Removes all held QPs, after the end of a pause. Those whose priority is still paused return.
    pub fn drain_held(&mut self) -> impl Iterator<Item = u32> {
        self.held.drain(..)
    }

    /// Removes the QP in `slot` from the held QPs.
    pub fn remove(&mut self, slot: u32) {
        self.held.retain(|&held| held != slot);
    }

    /// Time of the next pause end or XOFF refresh. A refresh that is already due is retried after
    /// `RETRY`, in case the port has no room.
    pub fn next_event(&self, now: Instant) -> Instant {
        let refresh = self.backpressure.as_ref().map_or(Instant::FAR, Backpressure::next_refresh);
        let refresh = if refresh <= now { now + RETRY } else { refresh };
        self.pauses.next_end().min(refresh)
    }

    /// How long each priority was paused. Only core 0 reports it: every core receives every pause.
    pub fn paused_times(&self) -> Option<&[Duration; 8]> {
        (self.core == 0).then(|| self.pauses.paused())
    }

    /// Returns true if the fill level of the receive ring must be checked, after `received` frames
    /// were taken from the ring.
    #[inline]
    pub fn must_check_fill(&self, received: usize) -> bool {
        let backpressure = self.backpressure.as_ref();
        backpressure.is_some_and(|backpressure| received > 0 || backpressure.is_pausing())
    }

    /// The pause request that is due while the receive ring is `fill` per cent full.
    pub fn due_request(&mut self, fill: u8, now: Instant) -> Option<PauseRequest> {
        let releases = self.requesters.releases.load(Ordering::Acquire);
        let backpressure = self.backpressure.as_mut()?;
        if releases != self.releases_seen {
            self.releases_seen = releases;
            backpressure.on_released();
        }
        backpressure.due_request(fill, now)
    }

    /// Returns true if `request` needs a frame. An XON is sent only by the last core that had
    /// requested the pause; this removes the core from the requesters.
    pub fn needs_frame(&mut self, request: PauseRequest) -> bool {
        let own = 1_u64 << self.core;
        request == PauseRequest::Xoff
            || self.requesters.cores.fetch_and(!own, Ordering::AcqRel) & !own == 0
    }

    /// The frame for `request`, from `src`. For an XOFF, adds the core to the requesters.
    pub fn frame(&self, request: PauseRequest, src: MacAddr) -> [u8; pause::FRAME_LEN] {
        if request == PauseRequest::Xoff {
            self.requesters.cores.fetch_or(1_u64 << self.core, Ordering::AcqRel);
        }
        let enabled = self.config.priorities.bits();
        let quanta = |p: usize| if enabled >> p & 1 == 1 { request.quanta() } else { 0 };
        let control = FlowControl::Pfc { enabled, quanta: [0, 1, 2, 3, 4, 5, 6, 7].map(quanta) };
        FlowControlFrame { src, control }.to_bytes()
    }

    /// `request` was made at `now`, with the ring `fill` per cent full; `with_frame`: a frame was
    /// sent.
    pub fn on_requested(
        &mut self,
        request: PauseRequest,
        with_frame: bool,
        fill: u8,
        now: Instant,
    ) {
        if request == PauseRequest::Xon && with_frame {
            self.releases_seen = self.requesters.releases.fetch_add(1, Ordering::AcqRel) + 1;
        }
        if let Some(backpressure) = &mut self.backpressure {
            backpressure.on_requested(request, fill, now);
        }
    }
}
