//! The requester's part: a QP of ours gets the work requests that the captured packets come from, and hears the captured answers.
//! It sends a packet whenever one was captured, and that packet must be the captured one, sent again or not.
//!
//! When it hears an answer is a liberty: between the place of the capture and the requester an answer takes its time. So an answer
//! waits until the next captured packet cannot be explained without it. Time stands still, too, but where the captured requester
//! sends again without having been told to: then our timer runs out.

use std::collections::{BTreeMap, VecDeque};

use feroce_engine::device::{Buffer, QueuePair};
use feroce_engine::memory::Access;
use feroce_engine::qp::{QpSnapshot, QpState, Service};
use feroce_engine::time::Duration;
use feroce_engine::verbs::{Data, SendFlags, SendOp, SendRequest, Status};
use feroce_wire::{Packet, Psn, RnrTimer};

use super::align::{Answer, Kind};
use super::compare::compare;
use super::judge::text;
use super::lanes::{Captured, Lane};
use super::liberty::Liberty;
use super::messages::{Message, Messages, Place};
use super::rig::{Begin, Rig, Unplayable, unplayable};
use super::verdicts::Verdicts;
use super::{Difference, Outcome};
use crate::device_pair::drain;

/// Longer than any timer of our QP: RNR NAKs ask to wait for 655.36 ms at most.
const LONGEST_TIMER: Duration = Duration::from_secs(1);

struct Requester<'a> {
    frames: &'a [Captured],
    messages: Messages,
    rig: Rig,
    qp: QueuePair,
    data: Buffer,
    /// Where in `data` each message begins.
    offsets: Vec<usize>,
    /// Messages posted.
    posted: usize,
    /// Answers captured and not heard yet.
    waiting: VecDeque<usize>,
    /// Which request of the lane is the last at each place.
    last_sent: BTreeMap<Place, usize>,
    outcome: Outcome,
}

/// What to do so that the next packet is the captured one.
enum Way {
    /// It is.
    Send,
    /// Sends a packet that was lost ahead of the capture.
    SendLost,
    /// Hears an answer.
    Hear(usize),
    /// The timer runs out.
    Wait,
    /// There is none.
    None,
}

