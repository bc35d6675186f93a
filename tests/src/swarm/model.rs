//! A simple model of the verbs semantics: no packets and no sequence numbers, only what programs
//! may rely on.
//!
//! For each QP, the model knows which requests were posted, how many the peer is known to have
//! executed, how many have completed, and why the QP entered ERR. Every completion and every event
//! is checked against this state.

use feroce_engine::time::Instant;
use feroce_engine::verbs::{AsyncEvent, Completion, CompletionOpcode, Extra, Status};
use feroce_wire::Qpn;

use super::check::Check;
use super::coverage::Coverage;
use super::layout::Range;
use super::memory::Memory;
use super::options::Options;
use super::random::Random;
use super::request::{ErrorEvent, Failure, Op, PeerReport, Request};
use super::side_workload::SideWorkload;

/// A request that the peer refused with a NAK.
#[derive(Debug, Clone, Copy)]
pub(super) struct Refused {
    /// How the peer's program learned of the refusal.
    pub report: PeerReport,
    /// Index of the request, if known.
    pub index: Option<usize>,
}

/// State of one QP and of the program that uses it.
#[derive(Debug)]
pub(super) struct Side {
    /// Requests and receives that the program posts.
    pub workload: SideWorkload,
    /// QP number.
    pub qpn: Qpn,
    /// Indices of the requests that consume a receive, in order of the receives.
    pub consumers: Vec<usize>,
    /// Time at which each send request was posted.
    pub posted: Vec<Instant>,
    /// Time at which each receive was posted.
    pub receives_posted: Vec<Instant>,
    /// Number of requests that the peer is known to have executed.
    pub executed: usize,
    /// Number of requests that succeeded.
    pub succeeded: usize,
    /// Number of requests that completed, with or without success.
    pub resolved: usize,
    /// A request failed, so all later requests are flushed.
    pub failed: bool,
    /// A request failed, and was not only flushed.
    pub has_own_failure: bool,
    /// Number of receives that succeeded.
    pub received: usize,
    /// Number of receives that completed.
    pub receives_resolved: usize,
    /// The request that the peer refused.
    pub refused: Option<Refused>,
    /// The QP is in ERR after an error that the model has seen.
    pub broken: bool,
    /// The program moved the QP to ERR.
    pub killed: bool,
    /// In SQD: index of the first request that must not be sent.
    pub held_from: Option<usize>,
    /// The SQ drained event was seen.
    pub drained: bool,
}

/// A completion and the work request that it belongs to.
#[derive(Debug, Clone, Copy)]
struct Entry {
    pair: usize,
    end: usize,
    index: usize,
    is_receive: bool,
    completion: Completion,
}

impl Entry {
    fn is_flush(&self) -> bool {
        self.completion.status == Status::WorkRequestFlushed
    }
}

/// The model. See the [module](self).
#[derive(Debug)]
pub(super) struct Model {
    /// Options of the scenario.
    pub options: Options,
    /// State of each QP, by pair and end.
    pub sides: Vec<[Side; 2]>,
    /// Memory of both ends.
    pub memory: Memory,
    /// Generator for the bytes that a program writes into memory after a request completed.
    pub random: Random,
    /// Current time.
    pub now: Instant,
    /// Cumulative number of frames that the wire lost, duplicated, delayed or corrupted, over time.
    pub faults_over_time: Vec<(Instant, u64)>,
    /// Time at which the wire faults ended.
    pub faults_ended: Option<Instant>,
    /// By end, the word that several QPs add to.
    pub shared_words: [Option<Range>; 2],
    /// By end of the shared word: value before each completed addition, and the value added.
    pub shared_adds: [Vec<(u64, u64)>; 2],
    /// Counts of what happened.
    pub coverage: Coverage,
}

const RECEIVE: u64 = 1 << 63;

/// Encodes the pair, the queue and the index of a work request into a `wr_id`.
pub(super) fn wr_id(pair: usize, index: usize, is_receive: bool) -> u64 {
    (if is_receive { RECEIVE } else { 0 }) | (pair as u64) << 32 | index as u64
}

