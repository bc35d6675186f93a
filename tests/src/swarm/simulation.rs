//! A running scenario: the devices, QPs and programs on a rig, and the model and wire rules that
//! check them.

use std::collections::VecDeque;

use feroce_engine::counters::Counter;
use feroce_engine::device::{
    CompletionQueue, ConnectOptions, Endpoint, PostError, ProtectionDomain, QpInit, QueuePair,
    Split,
};
use feroce_engine::qp::QpState;
use feroce_engine::qp::attributes::QpAttributes;
use feroce_engine::time::{Duration, Instant};
use feroce_engine::verbs::{
    AsyncEvent, Completion, Data, RecvRequest, RemoteAddr, SendFlags, SendOp, SendRequest, Sge,
};
use feroce_wire::Key;

use super::check::{Check, check_suspicions, suspicions};
use super::coverage::Coverage;
use super::layout::Range;
use super::memory::Memory;
use super::model::{Model, Side, wr_id};
use super::options::{MAX_INLINE, Options};
use super::request::{Action, Flaw, Op, Request};
use super::trace::Trace;
use super::wire_rules::{Connection, WireRules};
use super::workload::{TimedAction, Workload};
use crate::Rig;
use crate::wire::WireFaults;

/// Limit of device turns without progress of time. Work that needs no time must be finite.
pub(super) const MAX_TURNS_PER_INSTANT: usize = 10_000;

/// Counters that change only after a fault on the wire.
const RECOVERIES: [Counter; 3] =
    [Counter::LocalAckTimeoutErr, Counter::PacketSeqErr, Counter::ImpliedNakSeqErr];

/// Phase of the scenario, which decides what programs may post.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Requests whose time has come.
    Main,
    /// Also the final requests.
    Final,
}

/// A running scenario. See the [module](self).
pub(super) struct Simulation<'a> {
    rig: &'a mut Rig,
    trace: &'a mut Trace,
    start: Instant,
    /// Value of the wire's fault count before the scenario.
    faulted_before: u64,
    stage: Stage,
    wire_rules: WireRules,
    model: Model,
    actions: VecDeque<TimedAction>,
    /// Number of sent frames after which the next action runs, once its time has come.
    action_after_frames: Option<u64>,
    /// QPs by pair and end.
    qps: Vec<[QueuePair; 2]>,
    cqs: Vec<(usize, CompletionQueue)>,
    _pds: [ProtectionDomain; 2],
}

impl<'a> Simulation<'a> {
    /// Creates the QPs and registers the memory of the scenario.
    pub fn new(workload: Workload, rig: &'a mut Rig, trace: &'a mut Trace) -> Self {
        let Workload { options, contents, sides, actions, shared_words, runtime_random, .. } =
            workload;
        let pds = [0, 1].map(|end: usize| rig.devices[end].alloc_pd());
        let memory = Memory::new(&rig.devices, &pds, &contents, options.rig.plain_keys);
        let mut cqs = Vec::new();
        let mut qps = Vec::new();
        for pair in 0..options.pairs {
            qps.push(make_pair(rig, &pds, &options, pair, &mut cqs));
        }
        let numbers = qps.iter().map(|pair: &[QueuePair; 2]| [pair[0].qpn(), pair[1].qpn()]);
        let mut wire_rules = WireRules::default();
        for (qpns, &psns) in numbers.clone().zip(&options.psns) {
            wire_rules.add(&Connection {
                qpns,
                psns,
                mtu: options.mtu.bytes(),
                window: options.rig.window,
                selective_repeat: options.repeats_selectively(),
                v6: options.v6,
            });
        }
        let sides = sides.into_iter().zip(numbers).map(|(workloads, qpns)| {
            let [a, b] = workloads;
            [Side::new(a, qpns[0]), Side::new(b, qpns[1])]
        });
        let model = Model {
            sides: sides.collect(),
            memory,
            random: runtime_random,
            now: rig.now,
            faults_over_time: Vec::new(),
            faults_ended: None,
            shared_words,
            shared_adds: [Vec::new(), Vec::new()],
            coverage: Coverage { scenarios: 1, ..Coverage::default() },
            options,
        };
        let (start, faulted_before) = (rig.now, rig.wire.faulted());
        let actions = actions.into();
        Self {
            rig,
            trace,
            start,
            faulted_before,
            stage: Stage::Main,
            wire_rules,
            model,
            actions,
            action_after_frames: None,
            qps,
            cqs,
            _pds: pds,
        }
    }

