//! A running scenario: programs and devices take turns until nothing happens any more.

use std::collections::VecDeque;

use feroce_engine::counters::Counter;
use feroce_engine::device::{Buffer, CompletionQueue, ProtectionDomain};
use feroce_engine::time::{Duration, Instant};
use feroce_engine::verbs::AsyncEvent;
use feroce_wire::{Packet, Qpn, Transport};

use super::super::check::{Check, check_suspicions, sums, suspicions};
use super::super::random::Random;
use super::super::simulation::MAX_TURNS_PER_INSTANT;
use super::super::trace::Trace;
use super::super::wire_rules::WireRules;
use super::objects::{Inbox, Maker, Pair};
use super::plan::{Action, Plan};
use super::tally::Tally;
use crate::Rig;
use crate::wire::WireFaults;

/// Virtual time within which everything must be complete once the wire has no faults.
const QUIET_WITHIN: Duration = Duration::from_secs(2);

/// Depth of the completion queues.
pub const CQ_DEPTH: u32 = 600;

/// See the [module](self).
pub struct World<'a> {
    pub rig: &'a mut Rig,
    pub trace: &'a mut Trace,
    pub random: Random,
    pub plan: Plan,
    pub start: Instant,
    pub actions: VecDeque<(Duration, Action)>,
    pub pairs: Vec<Pair>,
    pub inboxes: Vec<Inbox>,
    /// Times at which receives are posted again: time, inbox.
    pub reposts: VecDeque<(Instant, usize)>,
    pub cqs: [CompletionQueue; 2],
    /// Memory that was allocated where a region was deregistered. Nobody may write to it.
    pub graves: Vec<Buffer>,
    /// The queue pair that is being destroyed: it still sends what was posted.
    pub ending: Option<(usize, Qpn)>,
    /// Messages are posted without regard to their times.
    pub is_final: bool,
    pub faulted_before: u64,
    /// A frame was lost on purpose, besides those that the wire counts.
    pub has_lost_frames: bool,
    pub wire_rules: WireRules,
    pub tally: Tally,
    pub pds: [ProtectionDomain; 2],
}

impl<'a> World<'a> {
    pub fn new(plan: Plan, rig: &'a mut Rig, trace: &'a mut Trace, mut random: Random) -> Self {
        let pds = [0, 1].map(|end: usize| rig.devices[end].alloc_pd());
        let cqs = [0, 1].map(|end: usize| rig.devices[end].create_cq(CQ_DEPTH).expect("a CQ"));
        let mut maker = Maker::new(rig, &plan, &pds, &cqs, &mut random);
        let pairs = plan.pairs.iter().enumerate();
        let pairs = pairs.map(|(number, plan)| maker.pair(number, plan)).collect();
        let inboxes = maker.inboxes;
        let (start, faulted_before) = (rig.now, rig.wire.faulted());
        let mut world = Self {
            trace,
            start,
            actions: plan.actions.iter().copied().collect(),
            pairs,
            inboxes,
            reposts: VecDeque::new(),
            cqs,
            graves: Vec::new(),
            ending: None,
            is_final: false,
            faulted_before,
            has_lost_frames: false,
            wire_rules: WireRules::default(),
            tally: Tally::of_one(),
            random,
            plan,
            rig,
            pds,
        };
        (0..world.pairs.len()).for_each(|pair| world.note_connected(pair));
        world
    }

    /// Runs the scenario: with faults, then without, then one message more in each lane.
    pub fn run(mut self) -> Result<Tally, String> {
        let frames_before = self.rig.wire.frames();
        let wire_seed = self.random.bits();
        self.rig.wire.set_faults(self.plan.faults, wire_seed);
        let before = self.device_counts();
        let result = self.run_stages();
        self.count_devices(before);
        self.rig.wire.set_faults(WireFaults::default(), 0);
        self.tally.frames = self.rig.wire.frames() - frames_before;
        result.map(|()| self.tally)
    }

    fn run_stages(&mut self) -> Check {
        let suspicions = suspicions(&self.rig.devices);
        self.open_windows()?;
        let inboxes = 0..self.inboxes.len();
        inboxes.for_each(|inbox| self.post_receives(inbox));
        let faults_end = self.start + self.plan.faults_end;
        self.run_until(faults_end)?;
        self.rig.now = self.rig.now.max(faults_end);
        self.trace.note(faults_end, || "the wire faults end".to_owned());
        self.rig.wire.set_faults(WireFaults::default(), 0);
        self.resume_all()?;
        self.run_until_quiet()?;
        self.check_quiet()?;
        self.is_final = true;
        self.run_final_messages()?;
        self.check_end()?;
        check_suspicions(&self.rig.devices, suspicions, &self.plan.faults)
    }

    /// Adds to the tally what the devices have counted since the counters were `before`.
    fn count_devices(&mut self, before: [u64; DEVICE_EVENTS.len()]) {
        let now = self.device_counts();
        for ((event, now), before) in DEVICE_EVENTS.into_iter().zip(now).zip(before) {
            if now > before {
                self.tally.count("device", event.1);
            }
        }
    }

