//! Sends the captured requests and receives the responses.

use std::time::Duration;

use feroce_engine::port::{Port, Priority};
use feroce_wire::Packet;

use super::Trouble;
use super::causes::{Awaited, causes};
use super::stage::Stage;
use super::translation::{Ends, Translation};
use crate::endpoint::end::Pace;
use crate::replay::align::Answer;
use crate::replay::compare_responses::{Answerer, judge};
use crate::replay::lanes::{Captured, Lane};
use crate::replay::responder::{Cue, Rehearsal};
use crate::replay::response_cause::SentRequests;
use crate::replay::rig::Unplayable;
use crate::replay::sent_response::SentResponse;
use crate::replay::{Difference, Outcome};

/// How long after the last captured response further packets still belong to the capture.
const SETTLE: Duration = Duration::from_millis(50);
/// The most missing responses: each costs the full waiting time.
const MOST_SILENT: u32 = 3;

/// Everything needed to play a lane.
#[derive(Debug)]
pub struct Player<'a> {
    /// The lane.
    pub lane: &'a Lane,
    /// The frames of the capture.
    pub frames: &'a [Captured],
    /// What the peer needs.
    pub rehearsal: &'a Rehearsal,
    /// Translation between captured names and the peer's names.
    pub translation: &'a Translation,
    /// The port to the peer.
    pub port: &'a mut dyn Port,
    /// The clock.
    pub pace: &'a mut dyn Pace,
    /// The peer, if this program controls it.
    pub stage: Option<&'a mut Stage>,
    /// How long to wait for a response.
    pub patience: Duration,
}

/// What was received so far.
#[derive(Debug, Default)]
struct Heard {
    answers: Vec<Answer>,
    sent: Vec<SentResponse>,
    asked: SentRequests,
    /// For each request, the number of responses received when it was sent.
    marks: Vec<usize>,
    silent: u32,
    /// True if anything arrived from the peer, even if damaged.
    any: bool,
    differences: Vec<Difference>,
    fed: u64,
}