    /// Runs the whole scenario: first with faults, then without. In the second part everything must
    /// complete.
    pub fn run(mut self, faults_end: Duration, wire_seed: u64) -> Result<Coverage, String> {
        self.rig.wire.set_faults(self.model.options.faults, wire_seed);
        let frames_before = self.rig.wire.frames();
        let result = self.run_phases(faults_end);
        self.model.coverage.time = self.rig.now.saturating_since(self.start);
        self.rig.wire.set_faults(WireFaults::default(), 0);
        self.model.coverage.frames = self.rig.wire.frames() - frames_before;
        self.model.coverage.faulted = self.rig.wire.faulted() - self.faulted_before;
        result.map(|()| self.model.coverage)
    }

    fn run_phases(&mut self, faults_end: Duration) -> Check {
        let faults_end = self.start + faults_end;
        let counters_before = self.recoveries();
        let suspicions = suspicions(&self.rig.devices);
        self.run_until(faults_end)?;
        self.rig.now = faults_end;
        self.trace.note(faults_end, || "the wire faults end".to_owned());
        self.rig.wire.set_faults(WireFaults::default(), 0);
        self.rig.wire.set_filter(None);
        self.model.faults_ended = Some(faults_end);
        self.run_until_quiet()?;
        self.stage = Stage::Final;
        self.trace.note(self.rig.now, || "the final requests".to_owned());
        self.run_until_quiet()?;
        self.model.check_memory()?;
        check_suspicions(&self.rig.devices, suspicions, &self.model.options.faults)?;
        let recovered = self.recoveries().into_iter().zip(counters_before);
        let recovered: Vec<u64> = recovered.map(|(after, before)| after - before).collect();
        if self.model.is_undisturbed() && recovered.iter().any(|&count| count > 0) {
            return Err(format!("no fault happened, but {RECOVERIES:?} count {recovered:?}"));
        }
        if self.model.options.flush_at_end {
            for pair in 0..self.qps.len() {
                for end in 0..2 {
                    self.run_action(Action::Kill { pair, end })?;
                }
            }
            self.run_until_quiet()?;
            self.model.memory.check_all()?;
        }
        Ok(())
    }

    /// Returns the [`RECOVERIES`] counters, summed over both devices.
    fn recoveries(&self) -> [u64; RECOVERIES.len()] {
        RECOVERIES.map(|of| self.rig.devices.iter().map(|device| device.counter(of)).sum())
    }

    /// Runs until both ends are idle, within a bounded time, then checks that everything has
    /// completed.
    fn run_until_quiet(&mut self) -> Check {
        let limit = self.rig.now + liveness_bound(&self.model.options, &self.model);
        self.run_until(limit)?;
        if let Some(next) = self.rig.next_event() {
            return Err(format!(
                "not idle in time: next event at {:?}, {} frames in flight",
                next,
                self.rig.wire.in_flight()
            ));
        }
        self.observe_all()?;
        self.model.check_quiet()
    }

