//! Plays the responder: a QP of the engine receives the captured requests at their times, and its
//! responses are compared with the captured ones.

use std::collections::{BTreeMap, BTreeSet};

use feroce_engine::device::{Buffer, QueuePair};
use feroce_engine::memory::Access;
use feroce_engine::qp::attributes::QpAttributes;
use feroce_engine::qp::{QpState, Service};
use feroce_engine::time::Instant;
use feroce_engine::verbs::{Extra, RecvRequest, SendOp};
use feroce_wire::{Key, NakCode, Operation, Packet, Psn, RnrTimer, Syndrome};

use super::align::{Kind, ResponseId};
use super::captured_responses::CapturedResponses;
use super::compare::sealed_again;
use super::compare_responses::{Responding, compare_responses};
use super::holes::{Hole, holes};
use super::lanes::{Captured, Lane, read_span};
use super::messages::{Message, Messages, Place, Unwrap, starts, takes_receive};
use super::regions::{Plan, Region, Regions};
use super::rig::{Begin, Rig, Unplayable, unplayable};
use super::sent_response::SentResponse;
use super::tolerance::Tolerance;
use super::{Difference, Outcome};
use crate::device_pair::drain;

/// Key of the region for receives; no capture contains it.
const RECEIVE_KEY: Key = Key(0xff_ff00);

/// A step at the responder's end, in order: a preparation of a live peer, or a request that the
/// peer receives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResponderStep {
    /// A receive is posted.
    PostReceive {
        /// Place of the message that consumes it.
        message: Place,
        /// Length, in bytes.
        length: u32,
        /// True if requests got RNR NAKs before it was posted.
        late: bool,
    },
    /// The contents of the memory change.
    SetMemory {
        /// Captured key.
        key: Key,
        /// Captured address.
        va: u64,
        /// The new contents.
        bytes: Vec<u8>,
        /// True if the responder's application changed known contents.
        is_change: bool,
    },
    /// A request arrives: its index among the requests of the lane.
    Request(usize),
}

/// The steps of a responder that the engine has played, to find out what another responder needs.
#[derive(Debug)]
pub struct DryRun {
    /// The messages.
    pub messages: Messages,
    /// Starting parameters of the QP.
    pub begin: Begin,
    /// The steps.
    pub steps: Vec<ResponderStep>,
    /// The memory at the end.
    pub regions: Regions,
    /// Places of the completely received messages.
    pub received: BTreeSet<Place>,
    /// True if a request was refused, which put the QP into the error state.
    pub is_refused: bool,
}

struct Responder<'a> {
    lane: &'a Lane,
    frames: &'a [Captured],
    messages: Messages,
    verdicts: CapturedResponses<'a>,
    rig: Rig,
    qp: QueuePair,
    regions: Regions,
    receive_into: Buffer,
    /// RNR NAKs in the capture that are still to be produced, by PSN.
    refused: BTreeMap<u32, u32>,
    /// Place of the message for which a receive was posted last.
    posted_for: Option<Place>,
    outcome: Outcome,
    sent: Vec<SentResponse>,
    begin: Begin,
    /// The steps, if they are recorded.
    steps: Option<Vec<ResponderStep>>,
    received: BTreeSet<Place>,
    holes: Vec<Hole>,
    /// Number of holes ahead of the current request.
    passed: usize,
    /// Number of the packet whose refusal was planted.
    planted: Option<u64>,
}

/// Plays the lane's responder.
///
/// # Errors
/// If the capture does not contain enough information.
pub fn replay(lane: &Lane, frames: &[Captured]) -> Result<Outcome, Unplayable> {
    let mut responder = responder(lane, frames)?;
    responder.receive_requests()?;
    let sent = std::mem::take(&mut responder.sent);
    let holes = &responder.holes;
    compare_responses(lane, frames, sent, Responding::Engine { holes }, &mut responder.outcome);
    Ok(responder.outcome)
}

