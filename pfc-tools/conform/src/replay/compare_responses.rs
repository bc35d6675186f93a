//! Compares the responses to a lane's requests with the captured ones.

use std::time::Duration;

use feroce_engine::qp::Service;
use feroce_wire::{Packet, Psn};

use super::align::{Kind, ResponseId, Step, align};
use super::compare::compare;
use super::lanes::{Captured, Lane};
use super::peer_rules::{PeerRules, PeerStatements};
use super::response_cause::SentRequests;
use super::sent_response::SentResponse;
use super::{Difference, Outcome};

/// A response may be this late: what it would answer at the end of the capture may be behind it.
const LONGEST_RESPONSE_TIME: Duration = Duration::from_millis(10);

/// The sender of the responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Responding {
    /// The engine: deviations of peers are not permitted.
    Engine,
    /// A live peer with a new QP.
    Peer {
        /// The PSN that it expects first.
        expects: Psn,
    },
}

impl Responding {
    /// Name of the sender in sentences.
    const fn name(self) -> &'static str {
        match self {
            Self::Engine => "the engine",
            Self::Peer { .. } => "the peer",
        }
    }
}

/// Compares the responses `sent` to the lane's requests with the captured ones.
pub fn compare_responses(
    lane: &Lane,
    frames: &[Captured],
    sent: &[SentResponse],
    responding: Responding,
    outcome: &mut Outcome,
) {
    let theirs = &lane.responses;
    let parsed = |bytes: &[u8]| Packet::parse(bytes, &[]).map(|packet| ResponseId::of(&packet));
    let ours: Vec<ResponseId> = sent.iter().filter_map(|sent| parsed(&sent.bytes).ok()).collect();
    let captured: Vec<ResponseId> =
        theirs.iter().map(|&index| ResponseId::of(&frames[index].packet())).collect();
    // A response may have been lost before the capture if the requester retransmits its request.
    let requests = SentRequests::of(lane, frames);
    // A live peer receives all requests, so a loss before the capture point cannot explain an extra
    // NAK of the peer.
    let may_be_extra = |at: usize| {
        responding == Responding::Engine
            || matches!(ours[at].kind, Kind::Ack | Kind::Read | Kind::Atomic)
    };
    let is_requested_again = |at: usize| {
        requests.last_for(ours[at].psn).is_some_and(|last| lane.requests[last] > sent[at].after)
    };
    let lost = |at: usize| may_be_extra(at) && is_requested_again(at);
    // `align` passes only responses after the last captured one.
    let open = |at: usize| may_be_extra(at) && may_be_behind_end(lane, frames, &sent[at]);
    let peers = match responding {
        Responding::Engine => None,
        Responding::Peer { expects } => Some(PeerRules::of(lane, frames, expects)),
    };
    outcome.differences.extend(peers.iter().flat_map(|peers| wrong(peers, frames, sent)));
    let statements = peers.as_ref().map(|peers| PeerStatements::by(&ours, sent, peers));
    // One response to consecutive duplicates replaces a response to each of them.
    let conveyed = |at: usize| {
        let statements = statements.as_ref().filter(|_| captured[at].kind != Kind::Sequence);
        statements.is_some_and(|statements| statements.is_conveyed(&captured[at], at))
    };
    let sender = responding.name();
    for step in align(&ours, &captured, lost, open, conveyed) {
        let (number, sentence) = match step {
            Step::Both(own, other) => {
                let frame = &frames[theirs[other]];
                outcome.compared += 1;
                let (bytes, tolerances) = (&sent[own].bytes, &mut outcome.tolerances);
                match compare(bytes, &frame.bytes, frame.number, peers.is_some(), tolerances) {
                    None => continue,
                    Some(sentence) => (frame.number, sentence),
                }
            }
            Step::Ours(own, Some(tolerance)) => {
                outcome.tolerances.count_use(tolerance, frames[sent[own].after].number);
                continue;
            }
            Step::Theirs(other, Some(tolerance)) => {
                outcome.tolerances.count_use(tolerance, frames[theirs[other]].number);
                continue;
            }
            Step::Ours(own, None) => {
                let (response, number) = (text(&sent[own].bytes), frames[sent[own].after].number);
                (number, format!("{sender} sends {response}, which the capture lacks"))
            }
            Step::Theirs(other, None) => {
                let Captured { number, ref bytes, .. } = frames[theirs[other]];
                let response = text(bytes);
                (number, format!("the capture has {response}, which {sender} does not send"))
            }
        };
        outcome.differences.push(Difference { packet: Some(number), sentence });
    }
}

/// Returns true if the response may have followed the end of the capture: its request is after the
/// last captured response, or near the end.
fn may_be_behind_end(lane: &Lane, frames: &[Captured], sent: &SentResponse) -> bool {
    let last = lane.responses.last().copied().unwrap_or(0);
    let end = frames.last().map_or(Duration::ZERO, |frame| frame.at);
    let is_near_end = frames[sent.after].at + LONGEST_RESPONSE_TIME > end;
    lane.service == Service::Rc && (sent.after > last || is_near_end)
}

/// Returns what is wrong with a peer's responses, whatever was captured.
fn wrong(peers: &PeerRules<'_>, frames: &[Captured], sent: &[SentResponse]) -> Vec<Difference> {
    let difference = |(at, why): (usize, String)| {
        let sentence = format!("the peer sends {}: {why}", text(&sent[at].bytes));
        Difference { packet: Some(frames[sent[at].after].number), sentence }
    };
    peers.wrong(sent).into_iter().map(difference).collect()
}

/// Describes a packet in words.
pub fn text(bytes: &[u8]) -> String {
    Packet::parse(bytes, &[]).map_or_else(|error| error.to_string(), |packet| packet.to_string())
}