impl Side {
    /// Creates the state of a QP before its first request.
    pub fn new(workload: SideWorkload, qpn: Qpn) -> Self {
        let consumers = (0..workload.requests.len())
            .filter(|&index| workload.requests[index].op.consumes_receive())
            .collect();
        Self {
            workload,
            qpn,
            consumers,
            posted: Vec::new(),
            receives_posted: Vec::new(),
            executed: 0,
            succeeded: 0,
            resolved: 0,
            failed: false,
            has_own_failure: false,
            received: 0,
            receives_resolved: 0,
            refused: None,
            broken: false,
            killed: false,
            held_from: None,
            drained: false,
        }
    }

    /// Returns the index of the peer's receive that request `index` consumes.
    pub fn receive_of(&self, index: usize) -> Option<usize> {
        self.consumers.binary_search(&index).ok()
    }

    /// Returns true if the QP is in ERR.
    pub fn is_dead(&self) -> bool {
        self.broken || self.killed
    }
}

impl Model {
    /// Sets the time and the cumulative number of frames that the wire lost, duplicated, delayed or
    /// corrupted.
    pub fn advance(&mut self, now: Instant, faulted: u64) {
        self.now = now;
        if self.faults_over_time.last().map_or(0, |(_, sum)| *sum) != faulted {
            self.faults_over_time.push((now, faulted));
        }
    }

    /// Returns how many frames were lost, duplicated, delayed or corrupted at `from` or later.
    pub fn faulted_since(&self, from: Instant) -> u64 {
        let before = self.faults_over_time.partition_point(|(at, _)| *at < from);
        let sum =
            |until: usize| until.checked_sub(1).map_or(0, |last| self.faults_over_time[last].1);
        sum(self.faults_over_time.len()) - sum(before)
    }

    /// Returns a send request.
    pub fn request(&self, pair: usize, end: usize, index: usize) -> &Request {
        &self.sides[pair][end].workload.requests[index]
    }

    /// Returns how a request must fail, and how many of its bytes arrive before the failure.
    pub fn must_fail(&self, pair: usize, end: usize, index: usize) -> Option<(Failure, usize)> {
        let receive = self.sides[pair][end].receive_of(index);
        let receives = &self.sides[pair][1 - end].workload.receives;
        let receive = receive.and_then(|receive| receives.get(receive));
        self.request(pair, end, index).must_fail(receive, self.options.mtu_bytes())
    }

    /// Checks the events and completions, by end, that arrived since the last call.
    pub fn take(
        &mut self,
        events: &[(usize, AsyncEvent)],
        completions: &[(usize, Completion)],
    ) -> Check {
        let mut entries = Vec::with_capacity(completions.len());
        for &(end, completion) in completions {
            entries.push(self.identify(end, completion)?);
        }
        self.check_order(&entries)?;
        // Receives are checked first: the completions of the sender depend on them.
        let pick = |is_receive: bool, of: fn(&Entry) -> bool| {
            let of = move |entry: &&Entry| entry.is_receive == is_receive && of(entry);
            entries.iter().filter(of).copied().collect::<Vec<_>>()
        };
        for entry in pick(true, |entry| entry.completion.is_success()) {
            self.receive_succeeded(&entry)?;
        }
        for entry in pick(true, |entry| !entry.completion.is_success() && !entry.is_flush()) {
            self.receive_failed(&entry)?;
        }
        for &(end, event) in events {
            self.event(end, event)?;
        }
        for entry in pick(false, |entry| !entry.is_flush()) {
            self.send_completed(&entry)?;
        }
        for entry in entries.iter().filter(|entry| entry.is_flush()) {
            self.flushed(entry)?;
        }
        Ok(())
    }

    fn identify(&mut self, end: usize, completion: Completion) -> Result<Entry, String> {
        self.coverage.status(completion.status);
        let id = completion.wr_id;
        let pair = usize::try_from((id & !RECEIVE) >> 32).expect("31 bits");
        let index = usize::try_from(id & 0xffff_ffff).expect("32 bits");
        let is_receive = id & RECEIVE != 0;
        let entry = Entry { pair, end, index, is_receive, completion };
        let side = self.sides.get(pair).map(|pair| &pair[end]);
        let side = side.ok_or_else(|| format!("completion of no known QP: {completion:?}"))?;
        let posted = if is_receive { side.receives_posted.len() } else { side.posted.len() };
        if index >= posted || completion.qp != side.qpn {
            return Err(format!("{}: completed, but never posted on this QP", describe(&entry)));
        }
        Ok(entry)
    }