impl Player<'_> {
    /// Plays the lane.
    ///
    /// # Errors
    /// If the peer does not respond at all, or cannot be controlled.
    pub fn play(mut self) -> Result<Outcome, Trouble> {
        let mut heard = Heard { marks: vec![0; self.lane.requests.len()], ..Heard::default() };
        let is_sent = self.are_sent();
        let waits = causes(self.lane, self.frames, |at| is_sent[at]);
        let hears = |cue: &Cue| matches!(cue, Cue::Hear(_));
        let mut reached = 0;
        for cues in self.rehearsal.cues.split_inclusive(hears) {
            let Some(&Cue::Hear(at)) = cues.last() else { break };
            if !self.wait(waits[reached..=at].iter().flatten(), &mut heard)? {
                break;
            }
            reached = at + 1;
            if let Some(stage) = &mut self.stage {
                cues.iter().try_for_each(|cue| stage.act(cue))?;
            }
            self.send(at, &mut heard)?;
            self.hear(&mut heard);
        }
        if heard.silent < MOST_SILENT {
            self.wait(waits[reached..].iter().flatten(), &mut heard)?;
            let end = self.pace.now() + SETTLE;
            while self.pass(end, &mut heard) {}
        }
        self.outcome(heard)
    }

    /// Returns which requests are sent, by index.
    fn are_sent(&self) -> Vec<bool> {
        let mut sent = vec![false; self.lane.requests.len()];
        for cue in &self.rehearsal.cues {
            if let Cue::Hear(at) = cue {
                sent[*at] = true;
            }
        }
        sent
    }

    /// Waits for responses. Returns false if too many are missing.
    fn wait<'b>(
        &mut self,
        waits: impl Iterator<Item = &'b Awaited>,
        heard: &mut Heard,
    ) -> Result<bool, Trouble> {
        for awaited in waits {
            let mut since = heard.marks[awaited.cause];
            let mut said = |heard: &Heard| {
                let new = &heard.answers[since..];
                since = heard.answers.len();
                new.iter().any(|answer| awaited.answer.is_said_by(answer))
            };
            let end = self.pace.now() + self.patience;
            while !said(heard) {
                if !self.pass(end, heard) {
                    heard.silent += 1;
                    let packet = Some(awaited.number);
                    let sentence = format!("no such response within {:?}", self.patience);
                    heard.differences.push(Difference { packet, sentence });
                    break;
                }
            }
            if heard.silent > 0 && !heard.any {
                let (Ends { own, peer }, patience) = (self.translation.ends(), self.patience);
                let why = format!(
                    "no answer from {} within {patience:?}: it has no QP {:#x} that is connected \
                     to \
                     our QP {:#x}",
                    peer.ip, peer.qpn, own.qpn
                );
                return Err(Trouble::Silent { why, fed: heard.fed });
            }
            if heard.silent == MOST_SILENT {
                let packet = Some(awaited.number);
                let sentence = format!(
                    "the peer keeps silent: no response within {:?}, the rest is not played",
                    self.patience
                );
                heard.differences.push(Difference { packet, sentence });
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Lets time pass until something may have arrived. Returns false at `end`.
    fn pass(&mut self, end: Duration, heard: &mut Heard) -> bool {
        // Frames of other senders do not extend the waiting time.
        let left = end.saturating_sub(self.pace.now());
        if self.hear(heard) == 0 && !left.is_zero() {
            self.pace.pass(left);
        }
        !left.is_zero()
    }

    fn send(&mut self, at: usize, heard: &mut Heard) -> Result<(), Trouble> {
        let frame = &self.frames[self.lane.requests[at]];
        let bytes = self
            .translation
            .request(&frame.bytes)
            .ok_or_else(|| Unplayable(format!("packet {} cannot be rewritten", frame.number)))?;
        heard.asked.ask(self.lane, self.frames, at);
        heard.marks[at] = heard.answers.len();
        heard.fed += 1;
        let end = self.pace.now() + self.patience;
        loop {
            if let Some(slot) = self.port.tx_slot() {
                let slot = slot.get_mut(..bytes.len()).ok_or_else(|| {
                    let number = frame.number;
                    Unplayable(format!("packet {number} is too long for the interface's MTU"))
                })?;
                slot.copy_from_slice(&bytes);
                self.port.tx_commit(bytes.len(), Priority::default());
                let flushed = self.port.flush();
                return flushed.map_err(|error| Trouble::Broken(format!("cannot send: {error}")));
            }
            if !self.pass(end, heard) {
                return Err(Trouble::Broken("the interface takes no frames".to_owned()));
            }
        }
    }

    /// Receives the frames that have arrived; returns their number.
    fn hear(&mut self, heard: &mut Heard) -> usize {
        let count = self.port.rx_burst();
        for index in 0..count {
            let frame = self.port.rx_frame(index);
            let bytes = [frame.first, frame.second].concat();
            self.take(&bytes, heard);
        }
        count
    }

    /// Handles a received frame: a response to our QP, or something unrelated.
    fn take(&self, bytes: &[u8], heard: &mut Heard) {
        let packet = match Packet::parse(bytes, &[]) {
            Ok(packet) => packet,
            Err(error) => {
                if self.translation.is_of_peer(bytes) {
                    heard.any = true;
                    let sentence = format!("the peer sends what is no RoCEv2 packet: {error}");
                    heard.differences.push(Difference { packet: None, sentence });
                }
                return;
            }
        };
        if !self.translation.is_answer(&packet) {
            return;
        }
        heard.any = true;
        let Some(bytes) = self.translation.answer(bytes) else {
            let sentence = format!("the peer answers {packet} with a wrong ICRC");
            heard.differences.push(Difference { packet: None, sentence });
            return;
        };
        let Ok(packet) = Packet::parse(&bytes, &[]) else { return };
        let answer = Answer::of(&packet);
        let cause = heard.asked.cause(answer.psn, answer.kind).unwrap_or(0);
        heard.answers.push(answer);
        let last = heard.asked.last().unwrap_or(0);
        let [after, until] = [cause, last].map(|at| self.lane.requests[at]);
        heard.sent.push(SentResponse { after, until, bytes });
    }

    fn outcome(self, heard: Heard) -> Result<Outcome, Trouble> {
        let Heard { sent, fed, differences, .. } = heard;
        let mut outcome = Outcome { fed, differences, ..Outcome::default() };
        let answerer = Answerer::Peer { expects: self.rehearsal.begin.rq_psn };
        judge(self.lane, self.frames, &sent, answerer, &mut outcome);
        outcome.messages = self.rehearsal.messages.list.len() as u64;
        if let Some(stage) = self.stage {
            let (bytes, differences) = stage.check(self.rehearsal)?;
            outcome.bytes_checked = bytes;
            outcome.differences.extend(differences);
        }
        Ok(outcome)
    }
}