    /// Runs programs and devices until `until`, or until no event is left before that time.
    fn run_until(&mut self, until: Instant) -> Check {
        loop {
            self.run_programs()?;
            self.run_devices()?;
            for seen in self.rig.wire.take_record() {
                self.trace.frame(&seen);
                self.wire_rules.check(&seen)?;
            }
            self.model.advance(self.rig.now, self.rig.wire.faulted() - self.faulted_before);
            if self.observe_completions()? {
                continue; // Completions made room in the queues.
            }
            let next =
                [self.next_program_time(), self.rig.next_event()].into_iter().flatten().min();
            match next {
                Some(next) if next <= until => {
                    if next <= self.rig.now {
                        return Err(format!("an event in the past is not handled: {next:?}"));
                    }
                    self.rig.now = next;
                }
                _ => return Ok(()),
            }
        }
    }

    /// Returns the time of the next action or post of the programs.
    fn next_program_time(&self) -> Option<Instant> {
        let actions = self.actions.front().map(|action| action.at);
        let requests = self.model.sides.iter().flatten().flat_map(|side| {
            let request =
                side.workload.requests[..side.workload.final_from.0].get(side.posted.len());
            let receive = side.workload.receives[..side.workload.final_from.1]
                .get(side.receives_posted.len());
            [request.map(|request| request.at), receive.map(|receive| receive.at)]
        });
        // An overdue post waits for room in its queue, not for a time.
        let times = requests.flatten().chain(actions).map(|at| self.start + at);
        times.filter(|&at| at > self.rig.now).min()
    }

    /// Runs the actions and posts the requests that are due.
    fn run_programs(&mut self) -> Check {
        self.run_due_actions()?;
        let elapsed = self.rig.now.saturating_since(self.start);
        for pair in 0..self.qps.len() {
            for end in 0..2 {
                while self.post_receive(pair, end, elapsed)? {}
                while self.post_send(pair, end, elapsed)? {}
            }
        }
        Ok(())
    }

    /// Like [`Rig::settle`], but runs due actions between the turns.
    fn run_devices(&mut self) -> Check {
        for _ in 0..MAX_TURNS_PER_INSTANT {
            if self.rig.turn() == 0 {
                return Ok(());
            }
            self.run_due_actions()?;
        }
        Err(format!("still busy after {MAX_TURNS_PER_INSTANT} turns without time passing"))
    }

    fn run_due_actions(&mut self) -> Check {
        let elapsed = self.rig.now.saturating_since(self.start);
        while let Some(&TimedAction { at, frames, action }) = self.actions.front() {
            if at > elapsed {
                break;
            }
            let sent = self.rig.wire.frames();
            let after = *self.action_after_frames.get_or_insert(sent + frames);
            if sent < after && self.model.faults_ended.is_none() {
                break;
            }
            self.actions.pop_front();
            self.action_after_frames = None;
            self.run_action(action)?;
        }
        Ok(())
    }

    fn run_action(&mut self, action: Action) -> Check {
        self.trace.note(self.rig.now, || format!("{action:?}"));
        let (pair, end, state, notify) = match action {
            Action::Deregister { end, area } => {
                self.model.memory.deregister(end, area);
                return Ok(());
            }
            Action::Cut { from: cut } => {
                let drops = move |from: usize, _, _: &[u8]| cut.is_none_or(|cut| cut == from);
                self.rig.wire.set_filter(Some(Box::new(drops)));
                return Ok(());
            }
            Action::Restore => {
                self.rig.wire.set_filter(None);
                return Ok(());
            }
            Action::Kill { pair, end } => (pair, end, QpState::Err, None),
            Action::Drain { pair, end } => (pair, end, QpState::Sqd, Some(true)),
            Action::Resume { pair, end } => (pair, end, QpState::Rts, None),
        };
        let attributes = QpAttributes {
            state: Some(state),
            en_sqd_async_notify: notify,
            ..QpAttributes::default()
        };
        self.observe_all()?; // Later completions may be a result of the state change.
        let result = self.qps[pair][end].modify(&attributes);
        if state == QpState::Err {
            // Before the state change, the QP sends what it can. A READ response whose memory has
            // gone moves the QP to ERR then, with an event.
            let events = self.events();
            self.model.take(&events, &[])?;
        }
        let side = &mut self.model.sides[pair][end];
        match (result, action) {
            (Ok(()), Action::Kill { .. }) => side.killed = true,
            (Ok(()), Action::Drain { .. }) => {
                (side.held_from, side.drained) = (Some(side.posted.len()), false);
            }
            (Ok(()), _) => side.held_from = None,
            (Err(_), Action::Drain { .. } | Action::Resume { .. }) if side.is_dead() => {}
            (Err(error), _) => return Err(format!("pair {pair}, end {end}: {action:?}: {error}")),
        }
        Ok(())
    }