    /// The counters of [`DEVICE_EVENTS`].
    fn device_counts(&self) -> [u64; DEVICE_EVENTS.len()] {
        sums(&self.rig.devices, DEVICE_EVENTS.map(|(counter, _)| counter))
    }

    /// A frame was lost, or may have been.
    pub fn has_faults(&self) -> bool {
        self.has_lost_frames || self.rig.wire.faulted() > self.faulted_before
    }

    /// Runs until nothing is left to happen.
    pub fn run_until_quiet(&mut self) -> Check {
        self.run_until(self.rig.now + QUIET_WITHIN)?;
        match self.next_time() {
            Some(next) => Err(format!("not idle in time: the next event is at {next:?}")),
            None => Ok(()),
        }
    }

    fn run_until(&mut self, until: Instant) -> Check {
        loop {
            self.run_programs()?;
            self.run_devices()?;
            self.check_frames()?;
            if self.observe()? {
                continue; // Completions made room in the queues.
            }
            match self.next_time() {
                Some(next) if next <= until => self.rig.now = next.max(self.rig.now),
                _ => return Ok(()),
            }
        }
    }

    pub fn run_devices(&mut self) -> Check {
        for _ in 0..MAX_TURNS_PER_INSTANT {
            if self.rig.turn() == 0 {
                return Ok(());
            }
        }
        Err(format!("still busy after {MAX_TURNS_PER_INSTANT} turns without time passing"))
    }

    /// Checks the frames that were sent since the last check.
    pub fn check_frames(&mut self) -> Check {
        for seen in self.rig.wire.take_record() {
            self.trace.frame(&seen);
            if check_frame(&seen.bytes)? {
                self.wire_rules.check(&seen)?;
            }
        }
        Ok(())
    }

    fn next_time(&self) -> Option<Instant> {
        let now = self.rig.now;
        let lanes = self.pairs.iter().flat_map(|pair| pair.lanes.iter().flatten());
        let messages = lanes.filter_map(|lane| lane.plan.messages.get(lane.posted()));
        let actions = self.actions.front().map(|(at, _)| *at);
        let planned = messages.map(|message| message.at).chain(actions);
        // An overdue message waits for room in its queue, not for a time.
        let planned = planned.map(|at| self.start + at).filter(|&at| at > now);
        let reposts = self.reposts.front().map(|(at, _)| *at);
        planned.chain(reposts).chain(self.rig.next_event()).min()
    }

    fn run_programs(&mut self) -> Check {
        let elapsed = self.rig.now.saturating_since(self.start);
        while let Some(&(at, action)) = self.actions.front()
            && at <= elapsed
        {
            self.actions.pop_front();
            self.act(action)?;
        }
        while let Some(&(at, inbox)) = self.reposts.front()
            && at <= self.rig.now
        {
            self.reposts.pop_front();
            self.post_receives(inbox);
        }
        for pair in 0..self.pairs.len() {
            for from in 0..2 {
                while self.post_next(pair, from, elapsed)? {}
            }
        }
        Ok(())
    }

    /// Takes all completions and events. Returns true if there was a completion.
    pub fn observe(&mut self) -> Result<bool, String> {
        let mut has_any = false;
        for end in 0..2 {
            let done = crate::drain(&self.cqs[end]);
            has_any |= !done.is_empty();
            let mut may_have_moved = done.iter().any(|completion| !completion.is_success());
            for completion in done {
                let what = format!("end {end}: {completion:?}");
                self.trace.note(self.rig.now, || what.clone());
                self.on_completion(end, &completion).map_err(|why| format!("{what}: {why}"))?;
            }
            while let Some(event) = self.rig.devices[end].poll_event() {
                if matches!(event, AsyncEvent::CqError(_) | AsyncEvent::QpFatal(_)) {
                    return Err(format!("end {end}: event {event:?}"));
                }
                may_have_moved = true;
            }
            if may_have_moved {
                self.look_at(end)?;
            }
        }
        Ok(has_any)
    }

    /// The pair and end of the queue pair `qpn` of `end`.
    pub fn pair_of(&self, end: usize, qpn: Qpn) -> Result<usize, String> {
        let is_it = |pair: &Pair| pair.qpns[end] == qpn && !pair.is_gone(end);
        self.pairs.iter().position(is_it).ok_or_else(|| format!("no queue pair {qpn}"))
    }
}

/// Events of the devices, by the counter that shows them.
const DEVICE_EVENTS: [(Counter, &str); 2] = [
    (Counter::RxHandedOver, "frames handed over to other cores"),
    (Counter::RpCnpHandled, "rates cut by CNPs"),
];

/// The laws of every frame that an endpoint sends. Returns true if it is of a reliable connection.
fn check_frame(bytes: &[u8]) -> Result<bool, String> {
    let packet = Packet::parse(bytes, &[]).map_err(|error| format!("sent {error}"))?;
    if !packet.icrc_valid() {
        return Err(format!("sent {packet} with a wrong ICRC"));
    }
    let unreliable = matches!(packet.info.transport, Transport::Uc | Transport::Ud);
    if unreliable && (packet.bth.ack_req || !packet.info.is_request()) {
        return Err(format!("{packet} asks for an answer or is one"));
    }
    Ok(matches!(packet.info.transport, Transport::Rc | Transport::Xrc))
}