/// Plays the lane's responder and returns its steps. `fill` gives the initial contents of each
/// region, by number and length.
///
/// # Errors
/// If the capture does not contain enough information.
pub fn dry_run(
    lane: &Lane,
    frames: &[Captured],
    fill: impl Fn(&Region) -> Vec<u8>,
) -> Result<DryRun, Unplayable> {
    let mut responder = responder(lane, frames)?;
    if let Some(hole) = responder.holes.first() {
        let number = frames[hole.first_after].number;
        return Err(Unplayable(format!("the capture has a hole ahead of packet {number}")));
    }
    responder.regions.fill(fill);
    responder.steps = Some(Vec::new());
    responder.receive_requests()?;
    if let Some(number) = responder.planted {
        let why = format!("packet {number} was refused for a cause that no packet shows");
        return Err(Unplayable(why));
    }
    let is_refused = responder.qp.snapshot(responder.rig.now).state == QpState::Err;
    let Responder { messages, begin, steps, regions, received, .. } = responder;
    let steps = steps.unwrap_or_default();
    Ok(DryRun { messages, begin, steps, regions, received, is_refused })
}

/// Creates the responder before its first request.
fn responder<'a>(lane: &'a Lane, frames: &'a [Captured]) -> Result<Responder<'a>, Unplayable> {
    let messages = Messages::of(lane, frames);
    messages.check()?;
    let Some(first) = messages.list.first() else {
        return Err(Unplayable("no message begins in the capture".to_owned()));
    };
    if lane.service == Service::Rc && lane.responses.is_empty() {
        return Err(Unplayable("the capture has no responses".to_owned()));
    }
    let verdicts = CapturedResponses::of(lane, frames);
    let plan = Plan::of(lane, frames, &verdicts)?;
    let is_send = |message: &&Message| {
        matches!(message.op, SendOp::Send | SendOp::SendImm(_) | SendOp::SendInvalidate(_))
    };
    let sends = messages.list.iter().filter(is_send);
    let longest = sends.map(|message| message.bytes.len()).max().unwrap_or(0);
    let mut rig = Rig::new(lane, &lane.responder, &lane.requester, plan.bytes() + longest)?;
    rig.allow(usize::MAX >> 1);
    let regions = Regions::register(&plan, &rig.pd)?;
    let receive_into = rig.pd.alloc_buffer_as(0, longest.max(1), Access::LOCAL_WRITE, RECEIVE_KEY);
    let begin = Begin {
        sq_psn: Psn::new(0),
        rq_psn: expected_at_first(lane, frames, &messages, first),
        min_rnr_timer: rnr_timer(lane, frames),
    };
    let like = lane.responses.first().map(|&index| frames[index].packet());
    let qp = rig.connect(lane, [&lane.responder, &lane.requester], &begin, like.as_ref())?;
    rig.turn();
    Ok(Responder {
        lane,
        frames,
        verdicts,
        rig,
        qp,
        regions,
        receive_into: receive_into.map_err(unplayable("register memory"))?,
        refused: refused(lane, frames),
        posted_for: None,
        outcome: Outcome::default(),
        sent: Vec::new(),
        begin,
        steps: None,
        received: BTreeSet::new(),
        holes: holes(lane, frames, &messages),
        passed: 0,
        planted: None,
        messages,
    })
}

/// Returns the PSN that the captured responder expected when the first request arrived: the PSN of
/// the first message, or, if the responder treated requests as duplicates, the PSN after them, or,
/// if it accepted nothing and its NAK names an earlier PSN, that one.
fn expected_at_first(
    lane: &Lane,
    frames: &[Captured],
    messages: &Messages,
    first: &Message,
) -> Psn {
    let starting = messages.psn(first.start);
    if let Some(earlier) = earlier_expected(lane, frames, messages) {
        return earlier;
    }
    let before = |index: &&usize| {
        let packet = frames[**index].packet();
        packet.info.operation == Operation::Acknowledge
            && matches!(packet.ext.aeth.map(|aeth| aeth.syndrome), Some(Syndrome::Ack(_)))
            && packet.ext.aeth.is_some_and(|aeth| aeth.msn.value() == 0)
            && packet.bth.psn.is_before(starting)
    };
    let Some(last_before) = lane.responses.iter().rfind(before) else { return starting };
    let mut unwrap = Unwrap::new(messages.first);
    let sent = lane.requests.iter().take_while(|index| *index < last_before);
    let places = sent.map(|&index| unwrap.place(frames[index].packet().bth.psn));
    messages.psn(places.max().unwrap_or(first.start) + 1)
}

/// Returns the PSN before all requests that the responder's NAKs name, if it accepted nothing.
fn earlier_expected(lane: &Lane, frames: &[Captured], messages: &Messages) -> Option<Psn> {
    let least = messages.psn(messages.places.iter().copied().min()?);
    let ids = lane.responses.iter().map(|&index| ResponseId::of(&frames[index].packet()));
    let mut named = None;
    for response in ids {
        match response.kind {
            Kind::Sequence if response.psn.is_before(least) => named = Some(response.psn),
            _ => return None,
        }
    }
    named
}