    /// Posts the next receive. Returns false if its time has not come or the queue is full.
    fn post_receive(&mut self, pair: usize, end: usize, elapsed: Duration) -> Result<bool, String> {
        let side = &self.model.sides[pair][end];
        let index = side.receives_posted.len();
        let Some(receive) = side.workload.receives.get(index) else { return Ok(false) };
        let is_final = index >= side.workload.final_from.1;
        if receive.at > elapsed || (is_final && self.stage == Stage::Main) {
            return Ok(false);
        }
        let wrong = receive.wrong_key.then_some(&receive.local[..]);
        let sges = self.sges(&receive.local, wrong);
        let request = RecvRequest { wr_id: wr_id(pair, index, true), sges: &sges };
        let posted = self.qps[pair][end].post_recv(&request);
        let outstanding = index - side.receives_resolved;
        if !self.accepted(posted, outstanding)? {
            return Ok(false);
        }
        self.trace
            .note(self.rig.now, || format!("end {end}, pair {pair}: receive {index}: {receive:?}"));
        self.model.sides[pair][end].receives_posted.push(self.rig.now);
        Ok(true)
    }

    /// Posts the next send request. Returns false if its time has not come or the queue is full.
    fn post_send(&mut self, pair: usize, end: usize, elapsed: Duration) -> Result<bool, String> {
        let side = &self.model.sides[pair][end];
        let index = side.posted.len();
        let Some(request) = side.workload.requests.get(index) else { return Ok(false) };
        let is_final = index >= side.workload.final_from.0;
        if request.at > elapsed || (is_final && self.stage == Stage::Main) {
            return Ok(false);
        }
        let wrong = (request.flaw == Some(Flaw::LocalKey)).then_some(&request.local[..]);
        let sges = self.sges(&request.local, wrong);
        let payload: [&[u8]; 1] = [&request.payload];
        let data = match request.inline {
            true => Data::Inline(&payload),
            false => Data::Sges(&sges),
        };
        let op = self.send_op(request, end);
        let posted =
            SendRequest { wr_id: wr_id(pair, index, false), op, data, flags: flags(request) };
        let posted = self.qps[pair][end].post_send(&posted);
        let outstanding = index - side.resolved;
        if !self.accepted(posted, outstanding)? {
            return Ok(false);
        }
        self.trace.note(self.rig.now, || {
            format!("end {end}, pair {pair}: request {index}: {}", describe(request))
        });
        self.after_post(pair, end, index);
        Ok(true)
    }

    fn after_post(&mut self, pair: usize, end: usize, index: usize) {
        let model = &mut self.model;
        let request = &model.sides[pair][end].workload.requests[index];
        if let Some(flaw) = request.flaw {
            *model.coverage.flaws.entry(flaw).or_default() += 1;
        }
        if request.inline && !request.keeps_local {
            model.memory.overwrite(&request.local, &mut model.random);
        }
        model.sides[pair][end].posted.push(self.rig.now);
    }

    /// Returns true if the request was accepted and false if the queue is full. A queue may be full
    /// only if as many requests as it holds can be outstanding.
    fn accepted(&self, posted: Result<(), PostError>, outstanding: usize) -> Result<bool, String> {
        match posted {
            Ok(()) => Ok(true),
            Err(PostError::Full) if outstanding >= self.model.options.queue as usize => Ok(false),
            Err(error) => Err(format!("post failed with {outstanding} outstanding: {error}")),
        }
    }