    /// Checks that completions arrive in the order of posting, each once, and that only successful
    /// unsignaled requests have none.
    fn check_order(&self, entries: &[Entry]) -> Check {
        for (pair, sides) in self.sides.iter().enumerate() {
            for (end, side) in sides.iter().enumerate() {
                let of = |entry: &&Entry| entry.pair == pair && entry.end == end;
                let mut next = [side.resolved, side.receives_resolved];
                let mut flushing = [side.failed, false];
                for entry in entries.iter().filter(of) {
                    let queue = usize::from(entry.is_receive);
                    let skipped = next[queue]..entry.index;
                    if entry.index < next[queue] {
                        return Err(format!(
                            "{}: completed twice or out of order",
                            describe(entry)
                        ));
                    }
                    for index in skipped {
                        let silent = !entry.is_receive
                            && !self.options.all_signaled
                            && !side.workload.requests[index].signaled;
                        if !silent {
                            return Err(format!(
                                "{}: the completion of {index} is missing",
                                describe(entry)
                            ));
                        }
                    }
                    if (flushing[queue] || side.killed) && !entry.is_flush() {
                        return Err(format!("{}: not flushed after an error", describe(entry)));
                    }
                    next[queue] = entry.index + 1;
                    flushing[queue] |= !entry.completion.is_success();
                }
            }
        }
        Ok(())
    }

    fn receive_succeeded(&mut self, entry: &Entry) -> Check {
        let &Entry { pair, end, index, completion, .. } = entry;
        let sender_side = &self.sides[pair][1 - end];
        let sender =
            sender_side.consumers.get(index).filter(|&&sender| sender < sender_side.posted.len());
        let Some(&sender) = sender else {
            return Err(format!("{}: received a message that was never sent", describe(entry)));
        };
        let request = self.request(pair, 1 - end, sender).clone();
        let opcode = match request.op {
            Op::WriteImm(_) => CompletionOpcode::ReceiveRdmaWithImmediate,
            _ => CompletionOpcode::Receive,
        };
        let extra = match (request.op, request.remote) {
            (Op::SendImm(imm) | Op::WriteImm(imm), _) => Extra::Immediate(imm),
            (Op::SendInvalidate, Some(remote)) => {
                Extra::Invalidated(self.memory.addr_and_key(end, remote.area).1)
            }
            _ => Extra::None,
        };
        let is = (
            completion.opcode,
            completion.byte_len as usize,
            completion.extra,
            completion.solicited,
        );
        let must = (opcode, request.payload.len(), extra, request.solicited);
        if is != must {
            return Err(format!("{}: got {is:?}, expected {must:?}", describe(entry)));
        }
        let local = self.sides[pair][end].workload.receives[index].local.clone();
        if request.op.is_send() {
            self.memory
                .expect(&local, &request.payload, || format!("{}: payload", describe(entry)))?;
        }
        let side = &mut self.sides[pair][end];
        (side.received, side.receives_resolved) = (index + 1, index + 1);
        self.executed(pair, 1 - end, sender + 1)?;
        self.memory.overwrite(&local, &mut self.random);
        Ok(())
    }

    /// Receive `index` failed because of the message that consumed it.
    fn receive_failed(&mut self, entry: &Entry) -> Check {
        let &Entry { pair, end, index, completion, .. } = entry;
        let sender_side = &self.sides[pair][1 - end];
        let sender =
            sender_side.consumers.get(index).filter(|&&sender| sender < sender_side.posted.len());
        let Some(&sender) = sender else {
            return Err(format!("{}: failed, but no message consumed it", describe(entry)));
        };
        let seen = PeerReport::Receive(completion.status);
        let must =
            self.must_fail(pair, 1 - end, sender).filter(|(failure, _)| failure.peer == seen);
        let receive = &self.sides[pair][end].workload.receives[index];
        let (local, risk) = (receive.local.clone(), receive.risk);
        let may = risk.is_some_and(|risk| {
            self.memory.is_deregistered(risk.end, risk.area)
                && risk.failures.iter().any(|f| f.peer == seen)
        });
        if must.is_none() && !may {
            return Err(format!("{}: failed without a reason", describe(entry)));
        }
        self.executed(pair, 1 - end, sender)?;
        if let Some((_, arrived)) = must {
            let request = self.request(pair, 1 - end, sender);
            if request.op.is_send() {
                let bytes = request.payload[..arrived].to_vec();
                self.memory.expect(&local, &bytes, || {
                    format!("{}: payload before it failed", describe(entry))
                })?;
            }
        }
        self.sides[pair][1 - end].refused = Some(Refused { report: seen, index: Some(sender) });
        let side = &mut self.sides[pair][end];
        side.receives_resolved = index + 1;
        side.broken = true;
        Ok(())
    }