/// Returns the number of RNR NAKs by PSN.
fn refused(lane: &Lane, frames: &[Captured]) -> BTreeMap<u32, u32> {
    let mut refused = BTreeMap::new();
    for &index in &lane.responses {
        let packet = frames[index].packet();
        if matches!(packet.ext.aeth.map(|aeth| aeth.syndrome), Some(Syndrome::RnrNak(_))) {
            *refused.entry(packet.bth.psn.value()).or_insert(0) += 1;
        }
    }
    refused
}

/// Returns the timer code of the first RNR NAK.
fn rnr_timer(lane: &Lane, frames: &[Captured]) -> RnrTimer {
    let timers = lane.responses.iter().filter_map(|&index| {
        match frames[index].packet().ext.aeth.map(|aeth| aeth.syndrome) {
            Some(Syndrome::RnrNak(timer)) => Some(timer),
            _ => None,
        }
    });
    timers.chain(RnrTimer::new(12)).next().expect("12 is a code")
}

/// Returns the key of the responder's memory that the operation accesses.
fn remote_key(op: SendOp) -> Option<Key> {
    match op {
        SendOp::Write(remote)
        | SendOp::WriteImm(remote, _)
        | SendOp::Read(remote)
        | SendOp::AtomicWrite(remote)
        | SendOp::CompareSwap { remote, .. }
        | SendOp::FetchAdd { remote, .. } => Some(remote.rkey),
        _ => None,
    }
}

/// Returns the NAK (invalid request) in `bytes` as one with the code remote operational error,
/// which the engine sends only for failures of its own.
fn as_own_failure(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut packet = Packet::parse(bytes, &[]).ok()?;
    let aeth = packet.ext.aeth.as_mut()?;
    if aeth.syndrome != Syndrome::Nak(NakCode::InvalidRequest) {
        return None;
    }
    aeth.syndrome = Syndrome::Nak(NakCode::RemoteOperational);
    Some(sealed_again(&packet))
}