    /// Returns scatter/gather entries for `ranges`. If `wrong` is given, its first entry that is
    /// not empty gets a wrong key.
    fn sges(&self, ranges: &[Range], wrong: Option<&[Range]>) -> Vec<Sge> {
        let wrong_entry = wrong.and_then(|ranges| ranges.iter().position(|range| range.len > 0));
        let sge = |(index, range): (usize, &Range)| {
            let (addr, key) = self.model.memory.addr_and_key(range.end, range.area);
            let lkey = if wrong_entry == Some(index) { invalid_key(key) } else { key };
            let length = u32::try_from(range.len).expect("short");
            Sge { addr: addr + range.offset as u64, length, lkey }
        };
        ranges.iter().enumerate().map(sge).collect()
    }

    fn send_op(&self, request: &Request, end: usize) -> SendOp {
        let remote = request.remote.map(|remote| {
            let (addr, key) = self.model.memory.addr_and_key(1 - end, remote.area);
            let rkey = if remote.wrong_key { invalid_key(key) } else { key };
            RemoteAddr { addr: addr.wrapping_add(remote.offset as u64), rkey }
        });
        let remote = remote.unwrap_or(RemoteAddr { addr: 0, rkey: Key::default() });
        match request.op {
            Op::Send => SendOp::Send,
            Op::SendImm(imm) => SendOp::SendImm(imm),
            Op::SendInvalidate => SendOp::SendInvalidate(remote.rkey),
            Op::Write => SendOp::Write(remote),
            Op::WriteImm(imm) => SendOp::WriteImm(remote, imm),
            Op::Read => SendOp::Read(remote),
            Op::CompareSwap { compare, swap } => SendOp::CompareSwap { remote, compare, swap },
            Op::FetchAdd(add) => SendOp::FetchAdd { remote, add },
        }
    }

    /// Passes new completions to the model; returns false if there are none. Events are polled only
    /// together with errors, because polling them is slow.
    fn observe_completions(&mut self) -> Result<bool, String> {
        let mut completions = Vec::new();
        let mut found: Vec<Completion> = Vec::new();
        for (end, cq) in &self.cqs {
            while cq.poll(&mut found, 64) > 0 {}
            completions.extend(found.drain(..).map(|completion| (*end, completion)));
        }
        if completions.is_empty() {
            return Ok(false);
        }
        for (end, completion) in &completions {
            self.trace.note(self.rig.now, || format!("end {end}: {completion:?}"));
        }
        let events = match completions.iter().any(|(_, completion)| !completion.is_success()) {
            true => self.events(),
            false => Vec::new(),
        };
        self.model.take(&events, &completions).map(|()| true)
    }

    /// Passes all new completions and events to the model.
    fn observe_all(&mut self) -> Check {
        self.observe_completions()?;
        let events = self.events();
        self.model.take(&events, &[])
    }

    fn events(&mut self) -> Vec<(usize, AsyncEvent)> {
        let mut events = Vec::new();
        for (end, device) in self.rig.devices.iter().enumerate() {
            while let Some(event) = device.poll_event() {
                self.trace.note(self.rig.now, || format!("end {end}: {event:?}"));
                events.push((end, event));
            }
        }
        events
    }
}

/// Returns a key with the same index that no region has.
fn invalid_key(key: Key) -> Key {
    Key::from_parts(key.index(), key.variant() ^ 1)
}

fn flags(request: &Request) -> SendFlags {
    let given = [
        (request.signaled, SendFlags::SIGNALED),
        (request.fence, SendFlags::FENCE),
        (request.solicited, SendFlags::SOLICITED),
    ];
    let given = given.into_iter().filter(|(is_given, _)| *is_given);
    given.fold(SendFlags::NONE, |flags, (_, flag)| flags | flag)
}

