//! Plays the requester: a QP of the engine gets the work requests that the captured packets result
//! from, and receives the captured responses. For each captured packet the QP sends one packet,
//! which must equal the captured one, retransmitted or not.
//!
//! The capture does not show when the requester received a response. Therefore the engine receives
//! a response only when it cannot send the next captured packet without the response. Virtual time
//! advances only where the captured requester retransmits without a NAK: there the engine's timer
//! expires.

use std::collections::{BTreeMap, VecDeque};

use feroce_engine::device::{Buffer, QueuePair};
use feroce_engine::memory::Access;
use feroce_engine::qp::{MAX_RD_ATOMIC, QpSnapshot, QpState, Service};
use feroce_engine::time::Duration;
use feroce_engine::verbs::{Data, SendFlags, SendOp, SendRequest, Status};
use feroce_wire::{Packet, Psn, RnrTimer};

use super::align::{Kind, ResponseId};
use super::captured_responses::CapturedResponses;
use super::compare::compare;
use super::compare_responses::text;
use super::holes::{Hole, holes};
use super::lanes::{Captured, Lane};
use super::messages::{MAX_GAP, Message, Messages, Place};
use super::rig::{Begin, Rig, Unplayable, unplayable};
use super::tolerance::Tolerance;
use super::{Difference, Outcome};
use crate::device_pair::drain;

/// Longer than any timer of the QP: the longest RNR NAK timer is 655.36 ms.
const LONGEST_TIMER: Duration = Duration::from_secs(1);

struct Requester<'a> {
    service: Service,
    frames: &'a [Captured],
    messages: Messages,
    rig: Rig,
    qp: QueuePair,
    data: Buffer,
    /// Offset in `data` of each message.
    offsets: Vec<usize>,
    /// Number of messages posted.
    posted: usize,
    /// Captured responses that the engine has not received yet.
    waiting: VecDeque<usize>,
    /// The last request of the lane at each place.
    last_sent: BTreeMap<Place, usize>,
    holes: Vec<Hole>,
    /// Number of holes ahead of the current request.
    passed: usize,
    outcome: Outcome,
}

/// How to get the captured packet as the next packet.
enum NextStep {
    /// Send: the next packet is the captured one.
    Send,
    /// Send a packet that was lost between the requester and the capture point.
    SendLost,
    /// Receive a response.
    Receive(usize),
    /// Let the timer expire.
    Wait,
    /// Impossible.
    None,
}

/// Plays the lane's requester.
///
/// # Errors
/// If the capture does not contain enough information.
pub fn replay(lane: &Lane, frames: &[Captured]) -> Result<Outcome, Unplayable> {
    let mut messages = Messages::of(lane, frames);
    if lane.service == Service::Uc {
        messages.fill_gaps(lane.mtu);
    }
    messages.check()?;
    let Some(first) = messages.list.first() else {
        return Err(Unplayable("no message begins in the capture".to_owned()));
    };
    if messages.are_reordered() {
        let why =
            "requests were reordered before the capture point: their order of sending is unknown";
        return Err(Unplayable(why.to_owned()));
    }
    if lane.outstanding > usize::from(MAX_RD_ATOMIC) {
        let why = format!(
            "{} READs and atomics outstanding, more than the engine sends: {MAX_RD_ATOMIC}",
            lane.outstanding
        );
        return Err(Unplayable(why));
    }
    let mut offsets = Vec::new();
    let mut bytes = 0;
    for message in &messages.list {
        offsets.push(bytes);
        bytes += message.bytes.len().next_multiple_of(64);
    }
    let rig = Rig::new(lane, &lane.requester, &lane.responder, bytes)?;
    let data = rig.pd.alloc_buffer(bytes.max(1), Access::LOCAL_WRITE);
    let like = frames[lane.requests[0]].packet();
    let begin = begin(messages.psn(first.start));
    let qp = rig.connect(lane, [&lane.requester, &lane.responder], &begin, Some(&like))?;
    let mut requester = Requester {
        service: lane.service,
        frames,
        rig,
        qp,
        data: data.map_err(unplayable("register memory"))?,
        offsets,
        posted: 0,
        waiting: VecDeque::new(),
        last_sent: BTreeMap::new(),
        holes: holes(lane, frames, &messages),
        passed: 0,
        outcome: Outcome::default(),
        messages,
    };
    requester.run(lane)?;
    if lane.service == Service::Rc {
        requester.check_data(lane);
    }
    Ok(requester.outcome)
}