/// Plays the lane's requester.
///
/// # Errors
/// If the capture does not say enough.
pub fn replay(lane: &Lane, frames: &[Captured]) -> Result<Outcome, Unplayable> {
    let messages = Messages::of(lane, frames);
    let Some(first) = messages.list.first() else {
        return Err(Unplayable("no message begins in the capture".to_owned()));
    };
    if messages.are_reordered() {
        let why = "requests were reordered ahead of the capture: how they were sent does not show";
        return Err(Unplayable(why.to_owned()));
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
    let begin = Begin {
        sq_psn: messages.psn(first.start),
        rq_psn: Psn::new(0),
        min_rnr_timer: RnrTimer::new(12).expect("a code"),
    };
    let qp = rig.connect(lane, [&lane.requester, &lane.responder], &begin, Some(&like))?;
    let mut requester = Requester {
        frames,
        rig,
        qp,
        data: data.map_err(unplayable("register memory"))?,
        offsets,
        posted: 0,
        waiting: VecDeque::new(),
        last_sent: BTreeMap::new(),
        outcome: Outcome::default(),
        messages,
    };
    requester.run(lane)?;
    if lane.service == Service::Rc {
        requester.check_data(lane);
    }
    Ok(requester.outcome)
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
            if self.messages.at(place).is_none() {
                let number = self.frames[index].number;
                if place < self.messages.list[0].start {
                    // Of a message that began ahead of the capture.
                    self.outcome.liberties.take(Liberty::CaptureEnds, number);
                } else {
                    let packet = text(&self.frames[index].bytes);
                    let sentence = format!("{packet} belongs to no message");
                    self.outcome.differences.push(Difference { packet: Some(number), sentence });
                }
                continue;
            }
            self.post_until(place)?;
            if !self.send_like(index, at) {
                break;
            }
        }
        Ok(())
    }

    /// Posts what begins at `place` or ahead of it.
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

    /// Has the packet sent that was captured as `index`; false if our requester has given up.
    fn send_like(&mut self, index: usize, at: usize) -> bool {
        let place = self.messages.places[at];
        let number = self.frames[index].number;
        // Every answer is heard once, and the timer runs out a few times.
        for _ in 0..self.waiting.len() + self.messages.list.len() + 64 {
            let snapshot = self.qp.snapshot(self.rig.now);
            if snapshot.state == QpState::Err {
                return self.gave_up(number);
            }
            let ahead = snapshot.next.offset_from(self.messages.psn(place));
            match self.way(ahead, at) {
                Way::Send => match self.send() {
                    Some(bytes) => {
                        self.judge(&bytes, index);
                        return true;
                    }
                    None if !self.hear_or_wait(number, at) => break,
                    None => {}
                },
                Way::SendLost => {
                    self.rig.allow(1);
                    let sent = self.rig.turn();
                    self.rig.forbid();
                    if sent.is_empty() && !self.hear_or_wait(number, at) {
                        break;
                    }
                    if !sent.is_empty() {
                        self.outcome.liberties.take(Liberty::NotCaptured, number);
                    }
                }
                Way::Hear(answer) => self.hear(answer),
                Way::Wait => {
                    if !self.wait(number) {
                        break;
                    }
                }
                Way::None => break,
            }
        }
        let next = self.qp.snapshot(self.rig.now).next;
        let captured = text(&self.frames[index].bytes);
        let sentence = format!("captured {captured}; our next packet would have PSN {next}");
        self.outcome.differences.push(Difference { packet: Some(number), sentence });
        true
    }

    fn way(&mut self, ahead: i32, at: usize) -> Way {
        if ahead == 0 {
            return Way::Send;
        }
        // Our next packet may have been lost ahead of the capture, if it is captured later.
        let next = self.messages.places[at] + Place::from(ahead);
        if ahead < 0 && self.last_sent.get(&next).is_some_and(|&last| last > at) {
            return Way::SendLost;
        }
        match self.next_answer(self.messages.places[at]) {
            Some(answer) => Way::Hear(answer),
            None if ahead > 0 => Way::Wait,
            None => Way::None,
        }
    }

    /// The next answer that the captured requester may have heard ahead of sending the packet at `place`: none that
    /// acknowledges it.
    fn next_answer(&mut self, place: Place) -> Option<usize> {
        let next = *self.waiting.front()?;
        let answer = Answer::of(&self.frames[next].packet());
        // Only an answer of its own acknowledges a READ or an atomic.
        let needs_own =
            self.messages.at(place).is_some_and(|message| message.op.is_read_or_atomic());
        let psn = self.messages.psn(place);
        // One that comes behind a hole is heard, and is none.
        let in_order = self.qp.snapshot(self.rig.now).unacknowledged == psn;
        let is_data = matches!(answer.kind, Kind::Read | Kind::Atomic);
        let own = is_data && answer.psn == psn && in_order;
        if own || !needs_own && answer.acknowledges(psn) {
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

    fn hear(&mut self, answer: usize) {
        self.rig.give(&self.frames[answer].bytes);
        self.rig.turn();
        self.outcome.fed += 1;
    }

    /// What has to happen before the packet may go out: an answer, or time.
    fn hear_or_wait(&mut self, number: u64, at: usize) -> bool {
        match self.next_answer(self.messages.places[at]) {
            Some(answer) => {
                self.hear(answer);
                true
            }
            None => self.wait(number),
        }
    }

    /// Goes to the time at which something happens by itself; false if nothing does.
    fn wait(&mut self, number: u64) -> bool {
        let before = self.qp.snapshot(self.rig.now);
        let liberty = match before.waits_for_receive {
            true => Liberty::RnrTimer,
            false => Liberty::RetransmissionTimer,
        };
        // A QP that waits for its port wants to be turned at once: what its timers want is not told then.
        let deadline = self.rig.device.next_deadline(self.rig.now);
        let ahead = deadline.filter(|deadline| *deadline > self.rig.now);
        let told = |a: &QpSnapshot| (a.next, a.waits_for_receive, a.state);
        for time in [ahead.unwrap_or(self.rig.now), self.rig.now + LONGEST_TIMER] {
            self.rig.now = time;
            self.rig.turn();
            if told(&before) != told(&self.qp.snapshot(time)) {
                self.outcome.liberties.take(liberty, number);
                return true;
            }
        }
        false
    }

    /// Our QP is in ERR, and the captured one goes on.
    fn gave_up(&mut self, number: u64) -> bool {
        let done = drain(&self.rig.cq);
        let failed = done.iter().find(|done| !done.is_success());
        let why = failed.map_or("an error".to_owned(), |done| done.status.to_string());
        if failed.is_some_and(|done| done.status == Status::RetryExceeded) {
            self.outcome.liberties.take(Liberty::RetryForEver, number);
        } else {
            let sentence = format!("the captured requester goes on, ours has ended with {why}");
            self.outcome.differences.push(Difference { packet: Some(number), sentence });
        }
        false
    }

    fn judge(&mut self, bytes: &[u8], index: usize) {
        let frame = &self.frames[index];
        self.outcome.compared += 1;
        let liberties = &mut self.outcome.liberties;
        let differs = compare(bytes, &frame.bytes, frame.number, false, liberties);
        let packet = Some(frame.number);
        self.outcome.differences.extend(differs.map(|sentence| Difference { packet, sentence }));
        if let Ok(packet) = Packet::parse(bytes, &[]) {
            self.outcome.bytes_checked += packet.payload.len() as u64;
        }
    }

    /// Hears what was captured behind the last request; what READs brought is what their answers held.
    fn check_data(&mut self, lane: &Lane) {
        while let Some(answer) = self.waiting.pop_front() {
            self.hear(answer);
        }
        let done = drain(&self.rig.cq);
        let verdicts = Verdicts::of(lane, self.frames);
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
            if held != answered(&verdicts, &self.messages, message) {
                let sentence = "what was read is not what the answers held".to_owned();
                let first = self.messages.psn(message.start);
                let sentence = format!("{sentence}: PSN {first}");
                self.outcome.differences.push(Difference { packet: None, sentence });
            }
            self.outcome.bytes_checked += held.len() as u64;
        }
    }
}

/// The payloads of the answers to a READ, or the value that an atomic found.
fn answered(verdicts: &Verdicts<'_>, messages: &Messages, message: &Message) -> Vec<u8> {
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
