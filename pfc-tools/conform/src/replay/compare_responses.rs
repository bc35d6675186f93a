//! Compares the responses to a lane's requests with the captured ones.

use feroce_engine::qp::Service;
use feroce_wire::{Packet, Psn};

use super::align::{Answer, Kind, Step, align};
use super::compare::compare;
use super::lanes::{Captured, Lane};
use super::peer_rules::{PeerRules, PeerStatements};
use super::response_cause::SentRequests;
use super::sent_response::SentResponse;
use super::{Difference, Outcome};

/// The sender of the responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answerer {
    /// The engine: deviations of peers are not permitted.
    Engine,
    /// A live peer with a new QP.
    Peer {
        /// The PSN that it expects first.
        expects: Psn,
    },
}

impl Answerer {
    /// For sentences: "we answer", "the peer answers".
    const fn answers(self) -> &'static str {
        match self {
            Self::Engine => "we answer",
            Self::Peer { .. } => "the peer answers",
        }
    }

    /// For sentences: who did not.
    const fn does_not(self) -> &'static str {
        match self {
            Self::Engine => "we do not answer",
            Self::Peer { .. } => "the peer does not answer",
        }
    }
}

/// Compares the responses `sent` to the lane's requests with the captured ones.
pub fn judge(
    lane: &Lane,
    frames: &[Captured],
    sent: &[SentResponse],
    answerer: Answerer,
    outcome: &mut Outcome,
) {
    let theirs = &lane.responses;
    let parsed = |bytes: &[u8]| Packet::parse(bytes, &[]).map(|packet| Answer::of(&packet));
    let ours: Vec<Answer> = sent.iter().filter_map(|sent| parsed(&sent.bytes).ok()).collect();
    let answers: Vec<Answer> =
        theirs.iter().map(|&index| Answer::of(&frames[index].packet())).collect();
    // A response may have been lost before the capture if the requester retransmits its request.
    let asked = SentRequests::of(lane, frames);
    // What the capture point did not see excuses no extra NAK of a peer that received all requests.
    let may_be_extra = |at: usize| {
        answerer == Answerer::Engine
            || matches!(ours[at].kind, Kind::Ack | Kind::Read | Kind::Atomic)
    };
    let is_asked_again = |at: usize| {
        asked.last_for(ours[at].psn).is_some_and(|last| lane.requests[last] > sent[at].after)
    };
    let lost = |at: usize| may_be_extra(at) && is_asked_again(at);
    let last = theirs.last().copied().unwrap_or(0);
    let open = |at: usize| may_be_extra(at) && sent[at].after > last && lane.service == Service::Rc;
    let peers = match answerer {
        Answerer::Engine => None,
        Answerer::Peer { expects } => Some(PeerRules::of(lane, frames, expects)),
    };
    outcome.differences.extend(peers.iter().flat_map(|peers| wrong(peers, frames, sent)));
    let told = peers.as_ref().map(|peers| PeerStatements::by(&ours, sent, peers));
    // One response to consecutive duplicates stands for one to each.
    let said = |at: usize| {
        let told = told.as_ref().filter(|_| answers[at].kind != Kind::Sequence);
        told.is_some_and(|told| told.is_said(&answers[at], at))
    };
    for step in align(&ours, &answers, lost, open, said) {
        let (number, sentence) = match step {
            Step::Both(own, other) => {
                let frame = &frames[theirs[other]];
                outcome.compared += 1;
                let (bytes, liberties) = (&sent[own].bytes, &mut outcome.liberties);
                match compare(bytes, &frame.bytes, frame.number, peers.is_some(), liberties) {
                    None => continue,
                    Some(sentence) => (frame.number, sentence),
                }
            }
            Step::Ours(own, Some(tolerance)) => {
                outcome.liberties.take(tolerance, frames[sent[own].after].number);
                continue;
            }
            Step::Theirs(other, Some(tolerance)) => {
                outcome.liberties.take(tolerance, frames[theirs[other]].number);
                continue;
            }
            Step::Ours(own, None) => {
                let (who, what) = (answerer.answers(), text(&sent[own].bytes));
                (frames[sent[own].after].number, format!("{who} {what}, which the capture lacks"))
            }
            Step::Theirs(other, None) => {
                let frame = &frames[theirs[other]];
                let (what, who) = (text(&frame.bytes), answerer.does_not());
                (frame.number, format!("the capture has {what}, which {who}"))
            }
        };
        outcome.differences.push(Difference { packet: Some(number), sentence });
    }
}

/// Returns what is wrong with a peer's responses, whatever was captured.
fn wrong(peers: &PeerRules<'_>, frames: &[Captured], sent: &[SentResponse]) -> Vec<Difference> {
    let difference = |(at, why): (usize, String)| {
        let sentence = format!("the peer answers {}: {why}", text(&sent[at].bytes));
        Difference { packet: Some(frames[sent[at].after].number), sentence }
    };
    peers.wrong(sent).into_iter().map(difference).collect()
}

/// Describes a packet in words.
pub fn text(bytes: &[u8]) -> String {
    Packet::parse(bytes, &[]).map_or_else(|error| error.to_string(), |packet| packet.to_string())
}
