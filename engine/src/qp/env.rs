//! The data that a QP needs from its core for one call, and the results for the core.

use std::collections::BTreeMap;
use std::sync::Arc;

use feroce_wire::{Psn, Qpn};

use crate::congestion::Sent;
use crate::counters::{Counter, Counters};
use crate::memory::{Memory, Source};
use crate::time::Instant;
use crate::verbs::{
    AsyncEvent, Completion, CompletionOpcode, CqRing, EventQueue, Extra, SrqRing, Status,
};

/// Maximum number of packets from one acknowledgement request to the next. [`Env::ack_interval`]
/// may lower the number.
pub const ACK_INTERVAL: u32 = 16;

/// The shared receive queues of XRC domains, by number. Each core has its own table; control calls
/// change it while they hold the core's token.
pub type SrqTable = BTreeMap<u32, Arc<SrqRing>>;

/// The data packets of a QP that must wait, for its rate or for the end of a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Waits {
    /// Request packets, new or retransmitted.
    pub requests: bool,
    /// Response packets of READs and atomics.
    pub responses: bool,
}

/// The packets that may follow without a look at the requester's limits (`run`).
#[derive(Debug, Clone, Copy)]
pub(super) struct Run<'a> {
    pub left: u32,
    /// The data of the next request, unless they are inline.
    pub source: Source<'a>,
}

impl Run<'_> {
    pub const NONE: Self = Self { left: 0, source: Source::EMPTY };
}

/// The data that a QP needs from its core for one call or, while it sends, for one quantum, and the
/// results for the core.
#[derive(Debug)]
pub struct Env<'a> {
    /// Time of this turn.
    pub now: Instant,
    /// Registered memory.
    pub memory: Memory<'a>,
    /// The core's counters.
    pub counters: &'a Counters,
    /// The device's asynchronous events.
    pub events: &'a EventQueue,
    /// Send window: packets of SENDs and WRITEs that a QP may have outstanding.
    pub window: u32,
    /// The window ends where the QP's grant ends, and other QPs may get the next one: its last
    /// packet requests an acknowledgement.
    pub ends_grant: bool,
    /// Maximum number of packets from one acknowledgement request to the next, set by congestion
    /// control.
    pub ack_interval: u32,
    /// Response packets of READs and atomics that the QP may have outstanding.
    pub responses: u32,
    /// Set if `responses` holds back the next request: its number of response packets.
    pub lacking_responses: u32,
    /// Set if responses to the QP were lost.
    pub lost_responses: bool,
    /// The data packets that must wait. ACKs and NAKs never wait, nor do local requests.
    pub waits: Waits,
    /// The requester's run. The environment is that of one quantum.
    pub(super) run: Run<'a>,
    /// Shared receive queues of XRC domains.
    pub srqs: &'a SrqTable,
    /// The PSN that a received response acknowledges, with all PSNs before it.
    pub acked: Option<Psn>,
    /// A completion of this call is for a program that sleeps on its CQ ([`CqRing::sleeps`]).
    pub(super) to_sleeper: bool,
    /// Set if the QP must go to ERR for a reason that no completion reports; makes the event to
    /// raise.
    pub(super) fatal_event: Option<fn(Qpn) -> AsyncEvent>,
}

impl<'a> Env<'a> {
    /// The environment of a call at the time `now`.
    pub fn new(
        now: Instant,
        memory: Memory<'a>,
        counters: &'a Counters,
        events: &'a EventQueue,
        window: u32,
        srqs: &'a SrqTable,
    ) -> Self {
        Self {
            now,
            memory,
            counters,
            events,
            window,
            ends_grant: false,
            ack_interval: u32::MAX,
            responses: u32::MAX,
            lacking_responses: 0,
            lost_responses: false,
            waits: Waits { requests: false, responses: false },
            run: Run::NONE,
            srqs,
            acked: None,
            to_sleeper: false,
            fatal_event: None,
        }
    }

    /// Forgets the results of the packet before.
    #[inline]
    pub(crate) fn start_packet(&mut self) {
        debug_assert!(self.fatal_event.is_none() && self.lacking_responses == 0);
        debug_assert_eq!(self.run.left, 0, "a run does not outlive its quantum");
        (self.acked, self.lost_responses, self.to_sleeper) = (None, false, false);
    }

    /// Adds a completion to `cq`. If the CQ is full, the QP must go to ERR; the CQ's own error is
    /// reported once.
    #[inline(always)] // The completion is written into the queue where it is made.
    pub(super) fn complete(&mut self, cq: &CqRing, completion: Completion) {
        let was_full = cq.overflowed();
        if cq.push(completion).is_ok() {
            self.to_sleeper |= cq.sleeps();
            return;
        }
        self.on_full_cq(cq, was_full);
    }

    /// Adds the completion of a send request of the QP `qp` to `cq`, and counts an error.
    pub(super) fn complete_send(
        &mut self,
        cq: &CqRing,
        qp: Qpn,
        wr_id: u64,
        (status, opcode): (Status, CompletionOpcode),
        byte_len: u32,
    ) {
        match status {
            Status::Success => {}
            Status::WorkRequestFlushed => self.counters.count(Counter::ReqCqeFlushError),
            _ => self.counters.count(Counter::ReqCqeError),
        }
        let completion = Completion {
            wr_id,
            status,
            opcode,
            byte_len,
            extra: Extra::None,
            solicited: false,
            qp,
            at: self.now,
            datagram: None,
        };
        self.complete(cq, completion);
    }

    #[cold]
    fn on_full_cq(&mut self, cq: &CqRing, was_full: bool) {
        self.fatal_event = Some(AsyncEvent::QpFatal);
        self.counters.count(Counter::CqOverflow);
        if !was_full {
            self.events.push(AsyncEvent::CqError(cq.id()));
        }
    }
}

/// A packet that a QP wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transmit {
    /// Length in bytes, from the BTH to the pad.
    pub len: usize,
    /// Kind of the packet, for congestion control; an ACK or NAK is sent ahead of data.
    pub sent: Sent,
}