    fn event(&mut self, end: usize, event: AsyncEvent) -> Check {
        let (qpn, error_event) = match event {
            AsyncEvent::QpAccessError(qpn) => (qpn, ErrorEvent::Access),
            AsyncEvent::QpRequestError(qpn) => (qpn, ErrorEvent::Request),
            AsyncEvent::SqDrained(qpn) => return self.sq_drained(end, qpn),
            other => return Err(format!("end {end}: unexpected event {other:?}")),
        };
        self.coverage.error_event(error_event);
        let pair = self.pair_of(end, qpn)?;
        let Some(index) = self.refused_with(pair, 1 - end, error_event) else {
            return Err(format!("end {end}, pair {pair}: unexpected event {event:?}"));
        };
        if self.sides[pair][end].is_dead() {
            return Err(format!("end {end}, pair {pair}: event {event:?} on a QP in ERR"));
        }
        if let Some(index) = index {
            self.executed(pair, 1 - end, index)?;
        }
        self.sides[pair][1 - end].refused =
            Some(Refused { report: PeerReport::Event(error_event), index });
        self.sides[pair][end].broken = true;
        Ok(())
    }

    /// Returns `Some` if a request of the QP may have been refused with this event, with the index
    /// of the request if it is known.
    fn refused_with(
        &self,
        pair: usize,
        end: usize,
        error_event: ErrorEvent,
    ) -> Option<Option<usize>> {
        let side = &self.sides[pair][end];
        let seen = PeerReport::Event(error_event);
        // Includes a READ that completed long ago: the responder checks the key again for a late
        // duplicate.
        let at_risk = side.workload.requests[..side.posted.len()].iter().any(|request| {
            request.risk.is_some_and(|risk| {
                let fits = risk.failures.iter().any(|failure| failure.peer == seen);
                self.memory.is_deregistered(risk.end, risk.area) && fits
            })
        });
        if at_risk {
            return Some(None);
        }
        let failures = (side.executed..side.posted.len())
            .find_map(|index| Some((index, self.must_fail(pair, end, index)?)));
        failures.filter(|(_, (failure, _))| failure.peer == seen).map(|(index, _)| Some(index))
    }

    fn pair_of(&self, end: usize, qpn: Qpn) -> Result<usize, String> {
        let found = self.sides.iter().position(|pair| pair[end].qpn == qpn);
        found.ok_or_else(|| format!("end {end}: event for the unknown QP {qpn}"))
    }

    /// The send queue has drained: no request is partly sent.
    fn sq_drained(&mut self, end: usize, qpn: Qpn) -> Check {
        let pair = self.pair_of(end, qpn)?;
        self.coverage.drained += 1;
        let side = &mut self.sides[pair][end];
        if side.held_from.is_none() || side.drained {
            return Err(format!(
                "end {end}, pair {pair}: SQ drained event without a request for it"
            ));
        }
        side.drained = true;
        Ok(())
    }

    fn send_completed(&mut self, entry: &Entry) -> Check {
        let &Entry { pair, end, index, completion, .. } = entry;
        self.imply(pair, end, index)?;
        if completion.is_success() {
            let request = self.request(pair, end, index);
            let opcode = match request.op {
                op if op.is_send() => CompletionOpcode::Send,
                op if op.is_write() => CompletionOpcode::RdmaWrite,
                Op::Read => CompletionOpcode::RdmaRead,
                Op::CompareSwap { .. } => CompletionOpcode::CompareSwap,
                _ => CompletionOpcode::FetchAdd,
            };
            let returned = if request.op.returns_data() { request.payload.len() } else { 0 };
            let (is, must) =
                ((completion.opcode, completion.byte_len as usize), (opcode, returned));
            if is != must {
                return Err(format!("{}: got {is:?}, expected {must:?}", describe(entry)));
            }
            return self.succeeded(pair, end, index);
        }
        self.check_failure(pair, end, index, completion.status)
            .map_err(|why| format!("{}: {why}", describe(entry)))?;
        let side = &mut self.sides[pair][end];
        (side.resolved, side.failed, side.broken) = (index + 1, true, true);
        side.has_own_failure = true;
        Ok(())
    }

