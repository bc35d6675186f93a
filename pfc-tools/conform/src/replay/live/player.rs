//! Sends the captured requests and receives the responses.

use std::time::Duration;

use feroce_engine::port::{Port, Priority};
use feroce_wire::Packet;

use super::LiveError;
use super::causes::{Awaited, causes};
use super::controlled_peer::ControlledPeer;
use super::translation::{Ends, Translation};
use crate::endpoint::end::Pace;
use crate::replay::align::ResponseId;
use crate::replay::compare_responses::{Responding, compare_responses};
use crate::replay::lanes::{Captured, Lane};
use crate::replay::responder::{DryRun, ResponderStep};
use crate::replay::response_cause::SentRequests;
use crate::replay::rig::Unplayable;
use crate::replay::sent_response::SentResponse;
use crate::replay::{Difference, Outcome};

/// Time after the last captured response in which further responses are still compared.
const DRAIN: Duration = Duration::from_millis(50);
/// Number of missing responses that ends the replay: each takes the full waiting time.
const MAX_MISSING: u32 = 3;

/// Everything needed to play a lane.
#[derive(Debug)]
pub struct Player<'a> {
    /// The lane.
    pub lane: &'a Lane,
    /// The frames of the capture.
    pub frames: &'a [Captured],
    /// What the peer needs.
    pub dry_run: &'a DryRun,
    /// Translation between captured names and the peer's names.
    pub translation: &'a Translation,
    /// The port to the peer.
    pub port: &'a mut dyn Port,
    /// The clock.
    pub pace: &'a mut dyn Pace,
    /// The peer, if this program controls it.
    pub controlled: Option<&'a mut ControlledPeer>,
    /// How long to wait for a response.
    pub response_timeout: Duration,
}

/// What was received so far.
#[derive(Debug, Default)]
struct Received {
    responses: Vec<ResponseId>,
    sent: Vec<SentResponse>,
    requests: SentRequests,
    /// For each request, the number of responses received when it was sent.
    marks: Vec<usize>,
    /// Number of responses that did not arrive in time.
    missing: u32,
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
    pub fn play(mut self) -> Result<Outcome, LiveError> {
        let mut received =
            Received { marks: vec![0; self.lane.requests.len()], ..Received::default() };
        let is_sent = self.are_sent();
        let waits = causes(self.lane, self.frames, |at| is_sent[at]);
        let is_request = |step: &ResponderStep| matches!(step, ResponderStep::Request(_));
        let mut reached = 0;
        for steps in self.dry_run.steps.split_inclusive(is_request) {
            let Some(&ResponderStep::Request(at)) = steps.last() else { break };
            if !self.wait(waits[reached..=at].iter().flatten(), &mut received)? {
                break;
            }
            reached = at + 1;
            if let Some(controlled) = &mut self.controlled {
                steps.iter().try_for_each(|step| controlled.act(step))?;
            }
            self.send(at, &mut received)?;
            self.receive(&mut received);
        }
        if received.missing < MAX_MISSING {
            self.wait(waits[reached..].iter().flatten(), &mut received)?;
            let end = self.pace.now() + DRAIN;
            while self.pass(end, &mut received) {}
        }
        self.outcome(received)
    }

    /// Returns which requests are sent, by index.
    fn are_sent(&self) -> Vec<bool> {
        let mut sent = vec![false; self.lane.requests.len()];
        for step in &self.dry_run.steps {
            if let ResponderStep::Request(at) = step {
                sent[*at] = true;
            }
        }
        sent
    }