/// Returns the starting parameters of a requester whose first packet has the PSN `sq_psn`.
fn begin(sq_psn: Psn) -> Begin {
    let min_rnr_timer = RnrTimer::new(12).expect("a code");
    Begin { sq_psn, rq_psn: Psn::new(0), min_rnr_timer }
}

impl Requester<'_> {
    fn run(&mut self, lane: &Lane) -> Result<(), Unplayable> {
        let mut both: Vec<(usize, Option<usize>)> =
            lane.requests.iter().enumerate().map(|(at, &index)| (index, Some(at))).collect();
        both.extend(lane.responses.iter().map(|&index| (index, None)));
        both.sort_unstable();
        let places = self.messages.places.iter().copied();
        self.last_sent = places.enumerate().map(|(at, place)| (place, at)).collect();
        for (index, request) in both {
            let Some(at) = request else {
                self.waiting.push_back(index);
                continue;
            };
            let place = self.messages.places[at];
            if !self.pass_holes(lane, index, place)? {
                let number = self.frames[index].number;
                self.outcome.tolerances.count_use(Tolerance::CaptureHole, number);
                continue;
            }
            if self.messages.at(place).is_none() {
                let number = self.frames[index].number;
                if place < self.messages.list[0].start {
                    // Belongs to a message that began before the capture.
                    self.outcome.tolerances.count_use(Tolerance::CaptureEnds, number);
                } else {
                    let packet = text(&self.frames[index].bytes);
                    let sentence = format!("{packet} belongs to no message");
                    self.outcome.differences.push(Difference { packet: Some(number), sentence });
                }
                continue;
            }
            if self.messages.at(place).is_some_and(|message| message.is_filler) {
                // The rest of a UC message whose other packets are missing.
                let number = self.frames[index].number;
                self.outcome.tolerances.count_use(Tolerance::NotCaptured, number);
                continue;
            }
            self.post_until(place)?;
            if !self.send_captured(index, at) {
                break;
            }
        }
        Ok(())
    }

    /// Starts the QP anew behind each hole ahead of the request in frame `index`. Returns false if
    /// the request is the rest of a message that begins in the hole, or belongs ahead of it.
    fn pass_holes(&mut self, lane: &Lane, index: usize, place: Place) -> Result<bool, Unplayable> {
        while let Some(&hole) = self.holes.get(self.passed).filter(|hole| index >= hole.first_after)
        {
            self.passed += 1;
            self.check_data(lane);
            let Some(resume) = hole.resume else { continue };
            self.posted = self.messages.list.partition_point(|message| message.start < resume);
            let begin = begin(self.messages.psn(resume));
            let like = self.frames[lane.requests[0]].packet();
            Rig::restart(&mut self.qp, lane, &lane.responder, &begin, Some(&like))?;
        }
        let last = self.passed.checked_sub(1).map(|last| self.holes[last]);
        Ok(last.is_none_or(|hole| hole.resume.is_some_and(|resume| place >= resume)))
    }

    /// Posts the messages that begin at or before `place`.
    fn post_until(&mut self, place: Place) -> Result<(), Unplayable> {
        while let Some(message) = self.messages.list.get(self.posted)
            && message.start <= place
        {
            let offset = self.offsets[self.posted];
            if !message.op.returns_data() {
                self.data.write(offset, &message.bytes);
            }
            let length = u32::try_from(message.bytes.len());
            let length = length.map_err(unplayable("a message"))?;
            let sges = [self.data.region().sge(offset as u64, length)];
            let used = usize::from(length > 0);
            let mut flags = SendFlags::SIGNALED;
            if message.solicited && message.op.consumes_receive() {
                flags |= SendFlags::SOLICITED;
            }
            let (wr_id, op) = (self.posted as u64, message.op);
            let request = SendRequest { wr_id, op, data: Data::Sges(&sges[..used]), flags };
            self.qp.post_send(&request).map_err(unplayable("post a request"))?;
            self.posted += 1;
        }
        Ok(())
    }

    /// Sends the packet captured as `index`. Returns false if the engine's requester has given up.
    fn send_captured(&mut self, index: usize, at: usize) -> bool {
        let place = self.messages.places[at];
        let number = self.frames[index].number;
        // Each response is received once, and the timer expires a few times.
        for _ in 0..self.waiting.len() + self.messages.places.len() + MAX_GAP as usize {
            let snapshot = self.qp.snapshot(self.rig.now);
            if snapshot.state == QpState::Err {
                return self.gave_up(number);
            }
            let ahead = snapshot.next.offset_from(self.messages.psn(place));
            match self.next_step(ahead, at) {
                NextStep::Send => match self.send() {
                    Some(bytes) => {
                        self.compare_responses(&bytes, index);
                        return true;
                    }
                    None if !self.receive_or_wait(number, at) => break,
                    None => {}
                },
                NextStep::SendLost => {
                    self.rig.allow(1);
                    let sent = self.rig.turn();
                    self.rig.forbid();
                    if sent.is_empty() && !self.receive_or_wait(number, at) {
                        break;
                    }
                    if !sent.is_empty() {
                        self.outcome.tolerances.count_use(Tolerance::NotCaptured, number);
                    }
                }
                NextStep::Receive(response) => self.receive(response),
                NextStep::Wait => {
                    if !self.wait(number) {
                        break;
                    }
                }
                NextStep::None => break,
            }
        }
        let next = self.qp.snapshot(self.rig.now).next;
        let captured = text(&self.frames[index].bytes);
        let sentence = format!("captured {captured}, but our next packet would have PSN {next}");
        self.outcome.differences.push(Difference { packet: Some(number), sentence });
        true
    }

    fn next_step(&mut self, ahead: i32, at: usize) -> NextStep {
        if ahead == 0 {
            return NextStep::Send;
        }
        // Our next packet may have been lost before the capture point if a later copy was captured.
        let next = self.messages.places[at] + Place::from(ahead);
        let is_repeated = || self.last_sent.get(&next).is_some_and(|&last| last > at);
        if ahead < 0 && (self.service == Service::Uc || is_repeated()) {
            return NextStep::SendLost;
        }
        match self.next_response(self.messages.places[at]) {
            Some(response) => NextStep::Receive(response),
            None if ahead > 0 => NextStep::Wait,
            None => NextStep::None,
        }
    }

    /// Returns the next response that the captured requester may have received before it sent the
    /// packet at `place`: one that does not acknowledge this packet.
    fn next_response(&mut self, place: Place) -> Option<usize> {
        let next = *self.waiting.front()?;
        let response = ResponseId::of(&self.frames[next].packet());
        // READs and atomics are acknowledged only by their own responses.
        let needs_own =
            self.messages.at(place).is_some_and(|message| message.op.needs_responder_resource());
        let psn = self.messages.psn(place);
        // A response after a gap is received but has no effect.
        let in_order = self.qp.snapshot(self.rig.now).unacknowledged == psn;
        let is_data = matches!(response.kind, Kind::Read | Kind::Atomic);
        let own = is_data && response.psn == psn && in_order;
        if own || !needs_own && response.acknowledges(psn) {
            return None;
        }
        self.waiting.pop_front()
    }

    fn send(&mut self) -> Option<Vec<u8>> {
        self.rig.allow(1);
        let mut sent = self.rig.turn();
        self.rig.forbid();
        sent.pop()
    }

    fn receive(&mut self, response: usize) {
        self.rig.give(&self.frames[response].bytes);
        self.rig.turn();
        self.outcome.fed += 1;
    }

    /// Receives a response or advances time, so that the packet can be sent. Returns false if
    /// nothing changes.
    fn receive_or_wait(&mut self, number: u64, at: usize) -> bool {
        match self.next_response(self.messages.places[at]) {
            Some(response) => {
                self.receive(response);
                true
            }
            None => self.wait(number),
        }
    }

    /// Advances time to the next timer. Returns false if no timer changes the state.
    fn wait(&mut self, number: u64) -> bool {
        let before = self.qp.snapshot(self.rig.now);
        let tolerance = match before.waits_for_receive {
            true => Tolerance::RnrTimer,
            false => Tolerance::RetransmissionTimer,
        };
        // A QP that waits for room in its port must be scheduled at once, which hides its timers.
        let deadline = self.rig.device.next_deadline(self.rig.now);
        let ahead = deadline.filter(|deadline| *deadline > self.rig.now);
        let observed = |a: &QpSnapshot| (a.next, a.waits_for_receive, a.state);
        for time in [ahead.unwrap_or(self.rig.now), self.rig.now + LONGEST_TIMER] {
            self.rig.now = time;
            self.rig.turn();
            if observed(&before) != observed(&self.qp.snapshot(time)) {
                self.outcome.tolerances.count_use(tolerance, number);
                return true;
            }
        }
        false
    }

    /// Handles the case that the engine's QP is in ERR while the captured one continues.
    fn gave_up(&mut self, number: u64) -> bool {
        let done = drain(&self.rig.cq);
        let failed = done.iter().find(|done| !done.is_success());
        let why = failed.map_or("an error".to_owned(), |done| done.status.to_string());
        if failed.is_some_and(|done| done.status == Status::RetryExceeded) {
            self.outcome.tolerances.count_use(Tolerance::UnlimitedRetries, number);
        } else {
            let sentence = format!("the captured requester continues, ours has ended with {why}");
            self.outcome.differences.push(Difference { packet: Some(number), sentence });
        }
        false
    }

    fn compare_responses(&mut self, bytes: &[u8], index: usize) {
        let frame = &self.frames[index];
        self.outcome.compared += 1;
        let tolerances = &mut self.outcome.tolerances;
        let differs = compare(bytes, &frame.bytes, frame.number, false, tolerances);
        let packet = Some(frame.number);
        self.outcome.differences.extend(differs.map(|sentence| Difference { packet, sentence }));
        if let Ok(packet) = Packet::parse(bytes, &[]) {
            self.outcome.bytes_checked += packet.payload.len() as u64;
        }
    }

    /// Receives the responses captured so far, and compares the data of READs with the captured
    /// responses.
    fn check_data(&mut self, lane: &Lane) {
        while let Some(response) = self.waiting.pop_front() {
            self.receive(response);
        }
        let done = drain(&self.rig.cq);
        let verdicts = CapturedResponses::of(lane, self.frames);
        for completion in done.iter().filter(|done| done.is_success()) {
            self.outcome.messages += 1;
            let Ok(at) = usize::try_from(completion.wr_id) else { continue };
            let (Some(message), Some(&offset)) = (self.messages.list.get(at), self.offsets.get(at))
            else {
                continue;
            };
            if !message.op.returns_data() {
                continue;
            }
            let mut held = vec![0; message.bytes.len()];
            self.data.read(offset, &mut held);
            if held != captured_data(&verdicts, &self.messages, message) {
                let sentence = "the data read is not that of the responses".to_owned();
                let first = self.messages.psn(message.start);
                let sentence = format!("{sentence}: PSN {first}");
                self.outcome.differences.push(Difference { packet: None, sentence });
            }
            self.outcome.bytes_checked += held.len() as u64;
        }
    }
}

/// Returns the payloads of the responses to a READ, or the value in the response to an atomic.
fn captured_data(
    verdicts: &CapturedResponses<'_>,
    messages: &Messages,
    message: &Message,
) -> Vec<u8> {
    let mut bytes = Vec::new();
    let psn = messages.psn(message.start);
    if message.op.is_atomic() {
        return verdicts.atomic_value(psn, 0).map_or_else(Vec::new, |v| v.to_ne_bytes().to_vec());
    }
    if let SendOp::Read(_) = message.op {
        for step in 0..message.psns {
            bytes.extend(verdicts.read_response(psn.add(step), 0).unwrap_or_default());
        }
    }
    bytes
}