    /// Marks the requests before `index` that have no completion of their own as successful.
    pub fn imply(&mut self, pair: usize, end: usize, index: usize) -> Check {
        for before in self.sides[pair][end].resolved..index {
            self.succeeded(pair, end, before)?;
        }
        Ok(())
    }

    fn flushed(&mut self, entry: &Entry) -> Check {
        let &Entry { pair, end, index, .. } = entry;
        if !self.sides[pair][end].is_dead() {
            return Err(format!("{}: flushed, but the QP is not in ERR", describe(entry)));
        }
        if entry.is_receive {
            self.sides[pair][end].receives_resolved = index + 1;
        } else {
            self.imply(pair, end, index)?;
            let side = &mut self.sides[pair][end];
            (side.resolved, side.failed) = (index + 1, true);
        }
        Ok(())
    }

    /// Request `index` succeeded: checks its effects. Its memory belongs to the program again.
    fn succeeded(&mut self, pair: usize, end: usize, index: usize) -> Check {
        let what = || format!("pair {pair}, end {end}, request {index}");
        self.executed(pair, end, index + 1)?;
        let request = self.request(pair, end, index).clone();
        self.coverage.success(&request);
        if request.shared_word {
            self.record_shared_add(pair, end, &request)?;
        } else if request.op.returns_data() {
            self.memory.expect(&request.local, &request.payload, || format!("{}: data", what()))?;
        }
        if !request.keeps_local && !request.inline {
            self.memory.overwrite(&request.local, &mut self.random);
        }
        if request.op == Op::Read && !request.keeps_remote {
            let source: Vec<_> = request.remote_range(1 - end).into_iter().collect();
            self.memory.overwrite(&source, &mut self.random);
        }
        let side = &mut self.sides[pair][end];
        (side.succeeded, side.resolved) = (index + 1, index + 1);
        Ok(())
    }

    /// Checks and records what a fetch and add on the shared word returned.
    fn record_shared_add(&mut self, pair: usize, end: usize, request: &Request) -> Check {
        let returned = self.memory.atomic_result(&request.local);
        let Op::FetchAdd(added) = request.op else {
            unreachable!("the shared word is only the target of fetch and add")
        };
        if returned & added != 0 {
            return Err(format!(
                "pair {pair}, end {end}: {added:#x} added twice, to {returned:#x}"
            ));
        }
        self.shared_adds[1 - end].push((returned, added));
        Ok(())
    }

    /// Marks all requests before `until` as executed by the peer, and checks their effects.
    pub fn executed(&mut self, pair: usize, end: usize, until: usize) -> Check {
        for index in self.sides[pair][end].executed..until {
            let what = || format!("pair {pair}, end {end}, request {index}");
            if let Some((failure, _)) = self.must_fail(pair, end, index) {
                return Err(format!("{}: executed, must fail with {failure:?}", what()));
            }
            if self.sides[pair][end].held_from.is_some_and(|held| index >= held) {
                return Err(format!("{}: executed while the send queue is drained", what()));
            }
            let receive = self.sides[pair][end].receive_of(index);
            if receive.is_some_and(|receive| receive >= self.sides[pair][1 - end].received) {
                return Err(format!("{}: completed, but the peer has not received it", what()));
            }
            let request = self.request(pair, end, index).clone();
            if let Some(target) = request.remote_range(1 - end).filter(|_| request.op.is_write()) {
                self.memory.expect(&[target], &request.payload, || {
                    format!("{}: completed, but in the peer's memory", what())
                })?;
                if !request.keeps_remote {
                    self.memory.overwrite(&[target], &mut self.random);
                }
            }
            self.sides[pair][end].executed = index + 1;
        }
        Ok(())
    }
}

fn describe(entry: &Entry) -> String {
    let kind = if entry.is_receive { "receive" } else { "request" };
    let Entry { pair, end, index, completion, .. } = entry;
    format!("pair {pair}, end {end}, {kind} {index} ({})", completion.status)
}