fn describe(request: &Request) -> String {
    let Request { op, local, remote, payload, flaw, risk, .. } = request;
    let flags = [
        (request.signaled, "signaled"),
        (request.fence, "fenced"),
        (request.solicited, "solicited"),
        (request.inline, "inline"),
    ];
    let flags: Vec<_> = flags.iter().filter(|(set, _)| *set).map(|(_, name)| *name).collect();
    format!(
        "{op:?} {flags:?} {} bytes, local {local:?}, remote {remote:?}, flaw {flaw:?}, \
         risk {risk:?}",
        payload.len()
    )
}

/// Creates the QPs of a pair and connects them.
fn make_pair(
    rig: &Rig,
    pds: &[ProtectionDomain; 2],
    options: &Options,
    pair: usize,
    cqs: &mut Vec<(usize, CompletionQueue)>,
) -> [QueuePair; 2] {
    let mut qps = [0, 1].map(|end: usize| {
        let mut cq = || match cqs.iter().find(|(owner, _)| options.shared_cq && *owner == end) {
            Some((_, cq)) => cq.clone(),
            None => {
                let cq = rig.devices[end].create_cq(512).expect("a completion queue");
                cqs.push((end, cq.clone()));
                cq
            }
        };
        let (send_cq, recv_cq) = (cq(), cq());
        let init = QpInit {
            recv_cq: &recv_cq,
            max_send_wr: options.queue,
            max_recv_wr: options.queue,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline: u32::try_from(MAX_INLINE).expect("small"),
            all_signaled: options.all_signaled,
            ..QpInit::new(&send_cq)
        };
        pds[end].create_qp(&init).expect("a QP")
    });
    let gid = u32::from(options.v6);
    let psns = options.psns[pair];
    let selective_repeat = options.repeats_selectively();
    let ends = [0, 1].map(|end: usize| {
        let endpoint = qps[end].endpoint(psns[end], gid).expect("a GID");
        Endpoint { selective_repeat, ..endpoint }
    });
    for end in 0..2 {
        let limits = &options.limits[end];
        let connect = ConnectOptions {
            sgid_index: gid,
            path_mtu: Some(options.mtu),
            access: limits.access,
            timeout: limits.timeout,
            retry_cnt: limits.retry_cnt,
            rnr_retry: limits.rnr_retry,
            min_rnr_timer: limits.min_rnr_timer,
            max_rd_atomic: Some(options.depth()),
            flow_control: options.flow_control,
            split: if options.splits_messages() { Split::Always } else { Split::Never },
            ..ConnectOptions::default()
        };
        qps[end].connect(psns[end], &ends[1 - end], &connect).expect("connected");
    }
    qps
}

/// Longest time for which a pair whose packets are never acknowledged holds back the others.
const STALL: Duration = Duration::from_millis(20);

/// Returns the virtual time within which all outstanding requests must complete on a wire without
/// faults: all retries of a QP whose peer is in ERR, or one timeout and one RNR wait per request,
/// and a round trip per packet.
fn liveness_bound(options: &Options, model: &Model) -> Duration {
    let requests = model.sides.iter().flatten().flat_map(|side| &side.workload.requests);
    let (mut packets, mut count) = (0, 0);
    for request in requests {
        packets += request.payload.len() / options.mtu_bytes() + 1;
        count += 1;
    }
    let number = |n: usize| u32::try_from(n).expect("small");
    let of = |time: fn(&super::options::Limits) -> Duration| {
        options.limits.iter().map(time).max().expect("two")
    };
    let timeout = of(|limits| {
        limits.ack_timeout().unwrap_or(Duration::ZERO) * (u32::from(limits.retry_cnt) + 2)
    });
    let wait = of(|limits| limits.rnr_time());
    let delay = options.max_one_way_delay();
    4 * timeout
        + wait * number(count + 4)
        + 4 * delay * number(packets + 4)
        + STALL * (number(options.pairs) + 1)
        + Duration::from_millis(1)
}