    /// Waits for responses. Returns false if too many are missing.
    fn wait<'b>(
        &mut self,
        waits: impl Iterator<Item = &'b Awaited>,
        received: &mut Received,
    ) -> Result<bool, LiveError> {
        for awaited in waits {
            let mut since = received.marks[awaited.cause];
            let mut has_arrived = |received: &Received| {
                let new = &received.responses[since..];
                since = received.responses.len();
                new.iter().any(|response| awaited.response.is_conveyed_by(response))
            };
            let end = self.pace.now() + self.response_timeout;
            while !has_arrived(received) {
                if !self.pass(end, received) {
                    received.missing += 1;
                    let packet = Some(awaited.number);
                    let sentence = format!("no such response within {:?}", self.response_timeout);
                    received.differences.push(Difference { packet, sentence });
                    break;
                }
            }
            if received.missing > 0 && !received.any {
                let Ends { own, peer } = self.translation.ends();
                let why = format!(
                    "no response from {} within {:?}: it has no QP {:#x} that is connected to our \
                     QP {:#x}",
                    peer.ip, self.response_timeout, peer.qpn, own.qpn
                );
                return Err(LiveError::Silent { why, fed: received.fed });
            }
            if received.missing == MAX_MISSING {
                let packet = Some(awaited.number);
                let sentence = format!(
                    "no response within {:?}: the remaining requests are not sent",
                    self.response_timeout
                );
                received.differences.push(Difference { packet, sentence });
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits until a frame may have arrived. Returns false at `end`.
    fn pass(&mut self, end: Duration, received: &mut Received) -> bool {
        // Frames of other senders do not extend the waiting time.
        let left = end.saturating_sub(self.pace.now());
        if self.receive(received) == 0 && !left.is_zero() {
            self.pace.pass(left);
        }
        !left.is_zero()
    }

    fn send(&mut self, at: usize, received: &mut Received) -> Result<(), LiveError> {
        let frame = &self.frames[self.lane.requests[at]];
        let bytes = self
            .translation
            .request(&frame.bytes)
            .ok_or_else(|| Unplayable(format!("packet {} cannot be rewritten", frame.number)))?;
        received.requests.add(self.lane, self.frames, at);
        received.marks[at] = received.responses.len();
        received.fed += 1;
        let end = self.pace.now() + self.response_timeout;
        loop {
            if let Some(slot) = self.port.tx_slot() {
                let slot = slot.get_mut(..bytes.len()).ok_or_else(|| {
                    let number = frame.number;
                    Unplayable(format!("packet {number} is too long for the interface's MTU"))
                })?;
                slot.copy_from_slice(&bytes);
                self.port.tx_commit(bytes.len(), Priority::default());
                let flushed = self.port.flush();
                return flushed.map_err(|error| LiveError::Broken(format!("cannot send: {error}")));
            }
            if !self.pass(end, received) {
                return Err(LiveError::Broken("the interface accepts no frames".to_owned()));
            }
        }
    }

    /// Receives the frames that have arrived; returns their number.
    fn receive(&mut self, received: &mut Received) -> usize {
        let count = self.port.rx_burst();
        for index in 0..count {
            let frame = self.port.rx_frame(index);
            let bytes = [frame.first, frame.second].concat();
            self.take(&bytes, received);
        }
        count
    }

    /// Handles a received frame: a response to our QP, or something unrelated.
    fn take(&self, bytes: &[u8], received: &mut Received) {
        let packet = match Packet::parse(bytes, &[]) {
            Ok(packet) => packet,
            Err(error) => {
                if self.translation.claims_to_be_from_peer(bytes) {
                    received.any = true;
                    let sentence = format!("the peer sends a malformed RoCEv2 packet: {error}");
                    received.differences.push(Difference { packet: None, sentence });
                }
                return;
            }
        };
        if !self.translation.is_response(&packet) {
            return;
        }
        received.any = true;
        let Some(bytes) = self.translation.response(bytes) else {
            let sentence = format!("the peer sends a response with a wrong ICRC: {packet}");
            received.differences.push(Difference { packet: None, sentence });
            return;
        };
        let Ok(packet) = Packet::parse(&bytes, &[]) else { return };
        let response = ResponseId::of(&packet);
        let cause = received.requests.cause(response.psn, response.kind).unwrap_or(0);
        received.responses.push(response);
        let last = received.requests.last().unwrap_or(0);
        let [after, until] = [cause, last].map(|at| self.lane.requests[at]);
        received.sent.push(SentResponse { after, until, bytes });
    }

    fn outcome(self, received: Received) -> Result<Outcome, LiveError> {
        let Received { sent, fed, differences, .. } = received;
        let mut outcome = Outcome { fed, differences, ..Outcome::default() };
        let responding = Responding::Peer { expects: self.dry_run.begin.rq_psn };
        compare_responses(self.lane, self.frames, sent, responding, &mut outcome);
        outcome.messages = self.dry_run.messages.list.len() as u64;
        if let Some(controlled) = self.controlled {
            let (bytes, differences) = controlled.check(self.dry_run)?;
            outcome.bytes_checked = bytes;
            outcome.differences.extend(differences);
        }
        Ok(outcome)
    }
}