impl Responder<'_> {
    fn record(&mut self, step: impl FnOnce() -> ResponderStep) {
        if let Some(steps) = &mut self.steps {
            steps.push(step());
        }
    }

    fn receive_requests(&mut self) -> Result<(), Unplayable> {
        let first = self.messages.list[0].start;
        for (at, &index) in self.lane.requests.iter().enumerate() {
            let (frame, place) = (&self.frames[index], self.messages.places[at]);
            let packet = frame.packet();
            if place < first && !starts(&packet) {
                self.outcome.tolerances.count_use(Tolerance::CaptureEnds, frame.number);
                continue; // The rest of a message that began before the capture.
            }
            if !self.pass_holes(index, place)? {
                self.outcome.tolerances.count_use(Tolerance::CaptureHole, frame.number);
                continue;
            }
            self.rig.now = Instant::ZERO + frame.at;
            // On UC a message may begin with any PSN: what is missing before it is lost.
            let expected = self.qp.snapshot(self.rig.now).expected == packet.bth.psn
                || self.lane.service == Service::Uc && starts(&packet);
            // A packet captured after a later one was on its way when the NAK for the gap was sent.
            let in_order = at == 0 || self.messages.places[at - 1] < place;
            if expected && in_order && self.verdicts.is_missed(packet.bth.psn, index) {
                self.outcome.tolerances.count_use(Tolerance::NotDelivered, frame.number);
                continue;
            }
            if expected && takes_receive(&packet) {
                self.post_receive(&packet, place, index)?;
            }
            self.show_memory(&packet, index, expected);
            let code = self.plant_refusal(&packet, place, index).filter(|_| expected);
            self.record(|| ResponderStep::Request(at));
            let renamed =
                self.regions.renamed.apply(&frame.bytes).filter(|_| self.regions.renames());
            self.rig.give(renamed.as_deref().unwrap_or(&frame.bytes));
            let responses = self.rig.turn();
            self.sent.extend(responses.into_iter().map(|bytes| SentResponse {
                after: index,
                until: index,
                bytes: if code == Some(NakCode::RemoteOperational) {
                    as_own_failure(&bytes).unwrap_or(bytes)
                } else {
                    bytes
                },
            }));
            self.outcome.fed += 1;
            let taken = self.qp.snapshot(self.rig.now).expected == packet.bth.psn.next();
            if expected && taken {
                self.check_write(&packet, place, frame.number);
            }
            self.check_received(place, frame.number);
        }
        Ok(())
    }

    /// Starts the QP anew behind each hole ahead of the request in frame `index`. Returns false if
    /// the request is the rest of a message that begins in the hole, or belongs ahead of it.
    fn pass_holes(&mut self, index: usize, place: Place) -> Result<bool, Unplayable> {
        while let Some(&hole) = self.holes.get(self.passed).filter(|hole| index >= hole.first_after)
        {
            self.passed += 1;
            let Some(resume) = hole.resume else { continue };
            self.begin.rq_psn = self.messages.psn(resume);
            self.posted_for = None;
            let like = self.lane.responses.first().map(|&index| self.frames[index].packet());
            let (lane, begin) = (self.lane, self.begin);
            Rig::restart(&mut self.qp, lane, &lane.requester, &begin, like.as_ref())?;
            self.rig.turn();
        }
        let last = self.passed.checked_sub(1).map(|last| self.holes[last]);
        Ok(last.is_none_or(|hole| hole.resume.is_some_and(|resume| place >= resume)))
    }

    /// Lets the engine refuse a request that the captured responder refused, although no packet
    /// shows a cause: takes the memory or the rights away. Returns the code of the captured NAK.
    fn plant_refusal(
        &mut self,
        packet: &Packet<'_>,
        place: Place,
        index: usize,
    ) -> Option<NakCode> {
        let refusal = self.verdicts.refusal(packet.bth.psn, index);
        let Some(Syndrome::Nak(code)) = refusal else { return None };
        if packet.info.operation == Operation::Send {
            return None; // Its receive was too short.
        }
        let begins = starts(packet);
        let is_planted = match code {
            NakCode::RemoteAccess if begins && !self.regions.grants(packet) => false,
            NakCode::RemoteAccess => {
                let key = self.messages.at(place).and_then(|message| remote_key(message.op));
                key.is_some_and(|key| self.regions.withdraw(key))
            }
            // A failure of the responder itself, if the same key was good before.
            NakCode::RemoteOperational if !self.is_good_key(place) => false,
            NakCode::InvalidRequest | NakCode::RemoteOperational => {
                let access = Some(Access::NONE);
                self.qp.modify(&QpAttributes { access, ..QpAttributes::default() }).is_ok()
            }
            _ => false,
        };
        if is_planted {
            let number = self.frames[index].number;
            self.planted.get_or_insert(number);
            if code == NakCode::RemoteOperational {
                self.outcome.tolerances.count_use(Tolerance::OwnFailure, number);
            }
        }
        Some(code)
    }

    /// Returns true if an earlier message has used the key of the message at `place`.
    fn is_good_key(&self, place: Place) -> bool {
        let key_of = |message: &Message| remote_key(message.op);
        let Some(message) = self.messages.at(place) else { return false };
        let before = self.messages.list.iter().take_while(|other| other.start < message.start);
        before.into_iter().any(|other| key_of(other) == key_of(message))
    }

    /// Posts the receive that the captured responder had for the message, if any.
    fn post_receive(
        &mut self,
        packet: &Packet<'_>,
        place: Place,
        index: usize,
    ) -> Result<(), Unplayable> {
        let Some(message) = self.messages.at(place) else { return Ok(()) };
        if self.posted_for == Some(message.start) {
            return Ok(());
        }
        // Each captured RNR NAK stands for a time without a receive.
        if let Some(left) = self.refused.get_mut(&packet.bth.psn.value()).filter(|left| **left > 0)
        {
            *left -= 1;
            return Ok(());
        }
        let mtu = Place::from(self.lane.mtu.bytes());
        let mut length = match packet.info.operation {
            Operation::Write => 0,
            // A receive of a UC message with losses is used for the next message.
            _ if self.lane.service == Service::Uc => self.receive_into.len(),
            _ => message.bytes.len(),
        };
        // A refused packet did not fit: the receive was at most as long as the data before it.
        for step in 0..Place::from(message.psns) {
            let psn = self.messages.psn(message.start + step);
            if matches!(self.verdicts.refusal(psn, index), Some(Syndrome::Nak(_))) {
                length = usize::try_from(step * mtu).expect("inside the message");
                break;
            }
        }
        let message = message.start;
        self.posted_for = Some(message);
        let length = u32::try_from(length).expect("a message has at most 2^31 bytes");
        // True if an earlier copy got an RNR NAK.
        let late = self.refused.contains_key(&packet.bth.psn.value());
        self.record(|| ResponderStep::PostReceive { message, length, late });
        let sges = [self.receive_into.region().sge(0, length)];
        let request = RecvRequest { wr_id: 0, sges: &sges };
        self.qp.post_recv(&request).map_err(unplayable("post a receive"))
    }

    /// Writes the memory contents that the captured responses to a READ or an atomic show.
    fn show_memory(&mut self, packet: &Packet<'_>, index: usize, expected: bool) {
        let psn = packet.bth.psn;
        let number = self.frames[index].number;
        let mut changed = false;
        if let (Operation::ReadRequest, Some(reth)) = (packet.info.operation, packet.ext.reth) {
            let mtu = self.lane.mtu.bytes();
            for step in self.verdicts.answered(psn, read_span(packet, mtu)) {
                let shown = self.verdicts.read_response(psn.add(step), index);
                let va = reth.va.wrapping_add(u64::from(step) * u64::from(mtu));
                changed |= shown.is_some_and(|bytes| self.show(reth.rkey, va, bytes));
            }
        }
        if let (Some(eth), true) = (packet.ext.atomic_eth, expected) {
            let shown = self.verdicts.atomic_value(psn, index);
            let bytes = shown.map(u64::to_ne_bytes);
            changed |= bytes.is_some_and(|bytes| self.show(eth.rkey, eth.va, bytes.to_vec()));
            // From now on the atomic determines the contents.
        }
        if changed {
            self.outcome.tolerances.count_use(Tolerance::LocalMemory, number);
        }
    }

    /// Puts `bytes` into memory. Returns true if other contents were known there.
    fn show(&mut self, key: Key, va: u64, bytes: Vec<u8>) -> bool {
        let is_due = self.regions.holds(key, va, &bytes) == Some(false);
        let is_change = self.regions.show(key, va, &bytes);
        if is_due {
            self.record(|| ResponderStep::SetMemory { key, va, bytes, is_change });
        }
        is_change
    }

    /// Checks that the bytes of a WRITE are at its address.
    fn check_write(&mut self, packet: &Packet<'_>, place: Place, number: u64) {
        if packet.info.operation != Operation::Write {
            return;
        }
        let Some(message) = self.messages.at(place) else { return };
        let (SendOp::Write(remote) | SendOp::WriteImm(remote, _)) = message.op else { return };
        let step = u64::try_from(place - message.start).expect("inside the message");
        let va = remote.addr.wrapping_add(step * u64::from(self.lane.mtu.bytes()));
        let bytes = packet.payload.slices().concat();
        if !self.regions.written(remote.rkey, va, &bytes) {
            let sentence = format!("the bytes of the WRITE are not at {va:#x}");
            self.outcome.differences.push(Difference { packet: Some(number), sentence });
        }
        self.outcome.bytes_checked += bytes.len() as u64;
    }

    /// Compares completed receives with their messages.
    fn check_received(&mut self, place: Place, number: u64) {
        for done in drain(&self.rig.cq) {
            let Some(message) = self.messages.at(place) else { continue };
            if !done.is_success() {
                continue; // The response shows the error.
            }
            let extra = match message.op {
                SendOp::SendImm(immediate) | SendOp::WriteImm(_, immediate) => {
                    Extra::Immediate(immediate)
                }
                SendOp::SendInvalidate(key) => {
                    let renamed = self.regions.renamed.keys.get(&key.value());
                    Extra::Invalidated(renamed.map_or(key, |&own| Key(own)))
                }
                _ => Extra::None,
            };
            let is_write = matches!(message.op, SendOp::WriteImm(..));
            let mut held = vec![0; if is_write { 0 } else { message.bytes.len() }];
            self.receive_into.read(0, &mut held);
            let same = is_write || held == message.bytes;
            let length = done.byte_len as usize == message.bytes.len();
            if !same || !length || done.extra != extra {
                let sentence = "the received data is not that of the message".to_owned();
                self.outcome.differences.push(Difference { packet: Some(number), sentence });
            }
            self.outcome.messages += 1;
            self.received.insert(message.start);
            // Without responses, the received messages are what is compared.
            self.outcome.compared += u64::from(self.lane.service == Service::Uc);
            self.outcome.bytes_checked += if is_write { 0 } else { held.len() as u64 };
        }
    }
}
